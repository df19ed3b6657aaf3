"""The commands in the manifests of deploy/ run a sort."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sort.e2e.commands import generated, joined, running, torpor_sort, wait_for

DEPLOY = Path(__file__).parents[3] / "deploy" / "sort"
pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]


def kubernetes() -> dict[str, Any]:
    return {
        one["metadata"]["name"]: one
        for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
        if one["kind"] == "Job"
    }


def container(job: Any) -> Any:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return only


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def commands_of_kubernetes() -> Iterator[list[str]]:
    """The master's command, then each worker's, with its index where the Job puts it."""
    jobs = kubernetes()
    yield container(jobs["torpor-sort-master"])["args"]
    workers = jobs["torpor-sort-workers"]
    for index in range(workers["spec"]["completions"]):
        yield [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container(workers)["args"]]


def commands_of_compose() -> Iterator[list[str]]:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    yield services["master"]["command"]
    for name in sorted(services.keys() - {"master"}):
        yield services[name]["command"]


def placed(words: list[str], folder: Path, who: str, port: int) -> list[str]:
    """The command with mounted folders in the test's folder and with this host for all host names."""
    places = {
        "/join/join.json": folder / "join.json",
        "/join.json": folder / "join.json",
        **{f"/{name}": folder / who / name for name in ("state", "input", "output", "scratch")},
        "0.0.0.0:7420": f"127.0.0.1:{port}",
    }
    found = []
    # The entry point of the image is `torpor`.
    assert words[0] == "sort"
    for word in words[1:]:
        option, equals, value = word.partition("=")
        found.append(
            f"{option}={places.get(value, value)}"
            if equals
            else word.replace(word.split(":")[0] + ":7420", f"127.0.0.1:{port}")
        )
    return found


@pytest.mark.parametrize("commands", [commands_of_kubernetes, commands_of_compose], ids=["kubernetes", "compose"])
def test_the_commands_of_a_manifest_sort(tmp_path: Path, commands: Any) -> None:
    assert torpor_sort("join", tmp_path / "join.json").code == 0
    master, *workers = commands()
    port = free_port()
    for index in range(len(workers)):
        (tmp_path / f"worker-{index}" / "input").mkdir(parents=True)
        generated(tmp_path / f"worker-{index}" / "input" / "records", 1_000, "--seed", index * 1_000)
    with ExitStack() as stack:
        leading = stack.enter_context(running(*placed(master, tmp_path, "master", port), "--json"))
        wait_for(lambda: (tmp_path / "master" / "state" / "join.json").exists(), "a master")
        sorting = [
            stack.enter_context(running(*placed(words, tmp_path, f"worker-{index}", port)))
            for index, words in enumerate(workers)
        ]
        for one in sorting:
            ended = one.ended()
            assert ended.code == 0, ended.err.decode()
        report = leading.ended()
        assert report.code == 0, report.err.decode()
    assert report.json["outcome"] == "valid"
    assert report.json["records"] == 1_000 * len(workers)
    whole = b"".join(joined(tmp_path / f"worker-{index}" / "output") for index in range(len(workers)))
    keys = [whole[start : start + 10] for start in range(0, len(whole), 100)]
    assert keys == sorted(keys)


def test_the_indexed_job_starts_all_workers_at_once_and_as_many_as_the_master_expects() -> None:
    jobs = kubernetes()
    spec = jobs["torpor-sort-workers"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert f"--workers={spec['completions']}" in container(jobs["torpor-sort-master"])["args"]


def test_every_worker_of_the_indexed_job_keeps_its_own_volume() -> None:
    mounts = {one["mountPath"]: one for one in container(kubernetes()["torpor-sort-workers"])["volumeMounts"]}
    for path in ("/input", "/scratch", "/output"):
        assert "$(JOB_COMPLETION_INDEX)" in mounts[path]["subPathExpr"]
    assert mounts["/input"]["readOnly"]
