"""A large body passes in both directions with little memory. On both event loops; from memory, so that no disk is measured.

The proxy server runs in another process, so that only its memory is measured.
"""

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.proxy.open_gate import Answer, hang_up, made, read_head

pytestmark = pytest.mark.anyio

MB = 1 << 20
PIECE = bytes(MB // 4)
MOST_GROWN_BYTES = 16 * MB

FRONT = """
import asyncio, sys
from tests.proxy.open_gate import OpenGate, passing
from torpor.ports import Address
from torpor.proxy.server import ProxyServer

async def main():
    gate = OpenGate({"ada": passing(Address(unix_path=sys.argv[1]))})
    front = ProxyServer(gate, port=0, hosts=("127.0.0.1",))
    await front.start()
    print(front.port, flush=True)
    await asyncio.Event().wait()

if sys.argv[2] == "uvloop":
    import uvloop
    factory = uvloop.new_event_loop
else:
    factory = None
with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(main())
"""


def resident_peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


async def behind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Count the received bytes, or send as many as requested."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await read_head(reader)
            if head.startswith(b"PUT "):
                total, left = 0, int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                while left:
                    piece = await reader.read(min(left, MB))
                    total, left = total + len(piece), left - len(piece)
                said = b"%d" % total
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
            else:
                size = int(head.split(b" ")[1].removeprefix(b"/"))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
                for _ in range(size // len(PIECE)):
                    writer.write(PIECE)
                    await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def running(folder: Path, loop: str) -> AsyncIterator[tuple[int, int]]:
    """The port and the process of the proxy server."""
    path = folder / "ada"
    server = await asyncio.start_unix_server(behind, path, limit=MB)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FRONT, str(path), loop, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline()), process.pid
    finally:
        process.kill()
        await process.wait()
        server.close()


async def there_and_back(folder: Path, loop: str, size: int) -> None:
    async with running(folder, loop) as (port, pid):
        for warm_bytes in (MB, size):
            before = resident_peak_bytes(pid)
            await upload(port, warm_bytes)
            await download(port, warm_bytes)
            grown = resident_peak_bytes(pid) - before
        assert grown < MOST_GROWN_BYTES, f"{grown / MB:.1f} MB more for {size / MB:.0f} MB"


async def upload(port: int, size: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(made("PUT / HTTP/1.1", "Host: ada.localhost", f"Content-Length: {size}", "Connection: close"))
    for _ in range(size // len(PIECE)):
        writer.write(PIECE)
        await writer.drain()
    assert Answer.read(await reader.read()).body == b"%d" % size
    await hang_up(writer)


async def download(port: int, size: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MB)
    writer.write(made(f"GET /{size} HTTP/1.1", "Host: ada.localhost", "Connection: close"))
    await read_head(reader)
    total = 0
    while piece := await reader.read(MB):
        total += len(piece)
    assert total == size
    await hang_up(writer)


@pytest.mark.parametrize(("loop", "size"), [("asyncio", 256 * MB), ("uvloop", 1024 * MB)], ids=["asyncio", "uvloop, 1 GB"])
async def test_large_bodies_pass_in_both_directions(tmp_path: Path, loop: str, size: int) -> None:
    await there_and_back(tmp_path, loop, size)
