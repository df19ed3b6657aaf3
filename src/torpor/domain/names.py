"""What may a workspace be called, and what are its parts called?

Every outside name is a function of the row, and safe as a DNS-1123 label.
"""

import re

from torpor.domain.errors import Refused

LONGEST_NAME = 40
NAME_RULE = f"a DNS label: 1 to {LONGEST_NAME} of a-z, 0-9 and -, beginning and ending with a letter or digit, without --"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Host names that mean the platform itself.
RESERVED = frozenset({"localhost", "api", "www", "torpor"})


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether a workspace may be called like this. `--` divides port from workspace in host names, ids are ids."""
    return _LABEL.fullmatch(text) is not None and "--" not in text and not is_id(text) and text not in RESERVED


def check_name(name: str) -> str:
    """The name, or Refused with what is allowed."""
    if is_name(name):
        return name
    if is_id(name):
        raise Refused("bad_name", f"{name!r} is shaped like an id, which is not allowed as a name", name=name)
    if name in RESERVED:
        raise Refused("bad_name", f"{name!r} is reserved; also reserved: {', '.join(sorted(RESERVED - {name}))}", name=name)
    raise Refused("bad_name", f"{name!r} cannot be a workspace's name; a name is {NAME_RULE}", name=name)


def volume_name(workspace_id: str, generation: int) -> str:
    return f"ws-{workspace_id}-home-{generation}"


_VOLUME = re.compile(rf"ws-({_ID.pattern})-home-([1-9][0-9]{{0,8}})")


def parse_volume_name(name: str) -> tuple[str, int] | None:
    """(workspace_id, generation), or None for what is not ours."""
    match = _VOLUME.fullmatch(name)
    return (match[1], int(match[2])) if match else None
