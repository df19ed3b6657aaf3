"""The product on an engine that is restarted, killed, started late, or whose containers are stopped by hand."""

import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker_engine import DockerEngine, docker_engine
from tests.support.podman_engine import PodmanEngine, podman_engine
from tests.support.product import Product
from tests.support.waiting import wait_until

pytestmark = pytest.mark.engine

RESTARTS = 3
"""As many as the quick ends that are an error."""
WITHIN_S = 90.0
IMAGE = "torpor-test:1"


@pytest.fixture
def own_docker(packed_image: bytes) -> Iterator[DockerEngine]:
    """Not the engine of the other tests: its restart ends their containers."""
    with docker_engine() as engine:
        engine.docker("import", "-", IMAGE, stdin=packed_image)
        yield engine


@pytest.fixture
def own_podman(packed_image: bytes) -> Iterator[PodmanEngine]:
    with podman_engine() as engine:
        engine.docker("import", "-", IMAGE, stdin=packed_image)
        yield engine


def product_on(engine: DockerEngine | PodmanEngine, folder: Path, runtime: str) -> Product:
    return Product(
        folder / "data",
        environment={
            "TORPOR_RUNTIME": runtime,
            "TORPOR_ENGINE_URL": engine.url,
            "TORPOR_WORKSPACE_IMAGE": IMAGE,
            "TORPOR_WORKSPACE_STOP_GRACE": "2",
        },
    )


def container_ids(engine: DockerEngine | PodmanEngine) -> set[str]:
    return set(engine.docker("ps", "--filter", "label=torpor.kind=workspace", "--quiet", "--no-trunc").split())


def history(product: Product, name: str) -> list[dict[str, str]]:
    """The latest first."""
    items: list[dict[str, str]] = json.loads(product.ok("history", name, "--json"))["items"]
    return items


def missing(product: Product) -> list[str]:
    """What the product says it lacks; empty if it is ready, and if it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", product.port, timeout=10)
    try:
        connection.request("GET", "/health/ready")
        report = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return []
    finally:
        connection.close()
    return [name for name in ("database", "bus", "archive_store", "runtime") if not report[name]]


def until_restarted(product: Product, name: str, revision: int, attempts: int) -> None:
    """It runs again with its home, and the restart counts as no failure. There were so many attempts before."""
    shown = product.until(name, lambda one: one["phase"] == "RUNNING" and one["revision"] > revision, WITHIN_S)
    assert (shown["error"], shown["operation"]) == (None, "NONE")
    assert product.ok("exec", name, "--", "cat", "file") == "kept\n"
    items = history(product, name)
    new = items[: len(items) - attempts]
    assert (new[0]["kind"], new[0]["outcome"]) == ("STARTING", "DONE")
    assert "FAILED" not in [one["outcome"] for one in new], new
    assert any("stopped from outside Torpor" in one["message"] for one in new), new


@pytest.mark.parametrize(("how", "times"), [(signal.SIGTERM, RESTARTS), (signal.SIGKILL, 1)])
def test_workspaces_run_again_after_each_restart_of_the_engine(
    own_docker: DockerEngine, tmp_path: Path, how: int, times: int
) -> None:
    product = product_on(own_docker, tmp_path, "docker")
    with own_docker.network(), product.running():
        product.ok("create", "one", "--wait")
        product.ok("create", "asleep", "--wait")
        product.ok("stop", "asleep", "--wait")
        product.ok("exec", "one", "--", "sh", "-c", "echo kept > file")
        for _ in range(times):
            revision, attempts = product.show("one")["revision"], len(history(product, "one"))
            containers = container_ids(own_docker)
            with product.paused():  # otherwise it may begin a start while the containers end, before it knows why
                own_docker.stop_daemon(how)
            wait_until(lambda: "runtime" in missing(product), within_s=WITHIN_S)
            assert product.show("one")["error"] is None
            own_docker.start_daemon()
            until_restarted(product, "one", revision, attempts)
            assert not containers & container_ids(own_docker)
        assert product.show("asleep")["phase"] == "STANDBY"


def test_workspaces_run_again_after_an_administrator_stopped_their_containers(own_docker: DockerEngine, tmp_path: Path) -> None:
    stop_containers_by_hand(own_docker, product_on(own_docker, tmp_path, "docker"))


def test_workspaces_run_again_after_podman_stopped_their_containers(own_podman: PodmanEngine, tmp_path: Path) -> None:
    stop_containers_by_hand(own_podman, product_on(own_podman, tmp_path, "podman"))


def stop_containers_by_hand(engine: DockerEngine | PodmanEngine, product: Product) -> None:
    with engine.network(), product.running():
        product.ok("create", "one", "--wait")
        product.ok("exec", "one", "--", "sh", "-c", "echo kept > file")
        for verb in ("stop", "kill", "stop"):
            revision, attempts = product.show("one")["revision"], len(history(product, "one"))
            with product.paused():
                engine.docker(verb, *container_ids(engine))
            until_restarted(product, "one", revision, attempts)
        assert container_ids(engine)


def test_the_product_starts_before_its_engine_and_waits_for_it(own_docker: DockerEngine, tmp_path: Path) -> None:
    product = product_on(own_docker, tmp_path, "docker")
    with own_docker.network():
        with product.running():
            product.ok("create", "one", "--wait")
            product.ok("exec", "one", "--", "sh", "-c", "echo kept > file")
            product.ok("create", "asleep", "--wait")
            product.ok("stop", "asleep", "--wait")
        own_docker.stop_daemon()
        own_docker.socket.unlink(missing_ok=True)
        with product.running():
            assert missing(product) == ["runtime"]
            assert "waiting for the engine" in product.log()
            product.ok("start", "asleep")
            assert "no controller runs" in product.ok("explain", "asleep")
            doctor = {one["what"]: one for one in json.loads(product.run("doctor", "--json").stdout)["items"]}
            assert not doctor["engine"]["ok"]
            own_docker.start_daemon()
            product.until("asleep", lambda one: one["phase"] == "RUNNING", WITHIN_S)
            product.until("one", lambda one: one["phase"] == "RUNNING", WITHIN_S)
            assert product.ok("exec", "one", "--", "cat", "file") == "kept\n"
            wait_until(lambda: not missing(product), within_s=WITHIN_S)
            assert "no controller" not in product.ok("explain", "asleep")


def test_a_new_installation_without_an_engine_is_refused_at_once(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    product = Product(tmp_path / "data", environment={"TORPOR_RUNTIME": "docker", "TORPOR_ENGINE_URL": url})
    product.data.mkdir()
    done = product.run("up")
    assert done.returncode == 1
    assert f"the engine's socket {tmp_path}/none.sock does not exist. Start the engine" in done.stderr.decode()


def test_a_program_that_ends_by_itself_is_still_an_error_after_three_times(own_docker: DockerEngine, tmp_path: Path) -> None:
    product = product_on(own_docker, tmp_path, "docker")
    with own_docker.network(), product.running():
        product.ok("create", "one", "--template", "command", "--", "sh", "-c", "echo no; exit 143")
        shown = product.until("one", lambda one: one["phase"] == "ERROR", WITHIN_S)
        assert shown["error"]["context"]["exit_code"] == 143
        assert "no" in shown["error"]["context"]["last_lines"]
        wait_until(lambda: "ended with exit code 143" in product.ok("explain", "one"))
