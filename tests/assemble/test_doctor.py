"""Test what `torpor doctor` reports about the archive store, confinement and a running Torpor."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.support.own_getent import own_getent
from tests.support.product import without_confinement
from tests.support.requirements import must_have
from torpor.assemble.doctor import (
    archives_finding,
    confinement_findings,
    disk_finding,
    index_findings,
    running_findings,
    secret_key_findings,
    template_findings,
)
from torpor.assemble.finding import Finding
from torpor.runtimes.process.paths import runtime_paths
from torpor.runtimes.process.volumes import Volumes
from torpor.secret_key import SecretKey
from torpor.settings import load

pytestmark = pytest.mark.anyio


async def finding(data: Path) -> Finding:
    return await archives_finding(load({"TORPOR_DATA": str(data)}))


async def test_before_the_first_start_there_is_no_archive_directory(tmp_path: Path) -> None:
    for data in (tmp_path / "data", tmp_path):
        found = await finding(data)
        assert found.ok
        assert "creates it" in found.detail


@pytest.mark.parametrize("trace", ["volumes.identity", "postgres"])
async def test_an_archive_directory_that_was_lost_is_reported(tmp_path: Path, trace: str) -> None:
    if trace == "postgres":
        (tmp_path / trace).mkdir()
    else:
        Volumes(runtime_paths(tmp_path)).open_root()
    found = await finding(tmp_path)
    assert not found.ok
    assert found.blocks
    assert str(tmp_path / "archives") in found.detail
    assert "missing" in found.detail
    assert "restore" in found.advice


async def test_an_existing_archive_directory_is_ok(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "archives").mkdir()
    assert (await finding(tmp_path)).ok


def test_too_little_free_space_is_a_finding(tmp_path: Path) -> None:
    for data in (tmp_path, tmp_path / "not made yet"):
        assert disk_finding(load({"TORPOR_DATA": str(data), "TORPOR_DISK_RESERVE": "0"})).ok
        found = disk_finding(load({"TORPOR_DATA": str(data), "TORPOR_DISK_RESERVE": "999999999999"}))
        assert not found.ok
        assert "no workspace can be started" in found.detail
        assert "lower disk_reserve" in found.detail


async def test_a_data_directory_in_which_confinement_cannot_be_checked_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    must_have(os.getuid() == 0, "root, to try other users")
    monkeypatch.setenv("PATH", without_confinement(tmp_path)["PATH"])
    data = tmp_path / "file"
    data.write_text("")
    (found,) = await confinement_findings(load({"TORPOR_DATA": str(data)}))
    assert (found.what, found.ok, found.blocks) == ("confinement", False, True)
    assert "Not a directory" in found.detail


async def test_a_running_torpor_is_found_through_its_credentials_at_any_port(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readline()
        body = json.dumps({"ready": asked.startswith(b"GET /health/ready ")}).encode()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        (tmp_path / "credentials.json").write_text(json.dumps({"url": url, "token": "t"}))
        found = await asyncio.to_thread(running_findings, load({"TORPOR_DATA": str(tmp_path)}))
    assert found == [Finding("running", True, f"{url} responds")]


async def test_blocked_networks_are_shown_with_the_allowed_ones(tmp_path: Path) -> None:
    said = {"TORPOR_WORKSPACE_BLOCKED_NETWORKS": "10.0.0.0/8", "TORPOR_WORKSPACE_ALLOWED_NETWORKS": "10.1.2.3"}
    findings = await confinement_findings(load({"TORPOR_DATA": str(tmp_path), **said}))
    network = next(one for one in findings if one.what == "confinement: network")
    must_have(network.ok, network.detail)
    assert "blocked: 10.0.0.0/8, except 10.1.2.3/32" in network.detail


async def test_a_proxy_that_workspaces_cannot_reach_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_getent(tmp_path, monkeypatch, {"proxy.example.com": "10.1.2.3"})
    environ = {"HOME": str(tmp_path), "HTTPS_PROXY": "http://proxy.example.com:3128"}
    settings = load({"TORPOR_DATA": str(tmp_path)})
    found = next(one for one in await index_findings(settings, environ) if "HTTPS_PROXY" in one.detail)
    assert not found.ok
    assert "the proxy proxy.example.com (10.1.2.3)" in found.detail
    assert "workspace_allowed_networks" in found.advice
    settings = load({"TORPOR_DATA": str(tmp_path), "TORPOR_WORKSPACE_ALLOWED_NETWORKS": "10.1.2.3"})
    assert not [one for one in await index_findings(settings, environ) if "HTTPS_PROXY" in one.detail]


async def test_the_default_package_index_is_not_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = own_getent(tmp_path, monkeypatch, {})
    await index_findings(load({"TORPOR_DATA": str(tmp_path)}), {"HOME": str(tmp_path)})
    assert "pypi.org" not in asked()


def test_templates_of_the_administrator_are_checked(tmp_path: Path) -> None:
    settings = load({"TORPOR_DATA": str(tmp_path / "data"), "TORPOR_TEMPLATES_DIR": str(tmp_path)})
    assert template_findings(load({"TORPOR_DATA": str(tmp_path)})) == []
    assert [one.ok for one in template_findings(settings)] == [True]
    (tmp_path / "own.toml").write_text('name = "own"\ntitle = "O"\ndescription = "o"\ncomand = ["o"]\n')
    (found,) = template_findings(settings)
    assert not found.ok
    assert not found.blocks, "Torpor starts without this template"
    assert "did you mean command?" in found.detail
    assert "torpor templates check" in found.advice


def test_a_secret_key_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    settings = load({"TORPOR_DATA": str(tmp_path)})
    assert secret_key_findings(settings) == []
    SecretKey(tmp_path / "secrets.key").seal("w", "A", "x")
    assert [one.ok for one in secret_key_findings(settings)] == [True]
    (tmp_path / "secrets.key").chmod(0o644)
    (found,) = secret_key_findings(settings)
    assert not found.ok
    assert "chmod 600" in found.detail
    other = load({"TORPOR_DATA": str(tmp_path), "TORPOR_SECRET_KEY_FILE": str(tmp_path / "mounted")})
    assert [(one.ok, "does not exist" in one.detail) for one in secret_key_findings(other)] == [(True, True)]
