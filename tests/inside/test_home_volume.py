"""The volume of a home is prepared once, and another volume is never taken for it."""

import json
import shutil
from pathlib import Path

import pytest

from torpor.inside.home_volume import WrongVolume, prepare_volume, write_marker


def test_a_new_volume_gets_its_folders(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    prepare_volume(tmp_path, "birth", is_made=False)
    assert (tmp_path / "home").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / ".torpor" / "birth").read_text() == "birth"
    (tmp_path / "home" / "file").write_text("kept")
    for is_made in (False, True):
        prepare_volume(tmp_path, "birth", is_made=is_made)
    assert (tmp_path / "home" / "file").read_text() == "kept"


def test_an_interrupted_preparation_is_finished(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / ".torpor").mkdir()
    (tmp_path / ".torpor" / "birth.new").write_text("bi")
    prepare_volume(tmp_path, "birth", is_made=False)
    assert (tmp_path / ".torpor" / "birth").read_text() == "birth"


def test_an_empty_volume_is_not_a_home_that_was_made(tmp_path: Path) -> None:
    with pytest.raises(WrongVolume, match="not this home"):
        prepare_volume(tmp_path, "birth", is_made=True)
    assert list(tmp_path.iterdir()) == []


def test_another_home_is_refused(tmp_path: Path) -> None:
    prepare_volume(tmp_path, "birth", is_made=False)
    with pytest.raises(WrongVolume, match="another home"):
        prepare_volume(tmp_path, "other birth", is_made=False)


@pytest.mark.parametrize("path", ["file", "home/file"])
def test_a_volume_with_files_of_others_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("someone's")
    with pytest.raises(WrongVolume, match="not empty"):
        prepare_volume(tmp_path, "birth", is_made=False)
    assert (tmp_path / path).read_text() == "someone's"


def test_a_volume_that_lost_its_home_is_refused(tmp_path: Path) -> None:
    prepare_volume(tmp_path, "birth", is_made=False)
    shutil.rmtree(tmp_path / "home")
    with pytest.raises(WrongVolume, match="missing"):
        prepare_volume(tmp_path, "birth", is_made=True)


def test_the_marker_is_replaced(tmp_path: Path) -> None:
    prepare_volume(tmp_path, "birth", is_made=False)
    for root in ("one", "two", "two"):
        write_marker(tmp_path, {"manifest_root": root})
    assert json.loads((tmp_path / ".torpor" / "marker.json").read_text()) == {"manifest_root": "two"}
    assert sorted(path.name for path in (tmp_path / ".torpor").iterdir()) == ["birth", "marker.json"]
