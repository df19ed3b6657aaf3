"""What does somebody see when the front answers by itself?

A page for people, a few lines of text for programs; both say what is the case and what to do.
"""

import base64
import hashlib
import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from string import Template
from typing import TypeAlias, assert_never

from torpor.domain.explain import OPERATION_MEANS
from torpor.domain.states import Operation, Phase
from torpor.proxy.outcomes import Outcome
from torpor.proxy.route import Asleep

REFRESH_S = 2
# For programs: nothing is under way, so it takes somebody's word and then a while.
ASLEEP_RETRY_S = 30

MISDIRECTED = 421


@dataclass(frozen=True, slots=True)
class Command:
    """Something to type."""

    words: str


@dataclass(frozen=True, slots=True)
class OnPage:
    """Something that is true of the page only."""

    words: str


Line: TypeAlias = str | Command | OnPage


@dataclass(frozen=True, slots=True)
class Notice:
    """What the front says by itself."""

    status: int
    title: str
    lines: tuple[Line, ...] = ()
    progress: int | None = None
    refresh_s: int | None = None
    retry_s: int | None = None
    outcome: Outcome = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def render(self, *, with_body: bool = True) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {reason(self.status)}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + (self.body if with_body else b"")


def reason(status: int) -> str:
    return HTTPStatus(status).phrase


# ── what there is to say ──────────────────────────────────────────────────────────────────────────────────────────────

TITLE: Mapping[Phase, str] = {
    Phase.PENDING: "has no home yet",
    Phase.ARCHIVED: "sleeps in the archive",
    Phase.STANDBY: "is asleep",
    Phase.RUNNING: "does not answer yet",
    Phase.ERROR: "is in trouble",
    Phase.DELETING: "is being deleted",
    Phase.DELETED: "is deleted",
}

# What somebody can type to have a workspace in this phase opened; nothing where time alone helps, or nothing does.
WAKE: Mapping[Phase, str | None] = {
    Phase.PENDING: "torpor start {name}",
    Phase.ARCHIVED: "torpor start {name}",
    Phase.STANDBY: "torpor start {name}",
    Phase.RUNNING: None,
    Phase.ERROR: "torpor explain {name}",
    Phase.DELETING: "torpor undelete {name}",
    Phase.DELETED: "torpor undelete {name}",
}

WAKE_MEANS: Mapping[Phase, str] = {
    Phase.PENDING: "Start it with:",
    Phase.ARCHIVED: "Wake it with:",
    Phase.STANDBY: "Wake it with:",
    Phase.RUNNING: "",
    Phase.ERROR: "See why, and the ways out, with:",
    Phase.DELETING: "Keep it after all with:",
    Phase.DELETED: "Bring it back with:",
}

# Operations at whose end it may answer, so that there is nothing to do but wait.
LEADS_UP = frozenset({Operation.PROVISIONING, Operation.RESTORING, Operation.STARTING})


TRIES_AGAIN = OnPage("This page tries again by itself.")


def asleep(place: Asleep) -> Notice:
    lines: list[Line] = []
    # RUNNING and yet not to be reached: seen between two looks, and over in a moment.
    moving = place.operation is not Operation.NONE or place.phase is Phase.RUNNING
    done = "" if place.progress is None else f" ({place.progress}\N{NO-BREAK SPACE}%)"
    lines.append(
        f"It is {place.phase}; {OPERATION_MEANS[place.operation]}{done if place.operation is not Operation.NONE else ''}."
    )
    if place.error:
        lines.append(place.error)
    command = WAKE[place.phase]
    if place.operation in LEADS_UP or command is None:
        lines.append(OnPage("It opens here by itself as soon as it answers."))
    else:
        lines += [WAKE_MEANS[place.phase], Command(command.format(name=place.name))]
        if not moving:
            lines.append(OnPage("Then load this page again."))
    return Notice(
        503,
        f"{place.name} {'is waking up' if place.operation in LEADS_UP else TITLE[place.phase]}",
        tuple(lines),
        progress=place.progress if place.operation is not Operation.NONE else None,
        # Only while something moves: a tab left open must never be what wakes a workspace.
        refresh_s=REFRESH_S if moving else None,
        retry_s=REFRESH_S if moving else ASLEEP_RETRY_S,
        outcome=Outcome.ASLEEP,
    )


def unknown(name: str) -> Notice:
    return Notice(
        404, f"There is no workspace {name}", ("See which there are with:", Command("torpor list")), outcome=Outcome.UNKNOWN
    )


def no_answer(name: str) -> Notice:
    return Notice(
        502,
        f"{name} does not answer",
        (
            "It is running, but the program inside did not answer.",
            TRIES_AGAIN,
            "See what it wrote with:",
            Command(f"torpor logs {name}"),
        ),
        refresh_s=2 * REFRESH_S,
        retry_s=2 * REFRESH_S,
        outcome=Outcome.NO_ANSWER,
    )


def no_platform() -> Notice:
    return Notice(
        502,
        "Torpor does not answer",
        ("Its API is starting, stopping, or in trouble.", TRIES_AGAIN),
        refresh_s=2 * REFRESH_S,
        retry_s=2 * REFRESH_S,
        outcome=Outcome.NO_ANSWER,
    )


def cannot_tell(name: str) -> Notice:
    return Notice(
        503,
        f"Torpor cannot look up {name} just now",
        (TRIES_AGAIN,),
        refresh_s=2 * REFRESH_S,
        retry_s=2 * REFRESH_S,
        outcome=Outcome.CANNOT_TELL,
    )


def misdirected(host: str, port: int) -> Notice:
    return Notice(
        MISDIRECTED,
        f"Torpor does not answer for {host}",
        (f"Here are only http://localhost:{port} and the workspaces below it, http://NAME.localhost:{port}.",),
        outcome=Outcome.MISDIRECTED,
    )


def cross_site() -> Notice:
    return Notice(403, "A page of another origin may not open a connection here", outcome=Outcome.CROSS_SITE)


def refused(status: int, message: str) -> Notice:
    return Notice(status, reason(status), (message,), outcome=Outcome.BAD_REQUEST)


def too_many() -> Notice:
    return Notice(503, "Too many connections are waiting to send their request", retry_s=1, outcome=Outcome.TOO_MANY)


# ── how it is said ────────────────────────────────────────────────────────────────────────────────────────────────────


def render(notice: Notice, *, as_html: bool) -> Answer:
    headers = {} if notice.retry_s is None else {"Retry-After": str(notice.retry_s)}
    if not as_html:
        return Answer(notice.status, "text/plain; charset=utf-8", _as_text(notice).encode(), headers)
    style = _file("page.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    headers["Content-Security-Policy"] = f"default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'"
    said = [_as_html(line) for line in notice.lines]
    if notice.refresh_s is not None and notice.status == HTTPStatus.SERVICE_UNAVAILABLE:
        value = "" if notice.progress is None else f' value="{notice.progress}"'
        said.append(f'<progress max="100"{value} aria-label="progress"></progress>')
    page = Template(_file("page.html")).substitute(
        title=html.escape(notice.title),
        refresh="" if notice.refresh_s is None else f'<meta http-equiv="refresh" content="{notice.refresh_s}">\n',
        style=style,
        said="".join(f"{part}\n" for part in said),
    )
    return Answer(notice.status, "text/html; charset=utf-8", page.encode(), headers)


def _as_html(line: Line) -> str:
    match line:
        case str(words) | OnPage(words):
            return f"<p>{html.escape(words)}</p>"
        case Command(words):
            return f"<code>{html.escape(words)}</code>"
        case _:
            assert_never(line)


def _as_text(notice: Notice) -> str:
    lines = [f"{notice.title}."]
    for line in notice.lines:
        match line:
            case str(words):
                lines.append(words)
            case Command(words):
                lines.append(f"  {words}")
            case OnPage():
                pass
            case _:
                assert_never(line)
    return "\n".join([*lines, ""])


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
