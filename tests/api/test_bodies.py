"""Can no client fill the memory of the API, or hold its loop, with what it sends?"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.live import Live, calling, live
from torpor.api import bodies
from torpor.api.bodies import LONGEST_BYTES, LONGEST_EXEC_BYTES, LONGEST_SIGN_IN_BYTES

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[Live]:
    async with live(database_url, redis_url, publishes=False) as running:
        yield running


async def test_what_is_too_long_is_refused_and_what_is_not_is_read(here: Live) -> None:
    async def long_without_saying_so() -> AsyncIterator[bytes]:
        yield b'{"username": "'
        for _ in range(LONGEST_SIGN_IN_BYTES // 2**10 + 1):
            yield b"x" * 2**10

    async with calling(here.path) as client:
        said = {"Content-Length": str(LONGEST_SIGN_IN_BYTES + 1), **JSON}
        refused = await client.post("/api/v1/login", headers=said, content=b"x" * (LONGEST_SIGN_IN_BYTES + 1))
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        refused = await client.post("/api/v1/login", headers=JSON, content=long_without_saying_so())
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        long = {"username": "ada", "password": "x" * (LONGEST_SIGN_IN_BYTES - 100)}
        answer = await client.post("/api/v1/login", json=long)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_request")


@pytest.mark.parametrize(
    ("path", "longest"),
    [
        ("/api/v1/login", LONGEST_SIGN_IN_BYTES),
        ("/api/v1/workspaces", LONGEST_BYTES),
        ("/api/v1/workspaces/demo", LONGEST_BYTES),
        ("/api/v1/workspaces/demo/exec", LONGEST_EXEC_BYTES),
        ("/api/v1/exec", LONGEST_BYTES),
    ],
)
def test_each_call_has_its_limit(path: str, longest: int) -> None:
    assert bodies.longest_bytes(path) == longest


async def test_sixteen_megabytes_to_sign_in_hold_nothing_up(here: Live) -> None:
    """It took 15 s to parse them, and proxy and controller stood still."""
    nested = b"[" + b"[]," * (2**24 // 3) + b"[]]"

    async def longest_pause_s(until: asyncio.Event) -> float:
        longest, last = 0.0, time.monotonic()
        while not until.is_set():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest

    is_over = asyncio.Event()
    watching = asyncio.create_task(longest_pause_s(is_over))
    async with calling(here.path) as client:
        refused = await client.post("/api/v1/login", headers=JSON, content=nested)
    is_over.set()
    assert refused.status_code == 413
    assert await watching < 2


async def raw(path: Path, head: str, body: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A call whose body is sent by hand."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
    await writer.drain()
    return reader, writer


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, str]:
    async with asyncio.timeout(30):
        said = await reader.read(2**16)
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"]


async def test_a_caller_is_known_before_the_body_is_read(here: Live) -> None:
    for call, authorization, expected in (
        ("POST /api/v1/workspaces", "", (401, "unauthorized")),
        ("POST /api/v1/workspaces/demo/exec", "\nAuthorization: Bearer wrong", (401, "unauthorized")),
        ("POST /api/v1/users", f"\nAuthorization: Bearer {here.people['bob'].token}", (403, "forbidden")),
    ):
        reader, writer = await raw(
            here.path, f"{call} HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: 1000{authorization}"
        )
        assert await answer_of(reader) == expected, "answered though nothing of the body has come"
        writer.close()


async def test_a_body_that_does_not_arrive_in_time_is_refused(here: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WITHIN_S", 0.2)
    head = "POST /api/v1/login HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: 100"
    reader, writer = await raw(here.path, head, b"{")
    assert await answer_of(reader) == (408, "too_slow")
    writer.close()
