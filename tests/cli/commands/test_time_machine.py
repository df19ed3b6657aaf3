"""Archives are chosen by the beginning of their keys, and no file is replaced."""

from pathlib import Path

import pytest

from tests.cli.conftest import Torpor
from tests.support.scripted_api import ScriptedApi

WORKSPACE = "5b5c1f0e-8a51-4c38-9a53-0d8f2a6f5c11"
FIRST, SECOND = f"{WORKSPACE}/a1000000-0000-4000-8000-000000000001", f"{WORKSPACE}/a2000000-0000-4000-8000-000000000002"
ARCHIVES = "GET /workspaces/demo/archives"


@pytest.fixture(autouse=True)
def _archives(api: ScriptedApi) -> None:
    api.answer(ARCHIVES, {"items": [{"key": FIRST}, {"key": SECOND}]})


def test_the_beginning_of_a_key_is_enough(torpor: Torpor, api: ScriptedApi) -> None:
    api.refuse("POST /workspaces/demo/restore", 409, "restore_in_progress", "a restore of 'demo' is in progress")
    api.refuse("POST /workspaces/demo/fork", 409, "name_taken", "there is already a workspace 'new'")
    for command in (("restore", "demo"), ("fork", "demo", "new")):
        for given, sent in (("a1", FIRST), ("a2000000-0000", SECOND), (FIRST, FIRST), ("b", "b")):
            torpor(*command, "--archive", given)
            assert api.asked[-1].body is not None
            assert api.asked[-1].body["archive_key"] == sent
        assert "'a' is the beginning of 2 keys (give more of the key)" in torpor(*command, "--archive", "a").said


@pytest.mark.parametrize("option", ["--export", "--get"])
@pytest.mark.parametrize("existing", ["file", "folder", "link"])
def test_an_existing_file_is_not_replaced(torpor: Torpor, api: ScriptedApi, tmp_path: Path, option: str, existing: str) -> None:
    target = tmp_path / "there"
    if existing == "file":
        target.touch()
    elif existing == "folder":
        target.mkdir()
    else:
        target.symlink_to("nowhere")
    where = ("--export", str(target)) if option == "--export" else ("--get", "note", "-o", str(target))
    ended = torpor("archives", "demo", *where)
    assert ended.code == 2
    assert f"{str(target)!r} exists (choose another file, or remove it first)" in ended.said
    assert api.asked == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("folder",), "PATH is only for --list"),
        (("--get", "note", "folder"), "PATH is only for --list"),
        (("-o", "file"), "--output is only for --get"),
        (("--archive", "a1"), "--archive is only for --list, --get and --export"),
        (("--diff", "a1", "a2", "--archive", "a1"), "--archive is only for --list, --get and --export"),
        (("--get", "note", "--json"), "--json is only for the list of archives, --list and --diff"),
        (("--list", "--diff", "a1", "a2"), "cannot be used together"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    torpor: Torpor, api: ScriptedApi, options: tuple[str, ...], told: str
) -> None:
    ended = torpor("archives", "demo", *options)
    assert (ended.code, told in ended.said) == (2, True), ended.said
    assert api.asked == []


def test_a_path_that_an_archive_lacks_is_explained(torpor: Torpor, api: ScriptedApi) -> None:
    api.refuse("GET /workspaces/demo/archives/files?path=nothing", 404, "no_such_file", "the archive has no 'nothing'")
    ended = torpor("archives", "demo", "--list", "nothing")
    assert (ended.code, "`torpor archives demo --list FOLDER` lists a folder of an archive" in ended.said) == (1, True), ended
