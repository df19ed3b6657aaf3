"""Count the steps of a process and its children, and stop all of them at one step.

A step is the moment before a call that changes a file, asks the archive store, or sends a statement to the database. The state
after a call is that before the next one. A write to a store in a directory has one more step: a part of it is written.
"""

import contextlib
import functools
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import asyncpg
import obstore

CHANGES = frozenset(
    f"os.{verb}"
    for verb in ("chmod", "chown", "link", "mkdir", "remove", "rename", "rmdir", "setxattr", "symlink", "truncate", "utime")
)
"""Events of the interpreter (`sys.addaudithook`), which come before the call."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
STORE_CALLS = ("copy", "delete", "get", "get_range", "head", "list", "put")
STATEMENT_CALLS = ("execute", "fetch", "fetchrow", "fetchval")
WRITES = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM|COMMIT)\b")
"""Also SELECT ... FOR UPDATE, which locks rows."""
NOT_HOMES = ("/dev/null", "/dev/tty", "/proc/", "/sys/", "/run/")
"""Files that are not kept."""


_watching: list["FaultPoints"] = []
"""In a forked process: its points."""


@contextlib.contextmanager
def only_here() -> Iterator[None]:
    """Steps before and after this block do not count."""
    (points,) = _watching
    points.restart()
    try:
        yield
    finally:
        points.end()


class FaultPoints:
    """Shared by a process and its children, which form a process group. At step `at` the whole group gets the signal."""

    def __init__(self, at: int, number: signal.Signals, *, waits: bool = False) -> None:
        """`waits`: steps count from `only_here` on."""
        self._at = 0 if waits else at
        self._at_here = at
        self._signal = number
        self._count = get_context("fork").Value("i", 0)
        self._is_silent = False

    @property
    def count(self) -> int:
        return int(self._count.value)

    def restart(self) -> None:
        self._count.value = 0
        self._at = self._at_here

    def end(self) -> None:
        self._is_silent = True

    def step(self) -> None:
        if self._is_silent:
            return
        with self._count.get_lock():
            self._count.value += 1
            is_here = self._count.value == self._at
        if is_here:
            os.killpg(0, self._signal)
            time.sleep(0.005)  # SIGSTOP may reach another thread first

    def watch(self, *, reads: bool) -> None:
        """Call it once in a forked process. `reads`: statements that only read are steps, too."""
        _watching.append(self)
        sys.addaudithook(self._on_event)
        for name in STORE_CALLS:
            setattr(obstore, name, self._before_call(getattr(obstore, name), half=name == "put"))
        for name in STATEMENT_CALLS:
            setattr(asyncpg.Connection, name, self._before_statement(getattr(asyncpg.Connection, name), reads=reads))

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        is_change = event in CHANGES or (event == "open" and _is_write(*arguments))
        if (is_change and not str(arguments[0]).startswith(NOT_HOMES)) or (event == "open" and self._is_read(arguments[0])):
            self.step()

    def _is_read(self, path: object) -> bool:
        """A file of a home is opened, relative to its directory. Only a process that is stopped there can see a change."""
        return self._signal is signal.SIGSTOP and isinstance(path, str | bytes) and not os.fsencode(path).startswith(b"/")

    def _before_call(self, real: Callable[..., Any], *, half: bool) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(store: Any, *arguments: Any, **named: Any) -> Any:
            self.step()
            if half and self._signal is signal.SIGKILL:
                if self.count + 1 == self._at:
                    self._is_silent = True
                    _write_half(store, *arguments[:2])
                    self._is_silent = False
                self.step()
            return real(store, *arguments, **named)

        return call

    def _before_statement(self, real: Callable[..., Any], *, reads: bool) -> Callable[..., Any]:
        @functools.wraps(real)
        async def call(connection: Any, query: str, *arguments: Any, **named: Any) -> Any:
            if reads or WRITES.search(query):
                self.step()
            return await real(connection, query, *arguments, **named)

        return call


def _is_write(path: object, _mode: object, flags: int) -> bool:
    return bool(flags & WRITING) and not isinstance(path, int)


def _write_half(store: Any, path: str, content: object) -> None:
    """What LocalStore has written when it is killed in the middle: it writes to `NAME#1` and renames."""
    prefix = getattr(store, "prefix", None)
    if isinstance(prefix, Path) and isinstance(content, bytes | bytearray):
        part = prefix / f"{path}#1"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content[: len(content) // 2])
