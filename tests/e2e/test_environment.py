"""The product runs with an external PostgreSQL, and with a program from the package registry."""

import json
import stat
import subprocess
from pathlib import Path

import asyncpg
import pytest

from tests.support.listeners import processes_of, program_socket, tcp_listeners
from tests.support.product import TORPOR, Product, processes_with, product
from torpor.runtimes.process.paths import runtime_paths

pytestmark = pytest.mark.e2e


@pytest.mark.long
@pytest.mark.anyio
async def test_an_external_postgresql_works_and_only_one_torpor_controls_it(empty_database_url: str, tmp_path: Path) -> None:
    with product(tmp_path, TORPOR_DATABASE_URL=empty_database_url) as here:
        assert not (here.data / "postgres").exists(), "no private one is started"
        here.ok("create", "demo", "--wait")
        here.ok("archive", "demo", "--wait")
        connection = await asyncpg.connect(empty_database_url)
        assert await connection.fetchval("SELECT phase FROM workspaces") == "ARCHIVED"
        assert await connection.fetchval("SELECT epoch FROM system_locks WHERE lock_name = 'leader'") == 1
        await connection.close()

        other = Product(tmp_path / "other" / "data", environment=dict(here.environment))
        other.data.parent.mkdir()
        second = other.run("up")
        assert second.returncode == 1
        assert b"another Torpor controls this database" in second.stderr
        assert here.show("demo")["phase"] == "ARCHIVED"


def test_an_unreachable_database_is_reported(tmp_path: Path) -> None:
    lost = Product(tmp_path / "data", environment={"TORPOR_DATABASE_URL": "postgresql://torpor:secret@127.0.0.1:1/none"})
    done = subprocess.run([TORPOR, "up"], env=lost.env(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "the database cannot be reached" in done.stderr
    assert "secret" not in done.stderr + done.stdout


def test_jupyterlab_is_installed_on_first_use_and_answers(tmp_path: Path) -> None:
    with product(tmp_path) as here:
        created = here.run("create", "lab", "--template", "jupyterlab", "--wait", timeout_s=600)
        assert created.returncode == 0, here.log()
        status, _, body = here.get("lab", "/api/status")
        assert (status, "started" in json.loads(body)) == (200, True)

        own, workspace_id = runtime_paths(here.data), here.show("lab")["id"]
        assert set(processes_of(own, workspace_id)) & set(processes_with("jupyter")), "the server was looked at"
        assert tcp_listeners(own, workspace_id) == []
        socket = program_socket(own, workspace_id)
        assert stat.S_ISSOCK(socket.stat().st_mode)
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600


def test_the_doctor_lists_confinement_database_and_archive_store(tmp_path: Path) -> None:
    findings = json.loads(Product(tmp_path / "data").ok("doctor", "--json"))
    said = json.dumps(findings)
    for what in ("files and processes", "network", "database", "archive store"):
        assert what in said
