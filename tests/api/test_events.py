"""Event streams: each client gets every event that it may see, once and in order, in spite of losses on the way."""

import asyncio
import random
import re
import resource
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.support.live_api import PATIENCE_S, TERM, Client, Received, background, live_api
from tests.support.waiting import until
from torpor import metrics
from torpor.accounts import UserChange
from torpor.api import event_fanout
from torpor.api import events as events_module
from torpor.api.events import STREAMS_PER_USER
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.domain.access import Share
from torpor.domain.events import BEGINNING, EventKind, EventMessage, event_body, to_message
from torpor.domain.records import Workspace
from torpor.domain.states import Phase
from torpor.store import events as store_module

pytestmark = pytest.mark.anyio

NEVER_S = 3600.0


def streams() -> float:
    return metrics.REGISTRY.get_sample_value("torpor_sse_streams") or 0


# ── which events, to which user ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_change_is_sent_to_streams(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        workspace_id = await here.create("demo")
        first_id = await here.until_handed_out()
        of_workspace = await here.follow("/workspaces/demo/events")
        of_mine = await here.follow("/events")
        assert of_workspace.status == 200
        assert of_workspace.headers["content-type"].startswith("text/event-stream")
        assert of_workspace.headers["cache-control"] == "no-store"
        assert of_workspace.headers["x-accel-buffering"] == "no"
        (now,) = await of_workspace.some(1)
        assert (now.event, now.id, now.body["workspace"]["phase"]) == ("state_changed", first_id, Phase.PENDING)
        hello = await of_mine.next()
        assert hello is not None
        assert (hello.event, hello.id, hello.body["workspace"]) == ("heartbeat", first_id, None)

        await here.db.execute("UPDATE workspaces SET phase = 'ARCHIVED'")
        await here.db.execute(
            """UPDATE workspaces SET phase = 'ERROR', error_info = jsonb_build_object(
                'reason', 'Timeout', 'message', E'too\nlate', 'is_terminal', true, 'operation', 'NONE', 'error_count', 1,
                'occurred_at', now(), 'wish_version', 1, 'context', jsonb_build_object())"""
        )
        for client in (of_workspace, of_mine):
            changed, error = await client.some(2)
            assert (changed.event, changed.id) == ("state_changed", first_id + 1)
            assert changed.body["workspace"]["phase"] == Phase.ARCHIVED
            assert (error.event, error.id, error.body["workspace"]["id"]) == ("error", first_id + 2, workspace_id)
            assert error.body["workspace"]["error"]["message"] == "too\nlate"
            assert error.body["at"] > changed.body["at"]
            assert error.body["workspace"]["url"] == "http://demo.localhost:8080"


async def test_a_warning_has_its_own_event_kind_and_is_cleared_by_an_ordinary_event(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        runs = "phase = 'RUNNING', desired_state = 'RUNNING'"
        await here.db.execute(f"UPDATE workspaces SET {runs}, phase_changed_at = '-infinity', wished_at = '-infinity'")
        first_id = await here.until_handed_out()
        following = await here.follow("/events")
        assert await following.next() is not None
        near = "last_access_at = '-infinity', sleeps_at = now() + interval '1 minute'"
        sleeps_at = await here.db.fetchval(f"UPDATE workspaces SET {near} RETURNING sleeps_at")
        await here.db.execute("UPDATE workspaces SET last_access_at = now()")
        await here.db.execute("UPDATE workspaces SET last_access_at = now()")
        warned, used = await following.some(2)
        assert (warned.event, warned.id) == ("sleeping_soon", first_id + 1)
        assert datetime.fromisoformat(warned.body["workspace"]["sleeps_at"]) == sleeps_at
        assert (used.event, used.id, used.body["workspace"]["sleeps_at"]) == ("state_changed", first_id + 2, None)


async def test_users_get_events_of_their_own_workspaces(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        followers = {name: await here.follow("/events", by=name) for name in here.people}
        await here.create("of-ada", "ada")
        await here.create("of-bob", "bob")
        assert [one.body["workspace"]["name"] for one in await followers["root"].some(2)] == ["of-ada", "of-bob"]
        for name in ("ada", "bob"):
            (one,) = await followers[name].some(1)
            assert one.body["workspace"]["name"] == f"of-{name}"


@pytest.mark.parametrize("target", ["/workspaces/of-ada/events", "/workspaces/{id}/events", "/workspaces/nosuch/events"])
async def test_events_of_workspaces_without_access_are_not_found(database_url: str, redis_url: str, target: str) -> None:
    async with live_api(database_url, redis_url) as here:
        workspace_id = await here.create("of-ada")
        refused = await here.follow(target.format(id=workspace_id), by="bob")
        assert (refused.status, (await refused.text())["code"]) == (404, "not_found")
        stranger = await Client.open(here.path, "/events", "torpor_nobody")
        here.clients.append(stranger)
        assert stranger.status == 401


async def test_the_calls_are_described(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        described = here.described
        for path in ("/api/v1/events", "/api/v1/workspaces/{workspace}/events"):
            call = described["paths"][path]["get"]
            assert "text/event-stream" in call["responses"]["200"]["content"]
            assert {one["name"] for one in call["parameters"]} >= {"Last-Event-ID", "last_event_id"}
            assert ("404" in call["responses"]) is ("{workspace}" in path)


# ── missed events ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["header", "query", "both"])
async def test_missed_events_are_replayed(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(events_module, "PAGE", 3)
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        await here.create("other")
        start = await here.until_handed_out()
        for _ in range(4):
            await here.change("demo", times=2)
            await here.change("other")
        last = await here.until_handed_out()
        # A browser that reconnects repeats the address with the old id: the header counts more.
        query = {"header": "", "query": f"?last_event_id={start}", "both": f"?last_event_id={start + 9}"}[how]
        client = await here.follow(f"/workspaces/demo/events{query}", since=None if how == "query" else start)
        assert [one.id - start for one in await client.some(8)] == [1, 2, 4, 5, 7, 8, 10, 11]
        everything = await here.follow(f"/events{query}", since=None if how == "query" else start)
        assert [one.id - start for one in await everything.some(12)] == list(range(1, 13))
        await here.change("demo")
        for one in (client, everything):
            assert [received.id for received in await one.some(1)] == [last + 1]


async def test_a_client_that_missed_nothing_gets_a_heartbeat(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        last = await here.until_handed_out()
        for target in ("/events", "/workspaces/demo/events"):
            said = await (await here.follow(target, since=last)).next()
            assert said is not None
            assert (said.event, said.id) == ("heartbeat", last)


@pytest.mark.parametrize("since", ["0", "old", "new"])
async def test_a_pruned_event_id_starts_with_a_reset(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    monkeypatch.setattr(events_module, "PAGE", 2)
    async with live_api(database_url, redis_url) as here:
        names = [f"w-{number}" for number in range(5)]
        for name in names:
            await here.create(name)
        await here.create("of-bob", "bob")
        last = await here.until_handed_out()
        await here.db.execute("UPDATE event_counter SET pruned_id = $1", last - 2)
        await here.db.execute("DELETE FROM outbox WHERE event_id <= $1", last - 2)
        said = {"0": 0, "old": last - 3, "new": last + 1}[since]

        of_mine = await here.follow("/events", since=said)
        reset, *now = await of_mine.some(6)
        assert (reset.event, reset.body["workspace"]) == ("reset", None)
        assert [(one.event, one.body["workspace"]["name"]) for one in now] == [("state_changed", name) for name in names]
        assert {one.id for one in (reset, *now)} == {0}, "who is cut off in between asks for everything again"
        told = await of_mine.next()
        assert told is not None
        assert (told.event, told.id) == ("heartbeat", last), "from here on it goes on"

        of_one = await here.follow("/workspaces/w-1/events", since=said)
        reset, present = await of_one.some(2)
        assert (reset.event, reset.id) == ("reset", 0)
        assert (present.event, present.id, present.body["workspace"]["name"]) == ("state_changed", last, "w-1")

        kept = await here.follow("/events", since=last - 2, by="root")
        assert [one.id for one in await kept.some(2)] == [last - 1, last], "and who missed only what is kept does not"
        await here.change("w-1")
        for client in (of_mine, of_one, kept):
            assert [one.id for one in await client.some(1)] == [last + 1]


@pytest.mark.parametrize("since", ["x", "-1", "1.0", "1 2", "0x10", "1" * 19, "\u0661"])
async def test_an_invalid_event_id_is_refused(database_url: str, redis_url: str, since: str) -> None:
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        for target in ("/events", "/workspaces/demo/events"):
            refused = await here.follow(target, since=since)
            assert (refused.status, (await refused.text())["code"]) == (422, "bad_event_id")


async def test_a_client_that_reconnects_often_misses_nothing(database_url: str, redis_url: str) -> None:
    """Clients disconnect in the middle of the stream and reconnect with their last id, while changes go on."""
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        await here.create("other")
        start = await here.until_handed_out()
        changes = 150

        async def change() -> None:
            for _ in range(changes):
                await here.change("demo")
                await here.change("other")

        async def follow(target: str, seed: int) -> list[Received]:
            dice = random.Random(seed)
            seen: list[Received] = []
            while True:
                client = await here.follow(target, since=seen[-1].id if seen else start)
                for _ in range(dice.randrange(1, 12)):
                    one = await client.next()
                    assert one is not None
                    if one.event == "heartbeat":
                        break
                    seen.append(one)
                    if len(seen) == (changes if "demo" in target else 2 * changes):
                        return seen
                client.leave()
                await asyncio.sleep(dice.random() * 0.02)

        changing = asyncio.create_task(change())
        of_demo, of_all, again = await asyncio.gather(
            follow("/workspaces/demo/events", 1), follow("/events", 2), follow("/events", 3)
        )
        await changing
        assert [one.wish_version for one in of_demo] == list(range(2, changes + 2))
        for seen in (of_all, again):
            assert [one.id for one in seen] == list(range(start + 1, start + 1 + 2 * changes))


# ── state and events ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("target", "since"), [("/workspaces/w/events", None), ("/workspaces/w/events", 0), ("/events", 0)])
async def test_no_older_event_follows_the_current_state(
    database_url: str, redis_url: str, target: str, since: int | None
) -> None:
    """A client that connects while there is no leader gets the state, including changes without an id."""
    async with live_api(database_url, redis_url, publishes=False) as here:
        workspace_id = await here.create("demo")
        await here.change("demo", times=3)
        await here.db.execute("UPDATE workspaces SET phase = 'STANDBY' WHERE name = 'demo'")
        await here.db.execute("UPDATE workspaces SET name = 'renamed' WHERE name = 'demo'")
        client = await here.follow(target.replace("/w/", f"/{workspace_id}/"), since=since)
        shown = (await client.some(1 if since is None else 2))[-1]
        assert (shown.body["workspace"]["name"], shown.wish_version) == ("renamed", 4)
        await here.publisher.do(TERM)
        await here.db.execute("UPDATE workspaces SET name = 'again' WHERE name = 'renamed'")
        await here.publisher.do(TERM)
        await here.change("again")
        await here.publisher.do(TERM)
        news = await client.some(2)
        assert [(one.body["workspace"]["name"], one.wish_version) for one in news] == [("again", 4), ("again", 5)]


async def test_a_change_during_the_initial_listing_is_sent_once(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "PAGE", 1)
    async with live_api(database_url, redis_url) as here:
        names = ["a", "b", "c"]
        for name in names:
            await here.create(name)
        await here.until_handed_out()
        store = here.events_store
        shown_all = store.standing_all

        async def changing(*about: Any, **how: Any) -> Any:
            page = await shown_all(*about, **how)
            for name in names:
                await here.change(name)
            await here.until_handed_out()
            return page

        monkeypatch.setattr(store, "standing_all", changing)
        client = await here.follow("/events", since=0)
        # Four pages, the last one empty: the client gets each workspace's state and then the later changes.
        told = await client.some(1 + 3 + 4 + 3 + 2)
        seen = {name: [one.wish_version for one in told[1:] if one.body["workspace"]["name"] == name] for name in names}
        assert seen == {"a": [1, 2, 3, 4, 5], "b": [2, 3, 4, 5], "c": [3, 4, 5]}


async def test_replaying_yields_to_other_tasks() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with background(other()):
        told = [{"id": number, "event": "heartbeat"} for number in range(10 * event_fanout.AT_ONCE + 1)]
        parts = [part async for part in event_fanout.split_into_chunks(told)]
    assert b"".join(parts) == b"".join(event_fanout.frame(one) for one in told)
    assert len(parts) == 11
    assert turns >= 10


# ── access ────────────────────────────────────────────────────────────────────────────────────────────────────────────

END = {
    "revoked": "DELETE FROM tokens WHERE user_id = $1",
    "expired": "UPDATE tokens SET expires_at = now() WHERE user_id = $1",
    "demoted": "UPDATE users SET is_admin = false WHERE id = $1",
}


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("how", END)
async def test_a_stream_ends_when_its_user_loses_access(database_url: str, redis_url: str, how: str, is_busy: bool) -> None:
    async with live_api(database_url, redis_url, ask_again_s=0.2) as here:
        await here.create("demo")
        await here.until_handed_out()
        of_all = await here.follow("/events", by="root")
        of_one = await here.follow("/workspaces/demo/events", by="root")
        stays = await here.follow("/events", by="ada")
        for client in (of_all, of_one, stays):
            assert await client.next() is not None

        async def busy() -> None:
            while is_busy:
                await here.change("demo")
                await asyncio.sleep(0.02)

        async with background(busy()):
            await here.db.execute(END[how], here.people["root"].id)
            async with asyncio.timeout(PATIENCE_S):
                for client in (of_all, of_one):
                    while await client.next() is not None:
                        pass
        assert streams() == 1
        again = await here.follow("/workspaces/demo/events", by="root")
        assert again.status == (404 if how == "demoted" else 401)
        await here.change("demo")
        assert await stays.some(1)


@pytest.mark.parametrize("how", ["revoked", "deactivated", "signed out everywhere"])
async def test_a_revoked_credential_ends_its_streams_at_once(database_url: str, redis_url: str, how: str) -> None:
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        await here.until_handed_out()
        root, ada = here.people["root"].caller, here.people["ada"]
        if how == "signed out everywhere":
            await here.accounts.change_user(root, "ada", UserChange(password="correct horse"))
            cookie = await here.accounts.sign_in("ada", "correct horse")
            theirs = await Client.open(here.path, "/events", cookie, is_session=True)
            here.clients.append(theirs)
        else:
            theirs = await here.follow("/events")
        assert await theirs.next() is not None
        match how:
            case "revoked":
                caller = await here.accounts.recognise(ada.token)
                await here.accounts.revoke(caller, caller.credential_id)
            case "deactivated":
                await here.accounts.change_user(root, "ada", UserChange(is_active=False))
            case _:
                await here.accounts.end_all(root, str(ada.id))
        assert await theirs.next() is None, "the heart beats every 30 s, and nobody waited for that"


async def test_a_user_gets_events_while_the_workspace_is_shared_with_them(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        await here.create("another")
        start = await here.until_handed_out()
        ada = here.people["ada"].caller
        of_bobs = await here.follow("/events", by="bob")
        of_eves = await here.follow("/events", by="root")
        assert await of_bobs.next() is not None
        await here.change("demo")
        await here.wishes.sharing.share(ada, "demo", "bob", Share.USE)
        (shared,) = await of_bobs.some(1)
        assert (shared.id, shared.body["workspace"]["name"]) == (start + 2, "demo")
        assert shared.body["workspace"]["shares"] == {"bob": "use"}
        of_one = await here.follow("/workspaces/demo/events", by="bob")
        await of_one.some(1)
        await here.change("demo")
        (changed,) = await of_bobs.some(1)
        assert changed.id == start + 3

        await here.wishes.sharing.unshare(ada, "demo", "bob")
        assert await of_bobs.next() is None
        await of_one.some(1)
        assert await of_one.next() is None
        assert (await here.follow("/workspaces/demo/events", by="bob")).status == 404
        assert len(await of_eves.some(4)) == 4, "others are not disturbed"

        # A client that reconnects with its old id gets a reset; it may see no workspace any longer.
        again = await here.follow("/events", by="bob", since=changed.id)
        reset = await again.next()
        assert (reset and reset.event, reset and reset.id) == ("reset", BEGINNING)
        now = await again.next()
        assert (now and now.event, now and now.id) == ("heartbeat", start + 4)
        await here.change("demo")
        await here.wishes.sharing.share(ada, "another", "bob", Share.MANAGE)
        (shared,) = await again.some(1)
        assert shared.body["workspace"]["name"] == "another"


@pytest.mark.parametrize("since", ["nothing", "its last", "everything"])
async def test_a_stream_is_refused_if_access_is_lost_while_it_starts(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    """The user loses access after the first permission check, while the stream reads its start."""
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        ada = here.people["ada"].caller
        await here.wishes.sharing.share(ada, "demo", "bob", Share.USE)
        last = await here.until_handed_out()
        store = here.events_store

        def taking(read: Callable[..., Any]) -> Callable[..., Any]:
            async def taken(*about: Any, **how: Any) -> Any:
                monkeypatch.undo()
                await here.wishes.sharing.unshare(ada, "demo", "bob")
                await here.until_handed_out()
                return await read(*about, **how)

            return taken

        monkeypatch.setattr(store, "standing", taking(store.standing))
        monkeypatch.setattr(store, "after", taking(store.after))
        # Heartbeats carry the last id, so a client knows it even if it may not see that change.
        said = {"nothing": None, "its last": last + 1, "everything": BEGINNING}[since]
        refused = await here.follow("/workspaces/demo/events", by="bob", since=said)
        assert (refused.status, (await refused.text())["code"]) == (404, "not_found")
        assert streams() == 0


async def test_lost_access_is_found_without_an_event(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.accounts.access_watch.RECHECK_S", 0.05)
    async with live_api(database_url, redis_url, publishes=False) as here:
        await here.create("demo")
        ada = here.people["ada"].caller
        await here.wishes.sharing.share(ada, "demo", "bob", Share.USE)
        theirs = await here.follow("/workspaces/demo/events", by="bob")
        hers = await here.follow("/workspaces/demo/events")
        for client in (theirs, hers):
            await client.some(1)
        await asyncio.sleep(0.2)
        assert streams() == 2
        await here.wishes.sharing.unshare(ada, "demo", "bob")
        assert await theirs.next() is None
        assert streams() == 1


@pytest.mark.parametrize("how", ["live", "replayed"])
async def test_a_share_is_replayed_like_other_events(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(events_module, "PAGE", 2)
    async with live_api(database_url, redis_url) as here:
        await here.create("mine", "bob")
        await here.create("demo")
        start = await here.until_handed_out()
        client = await here.follow("/events", by="bob", since=start) if how == "live" else None
        await here.wishes.sharing.share(here.people["ada"].caller, "demo", "bob", Share.USE)
        for _ in range(3):
            await here.change("demo")
            await here.change("mine")
        await here.until_handed_out()
        client = client or await here.follow("/events", by="bob", since=start)
        seen = await client.some(7)
        assert [one.id for one in seen] == list(range(start + 1, start + 8))


async def test_the_number_of_streams_of_a_user_is_limited(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "STREAMS_PER_USER", 5)
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        tried = await asyncio.gather(*(here.follow(target) for target in ("/events", "/workspaces/demo/events") * 5))
        let_in = [client for client in tried if client.status == 200]
        refused = [client for client in tried if client.status == 429]
        assert (len(let_in), len(refused)) == (5, 5)
        assert int(refused[0].headers["retry-after"]) > 0
        assert (await refused[0].text())["code"] == "too_many_streams"
        assert (await here.follow("/events", by="bob")).status == 200, "each has their own"
        let_in[0].leave()
        await until(lambda: streams() == 5)
        assert (await here.follow("/events")).status == 200
        assert (await here.follow("/events")).status == 429


# ── heartbeats ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_heartbeats_carry_the_latest_event_id(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url, heartbeat_s=0.05) as here:
        await here.create("demo")
        await here.create("other")
        last = await here.until_handed_out()
        client = await here.follow("/workspaces/demo/events")
        await client.some(1)
        beat = await client.next()
        assert beat is not None
        assert (beat.event, beat.id) == ("heartbeat", last)
        await here.change("other")
        while beat.id == last:
            beat = await client.next()
            assert beat is not None
            assert beat.event == "heartbeat"
        assert beat.id == last + 1, "so that it does not grow old while only others change"


# ── faults of the bus ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_that_the_bus_lost_are_sent_with_the_next_one(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fanout, "POLL_S", NEVER_S)
    async with live_api(database_url, redis_url, publishes=False) as here:
        await here.create("demo")
        await here.publisher.do(TERM)
        start = await here.until_handed_out()
        client = await here.follow("/workspaces/demo/events")
        await client.some(1)
        await here.change("demo", times=3)
        # A leader that ends after it numbers events and before it publishes them.
        await here.publisher._outbox.number(TERM, limit=100)
        await here.change("demo")
        await here.publisher.do(TERM)
        assert [one.id for one in await client.some(4)] == [start + 1, start + 2, start + 3, start + 4]


async def test_duplicate_and_invalid_messages_are_ignored(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        workspace_id = await here.create("demo")
        start = await here.until_handed_out()
        client = await here.follow("/workspaces/demo/events")
        await client.some(1)
        bus = await Bus.open(redis_url)
        channel = f"workspace:{workspace_id}"
        heard: list[bytes] = []
        async with bus.subscribed("workspace:*") as subscription:
            await here.change("demo")
            heard.append((await subscription.next())[1])
        for message in (
            b"",
            b"nonsense",
            b"[]",
            b"{}",
            b'{"id": 1, "after": 0, "owner_id": "", "workspace": 7}',
            *heard,
            *heard,
        ):
            await bus.ask(("PUBLISH", channel, message))
        await bus.close()
        await here.change("demo")
        assert [one.id for one in await client.some(2)] == [start + 1, start + 2]


async def test_messages_of_another_installation_are_ignored(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fanout, "POLL_S", NEVER_S)
    async with live_api(database_url, redis_url, publishes=False) as here:
        await here.create("demo")
        await here.publisher.do(TERM)
        start = await here.until_handed_out()
        client = await here.follow("/events", by="root")
        assert await client.next() is not None
        # The other installation has the same last id.
        theirs = event_body(EventKind.STATE_CHANGED, start + 1, workspace={"id": "theirs"})
        told = EventMessage(start + 1, start, 1, "theirs", str(here.people["root"].id), theirs)
        bus = await Bus.open(redis_url)
        await bus.ask(("PUBLISH", "workspace:theirs", to_message(told, str(uuid.uuid4()))))
        await bus.close()
        await here.change("demo")
        await here.publisher.do(TERM)
        (ours,) = await client.some(1)
        assert (ours.id, ours.body["workspace"]["name"]) == (start + 1, "demo")


async def test_an_event_that_could_not_be_sent_is_sent_later(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fanout, "RETRY_S", 0.01)
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        start = await here.until_handed_out()
        client = await here.follow("/workspaces/demo/events")
        await client.some(1)
        frame = event_fanout.frame
        faults = [MemoryError()]

        def failing(told: Mapping[str, Any]) -> bytes:
            if faults:
                raise faults.pop()
            return frame(told)

        monkeypatch.setattr(event_fanout, "frame", failing)
        await here.change("demo", times=2)
        assert [one.id for one in await client.some(2)] == [start + 1, start + 2]


@pytest.mark.parametrize("fault", ["stored", "told"])
async def test_an_unreadable_event_ends_no_stream(database_url: str, redis_url: str, fault: str) -> None:
    async with live_api(database_url, redis_url) as here:
        here.publisher._encode = here.feed._encode = unable(here.feed._encode, fault)
        await here.create("demo")
        start = await here.until_handed_out()
        client = await here.follow("/events", by="root")
        assert await client.next() is not None
        if fault == "stored":
            await here.db.execute(BREAK)
        await here.create("broken")
        await here.change("demo")
        assert [one.id for one in await client.some(1)] == [start + 2]
        again = await here.follow("/events", by="root", since=start)
        if fault == "stored":
            assert [one.id for one in await again.some(1)] == [start + 2]


BREAK = """
CREATE FUNCTION break() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.row := NEW.row || '{"version": "x"}';
    RETURN NEW;
END $$;
CREATE TRIGGER break BEFORE INSERT ON outbox FOR EACH ROW WHEN (NEW.row ->> 'name' = 'broken') EXECUTE FUNCTION break();
"""


def unable(encode: Callable[[Workspace], Mapping[str, Any]], fault: str) -> Callable[[Workspace], Mapping[str, Any]]:
    def told(workspace: Workspace) -> Mapping[str, Any]:
        if fault == "told" and workspace.name == "broken":
            raise ZeroDivisionError
        return encode(workspace)

    return told


async def test_many_unnumbered_events_are_logged(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_fanout, "POLL_S", 0.02)
    monkeypatch.setattr(event_fanout, "WARN_EVERY_S", 0.02)
    monkeypatch.setattr(store_module, "MANY_UNNUMBERED", 3)
    with structlog.testing.capture_logs() as logged:
        async with live_api(database_url, redis_url, publishes=False) as here:
            await here.create("demo")
            await here.change("demo", times=3)
            await until(lambda: any(line["event"] == "events_unnumbered" for line in logged))


async def test_without_the_bus_events_come_by_polling(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fanout, "POLL_S", 0.1)
    async with EmbeddedValkey(tmp_path) as valkey, live_api(database_url, valkey.url) as here:
        await here.create("demo")
        start = await here.until_handed_out()
        client = await here.follow("/workspaces/demo/events")
        await client.some(1)
        await valkey.stop()
        await here.change("demo", times=2)
        assert [one.id for one in await client.some(2)] == [start + 1, start + 2]
        await valkey.start()
        await here.change("demo", times=2)
        assert [one.id for one in await client.some(2)] == [start + 3, start + 4]


async def test_lost_database_connections_end_no_stream(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fanout, "POLL_S", 0.05)
    monkeypatch.setattr(event_fanout, "RETRY_S", 0.05)
    async with live_api(database_url, redis_url) as here:
        here.publisher.interval_s = 0.05
        await here.create("demo")
        start = await here.until_handed_out()
        client = await here.follow("/workspaces/demo/events")
        await client.some(1)
        for turn in range(3):
            await here.db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'torpor%' AND datname = current_database()"
            )
            await here.change("demo", times=2)
            assert [one.id for one in await client.some(2)] == [start + 2 * turn + 1, start + 2 * turn + 2]


async def test_a_restored_older_database_sends_a_reset(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fanout, "POLL_S", 0.05)
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        await here.change("demo", times=5)
        last = await here.until_handed_out()
        client = await here.follow("/workspaces/demo/events")
        await client.some(1)
        # As after the restore of a backup.
        await here.db.execute("DELETE FROM outbox WHERE event_id > $1", last - 3)
        await here.db.execute("UPDATE event_counter SET last_id = $1", last - 3)
        assert await client.next() is None, "the stream ends"
        again = await here.follow("/workspaces/demo/events", since=last)
        assert [(one.event, one.id) for one in await again.some(2)] == [("reset", 0), ("state_changed", last - 3)]
        await here.change("demo")
        assert [one.id for one in await again.some(1)] == [last - 2]


# ── disconnects and slow clients ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_closed_stream_is_removed_at_once(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        await here.until_handed_out()
        clients = [await here.follow(target) for target in ("/events", "/workspaces/demo/events") for _ in range(5)]
        for client in clients:
            await client.next()
        assert streams() == 10
        for client in clients:
            client.leave()
        await until(lambda: streams() == 0)
        assert here.feed._streams == {}


async def test_a_slow_reader_is_disconnected_and_the_others_continue(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "LINGER_S", 0.1)
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        await here.until_handed_out()
        quick = await here.follow("/workspaces/demo/events")
        slow = await here.follow("/workspaces/demo/events", buffer_bytes=2048)
        (now,) = await quick.some(1)
        changes = 1500
        async with background(here.change("demo", times=changes)):
            received = await quick.some(changes)
        assert [one.id for one in received] == list(range(now.id + 1, now.id + 1 + changes))
        await until(lambda: streams() == 1)
        # The events that it received are complete and in order; it reconnects with its last id.
        seen = []
        while (one := await slow.next()) is not None:
            seen.append(one.id)
        assert seen == list(range(now.id, now.id + len(seen)))
        assert len(seen) < changes
        again = await here.follow("/workspaces/demo/events", since=seen[-1])
        assert [one.id for one in await again.some(now.id + changes - seen[-1])] == list(
            range(seen[-1] + 1, now.id + 1 + changes)
        )


async def test_the_bytes_that_wait_in_a_stream_are_limited() -> None:
    stream = event_fanout.EventStream()
    stream.go_live(after=0)
    framed = b"x" * (event_fanout.STREAM_HOLDS_BYTES // 4)
    told = [EventMessage(number, number - 1, number, "w", "ada", {}) for number in range(1, 10)]
    for one in told[:4]:
        stream.offer(one, framed)
    assert await stream.next(within_s=NEVER_S) == 4 * framed, "who keeps up may go on"
    for one in told[4:]:
        assert not stream.is_ended
        stream.offer(one, framed)
    assert stream.is_ended


async def test_every_stream_ends_when_the_fanout_stops(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        client = await here.follow("/workspaces/demo/events")
        await client.some(1)
        await here.stop_following()
        assert await client.next() is None
        refused = await here.follow("/events")
        assert (refused.status, (await refused.text())["code"]) == (503, "unavailable")


# ── load ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

_CHANGE = re.compile(rb"id: (\d+)\nevent: (?:state_changed|error)\n")


class Counting(asyncio.Protocol):
    """Reads the ids from the socket with as little work as possible."""

    def __init__(self, request: bytes, *, until_id: int) -> None:
        self.ids: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._until_id = until_id
        self._rest = b""

    def itself(self) -> "Counting":
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        end = 0
        for found in _CHANGE.finditer(data):
            self.ids.append(int(found[1]))
            end = found.end()
        self._rest = data[max(end, len(data) - 64) :]
        if not self.begun.done() and b"\nevent: " in data:
            self.begun.set_result(None)
        if self.ids and self.ids[-1] >= self._until_id and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"ended after {self.ids[-1:]}, before {self._until_id}"))


@pytest.mark.long
async def test_two_thousand_streams_get_every_change_in_order(database_url: str, redis_url: str) -> None:
    """Half of them follow one workspace, the others all events; each gets every change, in order."""
    many, burst = 2000, 500
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    async with live_api(database_url, redis_url) as here:
        await here.create("demo")
        start = await here.until_handed_out()
        people = [await here.sign_up(f"admin-{number}", is_admin=True) for number in range(many // STREAMS_PER_USER)]
        clients: list[Counting] = []
        for number in range(many):
            host = f"Host: localhost\r\nAuthorization: Bearer {people[number % len(people)].token}\r\n"
            target = "/workspaces/demo/events" if number % 2 else "/events"
            client = Counting(f"GET /api/v1{target} HTTP/1.1\r\n{host}\r\n".encode(), until_id=start + burst)
            await asyncio.get_running_loop().create_unix_connection(client.itself, str(here.path))
            clients.append(client)
            if number % 50 == 0:
                await client.begun
        await asyncio.gather(*(client.begun for client in clients))
        assert streams() == many
        for _ in range(10):
            async with here.db.transaction():
                await here.change("demo", times=burst // 10)
        async with asyncio.timeout(120):
            await asyncio.gather(*(client.done for client in clients))
        for number, client in enumerate(clients):
            # A client of one workspace gets its state first.
            assert client.ids == list(range(start if number % 2 else start + 1, start + 1 + burst))
        for client in clients:
            client.transport.abort()
        await until(lambda: streams() == 0)
