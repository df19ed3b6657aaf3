"""A `getent` for tests, so that no real resolver is asked, which may return private addresses."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


def own_getent(folder: Path, monkeypatch: pytest.MonkeyPatch, addresses: Mapping[str, str]) -> Callable[[], list[str]]:
    """Only these names have addresses. Returns a function that lists the requested names."""
    tools, asked = folder / "tools-getent", folder / "asked"
    tools.mkdir()
    known = "".join(f"{name}) echo '{address} STREAM {name}' ;;\n" for name, address in addresses.items())
    script = tools / "getent"
    script.write_text(f'#!/bin/sh\necho "$2" >> \'{asked}\'\ncase "$2" in\n{known}*) exit 2 ;;\nesac\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    return lambda: asked.read_text().split() if asked.exists() else []
