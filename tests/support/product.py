"""The real product, started as a user starts it, with its own data directory and port."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.requirements import must_have
from tests.support.waiting import wait_until

TORPOR = str(Path(sys.executable).with_name("torpor"))
# A program for the template `command`: it serves the files of the home.
SERVE_HOME = ("sh", "-c", "exec python3 -m http.server --bind 127.0.0.1 $PORT")
# For a product with several users, which must also start on a machine that cannot confine workspaces.
SEVERAL_USERS = {"TORPOR_UNCONFINED": "true"}
NAMESPACES_REFUSED = "bwrap: No permissions to create new namespace"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Product:
    data: Path
    port: int = field(default_factory=free_port)
    environment: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """Arguments before the command line, such as a tracer, which must exec the command."""
    ready: str = ""
    """The line that `torpor up` printed when it was ready."""
    process: subprocess.Popen[str] | None = None
    command: str = TORPOR

    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
        return {**kept, "TORPOR_DATA": str(self.data), "TORPOR_PORT": str(self.port), **self.environment}

    def up(self) -> float:
        """Start it; returns the seconds until it was ready."""
        began = time.monotonic()
        log = (self.data.parent / "up.log").open("a", encoding="utf-8")
        self.process = subprocess.Popen(
            [*self.before, self.command, "up"],
            stdout=subprocess.PIPE,
            stderr=log,
            env=self.env(),
            text=True,
            cwd=self.data.parent,
        )
        log.close()
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("torpor is ready at"):
                self.ready = line.strip()
                return time.monotonic() - began
        raise AssertionError(f"torpor up ended with {self.process.wait()} before it was ready:\n{self.log()}")

    def stop(self, number: int = signal.SIGINT) -> int:
        """Stop it with Ctrl-C, or another signal; returns the exit code."""
        assert self.process
        self.process.send_signal(number)
        return self._ended()

    def kill(self) -> None:
        """Kill it, as a power cut does, except for the disk."""
        assert self.process
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        assert self.process
        assert self.process.stdout
        code = self.process.wait(60)
        self.process.stdout.close()
        self.process = None
        return code

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """It is stopped at the end, also if the test fails."""
        self.up()
        try:
            yield
        finally:
            if self.process is not None:
                self.process.send_signal(signal.SIGINT)
                try:
                    self._ended()
                except subprocess.TimeoutExpired:
                    self.kill()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """It does nothing meanwhile, and finds afterwards what has changed. Keep it short: leases continue to expire."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        return (self.data.parent / "up.log").read_text(encoding="utf-8")[-6000:]

    def run(self, *words: str, stdin: bytes | None = None, timeout_s: float = 180) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [self.command, *words],
            env=self.env(),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout_s,
            cwd=self.data.parent,
            check=False,
        )

    def ok(self, *words: str, timeout_s: float = 180) -> str:
        """The output of a command, which must succeed."""
        done = self.run(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"torpor {' '.join(words)}: {done.returncode}\n{done.stderr.decode()}\n{self.log()}"
        return done.stdout.decode()

    def show(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.ok("show", name, "--json"))
        return shown

    def must_confine(self, what: str) -> None:
        """Skip the test if the product cannot confine this."""
        found = {one["what"]: one for one in json.loads(self.ok("doctor", "--json"))["items"]}[f"confinement: {what}"]
        must_have(found["ok"], f"{what}: {found['detail']}")

    def until(self, name: str, condition: Callable[[dict[str, Any]], bool], within_s: float = 60) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            shown = self.show(name)
            return shown if condition(shown) else None

        def otherwise() -> str:
            return f"{json.dumps(self.show(name), indent=1)}\n{self.log()}"

        return wait_until(seen, within_s=within_s, every_s=0.05, otherwise=otherwise)

    @property
    def token(self) -> str:
        """The token of the first user, which commands on this machine use."""
        said: str = json.loads((self.data / "credentials.json").read_text(encoding="utf-8"))["token"]
        return said

    def api(self, method: str, path: str, body: object = None) -> Any:
        """The response of the API, with the token of the first user. Many calls cost less than as many commands."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request(method, f"/api/v1{path}", json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status < 300, f"{method} {path}: {answer.status} {said!r}"
            return json.loads(said)
        finally:
            connection.close()

    def get(self, name: str, path: str = "/", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """A program's request to a workspace's host, with this token unless the headers have another one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            shown = {"X-Torpor-Token": self.token} if "Cookie" not in headers else {}
            connection.request("GET", path, headers={"Host": f"{name}.localhost:{self.port}", **shown, **headers})
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def home(self, workspace: dict[str, Any]) -> Path:
        return self.data / "volumes" / f"ws-{workspace['id']}-home-{workspace['generation']}" / "home"


@contextlib.contextmanager
def product(folder: Path, **environment: str) -> Iterator[Product]:
    """A running product, which is stopped at the end, also if the test fails."""
    here = Product(folder / "data", environment=environment)
    with here.running():
        yield here


def without_confinement(folder: Path) -> dict[str, str]:
    """The environment of a product on a machine whose kernel refuses bubblewrap, for root and for a normal user."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "bwrap").write_text(f"#!/bin/sh\necho '{NAMESPACES_REFUSED}' >&2\nexit 1\n", encoding="utf-8")
    (tools / "bwrap").chmod(0o755)
    return {"PATH": f"{tools}:{os.environ['PATH']}"}


def processes_with(text: str) -> list[int]:
    """The processes of this machine whose command line contains this text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if text in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(int(entry.name))
    return found
