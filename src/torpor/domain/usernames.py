"""Check the names and passwords of users."""

import itertools
import re
from collections.abc import Iterable, Iterator

from torpor.domain.errors import Refused
from torpor.domain.names import is_id

USERNAME_RULE = "1 to 64 of a-z, 0-9, ., _ and -, beginning with a letter or digit, and not in the form of an id"
LONGEST_USERNAME = 64
SHORTEST_PASSWORD = 8
LONGEST_PASSWORD = 1024
_USERNAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NOT_IN_USERNAMES = re.compile(r"[^a-z0-9._-]+")


def check_username(username: str) -> str:
    """Return the name; raise Refused if it is not valid."""
    if _USERNAME.fullmatch(username) is None or is_id(username):
        raise Refused("bad_username", f"{username!r} is not a valid username; a username is {USERNAME_RULE}")
    return username


def check_password(password: str) -> str:
    """Only the length is checked: rules about kinds of characters lead to worse passwords."""
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise Refused("bad_password", f"a password has {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters")
    return password


def usernames(wanted: Iterable[str]) -> Iterator[str]:
    """Yield valid names for a user with these names elsewhere, the closest first, without end."""
    best = next(filter(None, map(_allowed, wanted)), "user")
    yield best
    for number in itertools.count(2):
        end = f"-{number}"
        yield best[: LONGEST_USERNAME - len(end)] + end


def _allowed(wanted: str) -> str:
    """Return the closest valid name; empty if there is none."""
    name = _NOT_IN_USERNAMES.sub("-", wanted.lower()).lstrip("._-")[:LONGEST_USERNAME].rstrip("._-")
    return "" if is_id(name) else name
