"""A worker fails the job when it is silent too long; time in which the master did not run does not count."""

from torpor.sort.job.options import Deadlines
from torpor.sort.machine.master import Master, RegisteredWorker
from torpor.sort.machine.states import MasterState
from torpor.sort.master.worker_timeouts import WorkerContact, timeout_reasons

DEADLINES = Deadlines(registration=300.0, worker_grace=600.0)
ADA = RegisteredWorker("ada", "1", None, 0, 1, "127.0.0.1:1", "127.0.0.1:2", 1000, 1 << 30)


def reasons(master: Master, *, waited_s: float, last_heard: float, now: float) -> list[str]:
    return list(timeout_reasons(master, lambda _: WorkerContact(last_heard), DEADLINES, waited_s=waited_s, now=now))


def test_workers_have_a_time_limit_to_register() -> None:
    waiting = Master("job", 2, "gensort", members=(ADA,))
    assert reasons(waiting, waited_s=300.0, last_heard=0.0, now=10_000.0) == []
    (reason,) = reasons(waiting, waited_s=300.1, last_heard=0.0, now=10_000.0)
    assert reason == "1 of 2 workers registered within 300 s: ada"


def test_a_worker_that_is_silent_for_longer_than_its_grace_fails_the_job() -> None:
    sorting = Master("job", 1, "gensort", state=MasterState.SORTING, members=(ADA,))
    assert reasons(sorting, waited_s=10_000.0, last_heard=100.0, now=700.0) == []
    (reason,) = reasons(sorting, waited_s=10_000.0, last_heard=100.0, now=701.0)
    assert reason == "worker 0 (ada) sent no heartbeat for 601 s, longer than --worker-grace 600"


def test_time_in_which_the_master_did_not_run_does_not_count() -> None:
    seen = WorkerContact(at=100.0)
    seen.excuse(20.0, now=125.0)
    assert seen.at == 120.0


def test_the_time_of_the_last_contact_is_not_in_the_future() -> None:
    seen = WorkerContact(at=124.5)
    seen.excuse(20.0, now=125.0)
    assert seen.at == 125.0
