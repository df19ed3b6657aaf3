"""A request to a fork server that another thread has closed is ignored."""

from pathlib import Path

from torpor.sort.job.options import ForkRequest, WorkerOptions
from torpor.sort.worker.fork_server import ForkServer, ForkServerExit


def test_a_worker_requested_after_the_close_is_not_started(tmp_path: Path) -> None:
    with ForkServer() as fork_server:
        assert fork_server.restart()
        fork_server.close()
        fork_server.start(ForkRequest(0, WorkerOptions("", tmp_path, (), tmp_path), tmp_path / "worker.log"))
        assert isinstance(fork_server.ended(), ForkServerExit)
        assert not fork_server.restart()
    assert list(tmp_path.iterdir()) == []
