"""Variables are sent as pairs, and the command says when they apply."""

import pytest

from tests.cli.conftest import Torpor
from tests.cli.records import workspace
from tests.support.scripted_api import ScriptedApi
from torpor.cli.exit_codes import ExitCode


def test_variables_are_shown(torpor: Torpor, api: ScriptedApi) -> None:
    told = {"environment": {"B": "two\nlines \x1b[2J", "A": "1=2"}}
    api.answer("GET /workspaces/demo/environment", told)
    ended = torpor("env", "demo")
    assert ended.text == "A=1=2\nB=two\\nlines \\x1b[2J\n"
    assert ended.said == ""
    assert torpor("env", "demo", "--json").json == told


@pytest.mark.parametrize(("phase", "part"), [("RUNNING", "torpor stop demo --wait"), ("STANDBY", "next start of demo\n")])
def test_a_change_says_that_it_applies_at_the_next_start(torpor: Torpor, api: ScriptedApi, phase: str, part: str) -> None:
    api.answer("PATCH /workspaces/demo", workspace(phase=phase, operation="NONE"))
    api.answer("GET /workspaces/demo/environment", {"environment": {"A": ""}})
    ended = torpor("env", "demo", "A=", "B=x=y", "--unset", "C", "-u", "D")
    assert api.asked[0].body == {"environment": {"A": "", "B": "x=y", "C": None, "D": None}}
    assert "this applies at the next start of demo" in ended.said
    assert part in ended.said
    assert ended.text == "A=\n"


def test_a_workspace_is_created_with_variables(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("POST /workspaces", workspace())
    assert torpor("create", "demo", "--env", "A=1", "-e", "B=").code == 0
    assert api.asked[0].body == {"name": "demo", "environment": {"A": "1", "B": ""}}


@pytest.mark.parametrize("words", [("env", "demo", "A"), ("env", "demo", "=x"), ("create", "demo", "--env", "A")])
def test_what_is_no_pair_is_refused(torpor: Torpor, api: ScriptedApi, words: tuple[str, ...]) -> None:
    ended = torpor(*words)
    assert ended.code == ExitCode.USAGE
    assert "is not NAME=VALUE" in ended.said
    assert api.asked == []
