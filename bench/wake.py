"""Measure how much longer it takes to wake a stopped workspace by a request than to start its program by hand.

From STANDBY: a program's request is sent to the proxy and held until the first byte of the answer comes back. Beside it the
same program is started as a bare process and asked as soon as it listens. Both run in turn, so that they have the same
conditions. The difference is Torpor's: the request, the controller, the confinement, the readiness check, the event, the way
through the proxy.

    python bench/wake.py [--wakes 30] [--json]
"""

import argparse
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

TORPOR = str(Path(sys.executable).with_name("torpor"))
PROGRAM = ("sh", "-c", "exec python3 -m http.server --bind 127.0.0.1 $PORT")
BAR_MS = 150.0
READY_WITHIN_S = 120.0
NAME = "bench"


@dataclass(frozen=True)
class Wake:
    """Milliseconds since the request was sent."""

    wished: float
    begun: float
    """STARTING was saved."""
    seen: float
    """RUNNING was saved: its port had answered."""
    first_byte: float
    bare: float
    """The bare start just before it, to its first byte."""


@dataclass(frozen=True)
class Result:
    wakes: int
    bare_ms_p50: float
    bare_ms_p95: float
    wake_ms_p50: float
    wake_ms_p95: float
    overhead_ms_p50: float
    """Each wake compared with the median bare start."""
    overhead_ms_p95: float
    difference_ms_p95: float
    """The p95 of the wakes compared with the p95 of the bare starts: on a shared machine both include its noise."""
    wished_ms_p50: float
    begun_ms_p50: float
    seen_ms_p50: float
    bar_ms: float
    is_met: bool


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_byte(port: int, headers: dict[str, str]) -> None:
    """Send a request, and wait for the first byte of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=READY_WITHIN_S) as connection:
        lines = ["GET / HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "Connection: close", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        answered = connection.recv(1 << 16)
        assert answered.startswith((b"HTTP/1.0 200", b"HTTP/1.1 200")), answered[:200]


def bare(folder: Path) -> float:
    """Milliseconds until the program itself has answered."""
    port = free_port()
    began = time.perf_counter()
    process = subprocess.Popen(
        PROGRAM, cwd=folder, env={**os.environ, "PORT": str(port)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                first_byte(port, {"Host": "localhost"})
            except ConnectionRefusedError:
                time.sleep(0.001)
            else:
                return (time.perf_counter() - began) * 1000
    finally:
        process.kill()
        process.wait()


class Installation:
    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token

    def call(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READY_WITHIN_S)
        try:
            headers = {
                "Host": f"localhost:{self.port}",
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
            }
            connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status < 400, (method, path, answer.status, said)
            return json.loads(said) if said else None
        finally:
            connection.close()

    def until(self, is_so: Callable[[Any], bool]) -> None:
        end = time.monotonic() + READY_WITHIN_S
        while not is_so(self.call("GET", f"/workspaces/{NAME}")):
            assert time.monotonic() < end
            time.sleep(0.05)

    def stop(self) -> None:
        self.call("PATCH", f"/workspaces/{NAME}", {"desired_state": "STANDBY"})
        self.until(lambda seen: seen["phase"] == "STANDBY" and seen["operation"] == "NONE")

    def wake(self, bare_ms: float) -> Wake:
        host = {"Host": f"{NAME}.localhost:{self.port}", "Authorization": f"Bearer {self.token}"}
        sent_at, began = time.time(), time.perf_counter()
        first_byte(self.port, host)
        took_ms = (time.perf_counter() - began) * 1000

        def since_sent_ms(at: str) -> float:
            return (datetime.fromisoformat(at).timestamp() - sent_at) * 1000

        (wish,) = self.call("GET", "/audit?limit=1")["items"]
        assert wish["action"] == "workspace.wake", wish
        start = self.call("GET", f"/workspaces/{NAME}/operations?limit=1")["items"][0]
        assert start["kind"] == "STARTING", start
        return Wake(
            wished=since_sent_ms(wish["at"]),
            begun=since_sent_ms(start["started_at"]),
            seen=since_sent_ms(start["ended_at"]),
            first_byte=took_ms,
            bare=bare_ms,
        )


@contextmanager
def up(folder: Path) -> Iterator[Installation]:
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
    environment = {**kept, "TORPOR_DATA": str(folder / "data"), "TORPOR_PORT": str(port)}
    with (folder / "up.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen([TORPOR, "up"], stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
    try:
        assert process.stdout
        said = process.stdout.readline()
        assert said.startswith("torpor is ready"), (folder / "up.log").read_text(encoding="utf-8")
        token = json.loads((folder / "data" / "credentials.json").read_text(encoding="utf-8"))["token"]
        yield Installation(port, token)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def measure(wakes: int) -> tuple[Result, list[Wake]]:
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder, up(Path(folder)) as here:
        home = Path(folder) / "home"
        home.mkdir()
        here.call("POST", "/workspaces", {"name": NAME, "template": "command", "command": list(PROGRAM)})
        here.until(lambda seen: seen["phase"] == "RUNNING")
        measured = []
        # The first of each warms up the machine and is not counted.
        for number in range(wakes + 1):
            here.stop()
            one = here.wake(bare(home))
            if number:
                measured.append(one)
                print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    return summed_up(measured), measured


def summed_up(measured: list[Wake]) -> Result:
    bare_ms = [one.bare for one in measured]
    usual_ms = statistics.median(bare_ms)
    over_ms = [one.first_byte - usual_ms for one in measured]
    return Result(
        wakes=len(measured),
        bare_ms_p50=usual_ms,
        bare_ms_p95=p95(bare_ms),
        wake_ms_p50=statistics.median(one.first_byte for one in measured),
        wake_ms_p95=p95([one.first_byte for one in measured]),
        overhead_ms_p50=statistics.median(over_ms),
        overhead_ms_p95=p95(over_ms),
        difference_ms_p95=p95([one.first_byte for one in measured]) - p95(bare_ms),
        wished_ms_p50=statistics.median(one.wished for one in measured),
        begun_ms_p50=statistics.median(one.begun for one in measured),
        seen_ms_p50=statistics.median(one.seen for one in measured),
        bar_ms=BAR_MS,
        is_met=p95(over_ms) < BAR_MS,
    )


def p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, round(0.95 * len(values)) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wakes", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result, measured = measure(options.wakes)
    if options.json:
        print(json.dumps({**asdict(result), "each": [asdict(one) for one in measured]}, indent=1))
        return
    print(f"bare start to first byte:    p50 {result.bare_ms_p50:6.1f} ms   p95 {result.bare_ms_p95:6.1f} ms")
    print(
        f"STANDBY to first byte:       p50 {result.wake_ms_p50:6.1f} ms   p95 {result.wake_ms_p95:6.1f} ms   of {result.wakes}"
    )
    print(
        f"  of that, at the median: wished {result.wished_ms_p50:.1f}, begun {result.begun_ms_p50:.1f}, "
        f"seen running {result.seen_ms_p50:.1f}, first byte {result.wake_ms_p50:.1f} ms after the request"
    )
    verdict = f"met, by {result.wakes} wakes" if result.is_met else f"NOT met, by {result.wakes} wakes"
    print(f"overhead:                    p50 {result.overhead_ms_p50:6.1f} ms   p95 {result.overhead_ms_p95:6.1f} ms")
    print(f"  p95 beside p95:                            {result.difference_ms_p95:6.1f} ms")
    print(f"bar: under {result.bar_ms:.0f} ms at p95: {verdict}")
    print(f"(CPU of this and its children: {sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]):.1f} s)")


if __name__ == "__main__":
    main()
