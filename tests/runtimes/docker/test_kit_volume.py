"""A controller that is killed while it fills the kit's volume leaves a kit that is not used, and the next one fills it."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.container_engine import ContainerEngine
from tests.support.engine_relay import engine_relay
from torpor.domain.errors import TorporError
from torpor.kit.manifest import Kit
from torpor.runtimes.docker.docker_client import DockerClient
from torpor.runtimes.docker.homes import EngineHomes
from torpor.runtimes.docker.kit_volume import KitVolume

pytestmark = [pytest.mark.anyio, pytest.mark.both_engines]

CALL_S = 20.0
SIZE = 1 << 20
FILES = ("bin/python3", "lib/library.so", "site/module.py")
PLACES: dict[str, tuple[bool, int | None]] = {
    "after the answer": (True, None),
    "before the answer": (False, None),
    "within the upload": (False, SIZE),
}


@pytest.fixture
def small_kit(kit: Kit, installation: str, tmp_path: Path) -> Kit:
    """Three files of one megabyte."""
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir()
        path.write_bytes(os.urandom(SIZE))
    return Kit(tmp_path, replace(kit.manifest, hash=installation.removeprefix("test-").ljust(64, "0")))


@pytest.fixture
async def steady(engine: ContainerEngine, installation: str, small_kit: Kit) -> AsyncIterator[KitVolume]:
    client = DockerClient(engine.url, CALL_S)
    client.connect()
    yield volume(client, installation, small_kit)
    await client.close()


def volume(client: DockerClient, installation: str, kit: Kit) -> KitVolume:
    return KitVolume(client, EngineHomes(client, installation, 1000), installation, kit)


def containers(engine: ContainerEngine, name: str) -> set[str]:
    return set(engine.docker("ps", "--all", "--filter", f"name={name}", "--format", "{{.Names}}").split())


def remove(engine: ContainerEngine, name: str) -> None:
    if found := containers(engine, name):
        engine.docker("rm", "--force", *found)
    if volumes := engine.docker("volume", "ls", "--quiet", "--filter", f"name={name}").split():
        engine.docker("volume", "rm", *volumes)


@pytest.mark.deep_on_podman
@pytest.mark.parametrize("place", PLACES)
async def test_an_interrupted_fill_is_completed_by_the_next_controller(
    engine: ContainerEngine, steady: KitVolume, installation: str, small_kit: Kit, place: str
) -> None:
    answers_last, most_body = PLACES[place]
    point, is_complete, unfilled = 0, False, 0
    while not is_complete:
        point += 1
        async with engine_relay(engine.url) as relay:
            client = DockerClient(relay.url, CALL_S)
            client.connect()
            await client.dialect()
            relay.cut_off_after(point, answers_last=answers_last, most_body=most_body)
            try:
                await volume(client, installation, small_kit).ensure()
                is_complete = True
            except TorporError:
                pass
            await client.close()
        where = f"killed at call {point}, {relay.requests[-1]}"
        unfilled += not await steady._is_filled()
        await steady.ensure()
        for name in FILES:
            written = engine.volumes / steady.name / "_data" / name
            assert written.read_bytes() == (small_kit.path / name).read_bytes(), where
        assert containers(engine, steady.name) <= {f"{steady.name}-holder"}, where
        remove(engine, steady.name)
    assert unfilled > 3
    assert point > unfilled, "the last rounds completed it"
