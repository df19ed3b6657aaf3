"""The image of a workspace is stored, shown and refused over HTTP."""

from collections.abc import AsyncIterator

import pytest

from tests.support.live_api import LiveApi, live_api
from torpor.domain.image_policy import ImagePolicy

pytestmark = pytest.mark.anyio

BODY = {"name": "demo", "desired_state": "STANDBY"}


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[LiveApi]:
    images = ImagePolicy(True, True, ("docker.io/library/*",))
    async with live_api(database_url, redis_url, publishes=False, images=images) as made:
        yield made


async def test_an_image_is_stored_and_shown_as_it_was_written(here: LiveApi) -> None:
    made = await here.call("POST", "/workspaces", {**BODY, "image": "python:3.12", "command": ["python3", "-m", "http.server"]})
    assert (made.status_code, made.json()["image"], made.json()["template"]) == (201, "python:3.12", "image")
    assert (await here.call("GET", "/workspaces/demo")).json()["image"] == "python:3.12"
    other = await here.call("POST", "/workspaces", {**BODY, "name": "other", "template": "terminal", "image": "python"})
    assert (other.json()["image"], other.json()["template"]) == ("python", "terminal")
    plain = await here.call("POST", "/workspaces", {**BODY, "name": "plain"})
    assert (plain.json()["image"], plain.json()["template"]) == (None, "terminal")


async def test_the_same_key_with_another_image_is_another_request(here: LiveApi) -> None:
    headers = {"Idempotency-Key": "k"}
    assert (await here.call("POST", "/workspaces", {**BODY, "image": "python"}, headers=headers)).status_code == 201
    assert (await here.call("POST", "/workspaces", {**BODY, "image": "python"}, headers=headers)).status_code == 201
    again = await here.call("POST", "/workspaces", {**BODY, "image": "ruby"}, headers=headers)
    assert again.json()["code"] == "key_reused"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"image": "Python"}, "bad_image"),
        ({"image": ""}, "bad_image"),
        ({"image": "r.example/python"}, "image_not_allowed"),
        ({"template": "image"}, "image_required"),
        ({"template": "", "image": "python"}, "unknown_template"),
        ({"image": 7}, "bad_request"),
        ({"image": "a" * 513}, "bad_request"),
    ],
)
async def test_what_cannot_be_run_is_refused(here: LiveApi, fields: dict[str, object], code: str) -> None:
    refused = await here.call("POST", "/workspaces", {**BODY, **fields})
    assert (refused.status_code, refused.json()["code"]) == (422, code)


async def test_templates_say_what_they_take(here: LiveApi) -> None:
    items = (await here.call("GET", "/templates")).json()["items"]
    said = {one["name"]: (one["takes_image"], one["takes_command"], one["needs_command"]) for one in items}
    assert said["image"] == (True, True, False)
    assert said["command"] == (False, True, True)


async def test_a_runtime_of_processes_refuses_images(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url, publishes=False) as here:
        for fields in ({"image": "python"}, {"template": "terminal", "image": "python"}, {"template": "image"}):
            refused = await here.call("POST", "/workspaces", {**BODY, **fields})
            assert (refused.status_code, refused.json()["code"]) == (422, "images_not_supported")
            assert "setting `runtime`" in refused.json()["detail"]
        items = (await here.call("GET", "/templates")).json()["items"]
        assert "image" not in {one["name"] for one in items}
