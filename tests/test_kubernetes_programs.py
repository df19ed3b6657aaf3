"""Test what `make kubernetes` finds in the cache, and its errors, without building anything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import kubernetes

ROOT = Path(__file__).parents[1]


def program(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def fill(folder: Path) -> dict[str, str]:
    """A cache in which everything is built."""
    versions = {name: module.version for module in kubernetes.MODULES for name in module.programs}
    for name in versions:
        program(folder / name)
    (folder / "versions.json").write_text(json.dumps(versions))
    return versions


def test_an_empty_cache_lacks_every_program(tmp_path: Path) -> None:
    missing = kubernetes.missing_programs(tmp_path / "absent")
    assert {"etcd", "kube-apiserver", "kubelet", "kubectl", "helm", "kwok"} < set(missing)


def test_a_full_cache_lacks_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    assert kubernetes.missing_programs(tmp_path) == []


def test_a_program_of_another_version_is_built_again(tmp_path: Path) -> None:
    versions = fill(tmp_path)
    (tmp_path / "versions.json").write_text(json.dumps({**versions, "helm": "v3.0.0"}))
    (tmp_path / "kwok").unlink()
    assert sorted(kubernetes.missing_programs(tmp_path)) == ["helm", "kwok"]


@pytest.mark.parametrize("content", ["", "[]", '{"etcd": '])
def test_a_damaged_list_of_versions_counts_as_empty(tmp_path: Path, content: str) -> None:
    versions = fill(tmp_path)
    (tmp_path / "versions.json").write_text(content)
    assert set(kubernetes.missing_programs(tmp_path)) == set(versions)


def test_the_cache_is_below_that_of_the_user() -> None:
    version = kubernetes.KUBERNETES
    assert kubernetes.cache_folder({"HOME": "/home/ann"}) == Path(f"/home/ann/.cache/torpor/kubernetes/{version}")
    assert kubernetes.cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path(f"/c/torpor/kubernetes/{version}")


def test_a_machine_without_go_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kubernetes, "GO_FOLDERS", ())
    with pytest.raises(kubernetes.Stopped, match=r"no `go` on the path\. Install it"):
        kubernetes.find_go({"PATH": str(tmp_path)})


def test_an_old_go_is_refused(tmp_path: Path) -> None:
    program(tmp_path / "go", "echo go version go1.19.8 linux/amd64")
    with pytest.raises(kubernetes.Stopped, match=r"go1\.19\.8"):
        kubernetes.find_go({"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})


def test_a_failed_build_shows_the_error_of_go(tmp_path: Path) -> None:
    answer = "case $1 in version) echo go version go1.99.1 linux/amd64;; *) echo no network >&2; exit 7;; esac"
    program(tmp_path / "bin" / "go", answer)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tools.kubernetes"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "to build from k8s.io/kubernetes" in done.stdout
    assert "FAILED: this failed with exit code 7" in done.stdout
    assert "no network" in done.stdout
    assert kubernetes.missing_programs(kubernetes.cache_folder(environment))
