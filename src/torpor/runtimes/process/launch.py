"""Start processes that are in their cgroup from the start, end with Torpor, and can be awaited."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from torpor.runtimes.host_programs import find
from torpor.runtimes.process import pipes

# The shell joins each cgroup and then becomes the program, so the program never runs outside, and no Python code runs
# between fork and exec.
JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'


def join_cgroups_argv(cgroup_files: Sequence[Path], argv: Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", JOIN, "sh", *map(str, cgroup_files), "--", *argv] if cgroup_files else list(argv)


def parent_death_argv(argv: Sequence[str], *, no_new_privileges: bool = False) -> list[str]:
    """Kill the process when Torpor ends. Without util-linux, the sweep at the next start does it."""
    setpriv = find("setpriv")
    more = ["--no-new-privs"] if no_new_privileges else []
    return [setpriv, "--pdeathsig", "KILL", *more, "--", *argv] if setpriv else list(argv)


class SpawnedProcess:
    """A child in its own session, with pipes."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        separate_errors: bool = False,
    ) -> None:
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if separate_errors else subprocess.STDOUT,
            bufsize=0,
            cwd="/",
            env=dict(environment),
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
        self.pid = self._process.pid
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self.is_killed = False
        """It ended by a signal."""
        # Not asyncio's subprocesses: they wait until the pipes close, and a grandchild may keep those open.
        self._handle = os.pidfd_open(self.pid)
        self._transports: list[asyncio.BaseTransport] = []
        loop.add_reader(self._handle, self._note_end)

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        code = self._process.wait()
        self.is_killed = code < 0
        if not self._ended.done():
            self._ended.set_result(code if code >= 0 else 128 - code)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 plus the number of the signal that ended it, as in a shell."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def output(self, *, limit: int = 1 << 16) -> asyncio.StreamReader:
        return await self._reader(self._process.stdout, limit)

    async def errors(self, *, limit: int = 1 << 16) -> asyncio.StreamReader:
        return await self._reader(self._process.stderr, limit)

    async def input(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        writer = await pipes.writer(self._process.stdin)
        self._transports.append(writer.transport)
        return writer

    async def _reader(self, pipe: IO[bytes] | None, limit: int) -> asyncio.StreamReader:
        assert pipe is not None
        reader, transport = await pipes.reader(pipe, limit=limit)
        self._transports.append(transport)
        return reader

    def send_line(self, line: bytes) -> None:
        """Write a short line to its standard input. No effect after it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)

    def close_pipes(self) -> None:
        """Close all pipes: those of the event loop, and those that were not given to it."""
        for transport in self._transports:
            transport.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
