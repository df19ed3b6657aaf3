"""Where does the SQL stand, and what is each statement called?

In `queries/*.sql`, one file for each role; a statement begins with `-- name: ...`.
"""

import re
from collections.abc import Mapping
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def named_queries(text: str) -> Mapping[str, str]:
    parts = _NAME.split(text)
    names, bodies = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError(f"a statement is named twice: {sorted(names)}")
    return {name: f"-- {name}\n{body.strip()}" for name, body in zip(names, bodies, strict=True)}


def _read(role: str) -> Mapping[str, str]:
    return named_queries((files("torpor.store") / "queries" / f"{role}.sql").read_text(encoding="utf-8"))


FOR_CONTROLLER = _read("controller_store")
FOR_SERVICE = _read("service_store")
PEOPLE = _read("user_store")
EVENTS = _read("events")
COLLECTING = _read("gc")
