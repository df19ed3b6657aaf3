"""How can a command end, and what does it say then?

One line on standard error, `torpor: <what> (<what to do>)`; with `--json` the same as a problem (RFC 9457) on standard output.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    OK = 0
    REFUSED = 1
    """Torpor said no, or something happened that nobody expected."""
    USAGE = 2
    """The command line or a setting is wrong."""
    ENDED_IN_ERROR = 3
    WISH_CHANGED = 4
    """Somebody wished something else meanwhile."""
    TIMED_OUT = 5
    """Not reached within `--timeout`; the wish stands."""
    UNREACHABLE = 6
    INTERRUPTED = 130


class CommandError(Exception):
    """The command is over, and not as it was meant."""

    def __init__(
        self,
        exit_code: ExitCode,
        what: str,
        *,
        code: str,
        advice: str = "",
        more: Sequence[str] = (),
        problem: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(what)
        self.exit_code = exit_code
        self.what = what
        self.code = code
        self.advice = advice
        self.more = tuple(more)
        self.problem = problem
        self.context = context or {}

    def as_text(self) -> str:
        line = one_line(self.what)
        return "\n".join([f"torpor: {line} ({one_line(self.advice)})" if self.advice else f"torpor: {line}", *self.more])

    def as_problem(self) -> Mapping[str, Any]:
        """What the API said, as it is; where the API said nothing, the same form."""
        if self.problem is not None:
            return self.problem
        said = {
            "type": f"about:blank#{self.code}",
            "title": self.code.replace("_", " "),
            "detail": self.what,
            "code": self.code,
        }
        return {**self.context, **said, "advice": self.advice}


def one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def usage(what: str, advice: str = "", *, code: str = "usage") -> CommandError:
    return CommandError(ExitCode.USAGE, what, code=code, advice=advice)


# What whoever was refused can do about it, by the stable code.
ADVICE: Mapping[str, str] = {
    "unauthorized": "is the token in TORPOR_TOKEN or credentials.json of this installation? `torpor login URL` signs in anew",
    "bad_credentials": "try again; an administrator can set a new password with `torpor users change USER --password`",
    "scope_missing": "`torpor tokens create LABEL --scope SCOPE` makes one that may; `torpor login URL` gets all",
    "not_found": "`torpor list` shows what there is",
    "unknown_user": "`torpor users list` shows who there is, if you are an administrator",
    "username_taken": "choose another name",
    "name_taken": "choose another name",
    "is_deleted": "`torpor undelete {workspace}` brings it back",
    "not_deleted": "`torpor show {workspace}` says how it stands",
    "not_in_error": "`torpor explain {workspace}` says how it stands",
    "not_running": "`torpor start {workspace} --wait` wakes it",
    "no_such_archive": "`torpor archives {workspace}` lists them",
    "archive_collected": "`torpor archives {workspace}` lists those that are kept",
    "unknown_template": "`torpor templates` lists them",
    "command_required": "torpor create NAME --template command -- PROGRAM ARGUMENT...",
    "limit_reached": "`torpor limits` shows what is running, `torpor stop NAME` makes room",
    "disk_low": "`torpor list` shows what each workspace uses, `torpor delete NAME` makes room",
}

# The command that lists what was not found, if that is no workspace.
LISTED_BY: Mapping[str, str] = {
    "user": "`torpor users list` shows who there is",
    "token": "`torpor tokens list` shows yours",
    "session": "`torpor sessions list` shows yours",
    "lease": "`torpor hold {workspace}` shows what holds it awake",
    "share": "`torpor shares {workspace}` shows with whom it is shared",
    "latch": "`torpor doctor` says where nothing is touched",
}

# Where the code is none of those.
STATUS_ADVICE: Mapping[int, str] = {
    401: ADVICE["unauthorized"],
    403: "ask an administrator of this installation",
    404: ADVICE["not_found"],
    429: "try again in a moment",
    500: "its log says more, `torpor doctor` examines the machine",
    502: "its log says more, `torpor doctor` examines the machine",
    503: "try again in a moment",
}


def advice_for(problem: Mapping[str, Any], status: int, workspace: str) -> str:
    code = str(problem.get("code", ""))
    if code in ADVICE_FROM:
        return ADVICE_FROM[code](problem, workspace)
    return (ADVICE.get(code) or STATUS_ADVICE.get(status, "")).format(workspace=workspace)


def _ways_to_recover(problem: Mapping[str, Any], workspace: str) -> str:
    ways = [f"`torpor recover {workspace} --archive-key {key}`" for key in problem.get("archive_keys", [])]
    accept = [f"`torpor recover {workspace} --accept`"] if problem.get("can_accept") else []
    return ", or ".join([*accept, *ways, f"`torpor recover {workspace} --empty`"])


def _list_command(problem: Mapping[str, Any], workspace: str) -> str:
    told = LISTED_BY.get(str(problem.get("kind")), ADVICE["not_found"])
    return told.format(workspace=workspace or problem.get("workspace", "NAME"))


def _who_permits(problem: Mapping[str, Any], _workspace: str) -> str:
    return "ask its owner" if "workspace" in problem else STATUS_ADVICE[403]


def _later(problem: Mapping[str, Any], _workspace: str) -> str:
    seconds = problem.get("retry_after_s")
    return f"try again in {seconds:.0f} s" if isinstance(seconds, int | float) else "try again in a moment"


# Advice that the refusal itself must complete.
ADVICE_FROM: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "say_which_way": _ways_to_recover,
    "not_found": _list_command,
    "too_many_sign_ins": _later,
    "forbidden": _who_permits,
}
