"""A busy workspace is not stopped, and one that only seems busy is. The real product, with real processes."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.support.product import Product, product
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

SESSION = "a-session-of-one-tab"
TTL_S = 2
LEASE_S = 3
FOREGROUND_TTL_S = 20
# Long enough for an idle workspace to be stopped several times.
STAYS_S = 3 * (TTL_S + LEASE_S)
HASTE = {"TORPOR_TTL_INTERVAL": "0.5", "TORPOR_CONNECTION_LEASE": str(LEASE_S), "TORPOR_STANDBY_TTL": str(TTL_S)}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("busy"), TORPOR_MAX_RUNNING_PER_USER="9", **HASTE) as running:
        yield running


def type_in_the_browser(here: Product, name: str, typed: bytes, shown: bytes) -> None:
    """Type into a terminal of its page, wait for this output, and close the tab; the shell keeps running."""

    async def visit() -> None:
        headers = {"X-Torpor-Token": here.token}
        address = f"ws://{name}.localhost:{here.port}/pty?session={SESSION}&cols=80&rows=24"
        async with connect(address, host="127.0.0.1", port=here.port, additional_headers=headers) as terminal:
            await terminal.send(typed)
            said = b""
            async with asyncio.timeout(30):
                while shown not in said:
                    piece = await terminal.recv()
                    said += piece if isinstance(piece, bytes) else b""

    asyncio.run(visit())


def in_background(here: Product, name: str, script: str) -> None:
    # A process that still belongs to the command when that ends, ends with it.
    begin = f"setsid sh -c 'touch begun; {script}' >/dev/null 2>&1 & until [ -e begun ]; do sleep 0.1; done"
    here.ok("exec", name, "--", "sh", "-c", begin)


def stays(here: Product, name: str, because: str) -> None:
    wait_until(lambda: because in here.ok("explain", name), otherwise=lambda: here.ok("explain", name))
    until = time.monotonic() + STAYS_S
    while time.monotonic() < until:
        assert here.show(name)["desired_state"] == "RUNNING", here.ok("explain", name)
        time.sleep(0.5)


def sleeps(here: Product, name: str) -> None:
    here.until(name, lambda seen: seen["desired_state"] == "STANDBY")


@pytest.mark.long
def test_a_command_in_the_browsers_terminal_is_not_killed(here: Product) -> None:
    here.ok("create", "sleeper", "--wait")
    type_in_the_browser(here, "sleeper", b"sleep 600\n", b"sleep 600")
    stays(here, "sleeper", "the command 'sleep 600' runs in a terminal")
    # Ctrl-C, not a kill by name: without confinement that would hit processes of this machine.
    type_in_the_browser(here, "sleeper", b"\x03", b"^C")
    sleeps(here, "sleeper")


@pytest.mark.long
def test_a_loop_in_the_background_is_not_killed(here: Product) -> None:
    here.ok("create", "burner", "--wait")
    # It needs three seconds of CPU time to reach five percent of a minute, which takes longer on a busy machine.
    here.ok("hold", "burner", "--for", "10m", "--reason", "the loop begins")
    in_background(here, "burner", "while :; do :; done")
    wait_until(lambda: "of a core" in here.ok("explain", "burner"), within_s=120)
    here.ok("hold", "burner", "--end", "all")
    stays(here, "burner", "of a core")
    here.ok("delete", "burner", "--purge", "--wait")


def test_an_idle_daemon_does_not_prevent_the_stop(here: Product) -> None:
    here.ok("create", "daemon", "--wait")
    in_background(here, "daemon", "exec sleep 601")
    sleeps(here, "daemon")


@pytest.mark.long
def test_an_editor_that_is_not_used_stops_after_its_time(tmp_path: Path) -> None:
    with product(tmp_path, TORPOR_FOREGROUND_TTL=str(FOREGROUND_TTL_S), **HASTE) as here:
        here.ok("create", "editor", "--wait")
        began = time.monotonic()
        type_in_the_browser(here, "editor", b"cat\n", b"cat")
        wait_until(lambda: "the command 'cat' runs" in here.ok("explain", "editor"))
        sleeps(here, "editor")
        assert time.monotonic() - began > FOREGROUND_TTL_S
