"""Below the reserve no workspace is started or restored, and waiting workspaces continue automatically."""

from dataclasses import replace

import pytest

from tests.domain.world import World
from torpor.domain.disk import WRITES_BYTES, Disk, PauseAction, pause_action, require_space, shortage, size, writers
from torpor.domain.errors import Code, Reason, Refused
from torpor.domain.explain import explain
from torpor.domain.planner import Rest, Turn, WaitForSpace
from torpor.domain.records import DISK_LOW, EffectFailed
from torpor.domain.states import Operation, Phase, Wish

GIB = 1 << 30
FULL, ROOMY = Disk("/data/volumes", GIB // 2), Disk("/data/volumes", 8 * GIB)


def on_disk(disk: Disk, **row: object) -> World:
    world = World(desired_state=Wish.RUNNING, **row)
    world.disk, world.reserve_bytes = disk, GIB
    return world


def until_it_waits(world: World) -> WaitForSpace:
    for _ in range(60):
        step = world.tick()
        if isinstance(step, WaitForSpace):
            return step
    raise AssertionError(world.told)


@pytest.mark.parametrize(
    ("free", "needed", "is_short"),
    [(GIB, 0, False), (GIB - 1, 0, True), (2 * GIB, GIB, False), (2 * GIB, GIB + 1, True), (0, 0, True)],
)
def test_the_reserve_stays_free_after_what_is_needed(free: int, needed: int, is_short: bool) -> None:
    assert (shortage(Disk("/d", free), GIB, needed) is not None) is is_short


def test_without_a_reserve_or_a_known_disk_there_is_no_shortage() -> None:
    assert shortage(Disk("/d", 0), 0) is None
    assert shortage(None, GIB) is None


def test_a_shortage_has_the_same_words_while_the_free_space_changes_a_little() -> None:
    """The message is stored in every waiting row, on the full disk."""
    told = {shortage(Disk("/d", mib << 20), GIB) for mib in range(900, 1000)}
    assert len(told) == 1
    assert "about 896 MiB free" in str(told)


def test_a_refusal_has_free_space_reserve_path_and_what_to_do() -> None:
    with pytest.raises(Refused) as refused:
        require_space(FULL, GIB, 3 << 20)
    assert refused.value.code == "disk_low"
    for words in ("/data/volumes", "512 MiB free", "needs 3.0 MiB", "keeps 1.0 GiB free", "delete workspaces", "disk_reserve"):
        assert words in refused.value.message
    assert refused.value.context["free_bytes"] == FULL.free_bytes


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (GIB, "1.0 GiB"), (150 << 20, "150 MiB")]
)
def test_sizes_are_rounded(count: int, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize(
    ("free", "what"),
    [
        (GIB, PauseAction.CONTINUE),
        (GIB - 1, PauseAction.LEAVE),
        (GIB // 2, PauseAction.LEAVE),
        (GIB // 2 - 1, PauseAction.WRITERS),
        (GIB // 4, PauseAction.WRITERS),
        (GIB // 4 - 1, PauseAction.ALL),
        (0, PauseAction.ALL),
    ],
)
def test_more_is_paused_as_the_disk_fills(free: int, what: PauseAction) -> None:
    assert pause_action(free, GIB) is what
    assert pause_action(free, 0) is PauseAction.CONTINUE


def test_writers_are_processes_that_wrote_much_since_the_last_check() -> None:
    much = WRITES_BYTES + 1
    assert writers({1: 100, 2: 100, 3: much}, {1: 100 + much, 2: 200, 3: much, 4: much, 5: 1}) == {1, 4}


def test_a_paused_workspace_is_running_and_explain_gives_the_reason() -> None:
    world = on_disk(ROOMY)
    world.run_until_rest()
    assert world.container is not None
    world.container = replace(world.container, is_paused=True)
    world.run_until_rest()
    assert (world.row.phase, world.row.error, world.row.is_paused) == (Phase.RUNNING, None, True)
    assert "almost full" in str(explain(world.row, ()).why)
    world.container = replace(world.container, is_paused=False)
    world.run_until_rest()
    assert not world.row.is_paused


def test_a_workspace_is_started_when_there_is_space_again() -> None:
    world = on_disk(FULL)
    until_it_waits(world)
    assert (world.row.phase, world.row.operation) == (Phase.STANDBY, Operation.NONE)
    assert world.row.conditions.healthy.reason == DISK_LOW
    assert world.row.error is None
    told = explain(world.row, ())
    assert any("about 512 MiB free" in line for line in told.lines)
    assert told.next_step == "a step towards Running when there is enough free space"
    assert told.waiting_for is not None

    writes = world.writes
    world.pass_time(86_400)
    assert isinstance(world.tick(), WaitForSpace)
    assert world.writes == writes, "a wait does not write to a full disk"

    world.disk = ROOMY
    world.run_until_rest()
    assert world.row.phase is Phase.RUNNING
    assert world.row.conditions.healthy.reason == "Healthy"


def test_a_restore_waits_until_its_home_fits_above_the_reserve() -> None:
    world = on_disk(ROOMY)
    world.run_until_rest()
    world.work("a home")
    world.wish(Wish.ARCHIVED)
    world.run_until_rest()
    world.row = replace(world.row, archive_home_bytes=10 * GIB)
    world.wish(Wish.RUNNING)
    assert "needs 10.0 GiB" in until_it_waits(world).message
    assert (world.row.phase, world.half_made) == (Phase.ARCHIVED, set())
    world.disk = Disk("/data/volumes", 12 * GIB)
    world.run_until_rest()
    assert world.row.phase is Phase.RUNNING


def test_archiving_and_deleting_need_no_space() -> None:
    world = on_disk(ROOMY)
    world.run_until_rest()
    world.disk = FULL
    phases = []
    for wish in (Wish.ARCHIVED, Wish.DELETED):
        world.wish(wish)
        world.run_until_rest()
        phases.append(world.row.phase)
    assert phases == [Phase.ARCHIVED, Phase.DELETED]


def test_running_workspaces_continue_and_a_new_request_ends_the_wait() -> None:
    world = on_disk(ROOMY)
    world.run_until_rest()
    world.disk = FULL
    assert world.tick() == Rest()
    world.wish(Wish.STANDBY)
    world.run_until_rest()
    world.wish(Wish.RUNNING)
    until_it_waits(world)
    world.wish(Wish.STANDBY)
    world.run_until_rest()
    assert (world.row.phase, world.row.conditions.healthy.reason) == (Phase.STANDBY, "Healthy")


def test_an_attempt_that_filled_the_disk_waits_for_space_and_does_not_fail() -> None:
    world = on_disk(ROOMY)
    world.run_until_rest()
    world.wish(Wish.ARCHIVED)
    world.run_until_rest()
    world.wish(Wish.RUNNING)
    world.befall(EffectFailed(Reason.ACTION_FAILED, "no space left", {"code": Code.DISK_FULL.value}))
    world.tick()
    world.tick()
    world.disk = FULL
    world.tick()  # the report: the attempt is retried
    assert world.tick() == Turn(Operation.NONE)
    world.pass_time(86_400)
    until_it_waits(world)
    assert world.row.error is None
    world.disk = ROOMY
    world.run_until_rest()
    assert world.row.phase is Phase.RUNNING


def test_another_controller_starts_no_workspace_below_the_reserve() -> None:
    world = on_disk(ROOMY)
    world.wish(Wish.STANDBY)
    world.run_until_rest()
    world.wish(Wish.RUNNING)
    world.tick()
    assert world.row.operation is Operation.STARTING
    world.another_controller()
    world.disk = FULL
    until_it_waits(world)
    assert world.container is None
