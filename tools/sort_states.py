"""Draw the state machines of the sort from their tables."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import TypeVar

from torpor.sort.data.worker_directory import REMOVED
from torpor.sort.machine import master, worker
from torpor.sort.machine.reactions import Row
from torpor.sort.machine.states import (
    MASTER_MAY_GO_TO,
    MASTER_MEANS,
    MASTER_WAY,
    PHASE_OF,
    PROGRESS,
    WORKER_MAY_GO_TO,
    WORKER_MEANS,
    WORKER_WAY,
    WORKING,
    MasterState,
    WorkerState,
)

State = TypeVar("State", bound=StrEnum)
STEP, LEFT, WIDTH, HEIGHT = 62, 60, 230, 36
FAILED_X = 470


def worker_picture() -> str:
    return _picture("The states of a worker", WORKER_WAY, WorkerState.FAILED, WORKER_MAY_GO_TO, frozenset(WORKING))


def master_picture() -> str:
    working = frozenset(MasterState) - {MasterState.WAITING_FOR_WORKERS, MasterState.COMPLETED, MasterState.FAILED}
    return _picture("The states of the master", MASTER_WAY, MasterState.FAILED, MASTER_MAY_GO_TO, working)


def _picture(
    title: str,
    way: Sequence[State],
    failed: State,
    may_go_to: Mapping[State, frozenset[State]],
    working: frozenset[State],
) -> str:
    """The states from top to bottom; beside them Failed, with a line from every state that can fail, and the way back."""
    height = 40 + STEP * len(way)
    places = {state: 40 + STEP * place for place, state in enumerate(way)}
    middle = (places[way[0]] + places[way[-2]]) // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" font-family="system-ui" font-size="14">',
        f"<title>{title}</title>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L10 5 L0 10 z" fill="#5b6b7b"/></marker></defs>',
        f'<rect width="700" height="{height}" rx="12" fill="#f7f8fa"/>',
    ]
    centre, right = LEFT + WIDTH // 2, LEFT + WIDTH
    for one, following in pairwise(way):
        assert following in may_go_to[one]
        parts.append(_line(centre, places[one] + HEIGHT // 2, centre, places[following] - HEIGHT // 2 - 2))
    failing = [state for state in way if failed in may_go_to[state]]
    parts += [_line(right, places[state], FAILED_X - 2, middle, faint=True) for state in failing]
    for state in may_go_to[failed]:
        y = places[state]
        parts.append(
            f'<path d="M{FAILED_X + 75} {middle - HEIGHT // 2} V{y - 10} H{right + 3}" fill="none" stroke="#5b6b7b"'
            f' stroke-width="1.6" marker-end="url(#tip)"/><text x="{FAILED_X + 67}" y="{y + 8}" text-anchor="end"'
            ' fill="#374151" font-size="12">started again</text>'
        )
    for state in way:
        fill = "#2f7d5d" if state is way[-1] else "#3b6ea5" if state in working else "#6b7280"
        parts.append(_box(LEFT, places[state], WIDTH, state, fill))
    parts.append(_box(FAILED_X, middle, 150, failed, "#a23b3b"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _box(x: int, y: int, width: int, label: str, fill: str) -> str:
    return (
        f'<rect x="{x}" y="{y - HEIGHT // 2}" width="{width}" height="{HEIGHT}" rx="18" fill="{fill}"/>'
        f'<text x="{x + width // 2}" y="{y + 5}" text-anchor="middle" fill="#fff" font-weight="600">{label}</text>'
    )


def _line(x1: int, y1: int, x2: int, y2: int, *, faint: bool = False) -> str:
    stroke = 'stroke="#c9a3a3" stroke-width="1.2"' if faint else 'stroke="#5b6b7b" stroke-width="1.6" marker-end="url(#tip)"'
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {stroke}/>'


def rows_of_worker() -> list[tuple[str, ...]]:
    return [
        (
            state.value,
            ", ".join(target.value for target in WorkerState if target in WORKER_MAY_GO_TO[state]) or "none",
            _progress(*PROGRESS[state]),
            PHASE_OF[state].value,
            WORKER_MEANS[state],
            ", ".join(sorted(what.value for what in REMOVED[state])),
        )
        for state in WorkerState
    ]


def _progress(begins: float, share: float) -> str:
    return f"{begins:g} + {share:.2f} p" if share else f"{begins:g}"


def rows_of_master() -> list[tuple[str, ...]]:
    return [
        (
            state.value,
            ", ".join(target.value for target in MasterState if target in MASTER_MAY_GO_TO[state]) or "none",
            master.STAGE_OF[state].value,
            MASTER_MEANS[state],
        )
        for state in MasterState
    ]


def reactions_of_worker() -> list[tuple[str, ...]]:
    return _reactions(worker.REACTS, list(WorkerState))


def reactions_of_master() -> list[tuple[str, ...]]:
    return _reactions(master.REACTS, list(MasterState))


def _reactions(reacts: Mapping[type, Row[State]], states: Sequence[State]) -> list[tuple[str, ...]]:
    return [(event.__name__, *(row[state].value for state in states)) for event, row in reacts.items()]
