"""Test `torpor serve` on an engine: several processes of each role, an S3 store, and kill -9 of each process in turn."""

import asyncio
import contextlib
import http.client
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Node, many
from tests.support.docker_engine import DockerEngine
from tests.support.s3_server import s3_server
from tests.support.takeover import Installation, installation, revisions_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

START_S = 240.0
FAILOVER_S = 5.0
EVERY_S = 0.05
LONGEST_GAP_S = 5.0


@dataclass
class Visitor:
    """Sends requests to workspaces through any proxy, and notes how long none succeeded."""

    here: Cluster
    names: Sequence[str]
    gaps_s: list[float] = field(default_factory=list)
    served: int = 0

    async def run(self) -> None:
        last = time.monotonic()
        while True:
            name = self.names[self.served % len(self.names)]
            if await any_proxy_serves(self.here, name):
                self.served += 1
                self.gaps_s.append(time.monotonic() - last)
                last = time.monotonic()
            await asyncio.sleep(EVERY_S)


async def any_proxy_serves(here: Cluster, name: str) -> bool:
    for node in here.living("proxy"):
        if await asyncio.to_thread(page_status, node, name, here.token) == 200:
            return True
    return False


def page_status(node: Node, name: str, token: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=5)
    try:
        headers = {"Host": f"{name}.localhost:{node.port}", "Authorization": f"Bearer {token}"}
        connection.request("GET", "/", headers=headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def docker_installation(engine: DockerEngine, image: str, folder: Path) -> AsyncIterator[Installation]:
    settings = {
        "runtime": "docker",
        "workspace_image": image,
        "archive_url": "s3://homes/torpor",
        "workspace_stop_grace": "2",
    }
    async with installation(folder, settings, {"engine_url": engine.url}) as made:
        yield made


def containers(engine: DockerEngine) -> set[str]:
    """The ids of the running workspaces' containers."""
    return set(engine.docker("ps", "--filter", "label=torpor.kind=workspace", "--quiet", "--no-trunc").split())


def recorded_revisions(engine: DockerEngine) -> set[str]:
    """The workspaces, each with the revision in the record of its home."""
    shown = '{{.Label "torpor.workspace"}} {{.Label "torpor.revision"}}'
    return set(engine.docker("volume", "ls", "--filter", "label=torpor.kind=record", "--format", shown).splitlines())


@pytest.mark.parametrize("count", [10, pytest.param(40, marks=pytest.mark.deep)])
async def test_each_process_is_killed_in_turn(
    engine: DockerEngine, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    bridge = ip_network(engine.docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}"))
    with engine.network(), s3_server(str(bridge[1])) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        async with docker_installation(engine, image, tmp_path) as made:
            here = made.here
            await asyncio.gather(*(made.serve("api") for _ in range(2)))
            await asyncio.gather(*(made.serve(role) for role in ("proxy", "proxy", "controller", "controller")))
            names = [f"w{number:02}" for number in range(count)]
            await many(here.create, names, at_once=4)
            took_s = await here.until_served(within_s=START_S)
            print(f"\n  {count} workspaces run after {took_s:.1f} s")
            await until(lambda: any_proxy_serves(here, names[0]), within_s=30)

            began = containers(engine)
            assert len(began) == count
            revisions, recorded = await revisions_of(here), recorded_revisions(engine)
            visitor = Visitor(here, names[: count // 2])
            visiting = asyncio.create_task(visitor.run())
            try:
                for node in list(here.nodes):
                    await kill_and_replace(made, node)
                assert containers(engine) == began, "no failover touches a container"
                assert await revisions_of(here) == revisions
                assert recorded_revisions(engine) == recorded
                await archive_and_wake(here, names[count // 2 :])
            finally:
                visiting.cancel()
                await asyncio.gather(visiting, return_exceptions=True)
            print(f"  {visitor.served} requests; the longest time without a response was {max(visitor.gaps_s):.2f} s")
            assert max(visitor.gaps_s) < LONGEST_GAP_S
            await many(lambda name: remove(here, name), names, at_once=4)
            await until(lambda: asyncio.to_thread(lambda: not containers(engine)), within_s=60)
    engine.remove_installations("torpor-")


async def kill_and_replace(made: Installation, node: Node) -> None:
    here, role = made.here, node.name.split("-")[0]
    led = role == "controller" and await node.leads()
    began_s = time.monotonic()
    await node.kill()
    if led:
        await here.leader()
        print(f"  another controller leads after {time.monotonic() - began_s:.2f} s")
        assert time.monotonic() - began_s < FAILOVER_S
    await made.serve(role)


async def archive_and_wake(here: Cluster, names: Sequence[str]) -> None:
    """Under load: files in the homes, through any API."""
    await many(lambda name: write(here, name), names, at_once=4)
    await many(lambda name: here.wish(name, "ARCHIVED"), names, at_once=4)
    print(f"  {len(names)} are archived after {await here.until_served(names, within_s=START_S):.1f} s")
    await many(lambda name: here.wish(name, "RUNNING"), names, at_once=4)
    print(f"  and run again after {await here.until_served(names, within_s=START_S):.1f} s")
    for name in names:
        assert await execute(here, name, "cat file") == f"of {name}\n"


async def remove(here: Cluster, name: str) -> None:
    await here.accepted("DELETE", f"/workspaces/{name}")


async def write(here: Cluster, name: str) -> None:
    await execute(here, name, f"echo of {name} > file")


async def execute(here: Cluster, name: str, script: str) -> str:
    done = await here.accepted("POST", f"/workspaces/{name}/exec", {"command": ["sh", "-c", script]})
    assert done["exit_code"] == 0, done
    return b64decode(done["stdout"]).decode()
