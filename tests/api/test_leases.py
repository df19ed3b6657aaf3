"""Keep awake, explain and wake workspaces over HTTP, on a real PostgreSQL and a real Valkey."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tests.api.unasked import NO_COLLECTING, NO_EVENTS, NO_USAGE
from tests.support.idle_stage import TERM, IdleStage, idle_stage
from tests.support.users import accounts_of, person, token_for
from tests.support.waiting import until
from torpor import accounts
from torpor.api.app import Health, make_app
from torpor.archives.reader import ArchiveReader
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import COMMAND_TIMEOUT_S
from torpor.domain.errors import Reason, Refused
from torpor.domain.hostnames import Hosts
from torpor.domain.limits import RunningLimits
from torpor.domain.states import Phase, Wish, WishOrigin
from torpor.runtimes.local_access import LocalAccess
from torpor.service.use import UseService
from torpor.service.wishes import Wishes
from torpor.testing.defaults import DEFAULTS
from torpor.testing.fake_runtime import FakeRuntime, FakeWorld

pytestmark = pytest.mark.anyio

ERROR = (
    "phase = 'ERROR', error_info = jsonb_build_object('reason', '{reason}', 'message', 'it broke', 'is_terminal', true,"
    " 'operation', 'NONE', 'error_count', 1, 'occurred_at', now(), 'wish_version', 100, 'context', '{{}}'::jsonb)"
)


@pytest.fixture
async def night(database_url: str, redis_url: str) -> AsyncIterator[IdleStage]:
    async with idle_stage(database_url, redis_url) as made:
        yield made


@dataclass(frozen=True)
class Caller:
    """A client of the application itself, without a server."""

    app: FastAPI
    token: str

    async def __call__(self, method: str, below: str, body: Any = None) -> tuple[int, Any]:
        sent = b"" if body is None else json.dumps(body).encode()
        headers = [(b"authorization", f"Bearer {self.token}".encode()), (b"content-type", b"application/json")]
        path = f"/api/v1/workspaces/{below}"
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
            "client": ("127.0.0.1", 1), "server": ("localhost", 80),
        }  # fmt: skip
        answers: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Any) -> None:
            answers.append(message)

        await self.app(scope, receive, send)
        content = b"".join(answer.get("body", b"") for answer in answers[1:])
        return answers[0]["status"], json.loads(content) if content else None


@pytest.fixture
async def call(night: IdleStage) -> Caller:
    return await caller_for(night, night.user)


async def caller_for(night: IdleStage, caller: accounts.Caller) -> Caller:
    async def nothing() -> dict[str, Any]:
        return {}

    token = await token_for(night.database, caller.user)
    app = make_app(
        night.wishes,
        accounts_of(night.database, night.bus),
        LocalAccess(FakeRuntime(FakeWorld())),
        Health(ready=nothing, coordinator=nothing),
        hosts=Hosts("http://localhost:8080", "localhost"),
        events=NO_EVENTS,
        gc=NO_COLLECTING,
        usage=NO_USAGE,
        reading=ArchiveReader("file:///nowhere"),
    )
    return Caller(app, token)


# ── holds ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_hold_is_created_listed_and_ended(night: IdleStage, call: Caller) -> None:
    await night.workspace()
    status, first = await call("POST", "ada/leases", {"reason": " a long build ", "seconds": 60})
    assert (status, first["reason"], first["created_by"]) == (201, "a long build", "ada")
    _, second = await call("POST", "ada/leases", {"reason": "another", "seconds": 30.5})
    assert await call("GET", "ada/leases") == (200, {"items": [second, first]})
    assert await call("DELETE", f"ada/leases/{second['id']}") == (204, None)
    assert await call("GET", "ada/leases") == (200, {"items": [first]})
    status, problem = await call("DELETE", f"ada/leases/{second['id']}")
    assert (status, problem["code"]) == (404, "not_found")
    assert (await call("DELETE", "ada/leases/no-id"))[0] == 404
    assert await call("DELETE", "ada/leases") == (204, None)
    assert await call("GET", "ada/leases") == (200, {"items": []})
    assert await call("DELETE", "ada/leases") == (204, None)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"reason": "", "seconds": 60}, "bad_lease"),
        ({"reason": "   ", "seconds": 60}, "bad_lease"),
        ({"reason": "x" * 201, "seconds": 60}, "bad_lease"),
        ({"reason": "x", "seconds": 0.5}, "bad_lease"),
        ({"reason": "x", "seconds": -1}, "bad_lease"),
        ({"reason": "x", "seconds": 7 * 86_400 + 1}, "bad_lease"),
        ({"reason": "x\0", "seconds": 60}, "bad_request"),
        ({"seconds": 60}, "bad_request"),
        ({"reason": "x", "seconds": "long"}, "bad_request"),
    ],
)
async def test_an_invalid_hold_is_refused(night: IdleStage, call: Caller, body: Any, code: str) -> None:
    await night.workspace()
    status, problem = await call("POST", "ada/leases", body)
    assert (status, problem["code"]) == (422, code)
    assert await call("GET", "ada/leases") == (200, {"items": []})


async def test_concurrent_holds_are_limited_and_expired_ones_do_not_count(night: IdleStage) -> None:
    ada = await night.workspace()

    async def hold() -> str:
        try:
            await night.using.hold(night.user, ada, reason="x", seconds=60)
        except Refused as refused:
            return refused.code
        return "held"

    assert Counter(await asyncio.gather(*(hold() for _ in range(30)))) == {"held": 20, "bad_lease": 10}
    await night.owner.execute("UPDATE work_leases SET created_at = now() - interval '2 h', expires_at = now() - interval '1 h'")
    assert await night.using.holds(ada) == []
    assert await hold() == "held"
    assert await night.owner.fetchval("SELECT count(*) FROM work_leases WHERE workspace_id = $1::text::uuid", ada.id) == 1


async def test_holds_of_a_workspace_without_access_are_not_found(night: IdleStage) -> None:
    await night.workspace()
    call = await caller_for(night, await person(night.database, "eve"))
    for method, below, body in (
        ("POST", "ada/leases", {"reason": "x", "seconds": 60}),
        ("GET", "ada/leases", None),
        ("DELETE", "ada/leases", None),
    ):
        assert (await call(method, below, body))[0] == 404


async def test_a_hold_belongs_to_its_workspace(night: IdleStage) -> None:
    ada, bob = await night.workspace("ada"), await night.workspace("bob")
    held = await night.using.hold(night.user, ada, reason="x", seconds=60)
    with pytest.raises(Refused):
        await night.using.end_hold(night.user, bob, held.id)
    await night.using.end_hold(night.user, bob)
    assert await night.using.holds(ada) == [held]


async def test_a_deleted_workspace_cannot_be_held(night: IdleStage, call: Caller) -> None:
    await night.workspace()
    await night.wishes.delete(night.user, "ada")
    status, problem = await call("POST", "ada/leases", {"reason": "x", "seconds": 60})
    assert (status, problem["code"]) == (409, "is_deleted")


# ── explain ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_explain_gives_the_reasons_to_stay_awake(night: IdleStage, call: Caller) -> None:
    ada = await night.workspace()
    await night.using.hold(night.user, ada, reason="a long build", seconds=60)
    await night.activity.renew({ada.id: frozenset({"one", "two"})}, lease_s=60)
    await night.activity.touch({ada.id: 60})
    status, told = await call("GET", "ada/explain")
    assert status == 200
    assert [stay["why"] for stay in told["awake_because"]] == ["HELD", "CONNECTED", "IDLE_TIMER", "BUS_FORGOT"]
    assert "a long build" in " ".join(told["lines"])
    assert told["stopped_because"] is None


async def test_explain_reports_an_unreachable_bus(database_url: str, tmp_path: Path) -> None:
    async with idle_stage(database_url, f"unix://{tmp_path}/nowhere") as night:
        await night.workspace()
        _, explained = await night.wishes.explained(night.user, "ada")
        assert [stay.why for stay in explained.awake] == ["BUS_OUT"]


async def test_explain_does_not_wait_for_a_hanging_bus(database_url: str, tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path / "bus") as server, idle_stage(database_url, server.url) as night:
        await night.workspace()
        assert server.pid
        os.kill(server.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S - 0.5):
                _, explained = await night.wishes.explained(night.user, "ada")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert [stay.why for stay in explained.awake] == ["BUS_OUT"]


async def test_explain_gives_the_reason_of_the_stop(night: IdleStage, call: Caller) -> None:
    ada = await night.workspace()
    await night.remembers()
    await night.watch.do(TERM)
    await night.set(ada, "phase = 'STANDBY'")
    _, told = await call("GET", "ada/explain")
    assert told["stopped_because"]["origin"] == "IDLE"
    assert told["stopped_because"]["words"] == "stopped automatically because it was not used for 1 s"
    await night.wishes.wish(night.user, "ada", Wish.STANDBY)
    _, told = await call("GET", "ada/explain")
    assert (told["stopped_because"]["origin"], told["stopped_because"]["words"]) == ("PERSON", "stopped by a user")


# ── wake ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_concurrent_wakes_cause_one_start(night: IdleStage) -> None:
    ada = await night.workspace(phase=Phase.STANDBY)
    woken = await asyncio.gather(*(night.wishes.wake(night.user, "ada") for _ in range(30)))
    assert {one.wish_version for one in woken} == {ada.wish_version + 1}
    assert {(one.desired_state, one.wish_origin) for one in woken} == {(Wish.RUNNING, WishOrigin.WAKE)}
    assert await night.touches.tell()
    assert (await night.activity.uses([ada.id]))[ada.id].idle_timer_s is not None
    hints = len(night.hints)
    await night.wishes.wake(night.user, "ada")
    assert len(night.hints) == hints, "nothing is new to whoever listens"


@pytest.mark.parametrize("reason", [Reason.ACTION_FAILED, Reason.DATA_LOST])
@pytest.mark.parametrize("wish", [Wish.RUNNING, Wish.STANDBY])
async def test_a_wake_does_not_clear_an_error(night: IdleStage, reason: Reason, wish: Wish) -> None:
    ada = await night.workspace(phase=Phase(wish.value))
    await night.set(ada, ERROR.format(reason=reason))
    before = await night.look(ada)
    with pytest.raises(Refused) as refused:
        await night.wishes.wake(night.user, "ada")
    assert refused.value.code == "in_error"
    assert await night.look(ada) == before


async def test_a_wake_above_the_limit_keeps_the_requested_state(database_url: str, redis_url: str) -> None:
    async with idle_stage(database_url, redis_url, limits=RunningLimits(per_user=1, overall=10)) as night:
        ada = await night.workspace("ada", phase=Phase.STANDBY)
        bob = await night.workspace("bob", phase=Phase.STANDBY)

        async def wake(name: str) -> str:
            try:
                await night.wishes.wake(night.user, name)
            except Refused as refused:
                return refused.code
            return "woken"

        outcomes = await asyncio.gather(wake("ada"), wake("bob"))
        assert sorted(outcomes) == ["limit_reached", "woken"]
        for before, outcome in zip((ada, bob), outcomes, strict=True):
            assert (await night.look(before) != before) is (outcome == "woken")


async def test_a_deleted_workspace_is_not_woken(night: IdleStage) -> None:
    await night.workspace(phase=Phase.STANDBY)
    deleted = await night.wishes.delete(night.user, "ada")
    with pytest.raises(Refused) as refused:
        await night.wishes.wake(night.user, deleted.id)
    assert refused.value.code == "is_deleted"


# ── change ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_several_fields_in_one_call_are_one_change(night: IdleStage, call: Caller) -> None:
    ada = await night.workspace(phase=Phase.STANDBY)
    told = "SELECT count(*) FROM outbox"
    before = await night.owner.fetchval(told)
    body = {"name": "eve", "standby_ttl": 70, "archive_ttl": 80, "desired_state": "RUNNING"}
    status, changed = await call("PATCH", "ada", body)
    assert status == 200
    assert {key: changed[key] for key in body} == body
    assert await night.owner.fetchval(told) == before + 1
    seen = await night.look(ada)
    assert (seen.wish_version, seen.wish_origin) == (ada.wish_version + 1, WishOrigin.PERSON)
    assert seen.last_access_at > ada.last_access_at

    assert (await call("PATCH", "eve", {"standby_ttl": 90}))[0] == 200
    lowered = await night.look(ada)
    assert (lowered.name, lowered.standby_ttl_s, lowered.archive_ttl_s) == ("eve", 90, 80)
    assert (lowered.wish_version, lowered.wished_at, lowered.desired_state) == (seen.wish_version, seen.wished_at, Wish.RUNNING)
    assert (await call("PATCH", "eve", {}))[0] == 200
    assert await night.look(ada) == lowered


async def test_a_lowered_limit_does_not_prevent_clearing_an_error(database_url: str, redis_url: str) -> None:
    async with idle_stage(database_url, redis_url) as night:
        ada, _ = await night.workspace("ada"), await night.workspace("bob")
        await night.set(ada, ERROR.format(reason=Reason.ACTION_FAILED))
        wishes = Wishes(
            night.service,
            limits=RunningLimits(per_user=1, overall=1),
            ttls=DEFAULTS.ttls,
            new_id=lambda: "",
            hint=night.hints.append,
            using=UseService(night.service, new_id=lambda: "", hint=night.hints.append, lease_s=DEFAULTS.connection_lease),
        )
        wished = await wishes.wish(night.user, "ada", Wish.RUNNING)
        assert wished.wish_version == ada.wish_version + 1
        await wishes.wish(night.user, "ada", Wish.STANDBY)
        with pytest.raises(Refused) as refused:
            await wishes.wish(night.user, "ada", Wish.RUNNING)
        assert refused.value.code == "limit_reached"


# ── use ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_is_in_use_while_a_command_runs(night: IdleStage) -> None:
    ada = await night.workspace()
    touched: list[float] = []
    night.using.touch = lambda _workspace, idle_s: touched.append(idle_s)
    async with night.using.keeping_awake(ada):
        await until(lambda: len(touched) >= 3)
    so_far = len(touched)
    await asyncio.sleep(0.5)
    assert len(touched) == so_far
