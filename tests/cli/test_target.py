"""The order in which the sources of server and token are used."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Torpor
from tests.support.scripted_api import TOKEN, ScriptedApi
from torpor import paths
from torpor.cli.target import StoredLogin, store_login, stored_login

NOTHING: dict[str, Any] = {"items": [], "next_cursor": None}


@pytest.fixture
def environ(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The folders of this user, without TORPOR_DATA."""
    found = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "share"), "HOME": str(tmp_path)}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORPOR_DATA")
    return found


def own_product(environ: dict[str, str], api: ScriptedApi) -> None:
    folder = paths.default_data(environ)
    folder.mkdir(parents=True)
    (folder / "credentials.json").write_text(json.dumps({"url": api.url, "token": "of-my-own"}))


def test_the_most_specific_target_is_used(
    torpor: Torpor, api: ScriptedApi, environ: dict[str, str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answer("GET /workspaces", NOTHING)

    def asked_with() -> str:
        assert torpor("list").code == 0
        return api.asked[-1].token

    assert torpor("list").code == 6
    own_product(environ, api)
    assert asked_with() == "of-my-own"
    store_login(StoredLogin(api.url, "of-the-login", "eve"), environ)
    assert asked_with() == "of-the-login"
    (tmp_path / "torpor.toml").write_text(f'data = "{data}"\n')
    assert asked_with() == TOKEN
    (tmp_path / "torpor.toml").unlink()
    monkeypatch.setenv("TORPOR_DATA", str(data))
    assert asked_with() == TOKEN
    monkeypatch.setenv("TORPOR_TOKEN", "of-the-environment")
    assert asked_with() == "of-the-environment"


def test_a_given_data_directory_is_the_only_target(
    torpor: Torpor, api: ScriptedApi, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command must not use another server by mistake."""
    store_login(StoredLogin(api.url, "of-the-login", "eve"), environ)
    monkeypatch.setenv("TORPOR_DATA", str(tmp_path / "nothing-here"))
    assert torpor("list").code == 6
    assert api.asked == []


def test_a_login_is_stored_completely_and_private(environ: dict[str, str]) -> None:
    first, second = StoredLogin("http://a", "one", "eve", "id-1"), StoredLogin("http://b", "two", "eve")
    for login in (first, second):
        path = store_login(login, environ)
        assert path.stat().st_mode & 0o777 == 0o600
        assert stored_login(environ) == login
    assert [one.name for one in path.parent.iterdir()] == ["login.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": "http://x", "token": "y"}'])
def test_a_damaged_login_file_is_reported(torpor: Torpor, environ: dict[str, str], content: str) -> None:
    path = paths.config(environ) / "login.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    ended = torpor("list")
    assert ended.code == 6
    assert str(path) in ended.said


def test_a_folder_that_cannot_be_written_is_reported(torpor: Torpor, api: ScriptedApi, environ: dict[str, str]) -> None:
    api.answer("GET /me", {"username": "eve"})
    Path(environ["XDG_CONFIG_HOME"]).write_text("not a folder")
    ended = torpor("login", api.url, "--token", "x")
    assert ended.code == 1
    assert "cannot be written" in ended.said
