"""Render the responses of the gate: a page for browsers, a few lines of text for programs.

Both say what happened and what you can do. The pages are on the workspace's own host, where the programs of the workspace can
read them, so they contain nothing about other workspaces.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from string import Template
from typing import Any, TypeAlias, assert_never

from torpor.domain.hostnames import Hosts
from torpor.proxy.gate import Reply
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.readiness import Readiness
from torpor.proxy.request_head import Header
from torpor.proxy.wake_progress import WakeProgress

AGAIN_S = 4
WAKING_RETRY_S = 2
# For programs: no operation is in progress, so a user has to act first.
ASLEEP_RETRY_S = 30

MISDIRECTED = 421


@dataclass(frozen=True, slots=True)
class PageCommand:
    """A command to type."""

    words: str


@dataclass(frozen=True, slots=True)
class PageText:
    """A line for the page only, not for the text that programs get."""

    words: str


@dataclass(frozen=True, slots=True)
class PageButton:
    """A line with a button."""

    words: str
    button: str
    action: str
    """The path on the same host to which the form is posted."""


Line: TypeAlias = str | PageCommand | PageText | PageButton


@dataclass(frozen=True, slots=True)
class PageLink:
    words: str
    address: str
    is_main: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """The content of one response."""

    status: int
    title: str
    lines: tuple[Line, ...] = ()
    links: tuple[PageLink, ...] = ()
    following: WakeProgress | None = None
    """The page updates this status by itself, and opens the workspace when it is ready."""
    again_s: int | None = None
    """The page asks for the status after this time, although the workspace seemed ready."""
    go_on_s: int | None = None
    """The browser loads `go_on_to`, or this address again, after this time."""
    go_on_to: str | None = None
    retry_s: int | None = None
    outcome: RequestOutcome = field(kw_only=True)


# ── content ───────────────────────────────────────────────────────────────────────────────────────────────────────────

WHAT_YOU_CAN_DO: Mapping[Readiness, tuple[Line, ...]] = {
    Readiness.READY: (),
    Readiness.WAKING: (),
    Readiness.ASLEEP: ("Start it with:", PageCommand("torpor start {name}")),
    Readiness.ERROR: ("See the cause and what you can do with:", PageCommand("torpor explain {name}")),
    Readiness.DELETED: ("Undelete it with:", PageCommand("torpor undelete {name}")),
    Readiness.UNKNOWN: ("List your workspaces with:", PageCommand("torpor list")),
}
STATUS: Mapping[Readiness, int] = dict.fromkeys(Readiness, 503) | {Readiness.DELETED: 410, Readiness.UNKNOWN: 404}
OUTCOME: Mapping[Readiness, RequestOutcome] = dict.fromkeys(Readiness, RequestOutcome.ASLEEP) | {
    Readiness.WAKING: RequestOutcome.WAKING,
    Readiness.READY: RequestOutcome.WAKING,
    Readiness.UNKNOWN: RequestOutcome.UNKNOWN,
}


def dashboard(hosts: Hosts, name: str) -> PageLink:
    return PageLink("Open in the dashboard", f"{hosts.base_url}/workspaces/{name}")


def readiness_page(hosts: Hosts, following: WakeProgress, standing: Readiness) -> Notice:
    """The status of a workspace. The page of one that starts shows its progress and then opens it."""
    lines: list[Line] = [following.words] if following.words else []
    if following.error:
        lines.append(following.error)
    lines += [
        PageCommand(line.words.format(name=following.name)) if isinstance(line, PageCommand) else line
        for line in WHAT_YOU_CAN_DO[standing]
    ]
    return Notice(
        STATUS[standing],
        following.title,
        tuple(lines),
        links=(dashboard(hosts, following.name),),
        following=following,
        retry_s=WAKING_RETRY_S if following.moving else ASLEEP_RETRY_S,
        outcome=OUTCOME[standing],
    )


def over_limit(hosts: Hosts, name: str, message: str, room: str) -> Notice:
    """`room`: the address of the limit page, where you can stop another workspace."""
    return Notice(
        503,
        f"{name} cannot start: the limit of running workspaces is reached",
        (_sentence(message),),
        links=(PageLink("Choose a workspace to stop", room, is_main=True), dashboard(hosts, name)),
        go_on_s=0,
        go_on_to=room,
        retry_s=ASLEEP_RETRY_S,
        outcome=RequestOutcome.OVER_LIMIT,
    )


def disk_low(hosts: Hosts, name: str, message: str) -> Notice:
    return Notice(
        503,
        f"{name} cannot start: there is not enough disk space",
        # No automatic reload: an open tab must never start a workspace.
        (_sentence(message), PageText("Reload this page when there is space.")),
        links=(dashboard(hosts, name),),
        retry_s=ASLEEP_RETRY_S,
        outcome=RequestOutcome.DISK_LOW,
    )


def switching_runtime(hosts: Hosts, name: str, message: str) -> Notice:
    return Notice(
        503,
        f"{name} cannot start: all workspaces are being moved",
        (_sentence(message), PageText("Reload this page later.")),
        links=(dashboard(hosts, name),),
        retry_s=ASLEEP_RETRY_S,
        outcome=RequestOutcome.SWITCHING_RUNTIME,
    )


def workspace_not_found_page(name: str) -> Notice:
    """The same text whether the workspace does not exist or is not shared with the caller."""
    lines = ("Or it is not shared with you.", "List your workspaces with:", PageCommand("torpor list"))
    return Notice(404, f"There is no workspace {name}", lines, outcome=RequestOutcome.UNKNOWN)


def no_answer(hosts: Hosts, name: str, port: int | None) -> Notice:
    what = "its program did not respond" if port is None else f"no program responded on port {port}"
    return Notice(
        502,
        f"{name} does not respond" if port is None else f"Nothing responds on port {port} of {name}",
        (
            f"The workspace is running, but {what}.",
            PageText("This page retries automatically."),
            "See the output of the program with:",
            PageCommand(f"torpor logs {name}"),
        ),
        links=(dashboard(hosts, name),),
        again_s=AGAIN_S,
        retry_s=AGAIN_S,
        outcome=RequestOutcome.NO_ANSWER,
    )


def too_late(hosts: Hosts, name: str) -> Notice:
    return Notice(
        504,
        f"{name} takes too long to respond",
        (
            "The program got the request, but its response did not begin in time.",
            "See the output of the program with:",
            PageCommand(f"torpor logs {name}"),
        ),
        links=(dashboard(hosts, name),),
        outcome=RequestOutcome.NO_ANSWER,
    )


def no_platform(status: int = 502) -> Notice:
    return Notice(
        status,
        "Torpor does not respond",
        ("The API is starting, stopping, or unavailable.", PageText("This page retries automatically.")),
        go_on_s=AGAIN_S,
        retry_s=AGAIN_S,
        outcome=RequestOutcome.NO_ANSWER,
    )


def lookup_unavailable_page(name: str) -> Notice:
    return Notice(
        503,
        f"Torpor cannot look up {name} at the moment",
        (PageText("This page retries automatically."),),
        again_s=AGAIN_S,
        retry_s=AGAIN_S,
        outcome=RequestOutcome.CANNOT_TELL,
    )


def not_from_here(name: str) -> Notice:
    return Notice(
        MISDIRECTED,
        f"{name} cannot be opened here",
        ("This process does not have the role proxy. Open workspaces through a process that has it.",),
        outcome=RequestOutcome.MISDIRECTED,
    )


def misdirected(host: str, hosts: Hosts) -> Notice:
    where = hosts.url("NAME")
    return Notice(
        MISDIRECTED,
        f"Torpor does not serve {host}",
        (f"It serves {hosts.base_url} and the workspaces at {where}.",),
        outcome=RequestOutcome.MISDIRECTED,
    )


def cross_site() -> Notice:
    return Notice(403, "Requests from pages of another origin are not allowed", outcome=RequestOutcome.CROSS_SITE)


def unauthorized(hosts: Hosts) -> Notice:
    lines = (
        "Programs send an API token: Authorization: Bearer TOKEN, or X-Torpor-Token: TOKEN.",
        "See how to create one with:",
    )
    return Notice(
        401,
        "Sign in first",
        (*lines, PageCommand("torpor tokens create --help")),
        links=(PageLink("Sign in", hosts.base_url),),
        outcome=RequestOutcome.UNAUTHORIZED,
    )


def forbidden(message: str) -> Notice:
    return Notice(403, "Not allowed", (_sentence(message),), outcome=RequestOutcome.FORBIDDEN)


def bad_code(message: str, back: str) -> Notice:
    return Notice(
        403,
        "This sign-in link is not valid",
        (_sentence(message), "If this happens again, check that your browser accepts cookies on this host."),
        links=(PageLink("Try again", back, is_main=True),),
        outcome=RequestOutcome.SIGN_IN,
    )


def no_page() -> Notice:
    return Notice(404, "Page not found", ("Paths under /.torpor/ are reserved for Torpor.",), outcome=RequestOutcome.GATE)


def not_served() -> Notice:
    """For paths that this port does not serve."""
    return Notice(404, "Page not found", outcome=RequestOutcome.GATE)


def refused(
    status: int, title: str, message: str, *, outcome: RequestOutcome = RequestOutcome.GATE, retry_s: int | None = None
) -> Notice:
    return Notice(status, title, (_sentence(message),), retry_s=retry_s, outcome=outcome)


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:]}{'' if message.endswith(('.', '!', '?')) else '.'}"


# ── rendering ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SAFE_HEADERS: tuple[Header, ...] = (
    (b"Cache-Control", b"no-store"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"same-origin"),
)


def reply(notice: Notice, *, as_html: bool, more: tuple[Header, ...] = ()) -> Reply:
    headers: list[Header] = [*SAFE_HEADERS, *more]
    if notice.retry_s is not None:
        headers.append((b"Retry-After", b"%d" % notice.retry_s))
    if notice.status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"WWW-Authenticate", b"Bearer"))
    if not as_html:
        headers.append((b"Content-Type", b"text/plain; charset=utf-8"))
        return Reply(notice.status, notice.outcome, tuple(headers), _as_text(notice).encode())
    has_script = notice.following is not None or notice.again_s is not None
    headers += [
        (b"Content-Type", b"text/html; charset=utf-8"),
        (b"Content-Security-Policy", _policy(has_script=has_script, has_form=_has_form(notice)).encode("ascii")),
        (b"X-Frame-Options", b"DENY"),
        (b"Cross-Origin-Opener-Policy", b"same-origin"),
    ]
    return Reply(notice.status, notice.outcome, tuple(headers), _as_html(notice, has_script=has_script).encode())


def as_json(status: int, body: Mapping[str, Any], *, outcome: RequestOutcome = RequestOutcome.GATE) -> Reply:
    headers = (*SAFE_HEADERS, (b"Content-Type", b"application/json"))
    return Reply(status, outcome, headers, json.dumps(body).encode())


def logo() -> Reply:
    headers = ((b"Content-Type", b"image/svg+xml"), (b"Cache-Control", b"public, max-age=86400"), SAFE_HEADERS[1])
    return Reply(200, RequestOutcome.GATE, headers, _file("logo.svg").encode())


@cache
def _policy(*, has_script: bool, has_form: bool) -> str:
    parts = [
        "default-src 'none'",
        f"style-src '{_hash(_file('page.css'))}'",
        "img-src 'self'",
        "base-uri 'none'",
        f"form-action {chr(39)}{'self' if has_form else 'none'}{chr(39)}",
        "frame-ancestors 'none'",
    ]
    if has_script:
        parts += [f"script-src '{_hash(_file('follow.js'))}'", "connect-src 'self'"]
    return "; ".join(parts)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _as_html(notice: Notice, *, has_script: bool) -> str:
    said = _following_html(notice) if has_script else "".join(map(_line_as_html, notice.lines))
    links = "".join(map(_link_as_html, notice.links))
    if has_script:
        is_asleep = notice.following is not None and notice.following.can_wake
        # A link to the page's own address: a visit starts the workspace.
        links = f'<a id="wake" class="main" href=""{"" if is_asleep else " hidden"}>Start it</a>\n{links}'
    return Template(_file("page.html")).substitute(
        title=html.escape(notice.title),
        refresh=_refresh(notice),
        style=_file("page.css"),
        logo=_file("logo.svg"),
        following=_following_attributes(notice) if has_script else "",
        said=said + (f"<nav>\n{links}</nav>\n" if links else ""),
        script=f"<script>{_file('follow.js')}</script>\n" if has_script else "",
    )


def _refresh(notice: Notice) -> str:
    if notice.go_on_s is None:
        return ""
    where = f"; url={html.escape(notice.go_on_to)}" if notice.go_on_to else ""
    return f'<meta http-equiv="refresh" content="{notice.go_on_s}{where}">\n'


def _following_attributes(notice: Notice) -> str:
    following = notice.following
    moving = "yes" if following is not None and following.moving else "no"
    tag = following.tag if following is not None else ""
    again = f' data-again="{notice.again_s}"' if notice.again_s is not None else ""
    return f' data-after="{tag}" data-moving="{moving}"{again}'


def _following_html(notice: Notice) -> str:
    """All elements that the script may fill exist from the beginning, so that the layout does not jump."""
    following = notice.following
    if following is None:
        told, rest = "", notice.lines
        moving, progress, error, steps = False, None, None, ""
    else:
        told, rest = following.words, tuple(line for line in notice.lines if line not in (following.words, following.error))
        moving, progress, error = following.moving, following.progress, following.error
        steps = "".join(f'<li data-state="{step.state}">{html.escape(step.words)}</li>\n' for step in following.steps)
    value = "" if progress is None else f' value="{progress}"'
    return "".join(
        (
            f'<p id="words" role="status">{html.escape(told)}</p>\n',
            f'<p id="error"{"" if error else " hidden"}>{html.escape(error or "")}</p>\n',
            f'<div id="rest"{" hidden" if moving else ""}>\n{"".join(map(_line_as_html, rest))}</div>\n',
            f'<progress id="bar" max="100" aria-labelledby="words"{value}{"" if moving else " hidden"}></progress>\n',
            f'<ol id="steps"{"" if steps else " hidden"}>\n{steps}</ol>\n',
            f'<p id="note"{"" if moving else " hidden"}>The workspace opens here automatically when it is ready.</p>\n',
            "<noscript><p>Reload this page in a moment.</p></noscript>\n",
        )
    )


def _line_as_html(line: Line) -> str:
    match line:
        case str(words) | PageText(words):
            return f"<p>{html.escape(words)}</p>\n"
        case PageCommand(words):
            return f"<code>{html.escape(words)}</code>\n"
        case PageButton(words, button, action):
            return (
                f"<ul><li><span>{html.escape(words)}</span>"
                f'<form method="post" action="{html.escape(action)}"><button>{html.escape(button)}</button></form></li></ul>\n'
            )
        case _:
            assert_never(line)


def _link_as_html(link: PageLink) -> str:
    main = ' class="main"' if link.is_main else ""
    return f'<a{main} href="{html.escape(link.address)}">{html.escape(link.words)}</a>\n'


def _has_form(notice: Notice) -> bool:
    return any(isinstance(line, PageButton) for line in notice.lines)


def _as_text(notice: Notice) -> str:
    lines = [f"{notice.title}."]
    for line in notice.lines:
        match line:
            case str(words):
                lines.append(words)
            case PageCommand(words):
                lines.append(f"  {words}")
            case PageText() | PageButton():
                pass
            case _:
                assert_never(line)
    return "\n".join([*lines, ""])


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
