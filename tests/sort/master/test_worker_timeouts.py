"""How long ago was a worker heard of, when the master itself did not run for a while?"""

from torpor.sort.master.master_service import Seen


def test_time_in_which_the_master_did_not_run_does_not_count() -> None:
    seen = Seen(at=100.0)
    seen.excuse(20.0, now=125.0)
    assert seen.at == 120.0


def test_a_worker_that_was_heard_meanwhile_is_not_heard_in_the_future() -> None:
    seen = Seen(at=124.5)
    seen.excuse(20.0, now=125.0)
    assert seen.at == 125.0
