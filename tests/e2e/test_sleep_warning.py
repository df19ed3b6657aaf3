"""A user with an open terminal is warned before a stop, and the warning does not postpone it. The real product."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.support.product import Product, product
from tests.support.terminal_user import TerminalUser
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere, pytest.mark.anyio]

TTL_S = 15
HASTE = {"TORPOR_TTL_INTERVAL": "0.5", "TORPOR_CONNECTION_LEASE": "3", "TORPOR_STANDBY_TTL": str(TTL_S)}
WITHIN_S = 120.0


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("warning"), **HASTE) as running:
        yield running


@contextlib.contextmanager
def followed(here: Product, name: str, told: Path) -> Iterator[Path]:
    """The output of `torpor events` meanwhile, in this file."""
    with told.open("wb") as output:
        following = subprocess.Popen([here.command, "events", name, "--json"], env=here.env(), stdout=output)
        try:
            yield told
        finally:
            following.terminate()
            following.wait(30)


def events(told: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.read_text().splitlines() if line.endswith("}")]


def kinds(told: Path) -> list[str]:
    return [event["event"] for event in events(told)]


async def until_stopped(told: Path) -> list[dict[str, Any]]:
    def is_wished() -> bool:
        return any(event["workspace"]["desired_state"] == "STANDBY" for event in events(told))

    await until(is_wished, within_s=WITHIN_S, otherwise=lambda: told.read_text())
    return events(told)


@contextlib.asynccontextmanager
async def open_tab(here: Product, name: str) -> AsyncIterator[None]:
    """A terminal of its page, open and unused."""
    address = f"ws://{name}.localhost:{here.port}/pty?session=a-session-of-one-tab&cols=80&rows=24"
    headers = {"X-Torpor-Token": here.token}
    async with connect(address, host="127.0.0.1", port=here.port, additional_headers=headers, ping_interval=None):
        yield


@pytest.mark.long
async def test_an_open_terminal_is_warned_and_does_not_prevent_the_stop(here: Product, tmp_path: Path) -> None:
    await asyncio.to_thread(here.ok, "create", "idle", "--wait")
    with followed(here, "idle", tmp_path / "events") as told:
        async with open_tab(here, "idle"), TerminalUser(here.env(), "shell", "idle") as seat:
            await seat.until(b"$ ")
            seat.type(b"echo typed-$((6*7))\r")
            await seat.until(b"typed-42")
            await seat.until(b"\r\n[torpor] idle goes to sleep at ")
            await seat.until(b"because it is not in use; type to keep it awake\r\n")
            said = await until_stopped(told)
            assert await seat.ended() != 0
            assert b"[torpor]" not in seat.shown, "it was warned once"
    warned = [event["event"] for event in said].index("sleeping_soon")
    at = said[warned]["workspace"]["sleeps_at"]
    assert at > said[warned]["at"], "it was announced before it came"
    after = said[warned + 1]["workspace"]
    assert (after["desired_state"], after["sleeps_at"]) == ("STANDBY", None), "nothing took the warning back but the stop"
    assert said[warned + 1]["at"] >= at
    assert [event["id"] for event in said] == sorted({event["id"] for event in said})


@pytest.mark.long
async def test_typing_clears_the_warning(here: Product, tmp_path: Path) -> None:
    await asyncio.to_thread(here.ok, "create", "typing", "--wait")
    with followed(here, "typing", tmp_path / "events") as told:
        async with TerminalUser(here.env(), "shell", "typing") as seat:
            await seat.until(b"$ ")
            await seat.until(b"type to keep it awake\r\n")
            seat.type(b"echo still-$((6*7))\r")
            await seat.until(b"still-42")
            # Two warnings, with use between them.
            await seat.until(b"type to keep it awake\r\n")
        said = [event for event in events(told) if event["workspace"]["phase"] == "RUNNING"]
        warned = [number for number, event in enumerate(said) if event["event"] == "sleeping_soon"]
        assert len(warned) == 2, kinds(told)
        between = said[warned[0] + 1]
        assert (between["event"], between["workspace"]["sleeps_at"]) == ("state_changed", None)
        assert between["workspace"]["desired_state"] == "RUNNING"


@pytest.mark.long
async def test_a_hold_clears_the_warning(here: Product) -> None:
    await asyncio.to_thread(here.ok, "create", "held", "--wait")

    async def warned() -> dict[str, Any] | None:
        seen = await asyncio.to_thread(here.show, "held")
        return seen if seen["sleeps_at"] else None

    await until(warned, within_s=WITHIN_S)
    await asyncio.to_thread(here.ok, "hold", "held", "--for", "1h", "--reason", "still needed")
    seen = await asyncio.to_thread(here.show, "held")
    assert (seen["sleeps_at"], seen["desired_state"]) == (None, "RUNNING")
    await asyncio.to_thread(here.ok, "hold", "held", "--end", "all")
    await asyncio.to_thread(here.until, "held", lambda now: now["desired_state"] == "STANDBY")
