"""Bodies are limited: no client can fill the memory of the API or block its event loop."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.live_api import LiveApi, calling, live_api
from torpor.api import bodies
from torpor.api.bodies import LONGEST_BYTES, LONGEST_EXEC_BYTES, LONGEST_SIGN_IN_BYTES

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as running:
        yield running


async def test_a_body_above_the_limit_is_refused_and_others_are_read(here: LiveApi) -> None:
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
    assert bodies.max_body_bytes(path) == longest


async def test_a_sign_in_body_of_sixteen_megabytes_does_not_block_the_loop(here: LiveApi) -> None:
    """Parsing them took 15 s, in which proxy and controller did not run."""
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


async def test_the_caller_is_authenticated_before_the_body_is_read(here: LiveApi) -> None:
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


async def test_a_body_that_does_not_arrive_in_time_is_refused(here: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WITHIN_S", 0.2)
    head = "POST /api/v1/login HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: 100"
    reader, writer = await raw(here.path, head, b"{")
    assert await answer_of(reader) == (408, "too_slow")
    writer.close()


def filled(before: str, part: str, after: str, size: int) -> bytes:
    """A body of almost so many bytes."""
    return (before + part * ((size - len(before) - len(after)) // len(part)) + after).encode()


def names(size: int) -> bytes:
    return ("{" + ",".join(f'"{number:06x}":1' for number in range(size // 11 - 1)) + "}").encode()


EXPENSIVE = {
    "lists": filled("[", "[],", "[]]", LONGEST_BYTES),
    "lists in a field": filled('{"label":"a","scopes":[', "[],", "[]]}", LONGEST_BYTES),
    "unknown names": names(LONGEST_BYTES),
    "as many unknown names as are parsed": names(600 * 11),
    "numbers": filled("[", "1e5,", "0]", LONGEST_BYTES),
    "long numbers": filled("[", "9" * 4000 + ",", "0]", LONGEST_BYTES),
    "depth": filled("", "[", "", LONGEST_BYTES),
    "escapes": filled('"', "a\\n", '"', LONGEST_BYTES),
    "lists behind quotes": filled('["\\\\","\\"",', "[],", "[]]", LONGEST_BYTES),
    "lists in UTF-16": b"\xff\xfe" + filled('["\u2222",', "[],", "[]]", LONGEST_BYTES // 2 - 1).decode().encode("utf-16-le"),
}


async def test_the_most_expensive_bodies_do_not_block_the_loop(here: LiveApi) -> None:
    """Without the limit, 64 KiB of lists took 100 ms to parse, and 6,500 unknown names gave an answer of 600 KB."""

    async def longest_turn_s(until: asyncio.Event) -> float:
        """CPU time of this thread between two turns of its loop, so that other processes do not count."""
        longest, last = 0.0, time.thread_time()
        while not until.is_set():
            await asyncio.sleep(0)
            longest, last = max(longest, time.thread_time() - last), time.thread_time()
        return longest

    shown = {"Authorization": f"Bearer {here.people['bob'].token}", **JSON}
    held_s: dict[str, float] = {}
    longest: dict[str, int] = {}
    async with calling(here.path) as client:
        await client.post("/api/v1/tokens", headers=shown, content=b"{}")
        for what, body in EXPENSIVE.items():
            gc.collect()
            is_over = asyncio.Event()
            watching = asyncio.create_task(longest_turn_s(is_over))
            answers = [await client.post("/api/v1/tokens", headers=shown, content=body) for _ in range(5)]
            is_over.set()
            assert {(one.status_code, one.json()["code"]) for one in answers} == {(422, "bad_request")}, what
            held_s[what] = await watching
            longest[what] = max(len(one.content) for one in answers)
    assert {what: took_s for what, took_s in held_s.items() if took_s > 0.02} == {}
    assert max(longest.values()) < 4096


@pytest.mark.parametrize(
    "body",
    [
        {"command": ['a word with [brackets], {braces}: commas, "quotes" and \\ backslashes \\'] * 1000},
        {"command": ["python", "-c", "print({'a': [1, 2, 3]})\n" * 2000]},
        {"command": ["sh"], "stdin": "QUJD" * (2**18)},
        {"name": "é" * 1000, "standby_ttl": 10, "empty": False, "is_admin": None},
        {},
    ],
)
@pytest.mark.parametrize("indent", [None, 4])
def test_ordinary_bodies_are_parsed(body: object, indent: int | None) -> None:
    assert bodies.body_fault(json.dumps(body, indent=indent).encode()) is None
    assert bodies.body_fault(json.dumps(body, indent=indent, ensure_ascii=False).encode()) is None


@given(st.text(alphabet='"\\[]{},:1 a', max_size=40), st.integers(0, 2 * bodies.MOST_STRUCTURE_BYTES))
def test_only_brackets_outside_of_strings_count(text: str, count: int) -> None:
    inside = json.dumps([text, "[" * count, text])
    assert bodies.body_fault(inside.encode()) is None
    outside = json.dumps([text]) + " " + "[" * count
    assert (bodies.body_fault(outside.encode()) is None) is (count + 2 <= bodies.MOST_STRUCTURE_BYTES)
