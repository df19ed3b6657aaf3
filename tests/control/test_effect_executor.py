"""Without an archive store no home is archived, and effects that fail or are canceled leave no half-made volume."""

import asyncio
from dataclasses import replace
from typing import get_args

import pytest

from tests.support.builders import workspace
from torpor.control import effect_executor
from torpor.control.effect_executor import ACTION_OF, EffectExecutor, NoBases
from torpor.domain.effects import Effect, MakeHome, Pack, PackEmpty, Restore, Start, Stop
from torpor.domain.errors import Code, Failed, Reason, Refused, Unavailable
from torpor.domain.records import Archive, ArchiveKey, EffectDone, EffectFailed, Marker, ProvenArchive, ProviderOutage
from torpor.ports import Container, Fence, Home, Limits, Program, Progress
from torpor.testing.fake_runtime import FakeArchives, FakeRuntime, FakeVolume, FakeWorld

pytestmark = pytest.mark.anyio

ROW = workspace()
KEY = ArchiveKey(ROW.id, "op")
FENCE = Fence("op", 1)


def hands_in(world: FakeWorld, archives: FakeArchives | None = None) -> EffectExecutor:
    return EffectExecutor(
        FakeRuntime(world), archives or FakeArchives(world), lambda _: Program("t", ("true",)), Limits(1 << 20, 8)
    )


class Gates:
    """Each of these verbs waits until its gate is opened."""

    def __init__(self, *verbs: str) -> None:
        self.reached = {verb: asyncio.Event() for verb in verbs}
        self.opened = {verb: asyncio.Event() for verb in verbs}

    async def __call__(self, verb: str, _workspace_id: str) -> None:
        if verb in self.reached:
            self.reached[verb].set()
            await self.opened[verb].wait()


def begun(world: FakeWorld, gates: Gates, effect: Effect) -> "asyncio.Task[object]":
    world.interfere = gates
    return asyncio.ensure_future(hands_in(world).carry_out(ROW, effect, FENCE, lambda *_: None))


def restore(world: FakeWorld) -> Restore:
    world.archives[str(KEY)] = ({"note": b"hello"}, "root")
    return Restore(2, Archive(KEY, 1, 0, "root"), frozenset())


async def test_an_effect_that_is_cancelled_again_and_again_removes_its_half_made_volume() -> None:
    world, gates = FakeWorld(), Gates("run_at_home", "ensure_no_half_made")
    restoring = begun(world, gates, restore(world))
    await gates.reached["run_at_home"].wait()
    assert Home(ROW.id, 2) in world.volumes
    restoring.cancel()
    await gates.reached["ensure_no_half_made"].wait()
    for _ in range(3):
        restoring.cancel()
        await asyncio.sleep(0)
    gates.opened["ensure_no_half_made"].set()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    assert not world.volumes


@pytest.mark.parametrize(
    ("code", "reason", "wants_new_op_id"),
    [
        (Code.IMAGE_PULL_FAILED, Reason.IMAGE_PULL_FAILED, False),
        (Code.IMAGE_PULL_INTERRUPTED, Reason.ACTION_FAILED, True),
    ],
)
async def test_a_failed_pull_is_final_or_begins_again_from_zero(code: Code, reason: Reason, wants_new_op_id: bool) -> None:
    class Registry(FakeRuntime):
        async def ensure_running(self, container: Container, fence: Fence, progress: Progress) -> None:
            raise Failed(code, "cannot pull the image 'a': no", image="a")

    world = FakeWorld()
    hands = EffectExecutor(Registry(world), FakeArchives(world), lambda _: Program("t", ("true",)), Limits(1 << 20, 8))
    report = await hands.carry_out(ROW, Start(1, 1), FENCE, lambda *_: None)
    assert isinstance(report, EffectFailed)
    assert (report.reason, report.wants_new_op_id, report.context["image"]) == (reason, wants_new_op_id, "a")
    assert report.message == "cannot pull the image 'a': no"


async def test_a_home_that_was_marked_before_the_cancellation_stays() -> None:
    world = FakeWorld()
    making: asyncio.Task[object]

    class Late(FakeRuntime):
        async def mark_volume(self, home: Home, marker: Marker, fence: Fence) -> None:
            await super().mark_volume(home, marker, fence)
            making.cancel()
            await asyncio.sleep(0)

    hands = EffectExecutor(Late(world), FakeArchives(world), lambda _: Program("t", ("true",)), Limits(1 << 20, 8))
    making = asyncio.ensure_future(hands.carry_out(ROW, MakeHome(1, frozenset()), FENCE, lambda *_: None))
    with pytest.raises(asyncio.CancelledError):
        await making
    assert world.volumes[Home(ROW.id, 1)].marker == Marker(ROW.id, 1, "")


async def test_a_cancelled_effect_ends_even_if_its_volume_cannot_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect_executor, "GIVE_BACK_S", 0.05)
    world, gates = FakeWorld(), Gates("run_at_home", "ensure_no_half_made")
    restoring = begun(world, gates, restore(world))
    await gates.reached["run_at_home"].wait()
    restoring.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await restoring
    world.interfere = Gates()
    assert await hands_in(world).carry_out(ROW, MakeHome(3, frozenset({2})), FENCE, lambda *_: None) == EffectDone()
    assert set(world.volumes) == {Home(ROW.id, 3)}


async def test_an_error_while_freeing_space_is_not_raised() -> None:
    world = FakeWorld()

    async def full(verb: str, _workspace_id: str) -> None:
        if verb == "mark_volume":
            raise Failed(Code.DISK_FULL, "no space left")
        if verb == "ensure_no_half_made":
            raise OSError("a bad sector")

    world.interfere = full
    report = await hands_in(world).carry_out(ROW, MakeHome(1, frozenset()), FENCE, lambda *_: None)
    assert isinstance(report, EffectFailed)
    assert report.context["code"] == Code.DISK_FULL


@pytest.mark.parametrize("effect", [Pack(KEY, 1, 0), PackEmpty(KEY, 1, 0)])
async def test_no_home_is_archived_into_another_store(effect: Effect) -> None:
    world = FakeWorld()
    world.volumes[Home(ROW.id, 1)] = FakeVolume({"note": b"hello"}, Marker(ROW.id, 1, ""))
    archives = FakeArchives(world)
    hands = hands_in(world, archives)
    ours = await archives.world()
    for store in (None, "another"):
        world.archive_store = store
        report = await hands.carry_out(ROW, effect, FENCE, lambda *_: None)
        assert isinstance(report, ProviderOutage), report
        assert not world.archives
    world.archive_store = ours
    assert isinstance(await hands.carry_out(ROW, effect, FENCE, lambda *_: None), ProvenArchive)


# ── the context of errors ─────────────────────────────────────────────────────────────────────────────────────────────


def failing(verb: str, error: Exception) -> FakeWorld:
    """A provider that answers all calls except this verb."""
    world = FakeWorld()
    world.volumes[Home(ROW.id, 1)] = FakeVolume({"note": b"hello"}, Marker(ROW.id, 1, ""))

    async def interfere(asked: str, _workspace_id: str) -> None:
        if asked == verb:
            raise error

    world.interfere = interfere
    return world


@pytest.mark.parametrize(
    ("verb", "effect", "error", "endpoint", "status_code"),
    [
        ("run_at_home", Pack(KEY, 1, 0), Failed(Code.S3_ACCESS_ERROR, "forbidden", status_code=403), "archive-store", 403),
        ("run_at_home", Pack(KEY, 1, 0), Failed(Code.S3_ACCESS_ERROR, "no", endpoint="s3://b"), "s3://b", None),
        ("ensure_running", Start(1, 1), Failed(Code.K8S_API_ERROR, "busy", status_code=503), "fake", 503),
        ("ensure_no_container", Stop(), Unavailable("it does not end"), "fake", None),
    ],
)
async def test_a_call_that_fails_while_the_provider_answers_is_unreachable_and_no_outage(
    verb: str, effect: Effect, error: Exception, endpoint: str, status_code: int | None
) -> None:
    report = await hands_in(failing(verb, error)).carry_out(ROW, effect, FENCE, lambda *_: None)
    assert isinstance(report, EffectFailed), "an outage would never be counted, and never end in ERROR"
    assert report.reason is Reason.UNREACHABLE
    assert (report.context["endpoint"], report.context["status_code"]) == (endpoint, status_code)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(Failed(Code.HOME_CHANGED, "changed", exit_code=1), 1), (OSError("a bad sector"), None), (Refused("no", "no"), None)],
)
async def test_an_action_that_failed_is_named_with_its_exit_code(error: Exception, exit_code: int | None) -> None:
    report = await hands_in(failing("run_at_home", error)).carry_out(ROW, Pack(KEY, 1, 0), FENCE, lambda *_: None)
    assert isinstance(report, EffectFailed)
    assert report.reason is Reason.ACTION_FAILED
    assert (report.context["action"], report.context["exit_code"]) == ("archive", exit_code)


async def test_an_archive_with_a_pack_that_was_given_up_meanwhile_is_written_again_under_a_new_id() -> None:
    class GivenUp(NoBases):
        async def refuse_unusable(self, proven: ProvenArchive) -> None:
            raise Failed(Code.READBACK_MISMATCH, f"a pack of {proven.archive.key} is being removed")

    world = FakeWorld(volumes={Home(ROW.id, 1): FakeVolume({"a": b"b"}, Marker(ROW.id, 1, ""))})
    hands = replace(hands_in(world), bases=GivenUp())
    report = await hands.carry_out(ROW, Pack(KEY, 1, 0), FENCE, lambda *_: None)
    assert isinstance(report, EffectFailed)
    assert report.wants_new_op_id
    assert Home(ROW.id, 1) in world.volumes


async def test_every_effect_has_the_name_of_its_action() -> None:
    assert set(ACTION_OF) == set(get_args(Effect))


async def test_a_lost_archive_is_reported_with_its_key_and_detail() -> None:
    report = await hands_in(FakeWorld()).carry_out(
        ROW, Restore(2, Archive(KEY, 1, 0, "root"), frozenset()), FENCE, lambda *_: None
    )
    assert isinstance(report, EffectFailed)
    assert report.reason is Reason.DATA_LOST
    assert (report.context["archive_key"], report.context["detail"]) == (str(KEY), f"there is no archive {KEY}")
