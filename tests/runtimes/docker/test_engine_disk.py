"""The disk of a Docker engine is full, or another one is in its place. The real product."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker_engine import DockerEngine, SmallDockerEngine, docker_engine
from tests.support.product import Product
from tests.support.small_disk import fill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.engine

FAILED, STILL_WAITING = 3, 5
"""Exit codes."""
SOON = "60"
WRITE = "head -c 5000000 /dev/urandom > noise; echo precious > file"


def product_on(engine: DockerEngine, packed_image: bytes, folder: Path) -> Product:
    engine.docker("import", "-", "torpor-test:1", stdin=packed_image)
    settings = {
        "TORPOR_RUNTIME": "docker",
        "TORPOR_ENGINE_URL": engine.url,
        "TORPOR_WORKSPACE_IMAGE": "torpor-test:1",
        "TORPOR_WORKSPACE_STOP_GRACE": "2",
        "TORPOR_MAX_RUNNING_PER_USER": "9",
        "TORPOR_RECONCILER_INTERVAL": "1",
        "TORPOR_RECONCILER_RETRY_BACKOFF": "0.2",
    }
    return Product(folder / "data", environment=settings)


@pytest.fixture
def small_engine() -> Iterator[DockerEngine]:
    with docker_engine(SmallDockerEngine) as engine:
        yield engine


@pytest.fixture
def own_engine() -> Iterator[DockerEngine]:
    with docker_engine() as engine:
        yield engine


def content(here: Product, name: str) -> bytes:
    return here.run("exec", name, "--", "cat", "noise", "file").stdout


def test_a_full_disk_of_the_engine_is_named_and_no_home_is_lost(
    small_engine: DockerEngine, packed_image: bytes, tmp_path: Path
) -> None:
    here = product_on(small_engine, packed_image, tmp_path)
    with small_engine.network(), here.running():
        before = {}
        for name in ("stopped", "archived"):
            here.ok("create", name, "--wait")
            here.ok("exec", name, "--", "sh", "-c", WRITE)
            before[name] = content(here, name)
        here.ok("stop", "stopped", "--wait")
        here.ok("archive", "archived", "--wait")
        filler = fill(small_engine.folder / "data")
        for name in before:
            failed = here.run("start", name, "--wait")
            assert failed.returncode == FAILED
            assert b"the engine's disk is full" in failed.stderr
            assert here.show(name)["error"]["context"]["code"] == "DISK_FULL"
            assert "docker system df" in here.ok("explain", name)
        new = here.run("create", "new", "--wait")
        assert new.returncode == FAILED
        assert b"the engine's disk is full" in new.stderr
        filler.unlink()
        for name, written in before.items():
            here.ok("start", name, "--wait", "--timeout", SOON)
            assert content(here, name) == written
        here.ok("start", "new", "--wait", "--timeout", SOON)


def test_another_data_root_of_the_engine_is_an_outage_and_nothing_is_created_there(
    own_engine: DockerEngine, packed_image: bytes, tmp_path: Path
) -> None:
    here = product_on(own_engine, packed_image, tmp_path)
    with own_engine.network(), here.running():
        for name in ("running", "stopped"):
            here.ok("create", name, "--wait")
            here.ok("exec", name, "--", "sh", "-c", WRITE)
        before = {name: content(here, name) for name in ("running", "stopped")}
        here.ok("stop", "stopped", "--wait")

        own_engine.restart("other")
        here.ok("start", "stopped")
        wait_until(lambda: "another data directory" in here.ok("explain", "stopped"))
        waiting = here.run("start", "stopped", "--wait", "--timeout", "5")
        assert waiting.returncode == STILL_WAITING
        assert b"another data directory" in waiting.stderr
        for name in before:
            error = here.show(name)["error"]  # of an attempt to start the workspace that the engine's end stopped
            assert error is None or (error["reason"], error["is_terminal"]) == ("Unreachable", False)
        assert here.run("create", "new", "--wait", "--timeout", "5").returncode == STILL_WAITING
        assert own_engine.docker("volume", "ls", "--quiet") == own_engine.docker("ps", "--all", "--quiet") == ""

        own_engine.restart()
        here.ok("start", "stopped", "--wait")
        here.until("running", lambda seen: seen["phase"] == "RUNNING" and seen["operation"] == "NONE")
        assert {name: content(here, name) for name in before} == before
        here.ok("start", "new", "--wait")
