"""Can nobody fill the memory of the API by sending much?"""

from collections.abc import AsyncIterator

import pytest

from tests.api.live import calling, live
from torpor.api.bodies import LONGEST_BYTES

pytestmark = pytest.mark.anyio


async def test_what_is_too_long_is_refused_and_what_is_not_is_read(database_url: str, redis_url: str) -> None:
    async def long_without_saying_so() -> AsyncIterator[bytes]:
        yield b'{"username": "'
        for _ in range(LONGEST_BYTES // 2**16 + 1):
            yield b"x" * 2**16

    async with live(database_url, redis_url, publishes=False) as here, calling(here.path) as client:
        said = {"Content-Length": str(LONGEST_BYTES + 1), "Content-Type": "application/json"}
        refused = await client.post("/api/v1/login", headers=said, content=b"x" * (LONGEST_BYTES + 1))
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        content = long_without_saying_so()
        refused = await client.post("/api/v1/login", headers={"Content-Type": "application/json"}, content=content)
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        long = {"username": "ada", "password": "x" * (LONGEST_BYTES - 100)}
        answer = await client.post("/api/v1/login", json=long)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_request")
        assert len(answer.content) < 2**16
