"""Test that a change is written completely or not at all, and only by a living controller."""

from dataclasses import replace

import pytest

from tests.support.control_plane import control_plane
from torpor.domain.records import AttemptClosed, AttemptOpened, Change
from torpor.domain.shards import ALL_SHARDS
from torpor.domain.states import Operation, Outcome, Stage, Wish

pytestmark = pytest.mark.anyio

OP_ID = "00000000-0000-4000-8000-000000000001"
OTHER = "00000000-0000-4000-8000-000000000002"


async def test_compare_and_set_and_fence(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
        life = here.life.life
        loaded = await here.controller_store.load_due(here.hold())
        (row,) = loaded.workspaces
        begun = replace(
            row,
            operation=Operation.STARTING,
            stage=Stage.CALL,
            op_id=OP_ID,
            op_attempt=1,
            op_started_at=loaded.now,
            deadline_at=loaded.now,
        )
        change = Change(row, begun, opened=AttemptOpened(OP_ID, Operation.STARTING, 1, 0), if_wish_unchanged=True)

        assert await here.controller_store.persist([change], life=99) == frozenset(), "nobody leads that life"
        stale = replace(change, before=replace(row, version=row.version + 7))
        assert await here.controller_store.persist([stale], life=life) == frozenset(), "the row has moved on"
        await here.wishes.wish(here.user, "demo", Wish.RUNNING)
        assert await here.controller_store.persist([change], life=life) == frozenset(), "the wish has changed"
        assert (await here.wishes.history(here.user, "demo")).items == [], "nothing of a refused change is written"

        ((row,), now) = ((await here.controller_store.load_due(here.hold())).workspaces, loaded.now)
        change = replace(change, before=row, after=replace(begun, wish_version=row.wish_version))
        assert await here.controller_store.persist([change], life=life) == {row.id}
        (again,) = (await here.controller_store.load_due(here.hold())).workspaces
        assert (again.version, again.held_by, again.operation) == (row.version + 1, life, Operation.STARTING)

        # One change closes an attempt and opens the next, although only one attempt can be open.
        turned = Change(
            again,
            replace(again, op_id=OTHER, operation=Operation.STOPPING, deadline_at=now),
            opened=AttemptOpened(OTHER, Operation.STOPPING, 1, 0),
            closed=AttemptClosed(OP_ID, 1, Outcome.TURNED),
        )
        assert await here.controller_store.persist([turned], life=life) == {row.id}
        history = (await here.wishes.history(here.user, "demo")).items
        assert [(one.kind, one.outcome) for one in history] == [
            (Operation.STOPPING, None),
            (Operation.STARTING, Outcome.TURNED),
        ]


async def test_an_archived_row_is_read_only_by_its_id(database_url: str) -> None:
    async with control_plane(database_url) as here:
        await here.wishes.create(here.user, name="demo")
        await here.until("demo", lambda seen: seen.phase == "RUNNING" and seen.operation == "NONE")
        await here.wishes.wish(here.user, "demo", Wish.ARCHIVED)
        asleep = await here.until("demo", lambda seen: seen.phase == "ARCHIVED" and seen.operation == "NONE")
        for whole in (frozenset(), ALL_SHARDS):
            assert not (await here.controller_store.load_due(here.hold(), whole=whole)).workspaces
            named = await here.controller_store.load_due(here.hold(), whole=whole, also=[asleep.id])
            assert [one.id for one in named.workspaces] == [asleep.id]
