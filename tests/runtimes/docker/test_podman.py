"""What only Podman does, on a real Podman with few locks."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from tests.contracts.runtime_contract import FENCE, a_home, marker_of, unheard
from tests.runtimes.docker.conftest import INSTALLATION_KEY
from tests.runtimes.docker.test_containers import SLEEPING, ready, running_program, seen
from tests.support.kept_logs import LogsInMemory
from tests.support.podman_engine import PodmanEngine, podman_engine
from torpor.domain.errors import Code, Failed
from torpor.domain.networks import BLOCKED
from torpor.domain.records import ObservedContainer, ObservedVolume
from torpor.kit.manifest import Kit
from torpor.runtimes.docker import containers
from torpor.runtimes.docker.engine_dialect import EngineKind
from torpor.runtimes.docker.engine_facts import LockUse, engine_facts
from torpor.runtimes.docker.options import DockerOptions
from torpor.runtimes.docker.runtime import DockerRuntime

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

FEW_LOCKS = 32
"""The fewest that work: Podman 4.3 needs a multiple of 32."""
CALL_S = 20.0
FEW_ADDRESSES = 4
"""Of a network with eight: without those of the network, its broadcasts, its gateway and one other container."""
SOON_S = 8.0
"""A third of the time until the machine asks again who has an address."""


@pytest.fixture(scope="module")
def small_engine() -> Iterator[PodmanEngine]:
    with podman_engine(num_locks=FEW_LOCKS) as engine:
        yield engine


@pytest.fixture
async def runtime(small_engine: PodmanEngine, kit: Kit, installation: str, packed_image: bytes) -> AsyncIterator[DockerRuntime]:
    small_engine.docker("import", "-", "torpor-test:1", stdin=packed_image)
    options = DockerOptions(
        "podman",
        small_engine.url,
        installation,
        "torpor-test:1",
        grace_s=2.0,
        user=1000,
        isolation=False,
        blocked_networks=BLOCKED,
    )
    runtime = DockerRuntime(options, kit=kit, installation_key=INSTALLATION_KEY, kept_logs=LogsInMemory())
    with small_engine.network():
        await runtime.start()
        yield runtime
        await runtime.close()
    small_engine.remove_all(installation)


def use_all_locks(engine: PodmanEngine) -> list[str]:
    """The volumes that use them."""
    names: list[str] = []
    while len(names) < FEW_LOCKS:
        try:
            names.append(engine.docker("volume", "create", f"other-{len(names)}"))
        except AssertionError as refusal:
            assert "num_locks" in str(refusal)  # noqa: PT017 - the refusal ends the loop
            return names
    raise AssertionError("the engine has more locks than configured")


async def test_an_engine_without_free_locks_refuses_with_what_to_do(small_engine: PodmanEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    container = running_program(home, *SLEEPING)
    await runtime.ensure_running(container, FENCE, unheard)  # the engine has the kit
    await runtime.ensure_no_container(home.workspace_id, FENCE)
    others = use_all_locks(small_engine)
    try:
        another = a_home()
        with pytest.raises(Failed, match="num_locks in the section") as refusal:
            await runtime.ensure_volume(another, FENCE)
        assert refusal.value.code is Code.VOLUME_CREATE_FAILED
        with pytest.raises(Failed, match="num_locks in the section") as refusal:
            await runtime.ensure_running(container, FENCE, unheard)
        assert refusal.value.code is Code.CONTAINER_START_FAILED
        assert (await runtime.observe()).of(home.workspace_id).volumes == {ObservedVolume(1, marker_of(home))}
        facts = await engine_facts(small_engine.url, CALL_S, [small_engine.folder / "containers.conf"])
        assert facts.kind is EngineKind.PODMAN
        assert facts.locks == LockUse(FEW_LOCKS, FEW_LOCKS)
        assert facts.locks.free == 0
    finally:
        small_engine.docker("volume", "rm", *others)
    await runtime.ensure_volume(another, FENCE)
    await runtime.ensure_no_half_made(another, FENCE)
    await runtime.ensure_running(container, FENCE, unheard)
    assert await seen(runtime, home) == ObservedContainer(1, 1, ready=False)


async def test_the_address_of_an_earlier_container_can_be_reached_at_once(
    small_engine: PodmanEngine, kit: Kit, runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has the hardware address of the earlier container in its cache."""
    monkeypatch.setattr(containers, "START_S", SOON_S)
    small_engine.docker("network", "create", "--subnet", "10.99.0.0/29", "few-addresses")
    small_engine.docker("run", "--detach", "--name", "keeper", "--network", "few-addresses", "torpor-test:1", "sleep", "600")
    options = replace(runtime._options, network="few-addresses")
    another = DockerRuntime(options, kit=kit, installation_key=INSTALLATION_KEY, kept_logs=LogsInMemory())
    await another.start()
    home = await ready(another)
    hosts = []
    for revision in range(1, 2 * FEW_ADDRESSES):
        await another.ensure_running(running_program(home, *SLEEPING, revision=revision), FENCE, unheard)
        address = another.address(home.workspace_id)
        assert address is not None
        hosts.append(address.host)
        await another.ensure_no_container(home.workspace_id, FENCE)
    await another.close()
    small_engine.docker("rm", "--force", "keeper")
    small_engine.docker("network", "rm", "few-addresses")
    assert len(set(hosts)) < len(hosts), "otherwise this test shows nothing"


async def test_workspaces_run_on_while_the_service_restarts(small_engine: PodmanEngine, runtime: DockerRuntime) -> None:
    home = await ready(runtime)
    await runtime.ensure_running(running_program(home, *SLEEPING), FENCE, unheard)
    small_engine.restart_service()
    assert await seen(runtime, home) == ObservedContainer(1, 1, ready=False)
    assert (await runtime.execute(home.workspace_id, ["echo", "here"], b"")).stdout == b"here\n"
    await runtime.ensure_no_container(home.workspace_id, FENCE)
    assert await seen(runtime, home) is None
