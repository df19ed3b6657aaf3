"""Run archive jobs as a runtime does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from torpor.archives.archives import HomeArchives
from torpor.archives.progress_meter import HomeCount
from torpor.domain.errors import Code, Failed
from torpor.domain.records import ArchiveKey
from torpor.ports import Home, HomeJob


def roomy() -> str | None:
    """A folder for fast tests: in memory if that has extended attributes, else None for pytest's own."""
    try:
        with NamedTemporaryFile(dir="/dev/shm") as file:
            os.setxattr(file.name, "user.probe", b"")
    except OSError:
        return None
    return "/dev/shm"


HOME = Home("0d1f8a3c-0000-4000-8000-000000000001", 3)
KEY = ArchiveKey(HOME.workspace_id, "a0000000-0000-4000-8000-000000000001")
OTHER = ArchiveKey(HOME.workspace_id, "a0000000-0000-4000-8000-000000000002")
DATA = "home.tar.zst"
MANIFEST = "manifest.json.zst"


@dataclass(frozen=True, slots=True)
class JobResult:
    exit_code: int
    lines: list[dict[str, Any]]
    stderr: str

    @property
    def result(self) -> dict[str, Any]:
        assert self.exit_code == 0, (self.lines, self.stderr)
        assert not self.stderr
        last: dict[str, Any] = self.lines[-1]["result"]
        return last

    def failed_with(self, code: Code) -> str:
        assert self.exit_code == 1, self.lines
        assert not self.stderr
        error = self.lines[-1]["error"]
        assert error["code"] == code, error
        return str(error["message"])


def run(job: HomeJob, home: Path) -> JobResult:
    ended = subprocess.run([*job.argv, str(home)], input=job.stdin, capture_output=True, timeout=200, check=False)
    return JobResult(ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr.decode())


@contextmanager
def running(job: HomeJob, home: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A job that has written its first line, so it is in the middle of its work. Its stderr must stay empty."""
    with subprocess.Popen([*job.argv, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(job.stdin)
        process.stdin.close()
        assert b"progress" in process.stdout.readline()
        try:
            yield process
            assert not process.stderr.read()
        finally:
            process.kill()


# Import first, then give up root: the interpreter may be in a folder that only root can read.
BECOME_NOBODY = """
import os, runpy, sys
from pathlib import Path
sys.path.insert(0, {repository!r})
import torpor.archives.archives, torpor.archives.extract, torpor.archives.job
from tests.archives.nasty import make_nasty
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"""


def as_nobody_argv(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", BECOME_NOBODY.format(repository=str(Path(__file__).parents[2])) + script)


def as_nobody(script: str, *argv: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    ended = subprocess.run([*as_nobody_argv(script), *argv], input=stdin, capture_output=True, timeout=200, check=False)
    assert not ended.stderr, ended.stderr.decode()
    return ended


def run_as_nobody(job: HomeJob, home: Path) -> JobResult:
    ended = as_nobody("sys.exit(torpor.archives.job.main(sys.argv))", str(home), stdin=job.stdin)
    return JobResult(ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()], "")


@dataclass(slots=True)
class ArchiveWorld:
    """An archive store in a directory, and homes."""

    path: Path
    archives: HomeArchives = field(init=False)

    def __post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)
        self.store.mkdir(mode=0o700, exist_ok=True)
        self.archives = HomeArchives(f"file://{self.store}")

    @property
    def store(self) -> Path:
        return self.path / "store"

    def home(self, name: str = "home") -> Path:
        home = self.path / name
        home.mkdir(exist_ok=True)
        return home

    def object(self, name: str, key: ArchiveKey = KEY) -> Path:
        return self.store / str(key) / name

    def pack(self, home: Path, key: ArchiveKey = KEY, revision: int = 7) -> JobResult:
        return run(self.archives.pack_job(key, HOME, revision), home)

    def unpack(self, home: Path, key: ArchiveKey = KEY) -> JobResult:
        return run(self.archives.unpack_job(key), home)


@dataclass(slots=True)
class Meter:
    """Calls `hook` with each count, so that a test can act in the middle of an operation."""

    hook: Callable[[int], None] = lambda _count: None
    files: int = 0

    def __call__(self, count: int) -> None:
        self.hook(count)

    def count_files(self, count: int = 1) -> None:
        self.files += count

    def expect(self, home: HomeCount) -> None:
        pass


def code_of(error: BaseException | None) -> Code:
    assert isinstance(error, Failed), error
    return error.code
