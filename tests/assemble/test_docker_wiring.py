"""Test what the Docker runtime needs from the settings and from the machine."""

import os
from pathlib import Path

import pytest

from torpor.assemble.docker_wiring import _job_paths
from torpor.assemble.engine_access import require_shared_key, store_environment
from torpor.domain.errors import Refused
from torpor.settings import load


def test_processes_of_serve_need_a_key_file_that_exists(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="TORPOR_SECRET_KEY_FILE is not set"):
        require_shared_key(load({"TORPOR_DATA": str(tmp_path)}))
    key = tmp_path / "key"
    settings = load({"TORPOR_DATA": str(tmp_path), "TORPOR_SECRET_KEY_FILE": str(key)})
    with pytest.raises(Refused, match=r"key does not exist.*head -c 32"):
        require_shared_key(settings)
    key.touch()
    require_shared_key(settings)


def test_a_remote_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="socket on this machine"):
        load({"TORPOR_DATA": str(tmp_path), "TORPOR_ENGINE_URL": "tcp://10.0.0.1:2375"})


def test_an_image_that_is_no_reference_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="TORPOR_WORKSPACE_IMAGE"):
        load({"TORPOR_DATA": str(tmp_path), "TORPOR_WORKSPACE_IMAGE": "https://example.com/Image"})


def test_only_the_credentials_of_the_store_are_for_jobs() -> None:
    given = {"AWS_SECRET_ACCESS_KEY": "a", "GOOGLE_BUCKET": "b", "PATH": "/bin", "TORPOR_DATABASE_URL": "c"}
    assert store_environment(given) == {"AWS_SECRET_ACCESS_KEY": "a", "GOOGLE_BUCKET": "b"}


def test_jobs_see_the_folder_of_the_archives_and_can_write_there(tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    (archives / "workspace").mkdir(parents=True)
    (archives / "workspace" / "object").touch()
    user = 1000 if os.getuid() == 0 else os.getuid()
    settings = load({"TORPOR_DATA": str(tmp_path), "TORPOR_WORKSPACE_USER": str(user)})
    assert _job_paths(settings) == (str(archives),)
    assert {path.stat().st_uid for path in (archives, *archives.rglob("*"))} == {user}


def test_a_folder_that_jobs_cannot_write_to_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    given = {"TORPOR_ARCHIVE_URL": elsewhere.as_uri(), "TORPOR_WORKSPACE_USER": str(os.getuid() + 1)}
    with pytest.raises(Refused, match=f"chown -R {os.getuid() + 1}:{os.getuid() + 1} {elsewhere}"):
        _job_paths(load({"TORPOR_DATA": str(tmp_path), **given}))


def test_jobs_use_an_object_store_without_a_folder(tmp_path: Path) -> None:
    assert _job_paths(load({"TORPOR_DATA": str(tmp_path), "TORPOR_ARCHIVE_URL": "s3://homes"})) == ()
