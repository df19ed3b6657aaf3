"""deploy/compose/compose.yaml runs the product. It survives the loss of a controller, and of all that compose started."""

import http.client
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.conftest import HowTo
from tests.support.docker_engine import DockerEngine
from tests.support.product import TORPOR
from tests.support.waiting import wait_until

PROXY = 8080
HEALTHY = {"postgres", "valkey", "store", "controller-1", "controller-2", "api", "proxy"}
HEALTHY_S = 180.0
FILL = "head -c 300000 /dev/urandom > ~/blob; cat ~/blob"
HOME_VOLUMES = ("volume", "ls", "--quiet", "--filter", "label=torpor.kind=home")


class Compose:
    """What was started from the compose file, seen from its machine."""

    def __init__(self, engine: DockerEngine, how_to: HowTo) -> None:
        self.engine, self.how_to, self.token = engine, how_to, ""

    def container(self, service: str) -> Any:
        (found,) = json.loads(self.engine.docker("inspect", f"torpor_{service}_1"))
        return found

    def wait_until_healthy(self) -> None:
        def unhealthy() -> dict[str, str]:
            found = {name: self.container(name)["State"]["Health"]["Status"] for name in HEALTHY}
            return {name: status for name, status in found.items() if status != "healthy"}

        wait_until(lambda: not unhealthy(), within_s=HEALTHY_S, every_s=1, otherwise=lambda: f"{unhealthy()}\n{self.said()}")

    def said(self) -> str:
        return self.how_to.run("docker", "compose", "logs", "--no-color", "--tail", "15")

    def api(self, method: str, path: str, body: object = None, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        return self.ask(f"localhost:{PROXY}", method, f"/api/v1{path}", json.dumps(body).encode() if body else None, **headers)

    def ask(
        self, host: str, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        shown = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with self.engine.network():
            connection = http.client.HTTPConnection("127.0.0.1", PROXY, timeout=90)
            try:
                sent = {"Host": host, "Content-Type": "application/json", **shown, **headers}
                connection.request(method, path, body, sent)
                answer = connection.getresponse()
                return answer, answer.read()
            finally:
                connection.close()

    def torpor(self, *words: str) -> bytes:
        """A command of a user of this machine."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
        environment |= {"TORPOR_URL": f"http://localhost:{PROXY}", "TORPOR_TOKEN": self.token}
        with self.engine.network():
            done = subprocess.run([TORPOR, *words], env=environment, capture_output=True, timeout=180, check=False)
        assert done.returncode == 0, f"torpor {' '.join(words)}: {done.stderr.decode()}\n{self.said()}"
        return done.stdout

    def leader(self) -> str:
        with self.engine.network():
            connection = http.client.HTTPConnection("127.0.0.1", 9001, timeout=10)
            connection.request("GET", "/health/coordinator")
            members = json.loads(connection.getresponse().read())["members"]
            connection.close()
        (leader,) = [one["node_id"] for one in members if one["is_leader"]]
        assert {one["node_id"] for one in members} == {"controller-1", "controller-2"}
        return str(leader)

    def sign_in(self, username: str, password: str) -> None:
        answer, said = self.api("POST", "/login", {"username": username, "password": password})
        assert answer.status == 204, said
        cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]
        origin = {"Cookie": cookie, "Origin": f"http://localhost:{PROXY}"}
        answer, said = self.api("POST", "/tokens", {"label": "tests", "scopes": ["read", "use", "manage"]}, **origin)
        assert answer.status == 201, said
        self.token = json.loads(said)["token"]


@pytest.fixture
def compose(engine: DockerEngine, how_to: HowTo) -> Iterator[Compose]:
    made = Compose(engine, how_to)
    try:
        yield made
    finally:
        how_to.run("docker", "compose", "down", "--volumes")
        engine.remove_installations("torpor-")


def test_without_secrets_nothing_starts(how_to: HowTo) -> None:
    done = subprocess.run(
        ["docker", "compose", "up", "--detach"],
        cwd=how_to.folder,
        env={**how_to.environment, "POSTGRES_PASSWORD": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "run make-secrets first" in done.stderr


def test_the_how_to_starts_an_installation_that_survives(compose: Compose, engine: DockerEngine, how_to: HowTo) -> None:
    began = time.monotonic()
    said = how_to.follow(how_to.parts[1], how_to.clone)
    how_to.run("docker", "compose", "config", "--quiet")
    compose.wait_until_healthy()
    print(f"\n  healthy after {time.monotonic() - began:.0f} s")
    rights_are_as_documented(compose)
    (password,) = re.findall(r"with the one-time password (\S+)", said)
    compose.sign_in("eve", password)

    compose.torpor("create", "demo", "--wait")
    before = compose.torpor("exec", "demo", "--", "sh", "-c", FILL)
    wakes_with_its_home(compose, before)

    lost = compose.leader()
    # As after a crash: the engine starts a container again that `docker kill` has not stopped.
    os.kill(compose.container(lost)["State"]["Pid"], signal.SIGKILL)
    wakes_with_its_home(compose, before)
    wait_until(lambda: compose.container(lost)["RestartCount"] == 1)
    compose.wait_until_healthy()

    homes = engine.docker(*HOME_VOLUMES)
    assert homes
    how_to.follow(how_to.parts[2], how_to.folder)
    assert not engine.docker("ps", "--quiet", "--filter", "label=com.docker.compose.project=torpor")
    assert engine.docker(*HOME_VOLUMES) == homes
    how_to.run("docker", "compose", "up", "--detach")
    compose.wait_until_healthy()
    assert compose.torpor("exec", "demo", "--", "cat", "blob") == before


def rights_are_as_documented(compose: Compose) -> None:
    for name in ("api", "proxy", "controller-1", "controller-2"):
        found = compose.container(name)
        is_controller = name.startswith("controller")
        host = found["HostConfig"]
        assert found["Config"]["User"].split(":")[0] == ("0" if is_controller else "65532")
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["Privileged"]) == (True, ["ALL"], False)
        assert sorted(host["CapAdd"] or []) == (["NET_ADMIN", "NET_RAW"] if is_controller else [])
        sockets = [one["Source"] for one in found["Mounts"] if one["Source"].endswith(".sock")]
        assert len(sockets) == (1 if is_controller else 0)


def wakes_with_its_home(compose: Compose, blob: bytes) -> None:
    """The workspace is archived, and wakes with a request to its address."""
    compose.torpor("archive", "demo", "--wait")
    assert json.loads(compose.torpor("show", "demo", "--json"))["phase"] == "ARCHIVED"
    answer, page = compose.ask(f"demo.localhost:{PROXY}", "GET", "/")
    assert (answer.status, b"<title>demo</title>" in page) == (200, True), page
    assert compose.torpor("exec", "demo", "--", "cat", "blob") == blob
