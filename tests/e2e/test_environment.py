"""The product runs with an external PostgreSQL, and with a program from the package registry."""

import json
import stat
import subprocess
import zipfile
from pathlib import Path

import asyncpg
import pytest

from tests.support.listeners import processes_of, program_socket, tcp_listeners
from tests.support.product import TORPOR, Product, processes_with, product
from torpor.inside.notebook import ENVIRONMENT
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

        install_in_a_notebook(here)


def install_in_a_notebook(here: Product) -> None:
    """`%pip install` in the default kernel works, and what it installed is there after archive and restore."""
    kernel = json.loads(here.get("lab", "/api/kernelspecs")[2])["kernelspecs"]["python3"]["spec"]
    assert ENVIRONMENT in kernel["argv"][0], "the server's default kernel is the one in the home"
    wheel = make_wheel(here.home(here.show("lab")), "tiny")
    here.ok("exec", "lab", "--", "python3", "-c", WRITE_NOTEBOOKS.format(wheel=wheel))
    here.ok("exec", "lab", "--", "jupyter", "execute", "--inplace", "install.ipynb", "use.ipynb")
    assert "Successfully installed tiny-1.0" in here.ok("exec", "lab", "--", "cat", "install.ipynb")
    assert "tiny says hello" in here.ok("exec", "lab", "--", "cat", "use.ipynb")

    here.ok("archive", "lab", "--wait")
    here.ok("start", "lab", "--wait")
    here.ok("exec", "lab", "--", "jupyter", "execute", "--inplace", "use.ipynb")
    assert "tiny says hello" in here.ok("exec", "lab", "--", "cat", "use.ipynb")


# Two notebooks without output: one installs the wheel, the other uses it.
WRITE_NOTEBOOKS = """
import json
for name, source in (("install", "%pip install --no-index ./{wheel}"), ("use", "import tiny; print('tiny', tiny.SAYS)")):
    cell = dict(cell_type="code", execution_count=None, id="a", metadata=dict(), outputs=[], source=source)
    kernel = dict(kernelspec=dict(name="python3", display_name="Python 3"))
    notebook = dict(cells=[cell], metadata=kernel, nbformat=4, nbformat_minor=5)
    with open(name + ".ipynb", "w") as file:
        json.dump(notebook, file)
"""


def make_wheel(folder: Path, name: str) -> str:
    """A package without dependencies, so that the test needs no package index."""
    file = f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / file, "w") as wheel:
        wheel.writestr(f"{name}.py", "SAYS = 'says hello'\n")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    (folder / file).chmod(0o644)
    return file


def test_the_doctor_lists_confinement_database_and_archive_store(tmp_path: Path) -> None:
    findings = json.loads(Product(tmp_path / "data").ok("doctor", "--json"))
    said = json.dumps(findings)
    for what in ("files and processes", "network", "database", "archive store"):
        assert what in said
