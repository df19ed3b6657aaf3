"""Draw a sort as an HTML page: the state of the master and of each worker over time, and every failure.

One file without scripts, fonts or pictures from elsewhere. Text from outside is escaped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from torpor.sort.job.report import (
    HEADINGS,
    JobReport,
    cells,
    count_text,
    facts,
    histories,
    seconds_text,
    size_text,
    verdict,
)
from torpor.sort.machine.history import Transition
from torpor.sort.machine.states import MasterState, WorkerState

W, M = WorkerState, MasterState

# The colour of each state. A waiting state has the pale colour of its phase.
COLOUR_OF: Mapping[str, str] = {
    W.INITIALIZING: "starting",
    W.SAMPLING: "sampling",
    W.WAITING_FOR_PARTITION_CONFIG: "sampling waiting",
    W.SORTING: "sorting",
    W.WAITING_FOR_SHUFFLE_SIGNAL: "sorting waiting",
    W.SHUFFLING: "shuffling",
    W.WAITING_FOR_MERGE_SIGNAL: "shuffling waiting",
    W.MERGING: "merging",
    W.COMPLETED: "completed",
    W.FAILED: "failed",
    M.WAITING_FOR_WORKERS: "starting waiting",
    M.CONFIGURING: "configuring",
}
LEGEND = (
    ("starting", "starting"),
    ("sampling", "sampling"),
    ("configuring", "choosing boundaries"),
    ("sorting", "sorting"),
    ("shuffling", "shuffling"),
    ("merging", "merging"),
    ("starting waiting", "pale: waiting for other workers"),
    ("failed", "failed; the number is the next attempt"),
)

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1120.0, 150.0, 18.0, 10.0, 34.0
PLOT = WIDTH - LEFT - RIGHT
LANE, BAR = 28.0, 18.0
LETTER = 6.3
"""The width of a letter in a bar. A label that does not fit is left to the legend and the tooltip."""
NAME_LETTERS = 20
NARROWEST = 0.75
TICKS = 8
WAIT_SHOWN, TAIL = 0.1, 0.02
"""The time that is drawn before and after the work, relative to the work."""


@dataclass(frozen=True, slots=True)
class StateSpan:
    """The time in one state, in seconds since the begin of the picture."""

    state: str
    begins: float
    ends: float
    attempt: int
    reason: str
    """Why the state was entered."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    name: str
    title: str
    spans: tuple[StateSpan, ...]


def page(report: JobReport) -> str:
    """A whole HTML document."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>torpor sort: {_text(report.outcome)}, {_text(size_text(report.proof.size))}</title>",
            f"<style>{STYLE}</style></head>",
            "<body><main>",
            f'<header><h1>torpor sort</h1><p class="verdict {_text(report.outcome)}">{_text(verdict(report))}</p></header>',
            _tiles(report),
            f'<section><h2>Phases over time</h2><div class="wide">{picture(report)}</div>{_legend()}</section>',
            f'<section><h2>Workers</h2><div class="wide">{_table(report)}</div></section>' if report.workers else "",
            f"<section><h2>Job</h2><dl>{''.join(_fact(*fact) for fact in facts(report))}</dl></section>",
            f"<section><h2>History</h2>{''.join(_history(*one) for one in histories(report))}</section>",
            "</main></body></html>",
            "",
        ]
    )


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────────


def picture(report: JobReport) -> str:
    """An SVG with one lane for the master and one for each worker."""
    drawn, length = lanes(report)
    scale = PLOT / length
    foot = TOP + LANE * len(drawn)
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {foot + BOTTOM:g}" role="img"'
            ' aria-label="The phases of the master and of all workers over time">',
            *_axis(length, scale, foot),
            *(part for row, lane in enumerate(drawn) for part in _lane(lane, TOP + LANE * row, scale)),
            "</svg>",
        ]
    )


def lanes(report: JobReport) -> tuple[list[TimelineRow], float]:
    """The states of master and workers over time, and the seconds to draw."""
    everything = [one.at for _, history in histories(report) for one in history] or [0.0]
    first, last = min(everything), max(everything)
    working = max(last - first, 1e-3)
    # A long wait for workers must not take the space of the work.
    begins = first - min(report.waited_seconds, WAIT_SHOWN * working)
    length = last - begins + TAIL * working
    # A history has no transition into the first state.
    opening = tuple(Transition("", one.source, begins, "started") for one in report.history[:1] if one.source)
    told = [((*opening, *report.history), "master"), *((worker.history, worker.identity) for worker in report.workers)]
    drawn = [
        TimelineRow(name, title, spans(history, begins, length))
        for (name, _), (history, title) in zip(histories(report), told, strict=True)
    ]
    return drawn, length


def spans(history: Sequence[Transition], begins: float, length: float) -> tuple[StateSpan, ...]:
    """Each state lasts until the next transition, and the last one until the end."""
    ends = [*(one.at - begins for one in history[1:]), length]
    return tuple(
        StateSpan(one.target, one.at - begins, max(one.at - begins, end), one.attempt, one.reason)
        for one, end in zip(history, ends, strict=bool(history))
    )


def _lane(lane: TimelineRow, top: float, scale: float) -> Iterator[str]:
    middle = top + LANE / 2
    yield f'<line class="rule" x1="0" x2="{WIDTH:g}" y1="{top + LANE:g}" y2="{top + LANE:g}"/>'
    yield f'<text class="name" x="4" y="{middle + 4:g}"><title>{_text(lane.title)}</title>{_text(_name(lane))}</text>'
    if not lane.spans:
        yield f'<text class="none" x="{LEFT + 6:g}" y="{middle + 4:g}">the history is not available</text>'
    for span in lane.spans:
        yield from _bar(span, top, scale)
    # Failures are drawn on top of the bars: most take no time at all, and readers look for them.
    for number, span in enumerate(lane.spans):
        if span.state == W.FAILED:
            yield from _break(span, lane.spans[number + 1 :], top, scale)


def _bar(span: StateSpan, top: float, scale: float) -> Iterator[str]:
    x, width = LEFT + span.begins * scale, max(NARROWEST, (span.ends - span.begins) * scale)
    colour = COLOUR_OF.get(span.state, "starting")
    # A worker that has finished still serves, but does not work.
    high = 3.0 if span.state == W.COMPLETED else BAR
    y = top + (LANE - high) / 2
    label = "waiting" if "waiting" in colour else span.state
    # The mark of a failure is at its begin.
    indent = 12.0 if span.state == W.FAILED else 5.0
    fits = len(label) * LETTER + indent + 5 <= width and span.state != W.COMPLETED
    yield f'<g class="{colour}"><title>{_text(_title(span))}</title>'
    yield f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{high:g}" rx="{min(2.0, width / 2):.2f}"/>'
    if fits:
        yield f'<text x="{x + indent:.2f}" y="{top + LANE / 2 + 4:g}">{_text(label)}</text>'
    yield "</g>"


def _break(failed: StateSpan, later: Sequence[StateSpan], top: float, scale: float) -> Iterator[str]:
    x = LEFT + failed.begins * scale
    # A worker learns its new attempt only when it registers again.
    attempt = next((span.attempt for span in later if span.attempt > failed.attempt), None)
    title = f"failed at {seconds_text(failed.begins)}: {failed.reason}"
    if later:
        title += f"; restarted at {seconds_text(later[0].begins)}: {later[0].reason}"
    yield f'<g class="break"><title>{_text(title)}</title>'
    yield f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{top + 2:g}" y2="{top + LANE - 2:g}"/>'
    yield f'<circle cx="{x:.2f}" cy="{top + LANE / 2:g}" r="7"/>'
    yield f'<text x="{x:.2f}" y="{top + LANE / 2 + 3.5:g}">{_text(attempt or "×")}</text></g>'


def _title(span: StateSpan) -> str:
    attempt = f", attempt {span.attempt}" if span.attempt else ""
    lasted = f"{seconds_text(span.ends - span.begins)}, from {seconds_text(span.begins)} to {seconds_text(span.ends)}"
    return f"{span.state}{attempt}: {lasted}" + (f"; {span.reason}" if span.reason else "")


def _name(lane: TimelineRow) -> str:
    return lane.name if len(lane.name) <= NAME_LETTERS else f"{lane.name[: NAME_LETTERS - 1]}…"


def _axis(length: float, scale: float, foot: float) -> Iterator[str]:
    step = tick(length)
    places = next(places for places in range(10) if round(step, places) == step)
    for number in range(int(length / step + 1e-9) + 1):
        x = LEFT + number * step * scale
        yield f'<line class="tick" x1="{x:.2f}" x2="{x:.2f}" y1="{TOP:g}" y2="{foot + 5:g}"/>'
        yield f'<text class="axis" x="{x:.2f}" y="{foot + 19:g}">{number * step:,.{places}f} s</text>'


def tick(length: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... with which there are few enough ticks."""
    steps = (factor * 10.0**power for power in range(-4, 12) for factor in (1, 2, 5))
    return next(round(step, 4) for step in steps if length / step <= TICKS)


# ── the rest ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tiles(report: JobReport) -> str:
    tiles = [
        ("records", f"{report.proof.records:,}"),
        ("data", size_text(report.proof.size)),
        ("time", seconds_text(report.working_seconds)),
        ("speed", f"{report.megabytes_per_second:,.0f} MB/s"),
        ("workers", str(len(report.workers))),
        ("largest share", f"{report.skew:.2f}"),
    ]
    drawn = (f"<div><b>{_text(value)}</b><span>{_text(name)}</span></div>" for name, value in tiles)
    return f'<section class="tiles">{"".join(drawn)}</section>'


def _legend() -> str:
    items = (f'<li><i class="{colour}"></i>{_text(means)}</li>' for colour, means in LEGEND)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _table(report: JobReport) -> str:
    share = HEADINGS.index("share")
    head = "".join(f"<th>{_text(heading)}</th>" for heading in HEADINGS)
    rows = []
    for worker in report.workers:
        texts = [f"<td>{_text(cell)}</td>" for cell in cells(report, worker)]
        # The middle of the meter is an equal share.
        full = min(100.0, report.share(worker) * 50)
        texts[share] = f'<td><span class="meter"><i style="width:{full:.1f}%"></i></span>{report.share(worker):.2f}</td>'
        rows.append(f"<tr>{''.join(texts)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _fact(name: str, value: str) -> str:
    return f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>"


def _history(name: str, history: Sequence[Transition]) -> str:
    first = history[0].at if history else 0.0
    rows = "".join(
        f'<tr class="{"trouble" if one.target == W.FAILED else "well"}">'
        f"<td>{_text(f'{one.at - first:.3f} s')}</td><td>{_text(one.attempt or '')}</td>"
        f"<td>{_text(one.source)} → {_text(one.target)}</td><td>{_text(one.reason)}</td></tr>"
        for one in history
    )
    head = "<thead><tr><th>after</th><th>attempt</th><th>from → to</th><th>reason</th></tr></thead>"
    troubles = sum(one.target == W.FAILED for one in history)
    trouble = "" if not troubles else ", failed once" if troubles == 1 else f", failed {troubles} times"
    summary = f"{name}: {count_text(len(history), 'transition')}{trouble}"
    return (
        f"<details{' open' if troubles else ''}><summary>{_text(summary)}</summary>"
        f'<div class="wide"><table class="history">{head}<tbody>{rows}</tbody></table></div></details>'
    )


def _text(said: object) -> str:
    return escape(str(said))


STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f6f7f9; --ink: #16202e; --faint: #5b6676; --rule: #dfe3e9;
  --label: #ffffff; --starting: #64748b; --sampling: #7c4fe0; --configuring: #b52fc4; --sorting: #2563eb; --shuffling: #b45309;
  --merging: #047857; --failed: #d0212b; --good: #047857; --unsure: #b45309; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #10151d; --panel: #19212c; --ink: #e7ecf3; --faint: #97a3b4; --rule: #2b3544; --label: #0b1119;
    --starting: #94a3b8; --sampling: #a78bfa; --configuring: #e07be9; --sorting: #6aa8fb; --shuffling: #f0b13c;
    --merging: #3ecf95; --failed: #fb7077; --good: #3ecf95; --unsure: #f0b13c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 15px; margin: 0; color: var(--faint); font-weight: 600; }
h2 { font-size: 17px; margin: 0 0 10px; }
section { margin-top: 30px; }
.verdict { font-size: 25px; line-height: 1.3; font-weight: 650; margin: 2px 0 0; overflow-wrap: anywhere; }
.valid { color: var(--good); } .unproven { color: var(--unsure); } .verdict.failed { color: var(--failed); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin-top: 20px; }
.tiles div { background: var(--panel); border-radius: 8px; padding: 10px 14px; }
.tiles b { display: block; font-size: 19px; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--faint); font-size: 13px; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 860px; height: auto; font: 11px system-ui, sans-serif; }
svg .name { font-size: 12.5px; fill: var(--ink); } svg .none { fill: var(--faint); font-style: italic; }
svg .rule, svg .tick { stroke: var(--rule); stroke-width: 1; }
svg .axis { fill: var(--faint); text-anchor: middle; font-size: 12px; }
svg g text { fill: var(--label); pointer-events: none; } svg g.waiting text { fill: var(--ink); }
.starting { --fill: var(--starting); } .sampling { --fill: var(--sampling); } .configuring { --fill: var(--configuring); }
.sorting { --fill: var(--sorting); } .shuffling { --fill: var(--shuffling); } .merging { --fill: var(--merging); }
.completed { --fill: var(--merging); } svg .failed, .legend .failed { --fill: var(--failed); }
svg g rect { fill: var(--fill); } svg g.waiting rect { fill-opacity: .25; } svg g.failed rect { fill-opacity: .35; }
svg g.failed text { fill: var(--ink); }
svg .break line { stroke: var(--failed); stroke-width: 2; }
svg .break circle { fill: var(--failed); stroke: var(--paper); stroke-width: 1.5; }
svg .break text { text-anchor: middle; font-size: 10px; font-weight: 700; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; padding: 0; margin: 8px 0 0;
  font-size: 13px; color: var(--faint); }
.legend i { display: inline-block; width: 14px; height: 10px; border-radius: 2px; margin-right: 6px; background: var(--fill); }
.legend i.waiting { opacity: .3; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th { color: var(--faint); font-weight: 600; font-size: 13px; }
th, td { padding: 5px 16px 5px 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th:last-child, td:last-child, .history td:nth-child(3), .history th:nth-child(3) { text-align: left; }
.history td:last-child { white-space: normal; overflow-wrap: anywhere; }
.trouble td { color: var(--failed); }
.meter { display: inline-block; position: relative; width: 64px; height: 8px; margin-right: 8px; border-radius: 2px;
  background: var(--panel); vertical-align: middle; }
.meter i { display: block; height: 100%; border-radius: 2px; background: var(--sorting); }
.meter::after { content: ""; position: absolute; left: 50%; top: -3px; bottom: -3px; border-left: 1px solid var(--faint); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
details { border-bottom: 1px solid var(--rule); padding: 6px 0; } summary { cursor: pointer; } details table { margin: 8px 0; }
"""
