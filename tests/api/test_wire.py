"""The JSON of a workspace is complete, and cursors that the API did not create are refused."""

import base64
import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support.builders import NOW, workspace
from tests.support.live_api import LiveApi, calling, live_api
from torpor.api import wire, wire_users
from torpor.api.websocket_session import size
from torpor.api.wire import workspace_out
from torpor.domain.hostnames import Hosts
from torpor.domain.records import HomeSize
from torpor.domain.states import Phase

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    async with live_api(database_url, redis_url, publishes=False) as made:
        await made.create("demo")
        yield made


@pytest.mark.parametrize(
    "at",
    [
        # Instants outside of the years of UTC.
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2026-01-01T00:00:00",
        "never",
        1,
    ],
)
async def test_a_cursor_with_an_invalid_time_is_refused(here: LiveApi, at: object) -> None:
    for target, after in (
        ("/workspaces", (at, str(uuid.uuid4()))),
        ("/workspaces/demo/operations", (at, str(uuid.uuid4()), 1)),
    ):
        refused = await here.call("GET", f"{target}?cursor={wire.to_cursor(after)}")
        assert (refused.status_code, refused.json()["code"]) == (422, "bad_cursor"), (target, at)


async def test_a_cursor_with_the_earliest_or_latest_time_works(here: LiveApi) -> None:
    for at, found in (("0001-01-01T00:00:00+00:00", 1), ("9999-12-31T23:59:59.999999+00:00", 0)):
        page = await here.call("GET", f"/workspaces?cursor={wire.to_cursor((at, str(uuid.uuid4())))}")
        assert (page.status_code, len(page.json()["items"])) == (200, found)


async def test_a_deeply_nested_or_long_cursor_is_refused(here: LiveApi) -> None:
    for said in (b"[" * 30_000, b'["' + b"x" * 30_000 + b'"]'):
        cursor = base64.urlsafe_b64encode(said).decode()
        for target in ("/audit", "/workspaces", "/workspaces/demo/operations"):
            refused = await here.call("GET", f"{target}?cursor={cursor}")
            assert (refused.status_code, refused.json()["code"]) == (422, "bad_cursor"), target
            assert len(refused.content) < 1000, "it is not said back"


def test_the_phase_before_an_error_is_in_the_response() -> None:
    hosts = Hosts("http://localhost:8080", "localhost:8080")
    assert workspace_out(workspace(phase=Phase.ERROR, previous_phase=Phase.RUNNING), hosts=hosts).previous_phase == "RUNNING"
    assert workspace_out(workspace(), hosts=hosts).previous_phase is None


def test_the_disk_use_of_a_home_is_in_the_response() -> None:
    def told(**row: object) -> tuple[int | None, datetime | None]:
        out = workspace_out(workspace(**row), hosts=Hosts("http://localhost:8080", "localhost:8080"))
        return out.disk_bytes, out.disk_measured_at

    here = {"volume_present": True, "generation": 3, "observed_at": NOW}
    assert told(**here, home_size=HomeSize(3, 4096, NOW)) == (4096, NOW)
    assert told(**here, home_size=HomeSize(2, 4096, NOW)) == (None, None), "that was another home"
    assert told(**here) == (None, None)
    assert told(volume_present=False, home_size=HomeSize(3, 4096, NOW), observed_at=NOW) == (0, None)
    assert told(volume_present=False, observed_at=None) == (None, None)


def test_a_purge_is_in_the_response() -> None:
    hosts = Hosts("http://localhost:8080", "localhost:8080")
    assert [workspace_out(workspace(purge=purge), hosts=hosts).purge for purge in (True, False)] == [True, False]


@pytest.mark.parametrize("path", ["/nope", "/workspaces/a/b/c"])
async def test_a_missing_page_is_html_for_browsers_and_a_problem_for_programs(here: LiveApi, path: str) -> None:
    async with calling(here.path) as client:
        shown = await client.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        told = await client.get(path, headers={"Accept": "*/*"})
        call = await client.get("/api/v1/nope", headers={"Accept": "text/html"})
        hostile = await client.get("/<script>", headers={"Accept": "text/html"})
    assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert path in shown.text
    assert 'href="/"' in shown.text
    for answer in (told, call):
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert "<script>" not in hostile.text


ASKED = [
    (model, name, kind)
    for model in (
        *(
            wire.CreateWorkspace,
            wire.ChangeWorkspace,
            wire.RecoverWorkspace,
            wire.HoldWorkspace,
            wire.Exec,
            wire.ShareWorkspace,
        ),
        *(wire_users.Login, wire_users.ChangePassword, wire_users.MakeToken, wire_users.CreateUser, wire_users.ChangeUser),
    )
    for name, said in model.model_json_schema()["properties"].items()
    for kind in {said.get("type"), *(one.get("type") for one in said.get("anyOf", ()))} & {"integer", "number", "boolean"}
]
NO_NUMBERS: tuple[object, ...] = (True, False, "1", "1.5", [1], {})
NO_BOOLEANS: tuple[object, ...] = (1, 0, "true", "yes", [])


@pytest.mark.parametrize(("model", "name", "kind"), ASKED)
def test_only_numbers_are_numbers_and_only_booleans_are_booleans(model: type[wire.Wire], name: str, kind: str) -> None:
    for wrong in NO_BOOLEANS if kind == "boolean" else NO_NUMBERS:
        with pytest.raises(ValidationError) as refused:
            model.model_validate({name: wrong})
        assert name in {place for error in refused.value.errors() for place in error["loc"]}, wrong
    right: dict[str, list[object]] = {"boolean": [True, False], "integer": [7, 7.0], "number": [7, 7.5]}
    for value in right[kind]:
        with contextlib.suppress(ValidationError):
            assert getattr(model.model_validate({name: value}), name) == value
            continue
        with pytest.raises(ValidationError) as refused:
            model.model_validate({name: value})
        assert name not in {place for error in refused.value.errors() for place in error["loc"]}, value


def test_every_body_model_with_numbers_is_tested() -> None:
    described = json.loads((Path(__file__).parents[2] / "docs/reference/openapi.json").read_text())
    bodies = [call["requestBody"] for calls in described["paths"].values() for call in calls.values() if "requestBody" in call]
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(bodies)))
    with_numbers = {
        name
        for name in named
        if re.search(r'"type": "(integer|number|boolean)"', json.dumps(described["components"]["schemas"][name]))
    }
    assert with_numbers == {model.__name__ for model, _, _ in ASKED}


async def test_a_ttl_of_true_is_refused(here: LiveApi) -> None:
    for body in ({"archive_ttl": True}, {"standby_ttl": "300"}):
        refused = await here.call("PATCH", "/workspaces/demo", body)
        assert refused.status_code == 422, body


@pytest.mark.parametrize("wanted", [[True, 24], [80, True], [80.0, 24], ["80", "24"], [0, 24]])
def test_a_size_is_of_whole_numbers(wanted: object) -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        size(wanted)
