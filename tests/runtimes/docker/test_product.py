"""Test the whole product on an engine: `torpor up`, as a user starts it."""

import json

import pytest

from tests.support.container_engine import ContainerEngine
from tests.support.product import Product
from tests.support.waiting import wait_until

PYTHON = "/opt/torpor/bin/python3"
WRITE = "mkdir notes && head -c 300000 /dev/urandom > notes/noise && chmod 640 notes/noise && touch notes/empty"
LISTEN = """
import os, socket, time
listening = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
print("hello", flush=True)
time.sleep(600)
"""
SECRET = "correct-horse-battery-staple"
READ = "stat -c '%n %a %s %Y %u' notes notes/* && cat notes/noise"


@pytest.mark.both_engines
def test_create_exec_archive_and_wake(product: Product) -> None:
    product.ok("create", "one", "--wait")
    product.ok("exec", "one", "--", "sh", "-c", WRITE)
    before = product.run("exec", "one", "--", "sh", "-c", READ).stdout
    assert len(before) > 300000
    assert product.ok("exec", "one", "--", "sh", "-c", "echo $TORPOR_WORKSPACE; pwd; id -u").split() == [
        "one",
        "/home/workspace",
        "1000",
    ]
    product.ok("archive", "one", "--wait")
    assert product.show("one")["phase"] == "ARCHIVED"
    product.ok("start", "one", "--wait")
    assert product.run("exec", "one", "--", "sh", "-c", READ).stdout == before


def test_the_log_is_read_while_it_runs_and_after_it_was_stopped(product: Product) -> None:
    product.ok("create", "one", "--template", "command", "--wait", "--", PYTHON, "-c", LISTEN)
    wait_until(lambda: "hello" in product.ok("logs", "one"))
    product.ok("stop", "one", "--wait")
    assert "hello" in product.ok("logs", "one")


def test_a_request_wakes_it(product: Product) -> None:
    product.ok("create", "one", "--wait")
    status, _, page = product.get("one")
    assert status == 200
    assert b"<title>" in page
    product.ok("stop", "one", "--wait")
    wait_until(lambda: product.get("one")[0] == 200, within_s=60)
    assert product.show("one")["phase"] == "RUNNING"


@pytest.mark.both_engines
def test_an_image_with_a_size_a_variable_and_a_secret(product: Product, engine: ContainerEngine, image: str) -> None:
    """The engine enforces the size. The secret is in the environment of programs, and nowhere else on the engine."""
    size = ("--cpu", "0.5", "--memory", "300M")
    product.ok("create", "one", "--image", image, *size, "--env", "COLOUR=blue", "--wait", "--", PYTHON, "-c", LISTEN)
    done = product.run("secrets", "set", "one", "TOKEN", stdin=SECRET.encode())
    assert done.returncode == 0, done.stderr
    product.ok("stop", "one", "--wait")
    product.ok("start", "one", "--wait")
    assert product.ok("exec", "one", "--", "sh", "-c", "echo $COLOUR $TOKEN").split() == ["blue", SECRET]
    (container,) = engine.docker("ps", "--quiet", "--filter", "label=torpor.kind=workspace").split()
    limits = json.loads(engine.docker("inspect", "--format", "{{json .HostConfig}}", container))
    assert (limits["NanoCpus"] or limits["CpuQuota"] * 10**4, limits["Memory"]) == (500_000_000, 300 << 20)
    everything = engine.docker("ps", "--all", "--quiet").split()
    shown = engine.docker("inspect", *everything) + "".join(engine.docker("logs", one) for one in everything)
    shown += engine.docker("volume", "inspect", *engine.docker("volume", "ls", "--quiet").split())
    shown += (engine.folder / "engine.log").read_text(errors="replace") + product.log()
    assert product.show("one")["id"] in shown, "otherwise this test shows nothing"
    assert SECRET not in shown
    assert SECRET.encode().hex() not in shown


@pytest.mark.both_engines
def test_the_doctor_names_the_engine_and_what_it_confines(product: Product, request: pytest.FixtureRequest) -> None:
    found = {one["what"]: one for one in json.loads(product.ok("doctor", "--json"))["items"]}
    engine = request.node.callspec.params["engine"]
    assert found["engine"]["ok"]
    assert found["engine"]["detail"].startswith(engine)
    assert ("engine locks" in found) == (engine == "podman")
    for what in ("files and processes", "user", "network", "memory and processes", "CPU"):
        assert found[f"confinement: {what}"]["ok"], found
