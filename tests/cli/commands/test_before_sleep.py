"""The command before an automatic stop is set, shown and removed as it was typed."""

from typing import Any

import pytest

from tests.cli.conftest import Torpor
from tests.cli.records import workspace
from tests.support.scripted_api import ScriptedApi

STASH = ["sh", "-c", "cd project && git stash"]


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (("--", *STASH), STASH),
        (("--", "git", "-C", "project", "stash"), ["git", "-C", "project", "stash"]),
        (("--off",), []),
        (("--default",), None),
    ],
)
def test_before_sleep_is_changed(torpor: Torpor, api: ScriptedApi, words: tuple[str, ...], body: Any) -> None:
    api.answer("PATCH /workspaces/demo", workspace(before_sleep=body))
    ended = torpor("before-sleep", "demo", *words)
    assert ended.code == 0, ended.said
    assert api.asked[0].body == {"before_sleep": body}
    assert ended.text.startswith("demo: ")


def test_before_sleep_is_shown(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /workspaces/demo", workspace(before_sleep=STASH))
    assert torpor("before-sleep", "demo").text == (
        "demo: before an automatic stop, this runs: sh -c 'cd project && git stash'\n"
    )
    assert torpor("before-sleep", "demo", "--json").json["before_sleep"] == STASH
    assert "runs sh -c 'cd project && git stash'" in torpor("show", "demo").text
    api.answer("GET /workspaces/demo", workspace(before_sleep=[]))
    assert torpor("before-sleep", "demo").text == "demo: nothing runs before an automatic stop\n"
    api.answer("GET /workspaces/demo", workspace(before_sleep=None))
    assert "the command of the template terminal runs" in torpor("before-sleep", "demo").text


def test_show_reports_a_running_before_sleep(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /workspaces/demo", workspace(operation="STOPPING", before_sleep=STASH, runs_before_sleep=True))
    assert "the before_sleep command runs" in torpor("show", "demo").text


@pytest.mark.parametrize("words", [("--off", "--default"), ("--off", "--", "true"), ("--default", "--", "true")])
def test_conflicting_options_are_refused(torpor: Torpor, api: ScriptedApi, words: tuple[str, ...]) -> None:
    assert torpor("before-sleep", "demo", *words).code == 2
    assert api.asked == []


@pytest.mark.parametrize(
    ("line", "body"), [("git stash", ["git", "stash"]), ("sh -c 'a && b'", ["sh", "-c", "a && b"]), ("", [])]
)
def test_before_sleep_is_set_at_creation(torpor: Torpor, api: ScriptedApi, line: str, body: list[str]) -> None:
    api.answer("POST /workspaces", workspace(before_sleep=body), status=201)
    assert torpor("create", "demo", "--before-sleep", line).code == 0
    assert api.asked[0].body == {"name": "demo", "before_sleep": body}


def test_an_open_quote_is_refused(torpor: Torpor, api: ScriptedApi) -> None:
    ended = torpor("create", "demo", "--before-sleep", "sh -c 'git stash")
    assert ended.code == 2
    assert "--before-sleep" in ended.said
    assert api.asked == []


def test_a_refusal_is_shown(torpor: Torpor, api: ScriptedApi) -> None:
    api.refuse("PATCH /workspaces/demo", 422, "bad_before_sleep", "before_sleep has 9000 bytes; at most 4096 are allowed")
    ended = torpor("before-sleep", "demo", "--", "x")
    assert ended.code != 0
    assert "9000 bytes" in ended.said
