"""The value of a secret comes from standard input, and is never an argument or output."""

import io
from types import SimpleNamespace

import pytest

from tests.cli.conftest import Torpor
from tests.support.scripted_api import ScriptedApi
from torpor.cli.exit_codes import ExitCode

SET = {"name": "TOKEN", "set_at": "2026-11-17T12:00:00+00:00"}


def send(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False, buffer=io.BytesIO(content)))


@pytest.mark.parametrize(
    ("content", "value"), [(b"hunter2", "hunter2"), (b"hunter2\r\n", "hunter2"), (b"-----\nline\n\n", "-----\nline\n")]
)
def test_the_value_is_all_of_standard_input(
    torpor: Torpor, api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, content: bytes, value: str
) -> None:
    send(monkeypatch, content)
    api.answer("PUT /workspaces/demo/secrets/TOKEN", SET)
    ended = torpor("secrets", "set", "demo", "TOKEN")
    assert ended.code == 0
    assert api.asked[0].body == {"value": value}
    assert "applies at the next start of demo" in ended.said
    assert "hunter2" not in ended.said + ended.text


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff"])
def test_without_a_value_nothing_is_sent(
    torpor: Torpor, api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    send(monkeypatch, content)
    assert torpor("secrets", "set", "demo", "TOKEN").code == ExitCode.USAGE
    assert api.asked == []


def test_a_value_is_no_argument(torpor: Torpor, api: ScriptedApi) -> None:
    assert torpor("secrets", "set", "demo", "TOKEN", "hunter2").code == ExitCode.USAGE
    assert api.asked == []


def test_names_and_dates_are_listed(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /workspaces/demo/secrets", {"items": [SET]})
    assert "TOKEN" in torpor("secrets", "list", "demo").text
    assert torpor("secrets", "list", "demo", "--json").json == {"items": [SET]}
    api.answer("GET /workspaces/demo/secrets", {"items": []})
    assert "has no secrets" in torpor("secrets", "list", "demo").text


def test_one_is_removed(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("DELETE /workspaces/demo/secrets/TOKEN", None)
    assert torpor("secrets", "remove", "demo", "TOKEN", "--json").json == {"removed": "TOKEN"}
    assert "until it is stopped" in torpor("secrets", "remove", "demo", "TOKEN").text
