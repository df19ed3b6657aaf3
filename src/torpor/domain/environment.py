"""Decide which variables a workspace may have of its own, and which value counts.

They are given to the program, to commands and to shells, as they are: braces in them are not placeholders.
"""

import re
from collections.abc import Iterable, Mapping

from torpor.domain.errors import Refused

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name as POSIX defines it."""
LONGEST_VARIABLE = 255

# Names that Torpor sets itself, and what to do instead.
RESERVED: Mapping[str, str] = {
    "PORT": "Torpor sets it for the program",
    "HOME": "Torpor sets it; the home is always at the same path",
    "USER": "Torpor sets it",
    "LOGNAME": "Torpor sets it",
    "PATH": "put programs into ~/.local/bin, which is in PATH, or change PATH in ~/.profile",
    "PYTHONPATH": "the template's program needs its own; set it in ~/.profile, or install packages into the home",
    "TORPOR_WORKSPACE": "Torpor sets it to the workspace's name",
    "WORKSPACE_MARK": "Torpor finds the processes of a workspace by it",
}


def variable_fault(name: str) -> str | None:
    """What is wrong with the name of a variable or a secret; None if it is valid."""
    if not VARIABLE.fullmatch(name) or len(name) > LONGEST_VARIABLE:
        shown = repr(name[:LONGEST_VARIABLE])
        return f"{shown} is not the name of a variable: use letters, digits and _, and begin with a letter or _"
    return f"{name} is reserved: {RESERVED[name]}" if name in RESERVED else None


def variable_bytes(name: str, value: str) -> int:
    """As the kernel counts it: NAME=VALUE and a NUL."""
    return len(name) + len(value.encode("utf-8", "surrogatepass")) + 2


def changed_environment(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The variables after the changes; None removes one. Refused `bad_environment` if a name or a value is not allowed."""
    for name, value in changes.items():
        if (fault := variable_fault(name)) is not None:
            raise Refused("bad_environment", f"{fault}.", variable=name)
        if value is not None and "\0" in value:
            raise Refused("bad_environment", f"the value of {name} contains a NUL character.", variable=name)
    merged: dict[str, str | None] = {**before, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def check_size(environment: Mapping[str, str], secret_bytes: Iterable[int], limit_bytes: int | None) -> None:
    """Refused `bad_environment` if the variables and secrets of a workspace together are too large."""
    used = sum(variable_bytes(name, value) for name, value in environment.items()) + sum(secret_bytes)
    if limit_bytes is not None and used > limit_bytes:
        raise Refused(
            "bad_environment",
            f"the variables and secrets of the workspace have {used} bytes in total; at most {limit_bytes} are allowed "
            "(setting workspace_environment_kb). Put large values into a file of the home.",
            limit_bytes=limit_bytes,
        )
