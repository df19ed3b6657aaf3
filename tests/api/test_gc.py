"""The API previews a collection of archives, and a requested collection runs."""

import asyncio
import contextlib
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import uvicorn

from tests.api.unasked import NO_EVENTS, NO_USAGE
from tests.support.gc_stage import ARCHIVING, IN_ERROR, RETENTION, TERM, GcStage, deleted, gc_stage
from tests.support.live_api import background
from tests.support.pack_stage import PackStage
from tests.support.stored_packs import FakePacks
from tests.support.users import accounts_of, person, token_for
from tests.support.waiting import until
from torpor.accounts import Caller
from torpor.api.app import Health, make_app
from torpor.api.gc import GcSources, _preview, _SharedGcPlan
from torpor.archives.reader import ArchiveReader
from torpor.bus.redis import Bus
from torpor.cli.client import ApiClient
from torpor.cli.commands.gc import wait_for_report
from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.control.duties import run_duty
from torpor.domain.hostnames import Hosts
from torpor.domain.records import ArchiveKey
from torpor.domain.retention import GcPolicy
from torpor.runtimes.local_access import LocalAccess
from torpor.store.database import Database, Role
from torpor.store.pack_gc import PackGcStore
from torpor.testing.fake_runtime import FakeArchives, FakeRuntime, FakeWorld

pytestmark = pytest.mark.anyio

Answer = TypeVar("Answer")


class Served:
    def __init__(self, here: GcStage, world: FakeWorld, url: str, database: Database, people: Mapping[str, Caller]) -> None:
        self.here = here
        self.world = world
        self.url = url
        self.database = database
        self.people = people

    async def ask(self, question: Callable[[ApiClient], Answer], *, by: str = "ada") -> Answer:
        """The client of the command line, over HTTP."""
        token = await token_for(self.database, self.people[by].user)

        def call() -> Answer:
            with ApiClient(self.url, token) as api:
                return question(api)

        return await asyncio.to_thread(call)


@pytest.fixture
async def served(database_url: str, redis_url: str) -> AsyncIterator[Served]:
    world = FakeWorld()
    async with gc_stage(database_url, FakeArchives(world)) as here, contextlib.AsyncExitStack() as stack:
        bus, database = await Bus.open(redis_url), await Database.open(database_url, Role.SERVICE)
        stack.push_async_callback(bus.close)
        stack.push_async_callback(database.close)
        people = {"ada": here.user, "bob": await person(database, "bob")}

        async def nothing() -> dict[str, Any]:
            return {}

        app = make_app(
            here.wishes,
            accounts_of(database, bus),
            LocalAccess(FakeRuntime(world)),
            Health(nothing, nothing),
            hosts=Hosts("http://localhost", "localhost"),
            events=NO_EVENTS,
            gc=GcSources(here.seen, here.archives, GcPolicy(RETENTION, every=timedelta(hours=1)), PackGcStore(database)),
            usage=NO_USAGE,
            reading=ArchiveReader("file:///nowhere"),
        )
        async with listening(app) as url:
            yield Served(here, world, url, database, people)


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=2))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    with socket.create_server(("127.0.0.1", 0)) as bound:
        task = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            await until(lambda: server.started)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.gather(task, return_exceptions=True)


async def test_the_preview_lists_what_a_collection_then_removes(served: Served) -> None:
    here = served.here
    demo = await here.workspace("demo")
    first, second, third = [await here.archive(demo, hours=hours) for hours in (1, 2, 3)]
    await here.point(demo, first)
    broken = await here.archive(await here.workspace("broken", **IN_ERROR), hours=9, orphan_since="now()")
    calm = await here.archive(await here.workspace("calm"), hours=1)
    gone = await here.workspace("gone", **deleted(days=8))
    old = await here.archive(gone, hours=200, orphan_since="now() - interval '3 hours'")
    fresh = await here.archive(gone, hours=199, orphan_since="now() - interval '1 hour'")
    stranger = await here.archive(await here.workspace("restored"), hours=0, in_table=False)
    left_over = await here.archive(demo, hours=0, in_table=False)
    await here.operation(left_over)
    lost = await here.archive(await here.workspace("lost"), hours=5, in_store=False)
    before = await here.everything()

    preview = await served.ask(lambda api: api.gc_preview())
    assert await here.everything() == before
    assert [(item["key"], item["action"], item["why"], item["workspace"]) for item in preview["items"]] == [
        (old, "remove", "expired", "gone"),
        (fresh, "wait", "expired", "gone"),
        (third, "mark", "superseded", "demo"),
    ]
    assert preview["kept"] == {"in_error": 1, "pointed_at": 1, "recent": 1, "unquestioned": 2}
    assert (preview["would_mark"], preview["waiting"], preview["would_remove"]) == (1, 1, 1)
    assert preview["would_free_bytes"] == 1000
    assert preview["unknown"] == [stranger]
    assert preview["left_over"] == [left_over]
    assert preview["would_skip"] is None
    assert preview["missing"] == [lost]
    assert preview["last"] == {"requested_at": None, "tried_at": None, "ran_at": None, "report": None, "skipped": None}

    await here.collect()
    assert await here.rows() == {
        first: (False, False),
        second: (False, False),
        third: (True, False),
        broken: (False, False),
        calm: (False, False),
        fresh: (True, False),
        lost: (False, False),
        left_over: (True, False),
    }
    after = await served.ask(lambda api: api.gc_preview())
    assert after["last"]["report"]["removed"] == 1
    assert after["would_remove"] == 0


async def test_the_preview_of_a_removal_says_what_it_frees(served: Served) -> None:
    """Of an archive in packs nothing yet: other archives may need its packs."""
    packs = PackStage(served.here, FakePacks(served.world))
    _, old, _ = await packs.superseded("demo")
    await served.here.mark(str(old.key), orphan_since="now() - interval '3 hours'")
    preview = await served.ask(lambda api: api.gc_preview())
    [item] = preview["items"]
    assert (item["key"], item["size_bytes"]) == (str(old.key), None)
    assert (preview["would_remove"], preview["would_free_bytes"]) == (1, 0)


async def test_the_preview_lists_packs_with_the_reason(served: Served) -> None:
    packs = PackStage(served.here, FakePacks(served.world))
    workspace_id, old, kept = await packs.superseded("demo")
    await served.here.owner.execute("DELETE FROM archive_packs WHERE archive_key = $1", str(old.key))
    unneeded = old.packs[0]
    failed = ArchiveKey(workspace_id, str(uuid.uuid4()))
    await served.here.operation(str(failed))
    left = await packs.writer.write(failed, b"left over")
    preview = (await served.ask(lambda api: api.gc_preview()))["packs"]
    [item] = preview["items"]
    assert (item["name"], item["action"], item["workspace"]) == (unneeded, "mark", "demo")
    assert item["means"] == "no archive needs it any more"
    assert (preview["kept"], preview["would_mark"], preview["would_remove"]) == (3, 1, 0)
    assert preview["kept_reasons"] == {"needed": 3}
    assert preview["left_over"] == [f"{workspace_id}/packs/{left}"]

    await packs.change_packs(unneeded, orphan_since="now() - interval '3 hours'")
    preview = (await served.ask(lambda api: api.gc_preview()))["packs"]
    assert (preview["would_remove"], preview["would_free_bytes"]) == (1, len(b"own of the old one"))
    await served.here.change(workspace_id, **ARCHIVING)
    preview = (await served.ask(lambda api: api.gc_preview()))["packs"]
    [item] = preview["items"]
    assert (item["action"], item["goes_at"], preview["would_remove"]) == ("wait", None, 0)
    assert await packs.rows() == {
        **dict.fromkeys({name for one in kept for name in one.packs}, (False, False)),
        unneeded: (True, False),
    }


async def test_archives_of_format_2_show_their_oldest_proof_and_damage(served: Served) -> None:
    packs = PackStage(served.here, FakePacks(served.world))
    archive = await packs.archive(await served.here.workspace("demo"), b"a", b"b", hours=1)
    await packs.change_packs(archive.packs[0], proven_at="'2026-03-01T12:00:00Z'")
    [shown] = await served.ask(lambda api: api.archives("demo"))
    assert (shown["format"], shown["new_bytes"], shown["is_damaged"]) == (2, 10, False)
    assert shown["proven_at"] == "2026-03-01T12:00:00Z" != shown["made_at"]
    await packs.change_packs(archive.packs[1], damaged_at="now()")
    [shown] = await served.ask(lambda api: api.archives("demo"))
    assert shown["is_damaged"]


async def test_a_requested_collection_runs_and_is_reported(served: Served) -> None:
    here = served.here
    purged = await here.workspace("purged", **deleted(days=1), purge="true")
    await here.archive(purged, hours=1, orphan_since="now() - interval '3 hours'")
    await here.collect()
    await here.archive(purged, hours=1, orphan_since="now() - interval '3 hours'")
    requested = await served.ask(lambda api: api.gc_request())
    waiting = asyncio.create_task(served.ask(lambda api: wait_for_report(api, requested, timeout_s=20)))
    async with background(run_duty(here.collector(), TERM)):
        report = await waiting
    assert (report["removed"], report["freed_bytes"], report["skipped"]) == (1, 1000, None)
    standing = await served.ask(lambda api: api.gc_report())
    assert standing["ran_at"] > standing["requested_at"] == requested["requested_at"]


async def test_a_waiting_client_gets_the_reason_of_a_skipped_collection(served: Served) -> None:
    requested = await served.ask(lambda api: api.gc_request())
    served.world.archives_out = True
    async with background(run_duty(served.here.collector(), TERM)):
        with pytest.raises(CommandError, match="the fake archive store is out") as ended:
            await served.ask(lambda api: wait_for_report(api, requested, timeout_s=20))
    assert ended.value.code == "collection_skipped"


async def test_waiting_for_a_report_has_a_timeout(served: Served) -> None:
    requested = await served.ask(lambda api: api.gc_request())
    with pytest.raises(CommandError) as ended:
        await served.ask(lambda api: wait_for_report(api, requested, timeout_s=0))
    assert ended.value.exit_code is ExitCode.TIMED_OUT


async def test_only_an_administrator_can_collect(served: Served) -> None:
    for question in (ApiClient.gc_preview, ApiClient.gc_request, ApiClient.gc_report):
        with pytest.raises(CommandError) as refused:
            await served.ask(question, by="bob")
        assert refused.value.code == "forbidden"
    assert (await served.here.seen.housekeeping()).requested_at is None


async def test_the_preview_is_unavailable_without_the_store(served: Served) -> None:
    served.world.archives_out = True
    with pytest.raises(CommandError) as refused:
        await served.ask(ApiClient.gc_preview)
    assert refused.value.code == "unavailable"


async def test_concurrent_previews_share_one_listing_and_survive_a_cancelled_one(served: Served) -> None:
    policy = GcPolicy(RETENTION, every=timedelta(hours=1))
    collecting = GcSources(served.here.seen, served.here.archives, policy, PackGcStore(served.database))
    previewed, listings, goes_on = _SharedGcPlan(lambda: _preview(collecting)), 0, asyncio.Event()

    async def count(verb: str, workspace_id: str) -> None:
        nonlocal listings
        if (verb, workspace_id) == ("listing", ""):
            listings += 1
            await goes_on.wait()

    served.world.interfere = count
    crowd = [asyncio.create_task(previewed()) for _ in range(5)]
    await until(lambda: listings)
    crowd[0].cancel()
    crowd.append(asyncio.create_task(previewed()))
    await asyncio.wait(crowd[:1])
    goes_on.set()
    first, *others = await asyncio.gather(*crowd[1:])
    assert all(other is first for other in others)
    assert listings == 1
    assert await previewed() is not first
    assert listings == 2


async def test_the_preview_uses_the_settings_of_the_leader(served: Served) -> None:
    """The leader's settings may differ."""
    here = served.here
    demo = await here.workspace("demo")
    keys = [await here.archive(demo, hours=hours) for hours in (1, 2, 3, 4)]
    assert {item["key"] for item in (await served.ask(ApiClient.gc_preview))["items"]} == {keys[2], keys[3]}
    await here.collect(replace(RETENTION, keep=3))
    assert [item["key"] for item in (await served.ask(ApiClient.gc_preview))["items"]] == [keys[3]]


async def test_the_preview_reports_a_skip_and_that_marks_are_reset(served: Served) -> None:
    here = served.here
    purged = await here.workspace("purged", **deleted(days=1), purge="true")
    await here.archive(purged, hours=1, orphan_since="now() - interval '3 hours'")
    await here.owner.execute("INSERT INTO latches (provider, expected, missing) VALUES ('process', 9, 5)")
    assert "homes are missing at process" in (await served.ask(ApiClient.gc_preview))["would_skip"]
    await here.owner.execute("UPDATE housekeeping SET gc_ended_at = now() - interval '1 day'")
    preview = await served.ask(ApiClient.gc_preview)
    assert (preview["would_mark"], preview["would_remove"]) == (1, 0)


@pytest.mark.parametrize(
    ("stored", "removed"),
    [
        ('{"started_at": "2026-03-01T12:00:00Z", "ended_at": "2026-03-01T12:00:01Z", "removed": 3, "of_the_future": 1}', 3),
        ('{"removed": "many"}', None),
    ],
)
async def test_a_report_of_another_version_is_read_as_far_as_possible(served: Served, stored: str, removed: int | None) -> None:
    await served.here.owner.execute("UPDATE housekeeping SET gc_report = $1", stored)
    report = (await served.ask(ApiClient.gc_report))["report"]
    assert (report and report["removed"]) == removed


async def test_undelete_is_offered_while_it_would_be_accepted(served: Served) -> None:
    here = served.here

    async def is_offered() -> bool:
        told = await served.ask(lambda api: api.explain(demo))
        return any("undelete" in way["command"] for way in told["ways_out"])

    demo = await here.workspace("demo", **deleted(days=8))
    await here.point(demo, await here.archive(demo, hours=1))
    assert await is_offered()
    namesake = await here.workspace("demo")
    assert not await is_offered()
    await here.change(namesake, **deleted(days=1))
    assert await is_offered()
    await here.collect()
    assert not await is_offered()
    with pytest.raises(CommandError) as refused:
        await served.ask(lambda api: api.undelete(demo))
    assert refused.value.code == "archive_collected"
