"""The workspace's own command runs before an automatic stop and cannot prevent it. The real product."""

import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.product import Product, processes_with, product
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

TTL_S = 2
# Long enough for a test to wake a workspace meanwhile, on a busy machine.
TIMEOUT_S = 15
HASTE = {
    "TORPOR_TTL_INTERVAL": "0.5",
    "TORPOR_CONNECTION_LEASE": "3",
    "TORPOR_STANDBY_TTL": str(TTL_S),
    "TORPOR_BEFORE_SLEEP_TIMEOUT": str(TIMEOUT_S),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("before-sleep"), TORPOR_MAX_RUNNING_PER_USER="9", **HASTE) as running:
        yield running


def create(here: Product, name: str, script: str) -> None:
    """Without waiting: on a busy machine the workspace might be stopped before the test continues."""
    here.ok("create", name, "--before-sleep", shlex.join(["sh", "-c", script]))


def until_asleep(here: Product, name: str) -> dict[str, Any]:
    return here.until(name, lambda seen: seen["phase"] == "STANDBY" and seen["operation"] == "NONE", within_s=120)


def until_it_runs(here: Product, name: str) -> dict[str, Any]:
    return here.until(name, lambda seen: seen["runs_before_sleep"], within_s=90)


def own_log(here: Product, name: str) -> str:
    return here.ok("logs", name)


def test_the_command_runs_as_the_workspace_user_in_its_home_and_its_output_is_kept(here: Product) -> None:
    create(here, "ada", "id -u > who; pwd > where; echo $TORPOR_WORKSPACE > name; wc -c > input; echo all saved; sync")
    here.ok("start", "ada", "--wait")
    user, home = here.ok("exec", "ada", "--", "id", "-u"), here.ok("exec", "ada", "--", "pwd")
    asleep = until_asleep(here, "ada")
    written = {name: (here.home(asleep) / name).read_text() for name in ("who", "where", "name", "input")}
    assert written == {"who": user, "where": home, "name": "ada\n", "input": "0\n"}
    assert "all saved\ntorpor: before_sleep ended with exit code 0\n" in own_log(here, "ada")
    assert "before_sleep_ended" in here.log()


def test_a_failed_command_is_logged_and_the_workspace_stops(here: Product) -> None:
    create(here, "fails", "echo $((40 + 2)) problems >&2; exit 7")
    asleep = until_asleep(here, "fails")
    assert asleep["error"] is None
    assert "42 problems\ntorpor: before_sleep ended with exit code 7\n" in own_log(here, "fails")
    assert "before_sleep_failed" in here.log()


@pytest.mark.long
def test_a_command_that_hangs_and_uses_cpu_is_ended_and_the_workspace_stops(here: Product) -> None:
    # It ignores every signal that can be ignored, has a child, and uses enough CPU to be busy.
    hangs = "trap '' TERM INT HUP; sleep 61713.5 & while :; do :; done"
    create(here, "hangs", hangs)
    until_it_runs(here, "hangs")
    began = time.monotonic()
    wait_until(lambda: processes_with("sleep 61713.5"))
    assert "before_sleep" in here.ok("explain", "hangs")
    assert "before_sleep" in here.ok("show", "hangs")
    asleep = until_asleep(here, "hangs")
    assert TIMEOUT_S - 5 < time.monotonic() - began < TIMEOUT_S + 60
    assert (asleep["desired_state"], asleep["error"]) == ("STANDBY", None)
    assert processes_with("sleep 61713.5") == []
    assert f"did not end within {TIMEOUT_S} s" in own_log(here, "hangs")


def test_a_stop_by_a_user_does_not_run_the_command(here: Product) -> None:
    create(here, "stopped", "touch ran")
    here.ok("hold", "stopped", "--for", "5m", "--reason", "it must not sleep by itself")
    here.ok("start", "stopped", "--wait")
    here.ok("stop", "stopped", "--wait")
    assert not (here.home(here.show("stopped")) / "ran").exists()
    assert "before_sleep" not in own_log(here, "stopped")


def test_a_start_during_the_command_keeps_it_running_and_ends_the_command(here: Product) -> None:
    create(here, "woken", "touch began; sleep 61714.5; touch finished")
    sleeping = until_it_runs(here, "woken")
    wait_until(lambda: processes_with("sleep 61714.5"))
    here.ok("hold", "woken", "--for", "5m", "--reason", "the test looks at it")
    here.ok("start", "woken", "--wait")
    woken = here.until("woken", lambda seen: seen["operation"] == "NONE")
    assert (woken["phase"], woken["revision"]) == ("RUNNING", sleeping["revision"]), "it was never stopped"
    wait_until(lambda: not processes_with("sleep 61714.5"))
    assert sorted(here.ok("exec", "woken", "--", "ls").split()) == ["began"]


def test_a_visit_during_the_command_is_served_and_keeps_it_running(here: Product) -> None:
    create(here, "visited", "sleep 61715.5")
    sleeping = until_it_runs(here, "visited")
    here.ok("hold", "visited", "--for", "5m", "--reason", "the test looks at it")
    status, _, _ = here.get("visited")
    assert status == 200
    visited = here.until("visited", lambda seen: seen["operation"] == "NONE")
    assert (visited["phase"], visited["revision"]) == ("RUNNING", sleeping["revision"])
    wait_until(lambda: not processes_with("sleep 61715.5"))


def test_the_command_can_be_changed_and_switched_off(here: Product) -> None:
    create(here, "changed", "touch first")
    here.ok("before-sleep", "changed", "--", "touch", "second")
    first = until_asleep(here, "changed")
    assert [path.name for path in here.home(first).iterdir() if path.name in ("first", "second")] == ["second"]
    assert "touch second" in here.ok("before-sleep", "changed")
    here.ok("before-sleep", "changed", "--off")
    assert here.show("changed")["before_sleep"] == []
    here.ok("before-sleep", "changed", "--default")
    assert here.show("changed")["before_sleep"] is None
