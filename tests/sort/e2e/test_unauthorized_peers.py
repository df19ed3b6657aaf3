"""Only members take part in a job, and peers that misbehave do no harm."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sort.e2e.commands import Cluster, by_key, cluster, contents, joined, running, torpor_sort, wait_for
from tests.sort.workers import fixed_records
from torpor.sort.machine.records import PartHeader
from torpor.sort.proof import Proof
from torpor.sort.record import GENSORT
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import load_join
from torpor.sort.wire.shuffle import send_part

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

MESSAGE = 1 << 20


def made_inputs(folder: Path, count: int = 2) -> list[Path]:
    for index in range(count):
        (folder / f"in.{index}").write_bytes(fixed_records(5_000, GENSORT, seed=index))
    return [folder / f"in.{index}" for index in range(count)]


def expected(inputs: list[Path]) -> bytes:
    return by_key(b"".join(path.read_bytes() for path in inputs))


def test_unauthorized_workers_are_refused_and_the_job_continues(tmp_path: Path) -> None:
    """A worker without a token, one with a wrong token, one with an invalid index, and one too many."""
    inputs = made_inputs(tmp_path)
    with cluster(tmp_path, 2) as job, running(*job.worker(0, inputs[0], "--index", 0, "--hold", "Sorting")) as first:
        no_join = torpor_sort(*job.worker(8, inputs[0], join=tmp_path / "nothing.json"))
        assert (no_join.code, contents(tmp_path / "output.8")) == (1, {})
        assert "nothing.json cannot be read" in no_join.said

        forged = tmp_path / "forged.json"
        forged.write_text(json.dumps({**json.loads(job.join.read_text()), "token": "guessed"}))
        wrong = torpor_sort(*job.worker(8, inputs[0], join=forged))
        assert wrong.code not in (0, None)
        assert "does not have the job's token" in wrong.said
        assert not [name for name in contents(tmp_path / "output.8") if name.startswith("partition")]

        # The same directories, under another identity.
        no_index = torpor_sort(*job.worker(8, inputs[0], "--index", 2))
        assert no_index.code != 0
        assert "--index 2 is not from 0 to 1" in no_index.said

        with running(*job.worker(1, inputs[1], "--index", 1)) as second:
            first.wait_until_held()
            too_many = torpor_sort(*job.worker(8, inputs[0]))
            assert too_many.code != 0
            assert "cannot join: this job already has its" in too_many.said
            first.send(signal.SIGCONT)
            assert (first.ended().code, second.ended().code) == (0, 0)
        done = job.master.ended()
        assert (done.code, done.json["outcome"]) == (0, "valid")
    assert job.output(2) == expected(inputs)


def test_a_peer_that_disconnects_during_a_part_does_no_harm(tmp_path: Path) -> None:
    """It claims to send worker 0's part to worker 1, sends half, and disconnects; worker 0 sends the whole part."""
    inputs = made_inputs(tmp_path)
    with (
        cluster(tmp_path, 2) as job,
        running(*job.worker(1, inputs[1], "--index", 1)) as second,
        running(*job.worker(0, inputs[0], "--index", 0, "--hold", "Sorting:after-send")) as first,
    ):
        first.wait_until_held()
        data, partition = wait_for(lambda: takes_parts(job), "a worker that has sorted")
        header = PartHeader(job_of(job), partition, 0, 1, 1, Proof(200_000, 20_000_000, 5), (20_000_000,))
        with Connection(data, load_join(job.join), data=True) as connection, pytest.raises(ConnectionError, match="vanished"):
            send_part(connection, header, half())
        first.send(signal.SIGCONT)
        assert (first.ended().code, second.ended().code) == (0, 0)
        done = job.master.ended()
        assert (done.code, done.json["outcome"], done.json["records"]) == (0, "valid", 10_000)
    assert job.output(2) == expected(inputs)
    assert joined(tmp_path / "output.1") != b""


def half() -> Iterator[bytes]:
    for _ in range(10):
        yield bytes(MESSAGE)
    raise ConnectionError("vanished")


def takes_parts(job: Cluster) -> tuple[str, int] | None:
    """Where worker 1 accepts parts, once it has sorted, and its first partition."""
    status = torpor_sort("status", job.state, "--json").json
    found = [worker for worker in status["workers"] if worker["index"] == 1 and worker["state"] == "WaitingForShuffleSignal"]
    return (found[0]["data_address"], 1) if found else None


def job_of(job: Cluster) -> str:
    return str(json.loads(job.join.read_text())["job"])


def test_only_the_owner_can_read_the_join_file(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as job:
        assert job.join.stat().st_mode & 0o777 == 0o600
        assert job.state.stat().st_mode & 0o777 == 0o700


def test_bad_input_of_one_worker_fails_the_job(tmp_path: Path) -> None:
    inputs = made_inputs(tmp_path)
    inputs[1].write_bytes(inputs[1].read_bytes()[:-1])
    with cluster(tmp_path, 2) as job, running(*job.worker(0, inputs[0], "--index", 0)) as first:
        wait_for(lambda: torpor_sort("status", job.state, "--json").json["workers"], "the first worker")
        second = torpor_sort(*job.worker(1, inputs[1], "--index", 1))
        done = job.master.ended()
        assert second.code == 1
        assert f"{inputs[1]} has 499999 bytes" in second.said
        assert done.code == 3
        assert f"{inputs[1]} has 499999 bytes" in done.json["detail"]
        assert first.ended().code == 3
    for index in range(2):
        assert contents(tmp_path / f"output.{index}") == {}
