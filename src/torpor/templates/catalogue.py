"""Load the templates: the programs that a workspace can run.

Each template is a .toml file in this folder. Placeholders in braces in a command or in the environment depend on where the
program runs; the runtime fills them in.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torpor.domain.before_sleep import before_sleep_fault, chosen_before_sleep
from torpor.domain.errors import Hopeless, Refused
from torpor.domain.records import Workspace
from torpor.ports import CPU_WEIGHT, PLACEHOLDERS, Program

DEFAULT = "terminal"
# The limit of all arguments together, because every event about a workspace contains its command.
LONGEST_COMMAND_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    title: str
    description: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    packages: tuple[str, ...]
    takes_command: bool
    """The workspace brings its own command, and the template has none."""
    cpu_keeps_awake: bool = True
    """A workspace whose programs use the CPU is not stopped."""
    cpu_weight: int = CPU_WEIGHT
    before_sleep: tuple[str, ...] = ()
    """The command that runs before an automatic stop, without placeholders. Empty: none."""


def template(name: str) -> Template:
    """The template with this name; raises Refused if there is none."""
    found = templates().get(name)
    if found is None:
        allowed = tuple(templates())
        raise Refused(
            "unknown_template", f"There is no template {name!r}: choose one of {', '.join(allowed)}.", allowed=allowed
        )
    return found


def program(chosen: Template, command: tuple[str, ...] | None) -> Program:
    """The program that a container runs for a workspace with this template and command."""
    if command and not chosen.takes_command:
        takers = " or ".join(taker.name for taker in templates().values() if taker.takes_command)
        raise Refused(
            "command_not_taken", f"The template {chosen.name} runs its own program. Leave out the command, or choose {takers}."
        )
    if chosen.takes_command and not command:
        raise Refused("command_required", f"The template {chosen.name} needs a command: a program that listens on $PORT.")
    if command and (not command[0] or any("\0" in word for word in command)):
        raise Refused(
            "command_invalid",
            "A command is a program and its arguments: the program must not be empty, and none may contain a NUL.",
        )
    if command and sum(len(word.encode("utf-8", "surrogatepass")) for word in command) > LONGEST_COMMAND_BYTES:
        raise Refused(
            "command_invalid",
            f"A command has at most {LONGEST_COMMAND_BYTES // 1024} KiB. Put a longer one into a file and run that.",
        )
    return Program(
        chosen.name,
        command or chosen.command,
        chosen.environment,
        chosen.packages,
        is_verbatim=chosen.takes_command,
        cpu_weight=chosen.cpu_weight,
    )


@cache
def templates() -> Mapping[str, Template]:
    """All templates by name, read once; the default is the first."""
    found = load(Path(__file__).parent)
    return MappingProxyType({DEFAULT: found[DEFAULT], **found})


def load(folder: Path) -> Mapping[str, Template]:
    """All templates in a folder, sorted by name; raises Hopeless with the file and the wrong field."""
    found = {}
    for path in sorted(folder.glob("*.toml")):
        read = parse(path.name, path.read_text(encoding="utf-8"))
        found[read.name] = read
    return MappingProxyType(found)


# ── one file ──────────────────────────────────────────────────────────────────────────────────────────────────────────

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?==[A-Za-z0-9.!+]+")
CPU_WEIGHTS = range(1, 10_001)
"""As in cgroup version 2."""
BRACES = re.compile(r"\{([^{}]*)\}")


def parse(file: str, text: str) -> Template:
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Hopeless(f"{file}: not TOML: {error}") from error
    for field, value in written.items():
        if field not in FIELDS:
            raise template_error(file, field, f"unknown; the known fields are {', '.join(FIELDS)}")
        if (fault := FIELDS[field](value)) is not None:
            raise template_error(file, field, fault)
    for field in ("name", "title", "description"):
        if field not in written:
            raise template_error(file, field, "missing")
    if f"{written['name']}.toml" != file:
        raise template_error(file, "name", f"{written['name']!r} does not match the name of the file")
    takes_command = written.get("takes_command", False)
    if takes_command is ("command" in written):
        raise template_error(file, "command", "not allowed with takes_command = true" if takes_command else "missing")
    return Template(
        name=written["name"],
        title=written["title"],
        description=written["description"],
        command=tuple(written.get("command", ())),
        environment=MappingProxyType(dict(written.get("environment", {}))),
        packages=tuple(written.get("packages", ())),
        takes_command=takes_command,
        cpu_keeps_awake=written.get("cpu_keeps_awake", True),
        cpu_weight=written.get("cpu_weight", CPU_WEIGHT),
        before_sleep=tuple(written.get("before_sleep", ())),
    )


def counts_cpu(name: str) -> bool:
    """Whether CPU use keeps a workspace with this template awake; also true if the template no longer exists."""
    found = templates().get(name)
    return found is None or found.cpu_keeps_awake


def before_sleep_of(workspace: Workspace) -> tuple[str, ...]:
    """The command that runs before an automatic stop of this workspace; empty: none."""
    found = templates().get(workspace.template)
    return chosen_before_sleep(workspace.before_sleep, found.before_sleep if found is not None else ())


def template_error(file: str, field: str, fault: str) -> Hopeless:
    return Hopeless(f"{file}: {field}: {fault}", file=file, field=field)


def name_fault(value: Any) -> str | None:
    return (
        None
        if isinstance(value, str) and NAME.fullmatch(value)
        else f"{value!r} is not lower-case letters, digits and single dashes"
    )


def sentence_fault(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() and "\n" not in value else "must be one line of text"


def command_fault(value: Any) -> str | None:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) and word for word in value):
        return "must be a program and its arguments, a list of texts"
    return placeholder_fault(value)


def environment_fault(value: Any) -> str | None:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        return "must be a table of texts"
    unfit = [name for name in value if not VARIABLE.fullmatch(name)]
    return f"{unfit[0]!r} is not the name of a variable" if unfit else placeholder_fault(value.values())


def packages_fault(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(package, str) for package in value):
        return "must be a list of texts"
    loose = [package for package in value if not PINNED.fullmatch(package)]
    return f"{loose[0]!r} is not pinned as name==version" if loose else None


def yes_or_no_fault(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def weight_fault(value: Any) -> str | None:
    is_weight = isinstance(value, int) and not isinstance(value, bool) and value in CPU_WEIGHTS
    return None if is_weight else f"must be a number from {CPU_WEIGHTS[0]} to {CPU_WEIGHTS[-1]}"


def placeholder_fault(texts: Any) -> str | None:
    unknown = [name for text in texts for name in BRACES.findall(text) if name not in PLACEHOLDERS]
    return (
        f"unknown placeholder {{{unknown[0]}}}; the known ones are {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}"
        if unknown
        else None
    )


FIELD_MEANS: Mapping[str, str] = {
    "name": "the same as its file's, without `.toml`",
    "title": "a few words",
    "description": "one line",
    "command": "the program and its arguments",
    "environment": "variables for it, and for everything else that runs in the workspace",
    "packages": "PyPI packages that it needs, each pinned as `name==version`",
    "takes_command": "`true`: the workspace brings its own command, and the template has none",
    "cpu_keeps_awake": "`false`: programs that use the CPU do not keep the workspace awake",
    "cpu_weight": "1 to 10,000, by default 100: its share where the CPU is busy, compared with those of other workspaces",
    "before_sleep": "a program and its arguments that run before an automatic stop, unless the workspace has its own; without "
    "placeholders",
}

# The allowed fields, and the function that returns what is wrong with a value (None if it is valid).
FIELDS: Mapping[str, Callable[[Any], str | None]] = {
    "name": name_fault,
    "title": sentence_fault,
    "description": sentence_fault,
    "command": command_fault,
    "environment": environment_fault,
    "packages": packages_fault,
    "takes_command": yes_or_no_fault,
    "cpu_keeps_awake": yes_or_no_fault,
    "cpu_weight": weight_fault,
    "before_sleep": before_sleep_fault,
}
