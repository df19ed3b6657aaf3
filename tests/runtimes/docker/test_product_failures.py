"""What a user sees of failures on an engine: lost homes, too little memory, images that cannot be run. The real product."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.container_engine import ContainerEngine
from tests.support.docker_engine import DockerEngine
from tests.support.image_registry import ImageRegistry, files, image_registry
from tests.support.product import Product
from tests.support.waiting import wait_until
from torpor.ports import Home
from torpor.runtimes.object_labels import home_name

FAILED = 3
"""The exit code of a command that waited for a state and got an error."""
PYTHON = "/opt/torpor/bin/python3"
EATS = "held = []\nwhile True: held.append(bytearray(16 << 20))"


@pytest.fixture(scope="module")
def running(engine: ContainerEngine, packed_image: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One product for the tests of this file."""
    engine.docker("import", "-", "torpor-failures:1", stdin=packed_image)
    environment = {
        "TORPOR_RUNTIME": "docker" if isinstance(engine, DockerEngine) else "podman",
        "TORPOR_ENGINE_URL": engine.url,
        "TORPOR_WORKSPACE_IMAGE": "torpor-failures:1",
        "TORPOR_WORKSPACE_STOP_GRACE": "2",
        "TORPOR_RECONCILER_RETRY_BACKOFF": "0.2",
        "TORPOR_RECONCILER_INTERVAL": "1",
    }
    made = Product(tmp_path_factory.mktemp("failures") / "data", environment=environment)
    with engine.network(), made.running():
        yield made
    engine.remove_installations("torpor-")


@pytest.fixture
def here(running: Product, engine: ContainerEngine) -> Iterator[Product]:
    with engine.network():
        yield running
        for one in json.loads(running.ok("list", "--json"))["items"]:
            running.ok("delete", one["name"], "--purge", "--yes", "--wait")


def volumes_of(engine: ContainerEngine, shown: dict[str, Any]) -> set[str]:
    return set(engine.docker("volume", "ls", "--quiet", "--filter", f"name={shown['id']}").split())


def remove_volume(engine: ContainerEngine, shown: dict[str, Any]) -> str:
    """The home's volume, and the containers that keep it from being removed."""
    name = home_name(Home(shown["id"], shown["generation"]))

    def is_removed() -> bool:
        containers = engine.docker("ps", "--all", "--quiet", "--filter", f"volume={name}").split()
        if containers:
            engine.docker("rm", "--force", *containers)
        removed = engine._command("volume", "rm", name)
        return removed.returncode == 0 or b"no such volume" in removed.stderr.lower()

    wait_until(is_removed)
    return name


@pytest.mark.both_engines
@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_volume_that_was_removed_by_hand_is_lost_and_never_replaced(
    here: Product, engine: ContainerEngine, state: str
) -> None:
    here.ok("create", "demo", "--wait")
    here.ok("exec", "demo", "--", "sh", "-c", "echo precious > file")
    if state == "stopped":
        here.ok("stop", "demo", "--wait")
    name = remove_volume(engine, here.show("demo"))
    lost = here.until("demo", lambda seen: seen["phase"] == "ERROR" and seen["operation"] == "NONE")
    assert lost["error"]["reason"] == "DataLost", lost["error"]
    started = here.run("start", "demo", "--wait", "--timeout", "5")
    assert started.returncode != 0
    assert b"recover" in started.stderr, started.stderr
    explained = here.ok("explain", "demo")
    assert "torpor recover demo" in explained
    assert here.show("demo")["phase"] == "ERROR"
    assert name not in volumes_of(engine, lost), "no empty home was created"


@pytest.mark.both_engines
def test_too_little_memory_is_named(here: Product) -> None:
    here.ok("create", "demo", "--template", "command", "--memory", "128M", "--", PYTHON, "-S", "-c", EATS)
    failed = here.until("demo", lambda seen: seen["error"] is not None)
    assert "memory" in json.dumps(failed["error"]), failed["error"]
    explained = here.ok("explain", "demo")
    assert "memory" in explained


# ── images ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def registry(engine: DockerEngine) -> Iterator[ImageRegistry]:
    with image_registry(engine) as registry:
        registry.add("team/secret", files(data=b"1"))
        registry.add("team/other", files(data=b"2"), architecture="s390x")
        registry.refuses = {"team/secret": 403}
        yield registry


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("team/none:7", "manifest unknown"),
        ("team/secret", "denied"),
        ("team/other", "s390x"),
    ],
)
def test_an_image_that_cannot_be_run_is_named_with_the_answer(
    here: Product, registry: ImageRegistry, image: str, words: str
) -> None:
    reference = f"{registry.address}/{image}"
    failed = here.run("create", "demo", "--image", reference, "--wait")
    assert failed.returncode == FAILED, failed.stderr
    said = failed.stderr.decode()
    assert reference in said
    assert words in said
    assert here.show("demo")["error"]["reason"] == "ImagePullFailed"
    assert words in here.ok("explain", "demo")


def test_a_registry_that_does_not_answer_is_tried_again_and_named(here: Product) -> None:
    failed = here.run("create", "demo", "--image", "127.0.0.1:1/team/tools", "--wait")
    assert failed.returncode == FAILED
    said = failed.stderr.decode()
    assert "127.0.0.1:1/team/tools" in said
    assert "connection refused" in said
    assert "is retried" in said


def test_an_image_with_a_typing_error_is_refused_at_once(here: Product) -> None:
    refused = here.run("create", "demo", "--image", "Python:3.12")
    assert refused.returncode == 1
    assert b"Python:3.12" in refused.stderr
    assert b"write 'python'" in refused.stderr
