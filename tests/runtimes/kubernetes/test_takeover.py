"""Controllers of `torpor serve` on a cluster that are killed or cut off in the middle of an operation: another takes over."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import pytest
import yaml

from tests.runtimes.kubernetes.conftest import InstalledCluster, product_settings
from tests.support.cluster import Node
from tests.support.engine_relay import store_relay
from tests.support.kubernetes_cluster import ADDRESS
from tests.support.relay import Relay
from tests.support.relayed_nodes import postgres_relay, url_through
from tests.support.s3_server import S3Server, s3_server
from tests.support.takeover import (
    NAME,
    SOON_S,
    Place,
    another_controller_finishes_a_pack_and_a_restore,
    installation,
    pack_uploads,
)
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

TAKEN_OVER_S = 150.0
"""A call that gets no answer ends after 30 s."""


@dataclass
class KubernetesPlace(Place):
    installed: InstalledCluster

    def containers(self, kind: str) -> list[str]:
        names = self.installed.get("pods", "--selector", f"torpor.kind={kind}")["items"]
        return [str(one["metadata"]["uid"]) for one in names]

    async def relayed_controller(self, stack: contextlib.AsyncExitStack) -> "RelayedController":
        api, postgres = Relay((ADDRESS, self.installed.cluster.control.place.api)), postgres_relay(self.here)
        for relay in (api, postgres):
            await stack.enter_async_context(relay.running())
        config = yaml.safe_load(self.installed.kubeconfig.read_text())
        for one in config["clusters"]:
            one["cluster"]["server"] = f"https://127.0.0.1:{api.port}"
        path = self.here.folder / f"kubeconfig-{api.port}"
        path.write_text(yaml.safe_dump(config))
        settings = {"kubernetes_config": str(path), "database_url": url_through(postgres, self.here)}
        return RelayedController(await replace(self.made, of_controllers=settings).serve("controller"), api, postgres)

    async def members(self) -> dict[str, bool]:
        """Each with whether the API server answers it."""
        connection = await asyncpg.connect(self.here.postgres.dsn)
        try:
            found = await connection.fetch("SELECT node_id, sees_runtime FROM controllers WHERE expires_at > clock_timestamp()")
        finally:
            await connection.close()
        return {row["node_id"]: row["sees_runtime"] for row in found}


@dataclass(frozen=True)
class RelayedController:
    """It reaches the API server and the database through relays."""

    node: Node
    api: Relay
    postgres: Relay

    def cut_off(self) -> None:
        for relay in (self.api, self.postgres):
            relay.freeze()

    def go_on(self) -> None:
        """What it sent meanwhile arrives late."""
        for relay in (self.api, self.postgres):
            relay.thaw()


@pytest.fixture
async def place(
    installed: InstalledCluster, tmp_path: Path, pod_file: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KubernetesPlace]:
    settings = product_settings(installed, pod_file)
    of_controllers = {"kubernetes_config": settings.pop("kubernetes_config")}
    with installed.cluster.network(), s3_server(ADDRESS) as store:
        async with store_relay(store.endpoint) as relay, installation(tmp_path, settings, of_controllers) as made:
            for name, value in S3Server(relay.url).environment.items():
                monkeypatch.setenv(name, value)
            await made.serve("api")
            yield KubernetesPlace(made, relay, installed)
    installed.remove_all("app.kubernetes.io/managed-by=torpor")


async def test_another_controller_finishes_a_pack_and_a_restore(place: KubernetesPlace) -> None:
    await another_controller_finishes_a_pack_and_a_restore(place)


async def two_controllers(place: KubernetesPlace, stack: contextlib.AsyncExitStack) -> dict[str, RelayedController]:
    made = [await place.relayed_controller(stack) for _ in range(2)]
    return {one.node.name: one for one in made}


async def test_a_controller_that_is_cut_off_does_no_harm_and_another_continues_with_its_pack(place: KubernetesPlace) -> None:
    here, store = place.here, place.store
    async with contextlib.AsyncExitStack() as stack:
        controllers = await two_controllers(place, stack)
        before = await place.created()
        store.hold(lambda line: line.startswith("PUT ") and "/packs/" in line)
        await here.wish(NAME, "ARCHIVED")
        await until(lambda: store.held, within_s=SOON_S)
        (packing,) = place.containers("job")
        first = await place.holder()
        assert first is not None
        controllers[first.name].cut_off()

        async def is_held_by_another() -> bool:
            holder = await place.holder()
            return holder is not None and holder.name != first.name

        await until(is_held_by_another, within_s=SOON_S)
        assert place.containers("job") == [packing]
        store.release()
        await here.until_served(within_s=SOON_S)
        uploads = pack_uploads(store)
        assert uploads
        assert len(uploads) == len(set(uploads)), "the job was continued, not doubled"
        await here.wish(NAME, "RUNNING")
        await here.until_served(within_s=SOON_S)
        (pod,) = place.containers("workspace")

        controllers[first.name].go_on()

        async def is_member_again() -> bool:
            return first.name in await place.members() and await first.health()

        await until(is_member_again, within_s=SOON_S)
        await here.until_served(within_s=SOON_S)
        assert (place.containers("workspace"), place.containers("job")) == ([pod], [])
        assert await place.content() == before


async def test_a_controller_that_does_not_reach_the_api_server_leaves_its_workspaces_to_another(place: KubernetesPlace) -> None:
    """It reaches the database all the time, so its life does not expire."""
    here = place.here
    async with contextlib.AsyncExitStack() as stack:
        controllers = await two_controllers(place, stack)
        before = await place.created()
        (pod,) = place.containers("workspace")
        for name, controller in controllers.items():
            controller.api.freeze()
            await here.wish(NAME, "STANDBY")
            await here.until_served(within_s=TAKEN_OVER_S)
            assert place.containers("workspace") == []
            await here.wish(NAME, "RUNNING")
            await here.until_served(within_s=TAKEN_OVER_S)
            assert await place.content() == before
            (again,) = place.containers("workspace")
            assert again != pod
            pod = again
            controller.api.thaw()

            async def is_a_member_that_is_answered(name: str = name) -> bool:
                return (await place.members()).get(name, False)

            await until(is_a_member_that_is_answered, within_s=TAKEN_OVER_S)
            assert place.containers("workspace") == [pod], "what it sent meanwhile changes nothing"
