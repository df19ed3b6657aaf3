"""What is asked of a fork server that another thread has closed is ignored, not an error."""

from pathlib import Path

from torpor.sort.worker.fork_server import ForkServer, ForkServerExit


def test_a_worker_asked_for_after_the_close_is_not_started(tmp_path: Path) -> None:
    with ForkServer() as cradle:
        assert cradle.restart()
        cradle.close()
        cradle.start(0, None, tmp_path / "worker.log")
        assert isinstance(cradle.ended(), ForkServerExit)
        assert not cradle.restart()
    assert list(tmp_path.iterdir()) == []
