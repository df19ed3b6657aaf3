"""Measure workspaces on a Docker engine: the start compared with `docker run`, and what idle ones cost.

One engine, one image, the same program, in turn:

    bare    `docker run` of the image, until the program's port answers: two processes of Docker's client, and the engine
    calls   the same with the engine's own calls create, start and inspect, without Docker's client
    wake    a request to a stopped workspace, until the first byte of the program's answer
    idle    many running workspaces: CPU of Torpor, memory of each agent

It starts a private engine, as the tests do (root, package docker.io). With `--kubernetes`, the start on a Kubernetes cluster is
compared with `kubectl apply` instead (`bench/kubernetes_start.py`).

    python bench/engines.py [--wakes 20] [--idle 50] [--idle-s 60] [--kubernetes] [--json]
"""

import argparse
import http.client
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.docker_engine import DockerEngine, docker_engine
from tests.support.engine_image import image_archive
from tests.support.product import Product
from tests.support.waiting import wait_until

IMAGE = "torpor-bench:1"
PORT = 8000
OVERHEAD_BAR_MS = 150.0
AGENT_BAR_MB = 20.0
READY_WITHIN_S = 120.0
ALL_RUN_S = 600.0
# The same program in both; it answers every connection at once.
PROGRAM = """
import os, socket
listening = socket.create_server((os.environ.get("HOST", "127.0.0.1"), int(os.environ["PORT"])))
while True:
    connection, _ = listening.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nok")
    connection.close()
"""
PYTHON = "/opt/torpor/bin/python3"


@dataclass(frozen=True)
class Result:
    wakes: int
    bare_ms_p50: float
    bare_ms_p95: float
    calls_ms_p50: float
    wake_ms_p50: float
    wake_ms_p95: float
    overhead_ms_p50: float
    overhead_ms_p95: float
    """The p95 of the wakes, without the median of the bare starts."""
    at_once: int
    at_once_s: float
    """From the first request until all of them run."""
    idle_cpu_percent: float
    """Of one core, of all processes of Torpor itself."""
    agent_mb_p50: float
    """Proportional set size of the process with the agent."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wakes", type=int, default=20)
    parser.add_argument("--idle", type=int, default=50)
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--kubernetes", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.kubernetes:
        from bench import kubernetes_start

        try:
            started = kubernetes_start.measure(given.wakes)
        except pytest.skip.Exception as lacking:
            print(f"left out: {lacking}", file=sys.stderr)
            return 0
        print(json.dumps(asdict(started)) if given.json else kubernetes_start.report(started))
        return 0
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        print("left out: it needs root and the package docker.io", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as folder, docker_engine() as engine:
        engine.docker("import", "-", IMAGE, stdin=image_archive())
        with running(engine, Path(folder)) as product:
            result = measure(engine, product, given.wakes, given.idle, given.idle_s)
        engine.remove_installations("torpor-")
    print(json.dumps(asdict(result)) if given.json else report(result))
    return 0


@contextmanager
def running(engine: DockerEngine, folder: Path) -> Iterator[Product]:
    environment = {
        "TORPOR_RUNTIME": "docker",
        "TORPOR_ENGINE_URL": engine.url,
        "TORPOR_WORKSPACE_IMAGE": IMAGE,
        "TORPOR_MAX_RUNNING_PER_USER": "1000",
        "TORPOR_MAX_RUNNING_GLOBAL": "1000",
        "TORPOR_STANDBY_TTL": "86400",
        "TORPOR_WORKSPACE_STOP_GRACE": "1",
    }
    product = Product(folder / "data", environment=environment)
    with engine.network(), product.running():
        yield product


def measure(engine: DockerEngine, product: Product, wakes: int, idle: int, idle_s: float) -> Result:
    product.ok("create", "bench", "--template", "command", "--wait", "--", PYTHON, "-S", "-c", PROGRAM)
    kit = engine.docker("volume", "ls", "--quiet", "--filter", "label=torpor.kind=kit").split()[0]
    token = product.token
    bare, called, woken = [], [], []
    for number in range(wakes):
        product.ok("stop", "bench", "--wait")
        bare.append(bare_start_ms(engine, kit))
        called.append(calls_ms(engine, kit))
        woken.append(wake_ms(product, token))
        took = f"docker run {bare[-1]:.0f} ms, engine calls {called[-1]:.0f} ms, wake {woken[-1]:.0f} ms"
        print(f"{number + 1} of {wakes}: {took}", file=sys.stderr)
    names = [f"idle-{number}" for number in range(idle)]
    began = time.monotonic()
    with ThreadPoolExecutor(idle) as pool:
        list(pool.map(lambda name: product.api("POST", "/workspaces", {"name": name, "desired_state": "RUNNING"}), names))
    wait_until(lambda: how_many_run(product) == idle + 1, within_s=ALL_RUN_S, every_s=0.2)
    at_once_s = time.monotonic() - began
    assert product.process is not None
    before = cpu_s(product.process.pid)
    time.sleep(idle_s)
    cpu_percent = (cpu_s(product.process.pid) - before) * 100 / idle_s
    typical = statistics.median(bare)
    return Result(
        wakes,
        round(typical, 1),
        round(p95(bare), 1),
        round(statistics.median(called), 1),
        round(statistics.median(woken), 1),
        round(p95(woken), 1),
        round(statistics.median(woken) - typical, 1),
        round(p95(woken) - typical, 1),
        idle,
        round(at_once_s, 1),
        round(cpu_percent, 1),
        round(statistics.median(agent_megabytes(engine)), 1),
    )


def how_many_run(product: Product) -> int:
    return sum(one["phase"] == "RUNNING" for one in product.api("GET", "/workspaces")["items"])


def bare_start_ms(engine: DockerEngine, kit: str) -> float:
    began = time.monotonic()
    words = ("--env", f"PORT={PORT}", "--env", "HOST=0.0.0.0", "--mount", f"source={kit},target=/opt/torpor,readonly")
    container = engine.docker("run", "--detach", *words, IMAGE, PYTHON, "-S", "-c", PROGRAM)
    address = engine.docker("inspect", container, "--format", "{{.NetworkSettings.IPAddress}}")
    until_answered(address)
    took = (time.monotonic() - began) * 1000
    engine.docker("rm", "--force", container)
    return took


def calls_ms(engine: DockerEngine, kit: str) -> float:
    config = {
        "Image": IMAGE,
        "Cmd": [PYTHON, "-S", "-c", PROGRAM],
        "Env": [f"PORT={PORT}", "HOST=0.0.0.0"],
        "HostConfig": {"Mounts": [{"Type": "volume", "Source": kit, "Target": "/opt/torpor", "ReadOnly": True}]},
    }
    began = time.monotonic()
    container = call_engine(engine, "POST", "/containers/create", config)["Id"]
    call_engine(engine, "POST", f"/containers/{container}/start")
    until_answered(call_engine(engine, "GET", f"/containers/{container}/json")["NetworkSettings"]["IPAddress"])
    took = (time.monotonic() - began) * 1000
    engine.docker("rm", "--force", container)
    return took


def call_engine(engine: DockerEngine, method: str, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection("docker", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(engine.socket))
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        said = response.read()
        assert response.status < 300, said
        return json.loads(said or b"null")
    finally:
        connection.close()


def until_answered(address: str) -> None:
    while True:
        try:
            with socket.create_connection((address, PORT), timeout=1) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                connection.recv(1)
                return
        except OSError:
            time.sleep(0.001)


def wake_ms(product: Product, token: str) -> float:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", product.port, timeout=READY_WITHIN_S)
    headers = {"Host": f"bench.localhost:{product.port}", "Authorization": f"Bearer {token}"}
    connection.request("GET", "/", headers=headers)
    response = connection.getresponse()
    response.read(1)
    took = (time.monotonic() - began) * 1000
    assert response.status == 200, response.status
    connection.close()
    return took


def cpu_s(pid: int) -> float:
    """Of a process and all its descendants, PostgreSQL and Valkey included."""
    total, left = 0.0, [pid]
    while left:
        one = left.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            children = [path.read_text().split() for path in Path(f"/proc/{one}/task").glob("*/children")]
        except FileNotFoundError:
            continue
        total += (int(fields[11]) + int(fields[12])) / 100
        left += [int(child) for found in children for child in found]
    return total


def agent_megabytes(engine: DockerEngine) -> list[float]:
    found = []
    for container in engine.docker("ps", "--quiet", "--filter", "label=torpor.kind=workspace").split():
        pid = engine.docker("inspect", container, "--format", "{{.State.Pid}}")
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        kilobytes = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        found.append(kilobytes / 1024)
    return found


def p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def report(result: Result) -> str:
    return "\n".join(
        [
            f"{datetime.now():%Y-%m-%d}, {result.wakes} starts each, in turn",
            f"docker run: median {result.bare_ms_p50} ms, p95 {result.bare_ms_p95} ms",
            f"the engine's calls without Docker's client: median {result.calls_ms_p50} ms",
            f"wake by a request: median {result.wake_ms_p50} ms, p95 {result.wake_ms_p95} ms",
            f"overhead: median {result.overhead_ms_p50} ms, p95 {result.overhead_ms_p95} ms (bar {OVERHEAD_BAR_MS:g})",
            f"{result.at_once} created at once: all run after {result.at_once_s} s",
            f"idle: {result.idle_cpu_percent} % of a core, {result.agent_mb_p50} MB for each agent (bar {AGENT_BAR_MB:g})",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
