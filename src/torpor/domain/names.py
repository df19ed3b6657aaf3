"""Check the names of workspaces and packs, and derive the names of volumes.

Every name outside the database is a function of the row, and a valid DNS-1123 label.
"""

import re

from torpor.domain.errors import Refused

LONGEST_NAME = 40
NAME_RULE = f"a DNS label: 1 to {LONGEST_NAME} of a-z, 0-9 and -, beginning and ending with a letter or digit, without --"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Host names that mean the platform itself.
RESERVED = frozenset({"localhost", "api", "www", "torpor"})
OWN_FOLDER = ".torpor"
"""In a home's volume of an engine: Torpor's own files, beside the home. Processes of the workspace cannot change them."""
CACHE_FOLDER = "cache"
"""In that folder, for jobs. They run as the workspace's user, so its processes can change what is there."""


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether this is a valid workspace name. In host names `--` separates port and workspace, so names do not contain it."""
    return _LABEL.fullmatch(text) is not None and "--" not in text and not is_id(text) and text not in RESERVED


def check_name(name: str) -> str:
    """Return the name; raise Refused if it is not valid."""
    if is_name(name):
        return name
    if is_id(name):
        raise Refused("bad_name", f"{name!r} has the form of an id; choose another name", name=name)
    if name in RESERVED:
        raise Refused("bad_name", f"{name!r} is reserved; also reserved: {', '.join(sorted(RESERVED - {name}))}", name=name)
    raise Refused("bad_name", f"{name!r} is not a valid workspace name; a name is {NAME_RULE}", name=name)


def volume_name(workspace_id: str, generation: int) -> str:
    return f"ws-{workspace_id}-home-{generation}"


_VOLUME = re.compile(rf"ws-({_ID.pattern})-home-([1-9][0-9]{{0,8}})")


def parse_volume_name(name: str) -> tuple[str, int] | None:
    """Return (workspace_id, generation), or None if the volume is not Torpor's."""
    match = _VOLUME.fullmatch(name)
    return (match[1], int(match[2])) if match else None


_PACK = re.compile(rf"({_ID.pattern})-[0-9a-f]{{64}}")


def pack_op_id(name: str) -> str | None:
    """The operation that wrote a pack, by the pack's name `{op_id}-{sha256}`; None if the name is not valid."""
    match = _PACK.fullmatch(name)
    return match[1] if match else None
