"""What is prepared before the container of a workspace starts."""

import json
import os
from pathlib import Path

import pytest

from torpor.inside import prepare_pod
from torpor.inside.prepare_pod import FAILED, WRONG_VOLUME, Preparation


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preparation:
    monkeypatch.setattr(prepare_pod, "TERMINATION_LOG", tmp_path / "termination-log")
    kit = tmp_path / "image"
    (kit / "bin").mkdir(parents=True)
    (kit / "bin" / "python3").write_text("#!")
    (kit / "bin" / "python3").chmod(0o755)
    (kit / "bin" / "python").symlink_to("python3")
    (kit / "module.py").write_text("pass")
    os.utime(kit / "module.py", (1, 1))
    (tmp_path / "secret").write_text("the key")
    for name in ("kit", "volume"):
        (tmp_path / name).mkdir()
    paths = {name: str(tmp_path / name) for name in ("volume", "kit", "image", "secret", "key")}
    marker = {"workspace_id": "w"}
    return Preparation(paths["image"], paths["kit"], paths["volume"], "birth", False, marker, paths["secret"], paths["key"])


def test_kit_volume_and_key_are_prepared(wanted: Preparation, tmp_path: Path) -> None:
    assert prepare_pod.main(wanted.argument()) == 0
    assert os.access(tmp_path / "kit" / "bin" / "python3", os.X_OK)
    assert (tmp_path / "kit" / "bin" / "python").readlink() == Path("python3")
    assert (tmp_path / "kit" / "module.py").stat().st_mtime == 1
    assert (tmp_path / "key").read_text() == "the key"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / "volume" / ".torpor" / "marker.json").read_text()) == {"workspace_id": "w"}


def test_another_volume_is_reported(wanted: Preparation, tmp_path: Path) -> None:
    assert prepare_pod.main(wanted._replace(is_made=True).argument()) == WRONG_VOLUME
    assert "not this home" in (tmp_path / "termination-log").read_text()
    assert not (tmp_path / "key").exists()


def test_a_missing_key_is_reported(wanted: Preparation, tmp_path: Path) -> None:
    (tmp_path / "secret").unlink()
    assert prepare_pod.main(wanted.argument()) == FAILED
    assert "cannot be prepared" in (tmp_path / "termination-log").read_text()
