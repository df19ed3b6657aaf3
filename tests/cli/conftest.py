"""Fixtures that run commands against the stand-in for the API."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_api import TOKEN, ScriptedApi, scripted_api
from torpor.cli.main import run


@dataclass(frozen=True)
class Ended:
    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def said(self) -> str:
        return self.err.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as server:
        yield server


@pytest.fixture
def data(api: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with credentials for the stand-in, and an environment without other settings."""
    for name in [name for name in os.environ if name.startswith("TORPOR_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "credentials.json").write_text(
        json.dumps({"url": api.url, "username": "admin", "password": "secret", "token": TOKEN})
    )
    monkeypatch.setenv("TORPOR_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


class Torpor:
    """Run a command in this process, which is fast."""

    def __init__(self, captured: pytest.CaptureFixture[bytes]) -> None:
        self._captured = captured

    def __call__(self, *argv: str) -> Ended:
        self._captured.readouterr()
        code = run(argv)
        out, err = self._captured.readouterr()
        return Ended(code, out, err)


@pytest.fixture
def torpor(data: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Torpor:
    return Torpor(capfdbinary)


def torpor_process(*argv: str, stdin: bytes | None = None, **environment: str) -> Ended:
    """Run a command as a user does: in a process of its own, with real descriptors."""
    done = subprocess.run(
        [sys.executable, "-m", "torpor", *argv],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return Ended(done.returncode, done.stdout, done.stderr)
