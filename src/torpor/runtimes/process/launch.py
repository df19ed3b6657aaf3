"""How is a process started so that it belongs to its group from its first moment, dies with us, and can be waited for?"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from torpor.runtimes.process import pipes
from torpor.runtimes.process.host_programs import find

# The shell writes itself into each group, then becomes the program: no moment outside, no code of ours between fork and exec.
JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'


def join_cgroups_argv(doors: Sequence[Path], argv: Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", JOIN, "sh", *map(str, doors), "--", *argv] if doors else list(argv)


def parent_death_argv(argv: Sequence[str], *, no_new_privileges: bool = False) -> list[str]:
    """Where util-linux is there; otherwise the sweep at the next start does it."""
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
        # Not asyncio's own subprocesses: their end waits for the pipes', which a grandchild may hold open for ever.
        self._handle = os.pidfd_open(self.pid)
        self._transports: list[asyncio.BaseTransport] = []
        loop.add_reader(self._handle, self._note_end)

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        code = self._process.wait()
        if not self._ended.done():
            self._ended.set_result(code if code >= 0 else 128 - code)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 and the signal's number when one ended it, as in a shell."""
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

    def tell(self, line: bytes) -> None:
        """A short line on its standard input; nothing when it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)

    def let_go(self) -> None:
        """Close its pipes: those that the loop owns, and those that were never handed to it."""
        for transport in self._transports:
            transport.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
