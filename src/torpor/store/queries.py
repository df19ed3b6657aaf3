"""Load the named SQL statements from `queries/*.sql`.

A file has the name of the module that uses it; a statement begins with `-- name: ...`.
"""

import re
from collections.abc import Mapping
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def named_queries(text: str) -> Mapping[str, str]:
    parts = _NAME.split(text)
    names, bodies = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError(f"two statements have the same name: {sorted(names)}")
    return {name: f"-- {name}\n{body.strip()}" for name, body in zip(names, bodies, strict=True)}


def _read(module: str) -> Mapping[str, str]:
    return named_queries((files("torpor.store") / "queries" / f"{module}.sql").read_text(encoding="utf-8"))


CONTROLLER_STORE = _read("controller_store")
SERVICE_STORE = _read("service_store")
USER_STORE = _read("user_store")
EVENTS = _read("events")
GC = _read("gc")
PACK_GC = _read("pack_gc")
ARCHIVE_LEASES = _read("archive_leases")
KEPT_LOGS = _read("kept_logs")
HOME_RUNTIME = _read("home_runtime")
