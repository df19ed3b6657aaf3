"""Generate the documents that repeat the source, and check that they are up to date.

python -m tools.docs            writes them
python -m tools.docs --check    fails when one of them is out of date
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase
from tools import architecture, messages, sort_states
from tools.grafana import dashboard
from tools.protos import drawn as drawn_protos

from torpor import metrics
from torpor.api.refusals import STATUS_OF
from torpor.domain.effects import NEXT_EFFECT
from torpor.domain.errors import CODE_MEANS, IS_RETRIED
from torpor.domain.explain import OPERATION_MEANS, PHASE_MEANS, WAITS_FOR
from torpor.domain.states import LEVEL, Operation, Phase, Wish
from torpor.domain.transitions import NEXT_OPERATION, TURNS, DetailedPhase
from torpor.ports import PLACEHOLDERS
from torpor.settings import OTHER_VARIABLES, PREFIX, SECRET, Settings
from torpor.sort.machine.states import MasterState, WorkerState
from torpor.templates.catalogue import shipped
from torpor.templates.template_file import FIELD_MEANS
from torpor.testing.defaults import DEFAULTS

ROOT = Path(__file__).parent.parent
DRAWN = "<!-- Drawn from the source by `make docs`; do not edit. -->\n\n"
WISHES = (Wish.ARCHIVED, Wish.STANDBY, Wish.RUNNING, Wish.DELETED)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def states_page() -> str:
    operations = [operation for operation in Operation if operation is not Operation.NONE]
    return DRAWN + "\n".join(
        (
            "# States and operations\n",
            "![The phases and the operations between them](../pictures/states.svg)\n",
            "## Phases\n",
            table(("phase", "level", "a workspace in it"), [(p.value, str(LEVEL.get(p, "-")), PHASE_MEANS[p]) for p in Phase]),
            "## The next operation, by phase and requested state\n",
            table(
                ("phase, requested state:", *(wish.value for wish in WISHES)),
                [(standing.value, *(_dash(NEXT_OPERATION[standing][wish]) for wish in WISHES)) for standing in DetailedPhase],
            ),
            "## Operations\n",
            table(
                ("operation", "means", "is done when observed", "seconds without progress"),
                [(o.value, OPERATION_MEANS[o], WAITS_FOR[o], f"{DEFAULTS.tuning.timeouts_s[o]:g}") for o in operations],
            ),
            "## Safe points: what happens to an operation in progress when the requested state changes to ...\n",
            table(
                ("operation", *(wish.value for wish in WISHES)),
                [(o.value, *(TURNS[o][wish].value for wish in WISHES)) for o in operations],
            ),
        )
    )


def _dash(operation: Operation) -> str:
    return "-" if operation is Operation.NONE else operation.value


def errors_page() -> str:
    return DRAWN + "\n".join(
        (
            "# Errors\n",
            "## Reasons (`error_info.reason`)\n",
            table(("reason", "tried again"), [(r.value, "yes" if retried else "no") for r, retried in IS_RETRIED.items()]),
            "## Codes of providers\n",
            table(("code", "reason"), [(code.value, reason.value) for code, reason in CODE_MEANS.items()]),
            "## Refusals of the API (`code` of `application/problem+json`)\n",
            table(("code", "status"), [(code, str(status)) for code, status in STATUS_OF.items()]),
        )
    )


def settings_page() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        default = "the user's data folder" if name == "data" else _default(field.default)
        secret = " (never printed)" if name in SECRET else ""
        rows.append((f"`{name}`", f"`{PREFIX}{name.upper()}`", default, f"{field.description}{secret}"))
    intro = (
        "Command line, then environment, then `torpor.toml` (in the current folder, or where `TORPOR_CONFIG` points), then the "
        "default. A wrong value is refused at the start, with its name and what is allowed; so is a variable `TORPOR_...` that "
        "is not listed here, with the nearest name.\n"
    )
    others = [(f"`{name}`", meaning) for name, meaning in OTHER_VARIABLES.items()]
    return DRAWN + "\n".join(
        (
            "# Settings\n",
            intro,
            table(("in torpor.toml", "environment", "default", "what it is"), rows),
            "## Other variables\n",
            table(("environment", "what it is"), others),
        )
    )


def _default(value: object) -> str:
    """The value as in torpor.toml."""
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def templates_page() -> str:
    rows = [
        (one.name, one.title, one.description, "yes" if one.takes_command else "no") for one in shipped().templates.values()
    ]
    holders = [(f"`{{{name}}}`", meaning) for name, meaning in PLACEHOLDERS.items()]
    fields = [(f"`{name}`", meaning) for name, meaning in FIELD_MEANS.items()]
    return DRAWN + "\n".join(
        (
            "# Templates\n",
            table(("name", "title", "description", "takes a command"), rows),
            "## What a template's file may contain\n",
            table(("field", "is"), fields),
            "## What a template's command and environment may refer to\n",
            table(("placeholder", "is"), holders),
        )
    )


def metrics_page() -> str:
    rows = [
        (f"`{name}`", str(collector._type), ", ".join(collector._labelnames) or "-", collector._documentation)
        for name, collector in sorted(collectors().items())
    ]
    return DRAWN + "\n".join(
        (
            "# Metrics\n",
            "At `/metrics` of every process, for Prometheus; `deploy/grafana/torpor.json` is a dashboard of them.\n",
            table(("name", "kind", "labels", "what it is"), rows),
        )
    )


def sort_page() -> str:
    return DRAWN + "\n".join(
        (
            "# The machines of the sort\n",
            "## The worker\n",
            "![The states of a worker](../pictures/sort-worker.svg)\n",
            table(
                ("state", "may go to", "progress", "phase", "in it", "removed after a failure in it, if not kept"),
                sort_states.rows_of_worker(),
            ),
            "The reaction of each state to each event:\n",
            table(("event", *(state.value for state in WorkerState)), sort_states.reactions_of_worker()),
            "## The master\n",
            "![The states of the master](../pictures/sort-master.svg)\n",
            table(("state", "may go to", "goal of the workers", "in it"), sort_states.rows_of_master()),
            "The reaction of each state to each event:\n",
            table(("event", *(state.value for state in MasterState)), sort_states.reactions_of_master()),
        )
    )


def collectors() -> Mapping[str, MetricWrapperBase]:
    """Every metric, by its name in Prometheus."""
    found = [one for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)]
    return {one._name + ("_total" if one._type == "counter" else ""): one for one in found}


def openapi() -> str:
    from types import SimpleNamespace
    from typing import Any, cast

    from torpor.api.app import Health, make_app
    from torpor.api.events import EventSources
    from torpor.api.gc import GcSources
    from torpor.domain.hostnames import Hosts

    nothing: Any = None
    app = make_app(
        cast(Any, SimpleNamespace(using=nothing)),
        nothing,
        nothing,
        cast(Health, nothing),
        hosts=Hosts("http://localhost:8080", "localhost"),
        events=EventSources(nothing, nothing, 30),
        gc=GcSources(nothing, nothing, nothing, nothing),
        usage=nothing,
        reading=nothing,
    )
    return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────────

PLACES: Mapping[DetailedPhase, tuple[int, int]] = {
    DetailedPhase.RUNNING: (400, 60),
    DetailedPhase.STANDBY: (400, 180),
    DetailedPhase.ARCHIVED: (400, 300),
    DetailedPhase.PENDING: (110, 300),
    DetailedPhase.DELETED: (690, 300),
}
# The phase after each operation.
LEADS_TO: Mapping[Operation, DetailedPhase] = {
    Operation.PROVISIONING: DetailedPhase.STANDBY,
    Operation.RESTORING: DetailedPhase.STANDBY,
    Operation.ACCEPTING: DetailedPhase.STANDBY,
    Operation.STARTING: DetailedPhase.RUNNING,
    Operation.STOPPING: DetailedPhase.STANDBY,
    Operation.ARCHIVING: DetailedPhase.ARCHIVED,
    Operation.COPYING: DetailedPhase.ARCHIVED,
    Operation.CREATE_EMPTY_ARCHIVE: DetailedPhase.ARCHIVED,
    Operation.DELETING: DetailedPhase.DELETED,
}


def picture() -> str:
    """The phases on their levels, with an arrow for every operation between two of them."""
    arrows = sorted(
        {
            (standing, operation)
            for standing in PLACES
            for operation in NEXT_OPERATION[standing].values()
            if operation is not Operation.NONE and LEADS_TO[operation] is not standing
        },
        key=lambda arrow: (arrow[0].name, arrow[1].name),
    )
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 370" font-family="system-ui, sans-serif" font-size="14">',
        "<title>The phases of a workspace and the operations between them</title>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L10 5 L0 10 z" fill="#5b6b7b"/></marker></defs>',
        '<rect width="800" height="370" rx="12" fill="#f7f8fa"/>',
    ]
    pairs: dict[frozenset[DetailedPhase], list[tuple[DetailedPhase, Operation]]] = {}
    for start, claimed in arrows:
        pairs.setdefault(frozenset((start, LEADS_TO[claimed])), []).append((start, claimed))
    for both in pairs.values():
        for origin, operation in both:
            parts.append(_arrow(PLACES[origin], PLACES[LEADS_TO[operation]], operation.value, is_pair=len(both) > 1))
    for standing, (x, y) in PLACES.items():
        fill = {"RUNNING": "#2f7d5d", "STANDBY": "#3b6ea5", "ARCHIVED": "#5b4b8a"}.get(standing.name, "#6b7280")
        parts.append(f'<rect x="{x - 60}" y="{y - 20}" width="120" height="40" rx="20" fill="{fill}"/>')
        parts.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="#fff" font-weight="600">{standing.name}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _arrow(begin: tuple[int, int], end: tuple[int, int], label: str, *, is_pair: bool) -> str:
    (x1, y1), (x2, y2) = begin, end
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    along = ((x2 - x1) / length, (y2 - y1) / length)
    across = (-along[1], along[0])
    aside = 14 if is_pair else 0
    reach_x, reach_y = (62 if abs(along[0]) > 0.6 else 0), 22
    from_x, from_y = x1 + along[0] * reach_x + across[0] * aside, y1 + along[1] * reach_y + across[1] * aside
    to_x, to_y = x2 - along[0] * reach_x + across[0] * aside, y2 - along[1] * reach_y + across[1] * aside
    text_x, text_y = (from_x + to_x) / 2 + across[0] * 8, (from_y + to_y) / 2 + across[1] * 8 + 4
    anchor = "middle" if abs(across[0]) < 0.5 else "start" if across[0] > 0 else "end"
    if anchor == "middle":
        text_y = (from_y + to_y) / 2 + 18
    if label == Operation.PROVISIONING.value:
        anchor, text_x = "end", text_x - 12
    return (
        f'<line x1="{from_x:.0f}" y1="{from_y:.0f}" x2="{to_x:.0f}" y2="{to_y:.0f}" stroke="#5b6b7b" stroke-width="1.6"'
        f' marker-end="url(#tip)"/><text x="{text_x:.0f}" y="{text_y:.0f}" text-anchor="{anchor}" fill="#374151"'
        f' font-size="12">{label}</text>'
    )


DOCUMENTS: Mapping[str, Callable[[], str]] = {
    architecture.PAGE: architecture.page,
    "docs/reference/states.md": states_page,
    "docs/reference/errors.md": errors_page,
    "docs/reference/settings.md": settings_page,
    "docs/reference/templates.md": templates_page,
    "docs/reference/messages.md": messages.page,
    "docs/reference/metrics.md": metrics_page,
    "deploy/grafana/torpor.json": dashboard,
    "docs/reference/openapi.json": openapi,
    "docs/pictures/states.svg": picture,
    "docs/reference/sort.md": sort_page,
    "docs/pictures/sort-worker.svg": sort_states.worker_picture,
    "docs/pictures/sort-master.svg": sort_states.master_picture,
    **drawn_protos(),
}


def main(*, check: bool) -> int:
    assert NEXT_EFFECT.keys() | {Operation.NONE} == set(Operation)
    stale = []
    for name, draw in DOCUMENTS.items():
        path, text = ROOT / name, draw()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"out of date (run `make docs`): {', '.join(stale)}", file=sys.stderr)
        return 1
    print(f"{len(DOCUMENTS)} documents are up to date" if check or not stale else f"written: {', '.join(stale)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
