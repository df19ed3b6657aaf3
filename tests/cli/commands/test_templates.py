"""Templates are listed and shown with their faults, and files are checked without a server."""

from pathlib import Path

import pytest

from tests.cli.conftest import Torpor
from tests.support.scripted_api import ScriptedApi
from torpor.cli.exit_codes import ExitCode

OWN = {
    "name": "own",
    "title": "Own",
    "description": "My own.",
    "takes_command": False,
    "cpu_weight": 40,
    "warnings": [],
    "origin": "added",
    "command": ["serve", "a b"],
    "environment": {"COLOUR": "blue"},
    "packages": ["thing==1"],
    "cpu_keeps_awake": False,
    "before_sleep": ["git", "stash"],
}
BROKEN = {"name": "bad", "faults": ["bad.toml: comand: unknown; did you mean command?"]}
TOLD = {"items": [OWN], "broken": [BROKEN]}


def test_the_list_shows_the_origin_and_broken_files(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /templates", TOLD)
    for words in (("templates",), ("templates", "list")):
        shown = torpor(*words).text
        assert "administrator" in shown
        assert "broken: bad.toml: comand: unknown; did you mean command?" in shown
        assert torpor(*words, "--json").json == TOLD


def test_one_template_is_shown_whole(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /templates", TOLD)
    shown = torpor("templates", "show", "own").text
    for part in ("serve 'a b'", "COLOUR", "blue", "thing==1", "git stash", "administrator"):
        assert part in shown
    assert torpor("templates", "show", "own", "--json").json == OWN
    assert "did you mean command?" in torpor("templates", "show", "bad").text


def test_a_template_that_does_not_exist(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /templates", TOLD)
    ended = torpor("templates", "show", "owm")
    assert ended.code == ExitCode.REFUSED
    assert "there is no template 'owm' (choose one of own)" in ended.said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "templates"
    made.mkdir()
    (made / "good.toml").write_text('name = "good"\ntitle = "G"\ndescription = "g"\ncommand = ["g"]\n')
    return made


def test_files_are_checked_without_a_server(torpor: Torpor, folder: Path, tmp_path: Path) -> None:
    good, bad = folder / "good.toml", tmp_path / "bad.toml"
    bad.write_text('name = "bad"\ntitle = "B"\ndescription = "b"\ncomand = ["b"]\n')
    assert torpor("templates", "check", str(good)).text == f"{good}: ok\n"
    ended = torpor("templates", "check", str(good), str(bad), str(tmp_path / "none.toml"))
    assert ended.code == ExitCode.REFUSED
    assert ended.text.splitlines() == [
        f"{good}: ok",
        "bad.toml: comand: unknown; did you mean command?",
        "none.toml: cannot be read: No such file or directory",
    ]
    items = torpor("templates", "check", str(good), str(bad), "--json").json["items"]
    assert [(item["ok"], len(item["faults"])) for item in items] == [(True, 0), (False, 1)]


def test_a_typing_error_in_an_image_is_found(torpor: Torpor, folder: Path) -> None:
    bad = folder / "good.toml"
    bad.write_text(bad.read_text() + 'image = "docker.io/Library/python"\ntakes_imgae = true\n')
    ended = torpor("templates", "check", str(bad))
    assert ended.code == ExitCode.REFUSED
    assert ended.text.splitlines() == [
        "good.toml: image: 'docker.io/Library/python' is not the reference of an image: 'Library/python' contains upper-case "
        "letters; write 'library/python'. Example: python:3.12.",
        "good.toml: takes_imgae: unknown; did you mean takes_image?",
    ]


def test_a_template_with_an_image_is_shown(torpor: Torpor, api: ScriptedApi) -> None:
    given = {**OWN, "image": "r.example/a:1", "image_command": ["run", "it"], "takes_image": False, "needs_command": False}
    any_image = {**given, "name": "any", "takes_command": True, "takes_image": True}
    api.answer("GET /templates", {"items": [given, any_image], "broken": []})
    shown = torpor("templates", "show", "own").text
    assert "r.example/a:1" in shown
    assert "run it" in shown
    assert "--image REF [-- CMD...]" in torpor("templates").text


def test_without_files_the_folder_of_the_settings_is_checked(
    torpor: Torpor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = torpor("templates", "check")
    assert ended.code == ExitCode.USAGE
    assert "templates_dir is not set" in ended.said
    monkeypatch.setenv("TORPOR_TEMPLATES_DIR", str(folder))
    assert torpor("templates", "check").text == f"{folder / 'good.toml'}: ok\n"
    (folder / "good.toml").unlink()
    assert "no .toml file" in torpor("templates", "check").text
    folder.rmdir()
    assert torpor("templates", "check").code == ExitCode.USAGE
