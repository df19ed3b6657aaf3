"""Test many workspaces that start at once on an engine: all run, and a look at them takes two calls however many there are."""

import asyncio
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.docker_engine import DockerEngine
from tests.support.engine_relay import EngineRelay, engine_relay
from tests.support.product import Product
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ALL_RUN_S = 300.0
QUIET_WITHIN_S = 60.0
LOOKS = 4
LISTS = ("/containers/json", "/volumes")
LISTED = re.compile(r"GET (?:/v[0-9.]+)?(/[a-z/]+)(?:\?| )")


def lists(requests: list[str]) -> Counter[str]:
    """How often each kind of list was asked for. A full resync asks for one of each."""
    found = (match[1] for line in requests if (match := LISTED.match(line)))
    return Counter(path for path in found if path in LISTS)


async def calls_of_looks(relay: EngineRelay, looks: int) -> list[str]:
    """All requests from the end of one resync to the end of the last of this many others."""
    now = len(relay.requests)
    await until(lambda: lists(relay.requests[now:])[LISTS[1]] > 0)
    begin = len(relay.requests)
    await until(lambda: lists(relay.requests[begin:])[LISTS[1]] >= looks)
    return relay.requests[begin:]


async def looks_take_two_calls(relay: EngineRelay) -> bool:
    """Whether the engine gets no other calls than the two lists of each look."""
    seen = await calls_of_looks(relay, LOOKS)
    return lists(seen) == dict.fromkeys(LISTS, LOOKS) and len(seen) == LOOKS * len(LISTS)


def create(product: Product, name: str) -> None:
    product.api("POST", "/workspaces", {"name": name, "desired_state": "RUNNING"})


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.deep)])
async def test_all_that_start_at_once_run_and_a_look_takes_two_calls(
    engine: DockerEngine, image: str, tmp_path: Path, count: int
) -> None:
    async with engine_relay(engine.url) as relay:
        environment = {
            "TORPOR_RUNTIME": "docker",
            "TORPOR_ENGINE_URL": relay.url,
            "TORPOR_WORKSPACE_IMAGE": image,
            "TORPOR_WORKSPACE_STOP_GRACE": "1",
            "TORPOR_MAX_RUNNING_PER_USER": "1000",
            "TORPOR_MAX_RUNNING_GLOBAL": "1000",
            "TORPOR_RECONCILER_INTERVAL": "1",
        }
        product = Product(tmp_path / "data", environment=environment)
        with engine.network():
            try:
                await asyncio.to_thread(product.up)
                names = [f"many-{number}" for number in range(count)]
                began = time.monotonic()
                creations = (asyncio.to_thread(create, product, name) for name in names)
                await asyncio.gather(*creations)
                await until(lambda: asyncio.to_thread(all_run, product, count), within_s=ALL_RUN_S, every_s=0.5)
                print(f"\n  {count} workspaces run after {time.monotonic() - began:.1f} s")
                # Jobs measure the new homes first.
                await until(
                    lambda: looks_take_two_calls(relay), within_s=QUIET_WITHIN_S, otherwise=lambda: str(relay.requests[-20:])
                )
            finally:
                if product.process is not None:
                    await asyncio.to_thread(product.stop)
        await asyncio.to_thread(engine.remove_installations, "torpor-")


def all_run(product: Product, count: int) -> bool:
    shown = product.api("GET", "/workspaces")["items"]
    return len(shown) == count and all(one["phase"] == "RUNNING" and one["operation"] == "NONE" for one in shown)
