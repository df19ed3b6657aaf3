"""How Docker and Podman differ, and what an engine says about itself."""

from pathlib import Path

import pytest

from tests.support.container_engine import ContainerEngine
from tests.support.podman_engine import NUM_LOCKS, PodmanEngine
from torpor.domain.errors import Unavailable
from torpor.inside.out_of_memory import processes_ended
from torpor.runtimes.docker.engine_dialect import EngineDialect, EngineKind, PodmanDialect, dialect_of, matches
from torpor.runtimes.docker.engine_facts import configured_locks, engine_facts

CALL_S = 20.0
DOCKER = {"Version": "20.10.24", "Components": [{"Name": "Engine"}, {"Name": "containerd"}]}
PODMAN = {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}, {"Name": "Conmon"}]}
NAMED = 'the container name "x" is already in use by 1f. You have to remove that container to be able to reuse that name'


def test_the_engine_is_told_by_its_components() -> None:
    assert dialect_of(DOCKER).kind is EngineKind.DOCKER
    assert dialect_of(PODMAN).kind is EngineKind.PODMAN
    assert dialect_of({}).kind is EngineKind.DOCKER


@pytest.mark.parametrize(
    ("status", "message", "docker", "podman"),
    [
        (500, f"container create: creating container storage: {NAMED}: that name is already in use", 500, 409),
        (500, "adding volume to state: name x is in use: volume already exists", 500, 409),
        (500, 'copier: put: error opening file "/.torpor/birth" for writing: open /.torpor/birth: file exists', 500, 409),
        (500, "container create: unable to find network with name or ID torpor: network not found", 500, 404),
        (500, "writing the database: disk I/O error", 500, 500),
        (404, "no volume with name x found: no such volume", 404, 404),
    ],
)
def test_a_status_of_podman_means_what_docker_would_have_sent(status: int, message: str, docker: int, podman: int) -> None:
    assert EngineDialect().status(status, message) == docker
    assert PodmanDialect().status(status, message) == podman


def test_the_lock_limit_concerns_one_call_and_says_what_to_do() -> None:
    message = "allocating lock for new volume: allocation failed; exceeded num_locks (2048)"
    assert PodmanDialect().is_about_the_call(message)
    assert "podman system renumber" in PodmanDialect().explained(message)
    assert not EngineDialect().is_about_the_call("an unknown error")


def test_podman_is_asked_by_one_filter_only() -> None:
    assert EngineDialect().volume_filters(["a=1", "b=2"], ["x"]) == {"label": ["a=1", "b=2"], "name": ["x"]}
    assert PodmanDialect().volume_filters(["a=1", "b=2"], ["x", "y"]) == {"name": ["x", "y"]}
    assert PodmanDialect().volume_filters(["a=1", "b=2"], []) == {"label": ["a=1"]}
    assert PodmanDialect().volume_filters([], []) == {}


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        (["a=1", "b="], ["me-1"], True),
        (["a=1"], [], True),
        (["a=2"], ["home-1"], False),
        (["a=1", "c=3"], [], False),
        (["a=1"], ["other", "home"], True),
        ([], ["other"], False),
    ],
)
def test_what_an_engine_returned_too_much_is_left_out(labels: list[str], names: list[str], expected: bool) -> None:
    assert matches("home-1", {"a": "1", "b": ""}, labels, names) is expected


def test_the_lock_limit_is_read_from_podmans_files(tmp_path: Path) -> None:
    general, own, broken = (tmp_path / name for name in ("general", "own", "broken"))
    general.write_text("[engine]\nnum_locks = 4096\n[containers]\n")
    own.write_text('[engine]\nruntime = "runc"\n')
    broken.write_text("[engine\n")
    assert configured_locks([tmp_path / "missing"]) == 2048
    assert configured_locks([general, own, broken]) == 4096
    own.write_text("[engine]\nnum_locks = 32\n")
    assert configured_locks([general, own]) == 32


def test_processes_that_the_kernel_ended_are_counted(tmp_path: Path) -> None:
    second, first = tmp_path / "memory.events", tmp_path / "memory.oom_control"
    files = (str(second), str(first))
    assert processes_ended(files) == 0
    first.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert processes_ended(files) == 2
    second.write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert processes_ended(files) == 1


@pytest.mark.anyio
@pytest.mark.both_engines
async def test_an_engine_says_what_it_is(engine: ContainerEngine) -> None:
    facts = await engine_facts(engine.url, CALL_S, [engine.folder / "containers.conf"])
    is_podman = isinstance(engine, PodmanEngine)
    assert facts.kind is (EngineKind.PODMAN if is_podman else EngineKind.DOCKER)
    assert facts.version[0].isdecimal()
    assert facts.api_version.startswith("1.")
    assert not facts.is_rootless
    assert facts.cgroup_version in ("1", "2")
    assert (facts.locks.limit if facts.locks is not None else None) == (NUM_LOCKS if is_podman else None)


@pytest.mark.anyio
async def test_an_engine_that_does_not_answer_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        await engine_facts(f"unix://{tmp_path}/no.sock", CALL_S)
