"""Hand a pipe to the event loop so that its descriptor is closed exactly once.

asyncio's own loop closes a pipe by closing its file object. uvloop closes the descriptor and then the file object as well;
a thread that opens a file between the two gets the same descriptor and loses its file (docs/decisions/0019).
"""

import asyncio
import fcntl
import os
from typing import IO

FIRST_AFTER_STDIO = 3
"""libuv never closes the descriptors 0, 1 and 2, so a pipe must not get one of them."""


async def reader(pipe: IO[bytes], *, limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """From now on the loop reads and owns the pipe; `pipe` itself is closed."""
    stream, loop = asyncio.StreamReader(limit=limit), asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), _handed_over(pipe, loop))
    return stream, transport


async def writer(pipe: IO[bytes]) -> asyncio.StreamWriter:
    """From now on the loop writes and owns the pipe; `pipe` itself is closed."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, _handed_over(pipe, loop))
    return asyncio.StreamWriter(transport, protocol, None, loop)


def _handed_over(pipe: IO[bytes], loop: asyncio.AbstractEventLoop) -> IO[bytes]:
    """Duplicate the pipe into a file object that closes the new descriptor only if the loop does not."""
    own = fcntl.fcntl(pipe.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_AFTER_STDIO)
    mode = "wb" if pipe.writable() else "rb"
    pipe.close()
    return os.fdopen(own, mode, 0, closefd=not _closes_descriptors(loop))


def _closes_descriptors(loop: asyncio.AbstractEventLoop) -> bool:
    return type(loop).__module__.partition(".")[0] == "uvloop"
