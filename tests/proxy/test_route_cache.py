"""The route cache always returns the present row, even if events are lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gate_stage import GateStage, gate_stage
from tests.support.waiting import until
from torpor.bus.embedded import EmbeddedValkey
from torpor.domain.states import Phase, Wish
from torpor.proxy import route_cache as module
from torpor.proxy.route_cache import Routes

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GateStage]:
    async with gate_stage(database_url, redis_url, tmp_path) as made:
        yield made


def routes_of(here: GateStage) -> Routes:
    return here.inside.house._routes


async def test_a_route_is_read_once_and_again_after_an_event(here: GateStage) -> None:
    routes, ada = routes_of(here), await here.workspace(phase=Phase.STANDBY)
    await here.until_heard()
    before = here.database.statements
    found = await asyncio.gather(*(routes.find("ada") for _ in range(50)))
    assert {one.id for one in found if one} == {ada.id}
    assert here.database.statements - before == 1
    known = routes.known("ada")
    assert known is not None
    assert known.workspace == found[0]
    await here.becomes(ada, Phase.RUNNING)
    await here.until_heard()
    assert routes.known("ada") is None
    now = await routes.find("ada")
    assert now is not None
    assert now.phase is Phase.RUNNING


async def test_an_unknown_name_is_queried_once_until_it_exists(here: GateStage) -> None:
    routes = routes_of(here)
    assert await routes.find("ada") is None
    before = here.database.statements
    assert await routes.find("ada") is None
    assert await routes.find("not--a-name") is None
    assert here.database.statements == before
    await here.workspace()
    await here.until_heard()
    assert await routes.find("ada") is not None


async def test_a_renamed_workspace_is_found_by_its_new_name_only(here: GateStage) -> None:
    routes, ada = routes_of(here), await here.workspace()
    assert await routes.find("bea") is None
    assert await routes.find("ada") is not None
    await here.wishes.change(here.ada, "ada", name="bea")
    await here.until_heard()
    assert await routes.find("ada") is None
    found = await routes.find("bea")
    assert found is not None
    assert found.id == ada.id


async def test_an_event_during_a_read_causes_another_read(here: GateStage) -> None:
    routes, ada = routes_of(here), await here.workspace(phase=Phase.STANDBY)
    await here.until_heard()
    reading = asyncio.ensure_future(routes.find("ada"))
    await asyncio.sleep(0)
    routes.forget(ada.id, "ada")
    assert await reading is not None
    known = routes.known("ada")
    assert known is not None, "what was read the second time is kept"


async def test_waiting_for_a_change_ends_with_the_change_or_the_timeout(here: GateStage) -> None:
    routes, ada = routes_of(here), await here.workspace(phase=Phase.STANDBY)
    await here.until_heard()
    assert not await routes.changed(ada.id, within_s=0.05)
    waiting = asyncio.ensure_future(routes.changed(ada.id, within_s=10))
    await asyncio.sleep(0)
    await here.wishes.wish(here.ada, "ada", Wish.RUNNING)
    assert await waiting
    assert not routes._waiting


async def test_invalid_and_foreign_messages_are_ignored(here: GateStage) -> None:
    routes, ada = routes_of(here), await here.workspace()
    await here.until_heard()
    await routes.find("ada")
    for message in ("nonsense", json.dumps({"installation": "another", "workspace": {"id": ada.id}})):
        await here.bus.ask(("PUBLISH", f"workspace:{ada.id}", message))
    await asyncio.sleep(0.1)
    assert routes.known("ada") is not None


async def test_a_gap_in_the_event_ids_clears_the_cache(here: GateStage) -> None:
    routes, ada = routes_of(here), await here.workspace()
    await here.workspace("other")
    await here.until_heard()
    await routes.find("ada")
    await routes.find("other")
    installation = str(await here.db.fetchval("SELECT id FROM installation"))
    told = {
        "id": routes._heard + 7, "event": "state_changed", "at": None, "workspace": {"id": ada.id, "name": "ada"},
        "installation": installation, "after": routes._heard + 6, "seq": 1, "owner_id": ada.id,
    }  # fmt: skip
    await here.bus.ask(("PUBLISH", f"workspace:{ada.id}", json.dumps(told)))
    await until(lambda: _is_forgotten(routes, "other"))
    assert routes.known("ada") is None


async def test_a_dropped_route_cuts_no_connection(here: GateStage) -> None:
    routes, ada, token = routes_of(here), await here.workspace(), await here.token(here.ada)
    await here.until_heard()
    way = await here.passed(token)
    tie = way.use.connected()
    waiting = asyncio.ensure_future(routes.changed(ada.id, within_s=10))
    await asyncio.sleep(0)
    # As after a failed query, or after an eviction.
    routes._drop("ada")
    routes.forget_all()
    assert await waiting
    await asyncio.sleep(0.1)
    assert here.cuts == [], "it is not known to be gone"
    tie.closed()


async def test_changes_are_found_by_polling_without_the_bus(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.05)
    server = EmbeddedValkey(tmp_path / "bus")
    async with server as valkey, gate_stage(database_url, valkey.url, tmp_path) as here:
        routes, ada = routes_of(here), await here.workspace(phase=Phase.STANDBY)
        await here.until_heard()
        assert await routes.find("ada") is not None
        await server.stop()
        await here.becomes(ada, Phase.RUNNING)
        await until(lambda: _is_forgotten(routes, "ada"))
        found = await routes.find("ada")
        assert found is not None
        assert found.phase is Phase.RUNNING
        await server.start()


async def test_the_number_of_cached_routes_is_limited(here: GateStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLDS", 5)
    routes = routes_of(here)
    for number in range(20):
        await routes.find(f"nobody-{number}")
    assert len(routes._known) == 5
    assert routes.known("nobody-19") is not None


async def _is_forgotten(routes: Routes, name: str) -> bool:
    return routes.known(name) is None
