"""Read and check the file of one template.

Placeholders in braces in a command or in the environment depend on where the program runs; the runtime fills them in.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torpor.domain.before_sleep import before_sleep_fault
from torpor.domain.environment import VARIABLE
from torpor.domain.errors import Hopeless
from torpor.domain.image_reference import image_fault
from torpor.domain.sizes import NO_SIZE, WorkspaceSize, cpu_fault, disk_fault, megabytes, memory_fault
from torpor.ports import CPU_WEIGHT, NODE_PACKAGE, PLACEHOLDERS

SUFFIX = ".toml"


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    title: str
    description: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    packages: tuple[str, ...]
    takes_command: bool
    """The workspace can bring its own command; it must, if the template has none."""
    cpu_keeps_awake: bool = True
    """A workspace whose programs use the CPU is not stopped."""
    cpu_weight: int = CPU_WEIGHT
    before_sleep: tuple[str, ...] = ()
    """The command that runs before an automatic stop, without placeholders. Empty: none."""
    size: WorkspaceSize = NO_SIZE
    image: str = ""
    """The image to run in, on a runtime that runs images. Empty: the runtime's default."""
    image_command: tuple[str, ...] = ()
    """The command on a runtime that runs images; empty: the same as `command`."""
    takes_image: bool = False
    """The workspace must name an image."""
    npm: tuple[str, ...] = ()

    @property
    def needs_engine(self) -> bool:
        """It says nothing that can run without an image."""
        return self.takes_image or (not self.command and bool(self.image_command))

    @property
    def needs_packages(self) -> bool:
        """It does not say how it runs in an image that contains them."""
        return bool(self.packages or self.npm) and not self.image_command

    @property
    def needs_command(self) -> bool:
        return self.takes_command and not self.command and not self.image_command


class TemplateBroken(Hopeless):
    """A template's file cannot be used. Each fault names the file, the field and what to do."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?==[A-Za-z0-9.!+]+")
NPM_PINNED = re.compile(r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*@\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?")
CPU_WEIGHTS = range(1, 10_001)
"""As in cgroup version 2."""
BRACES = re.compile(r"\{([^{}]*)\}")


def parse(file: str, text: str) -> Template:
    """The template in this file; raises TemplateBroken with everything that is wrong."""
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TemplateBroken([f"{file}: not TOML: {error}"]) from error
    if found := [f"{file}: {field}: {fault}" for field, fault in _faults(file, written)]:
        raise TemplateBroken(found)
    return Template(
        name=written["name"],
        title=written["title"],
        description=written["description"],
        command=tuple(written.get("command", ())),
        environment=MappingProxyType(dict(written.get("environment", {}))),
        packages=tuple(written.get("packages", ())),
        takes_command=written.get("takes_command", False),
        cpu_keeps_awake=written.get("cpu_keeps_awake", True),
        cpu_weight=written.get("cpu_weight", CPU_WEIGHT),
        before_sleep=tuple(written.get("before_sleep", ())),
        size=WorkspaceSize(
            cpu=float(written["cpu"]) if "cpu" in written else None,
            memory_mb=megabytes(written["memory"]) if "memory" in written else None,
            disk_mb=megabytes(written["disk"]) if "disk" in written else None,
        ),
        image=written.get("image", ""),
        image_command=tuple(written.get("image_command", ())),
        takes_image=written.get("takes_image", False),
        npm=tuple(written.get("npm", ())),
    )


def _faults(file: str, written: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each wrong field, and what is wrong with it."""
    found: list[tuple[str, str]] = []
    meant: set[str] = set()
    for field, value in written.items():
        if field not in FIELDS:
            near = nearest(field, FIELDS.keys() - written.keys()) or nearest(field, FIELDS)
            meant |= {near} if near else set()
            found.append((field, f"unknown; {f'did you mean {near}?' if near else known_fields()}"))
        elif (fault := FIELDS[field](value)) is not None:
            found.append((field, fault))
    takes_command, takes_image = written.get("takes_command") is True, written.get("takes_image") is True
    has_command = takes_command or "image_command" in {*written, *meant}
    needed = ("name", "title", "description", *(() if has_command else ("command",)))
    # A field whose name is misspelt is not reported as missing, too.
    found += [(field, f"missing; add {FIELD_MEANS[field]}") for field in needed if field not in written and field not in meant]
    name = written.get("name")
    if "name" in written and not name_fault(name) and f"{name}{SUFFIX}" != file:
        found.append(("name", f"{name!r} does not match the name of the file; rename the file to {name}{SUFFIX}"))
    if "image_command" in written and "image" not in written and not takes_image and "image" not in meant:
        found.append(("image_command", "it needs an image to run in; add image, or takes_image = true"))
    if takes_image and "image" in written:
        found.append(("image", "not allowed with takes_image = true; remove one of the two"))
    if written.get("npm") and not any(str(one).startswith(f"{NODE_PACKAGE}==") for one in written.get("packages") or ()):
        found.append(("npm", f"needs Node.js; add {NODE_PACKAGE}==VERSION to packages"))
    return found


def known_fields() -> str:
    return f"the known fields are {', '.join(FIELDS)}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return near[0] if near else None


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
    return f"{unfit[0]!r} is not the name of a variable" if unfit else placeholder_fault(list(value.values()))


def packages_fault(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(package, str) for package in value):
        return "must be a list of texts"
    loose = [package for package in value if not PINNED.fullmatch(package)]
    return f"{loose[0]!r} is not pinned as name==version" if loose else None


def npm_fault(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(package, str) for package in value):
        return "must be a list of texts"
    loose = [package for package in value if not NPM_PINNED.fullmatch(package)]
    return f"{loose[0]!r} is not pinned as name@1.2.3" if loose else None


def yes_or_no_fault(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def weight_fault(value: Any) -> str | None:
    is_weight = isinstance(value, int) and not isinstance(value, bool) and value in CPU_WEIGHTS
    return None if is_weight else f"must be a number from {CPU_WEIGHTS[0]} to {CPU_WEIGHTS[-1]}"


def placeholder_fault(texts: list[str]) -> str | None:
    unknown = [name for text in texts for name in BRACES.findall(text) if name not in PLACEHOLDERS]
    if not unknown:
        return "must not contain a NUL character" if any("\0" in text for text in texts) else None
    near = nearest(unknown[0], PLACEHOLDERS)
    known = f"did you mean {{{near}}}?" if near else f"the known ones are {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}"
    return f"unknown placeholder {{{unknown[0]}}}; {known}"


FIELD_MEANS: Mapping[str, str] = {
    "name": "the same as its file's, without `.toml`",
    "title": "a few words",
    "description": "one line",
    "command": "the program and its arguments",
    "environment": "variables for it, and for everything else that runs in the workspace",
    "packages": "PyPI packages that it needs, each pinned as `name==version`",
    "npm": f"npm packages that it needs, each pinned as `name@version`; Node.js itself is `{NODE_PACKAGE}` in `packages`",
    "takes_command": "`true`: the workspace can bring its own command; it must, if the template has none",
    "cpu_keeps_awake": "`false`: programs that use the CPU do not keep the workspace awake",
    "cpu_weight": "1 to 10,000, by default 100: its share where the CPU is busy, compared with those of other workspaces",
    "before_sleep": "a program and its arguments that run before an automatic stop, unless the workspace has its own; without "
    "placeholders",
    "cpu": "cores, such as `2` or `0.5`, of a workspace that is created without `--cpu`",
    "memory": 'memory, such as `"4G"`, of a workspace that is created without `--memory`',
    "disk": 'disk space, such as `"20G"`, as above; the runtime `process` does not enforce it',
    "image": 'the image to run in, such as `"docker.io/library/python:3.12"`, on a runtime that runs images; others ignore it',
    "image_command": "the program and its arguments in the image, if they differ from `command`; `packages` are not installed "
    "there. Without `command`, the template needs a runtime that runs images",
    "takes_image": "`true`: the workspace names the image (`--image`), and the template needs a runtime that runs images",
}

# The allowed fields, and the function that returns what is wrong with a value (None if it is valid).
FIELDS: Mapping[str, Callable[[Any], str | None]] = {
    "name": name_fault,
    "title": sentence_fault,
    "description": sentence_fault,
    "command": command_fault,
    "environment": environment_fault,
    "packages": packages_fault,
    "npm": npm_fault,
    "takes_command": yes_or_no_fault,
    "cpu_keeps_awake": yes_or_no_fault,
    "cpu_weight": weight_fault,
    "before_sleep": before_sleep_fault,
    "cpu": cpu_fault,
    "memory": memory_fault,
    "disk": disk_fault,
    "image": image_fault,
    "image_command": command_fault,
    "takes_image": yes_or_no_fault,
}
