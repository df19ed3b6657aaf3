"""The exit codes of commands, and the advice that follows an error.

An error is one line on standard error, `torpor: <what> (<what to do>)`; with `--json` also a problem (RFC 9457) on standard
output.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    OK = 0
    REFUSED = 1
    """The server refused the request, or an unexpected error happened."""
    USAGE = 2
    """The command line or a setting is wrong."""
    ENDED_IN_ERROR = 3
    """The workspace or the sort has failed."""
    WISH_CHANGED = 4
    """Another request changed the requested state while this command waited."""
    TIMED_OUT = 5
    """Not done within `--timeout`; the request stays active."""
    UNREACHABLE = 6
    """The server, or another process of a sort, does not answer."""
    INTERRUPTED = 130
    """Ctrl-C."""


class CommandError(Exception):
    """The command has failed; `main` prints it and exits with `exit_code`."""

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
        """The problem that the API sent, or else the same form."""
        if self.problem is not None:
            return self.problem
        fields = {
            "type": f"about:blank#{self.code}",
            "title": self.code.replace("_", " "),
            "detail": self.what,
            "code": self.code,
        }
        return {**self.context, **fields, "advice": self.advice}


def one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def usage(what: str, advice: str = "", *, code: str = "usage") -> CommandError:
    return CommandError(ExitCode.USAGE, what, code=code, advice=advice)


# What the user can do, by the stable code of the error.
ADVICE: Mapping[str, str] = {
    "unauthorized": "check the API token in TORPOR_TOKEN or credentials.json, or sign in with `torpor login URL`",
    "bad_credentials": "try again; an administrator can set a new password with `torpor users change USER --password`",
    "scope_missing": "create an API token with `torpor tokens create LABEL --scope SCOPE`; `torpor login URL` gets every scope",
    "not_found": "`torpor list` shows your workspaces",
    "unknown_user": "administrators see all users with `torpor users list`",
    "username_taken": "choose another name",
    "name_taken": "choose another name",
    "is_deleted": "`torpor undelete {workspace}` restores it",
    "not_deleted": "`torpor show {workspace}` shows its status",
    "not_in_error": "`torpor explain {workspace}` explains its status",
    "not_running": "`torpor start {workspace} --wait` starts it",
    "no_such_archive": "`torpor archives {workspace}` lists them",
    "restore_in_progress": "`torpor restore {workspace} --cancel` keeps the present home",
    "no_restore": "`torpor explain {workspace}` explains its status",
    "no_archive": "`torpor archive {workspace} --wait` archives it",
    "no_such_file": "`torpor archives {workspace} --list FOLDER` lists a folder of an archive",
    "archive_damaged": "`torpor archives {workspace}` shows which archives are damaged",
    "checksum_mismatch": "read another archive, which `torpor archives {workspace}` lists, and tell an administrator",
    "archive_not_found": "read another archive, which `torpor archives {workspace}` lists, and tell an administrator",
    "archive_collected": "`torpor archives {workspace}` lists the archives that exist",
    "unknown_template": "`torpor templates` lists them",
    "command_required": "such as: torpor create NAME --template command -- PROGRAM ARGUMENT...",
    "limit_reached": "stop a workspace with `torpor stop NAME`; `torpor limits` shows which ones run",
    "disk_low": "delete a workspace with `torpor delete NAME`; `torpor list` shows the size of each",
}

# The command that lists the existing items, by the kind of item that was not found.
LISTED_BY: Mapping[str, str] = {
    "user": "`torpor users list` shows all users",
    "token": "`torpor tokens list` shows yours",
    "session": "`torpor sessions list` shows yours",
    "lease": "`torpor hold {workspace}` shows what keeps it awake",
    "share": "`torpor shares {workspace}` shows with whom it is shared",
    "latch": "`torpor doctor` shows which storage is locked",
}

# For all other codes, by HTTP status.
STATUS_ADVICE: Mapping[int, str] = {
    401: ADVICE["unauthorized"],
    403: "ask an administrator of this installation",
    404: ADVICE["not_found"],
    429: "try again in a moment",
    500: "see the log of the server, or run `torpor doctor` on its machine",
    502: "see the log of the server, or run `torpor doctor` on its machine",
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
    advice = LISTED_BY.get(str(problem.get("kind")), ADVICE["not_found"])
    return advice.format(workspace=workspace or problem.get("workspace", "NAME"))


def _who_permits(problem: Mapping[str, Any], _workspace: str) -> str:
    return "ask its owner" if "workspace" in problem else STATUS_ADVICE[403]


def _later(problem: Mapping[str, Any], _workspace: str) -> str:
    seconds = problem.get("retry_after_s")
    return f"try again in {seconds:.0f} s" if isinstance(seconds, int | float) else "try again in a moment"


# Advice that depends on the fields of the error.
ADVICE_FROM: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "say_which_way": _ways_to_recover,
    "not_found": _list_command,
    "too_many_sign_ins": _later,
    "forbidden": _who_permits,
}
