"""A worker makes only the transitions that are allowed."""

import itertools
from dataclasses import replace

import pytest

from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.machine.history import durations, lines
from torpor.sort.machine.reactions import IllegalTransition, Reaction, WrongState
from torpor.sort.machine.records import (
    Goal,
    GoalStage,
    MergeReport,
    OutputFile,
    PartitionMap,
    Sample,
    ShuffleReport,
    SortReport,
    WorkerAssignment,
)
from torpor.sort.machine.states import (
    PHASE_OF,
    WORKER_MAY_GO_TO,
    WORKER_MEANS,
    WORKER_WAY,
    WorkerPhase,
    WorkerState,
    progress,
)
from torpor.sort.machine.worker import (
    REACTS,
    AbortJob,
    AbortRequested,
    Event,
    ExitWorker,
    JobDone,
    Merged,
    MergeSignal,
    PartitionsReceived,
    PartsRequested,
    Registered,
    RemoveAll,
    ReportFailure,
    ReportRequested,
    Restarted,
    Sampled,
    SendAll,
    SendParts,
    SendReport,
    Shuffled,
    ShuffleSignal,
    Started,
    SweepDone,
    Worker,
    WorkerFailed,
    events_for_goal,
    move_to,
    step,
)
from torpor.sort.proof import Proof

W = WorkerState
TERMS = WorkerAssignment("job", 1, 3, 1, "gensort", 1 << 20, proof=True, sync=True, present=3)
CUT = PartitionMap((Boundary(b"m", 0, 0), Boundary(b"t", 2, 300)), (0, 1, 2))
OTHER_CUT = PartitionMap((Boundary(b"x", 0, 0), Boundary(b"y", 2, 300)), (0, 1, 2))
PROOF = Proof(10, 1000, 77)
SORTED = SortReport(PROOF, (PROOF, Proof(), Proof()))

EVENTS: dict[type[Event], Event] = {
    Started: Started(),
    Registered: Registered(TERMS),
    Sampled: Sampled(Sample(((b"key", 0),), 1)),
    PartitionsReceived: PartitionsReceived(CUT),
    SweepDone: SweepDone(SORTED),
    ShuffleSignal: ShuffleSignal(),
    Shuffled: Shuffled(ShuffleReport(PROOF)),
    MergeSignal: MergeSignal(),
    Merged: Merged(MergeReport(())),
    JobDone: JobDone(),
    ReportRequested: ReportRequested(WorkerPhase.SORTING),
    PartsRequested: PartsRequested(((0, 2),)),
    WorkerFailed: WorkerFailed("the disk is full", fatal=True),
    AbortRequested: AbortRequested("somebody else failed"),
    Restarted: Restarted("started again"),
}

# From every state, the event that leads on.
ON: dict[W, Event] = {
    W.INITIALIZING: EVENTS[Registered],
    W.SAMPLING: EVENTS[Sampled],
    W.WAITING_FOR_PARTITION_CONFIG: EVENTS[PartitionsReceived],
    W.SORTING: EVENTS[SweepDone],
    W.WAITING_FOR_SHUFFLE_SIGNAL: EVENTS[ShuffleSignal],
    W.SHUFFLING: EVENTS[Shuffled],
    W.WAITING_FOR_MERGE_SIGNAL: EVENTS[MergeSignal],
    W.MERGING: EVENTS[Merged],
}


def worker_in(state: W) -> Worker:
    """A worker that reached this state in the usual order."""
    worker = Worker("one")
    if state is W.FAILED:
        return step(worker_in(W.SORTING), WorkerFailed("broken"), 9.0)[0]
    for now, at in enumerate(WORKER_WAY):
        if at is state:
            return worker
        worker, _ = step(worker, ON[at], float(now))
    raise AssertionError(state)


# ── the tests in the machine's first description ──


def test_legal_transitions_are_allowed() -> None:
    worker = Worker("one")
    assert worker.state is W.INITIALIZING
    worker = move_to(worker, W.SAMPLING, "test", 1.0)
    assert worker.state is W.SAMPLING
    assert move_to(worker, W.WAITING_FOR_PARTITION_CONFIG, "test", 2.0).state is W.WAITING_FOR_PARTITION_CONFIG


def test_illegal_transitions_are_refused_with_both_states_named() -> None:
    worker = move_to(Worker("one"), W.SAMPLING, "test", 1.0)
    with pytest.raises(IllegalTransition, match="Sampling -> Shuffling"):
        move_to(worker, W.SHUFFLING, "test", 2.0)


def test_history_is_kept() -> None:
    worker = Worker("one")
    for now, target in enumerate((W.SAMPLING, W.WAITING_FOR_PARTITION_CONFIG, W.SORTING)):
        worker = move_to(worker, target, f"reason {now}", float(now))
    assert [(one.source, one.target, one.at, one.reason) for one in worker.history] == [
        (W.INITIALIZING, W.SAMPLING, 0.0, "reason 0"),
        (W.SAMPLING, W.WAITING_FOR_PARTITION_CONFIG, 1.0, "reason 1"),
        (W.WAITING_FOR_PARTITION_CONFIG, W.SORTING, 2.0, "reason 2"),
    ]
    assert lines(worker.history)[1] == "[+1.000 s] Sampling -> WaitingForPartitionConfig: reason 1"


def test_a_clock_that_is_set_back_gives_no_negative_time() -> None:
    worker = move_to(Worker("host:/in:/out", "job"), W.SAMPLING, "registered", 1000.0)
    worker = move_to(worker, W.FAILED, "killed", 400.0)
    assert [step.at for step in worker.history] == [1000.0, 1000.0]
    assert lines(worker.history)[1].startswith("[+0.000 s] Sampling -> Failed")


def test_a_failed_worker_can_restart_and_keeps_its_history() -> None:
    worker = move_to(move_to(Worker("one"), W.SAMPLING, "test", 1.0), W.FAILED, "error", 2.0)
    again = move_to(worker, W.INITIALIZING, "restart", 3.0)
    assert again.state is W.INITIALIZING
    assert len(again.history) == 3


# ── the whole space ──


@pytest.mark.parametrize(("source", "target"), [*itertools.product(W, W)])
def test_move_to_allows_exactly_the_table(source: W, target: W) -> None:
    worker = worker_in(source)
    if target in WORKER_MAY_GO_TO[source]:
        assert move_to(worker, target, "test", 99.0).state is target
    else:
        with pytest.raises(IllegalTransition, match=f"{source} -> {target}"):
            move_to(worker, target, "test", 99.0)


def test_the_tables_are_total() -> None:
    assert set(EVENTS) == set(REACTS)
    for event, row in REACTS.items():
        assert set(row) == set(W), event
    for table in (WORKER_MAY_GO_TO, PHASE_OF, WORKER_MEANS):
        assert set(table) == set(W)
    assert {state for state in W if not WORKER_MAY_GO_TO[state]} == {W.COMPLETED}


@pytest.mark.parametrize(("state", "kind"), [*itertools.product(W, EVENTS)])
def test_every_event_in_every_state(state: W, kind: type[Event]) -> None:
    worker = worker_in(state)
    match REACTS[kind][state]:
        case Reaction.REFUSED:
            with pytest.raises(WrongState, match=f"{kind.__name__} is not allowed in state {state}"):
                step(worker, EVENTS[kind], 99.0)
        case Reaction.REPEATED:
            assert step(worker, EVENTS[kind], 99.0) == (worker, ())
        case Reaction.LEGAL:
            after, _ = step(worker, EVENTS[kind], 99.0)
            if after.state is not state:
                assert after.state in WORKER_MAY_GO_TO[state]
                assert after.history[-1].target == after.state
                assert after.history[-1].reason


@pytest.mark.parametrize(("state", "kind"), [*itertools.product(W, EVENTS)])
def test_a_repeated_event_takes_effect_once(state: W, kind: type[Event]) -> None:
    """A message that comes twice takes effect once."""
    if REACTS[kind][state] is not Reaction.LEGAL:
        return
    once, _ = step(worker_in(state), EVENTS[kind], 99.0)
    if kind is Restarted or REACTS[kind][once.state] is Reaction.REFUSED:
        return
    twice, _ = step(once, EVENTS[kind], 100.0)
    assert twice == once


@pytest.mark.parametrize("state", W)
def test_progress_never_decreases(state: W) -> None:
    assert progress(state, 0) <= progress(state, 50) <= progress(state, 100)
    if state in WORKER_WAY[:-1]:
        assert progress(state, 100) <= progress(WORKER_WAY[WORKER_WAY.index(state) + 1], 0)


def test_progress_by_the_table() -> None:
    assert [progress(state, 50) for state in W] == [0, 10, 15, 35, 55, 67.5, 80, 90, 100, 0]
    assert progress(W.SORTING, 1000) == 55


# ── stories ──


def test_a_worker_passes_through_every_state_with_durations() -> None:
    worker = worker_in(W.COMPLETED)
    assert [one.target for one in worker.history] == [*WORKER_WAY[1:]]
    assert durations(worker.history, 20.0)[W.SORTING] == 1.0
    assert durations(worker.history, 20.0)[W.COMPLETED] == 13.0


@pytest.mark.parametrize(("count", "reason"), [(0, "0 files written"), (1, "1 file written"), (2, "2 files written")])
def test_the_history_counts_the_files(count: int, reason: str) -> None:
    files = tuple(OutputFile(partition, PROOF, b"", b"") for partition in range(count))
    worker, _ = step(worker_in(W.MERGING), Merged(MergeReport(files)), 1.0)
    assert worker.history[-1].reason == reason


def test_a_report_is_saved_before_it_is_sent() -> None:
    """The report is in the value that the driver saves, and only the command sends it."""
    worker, commands = step(worker_in(W.SORTING), SweepDone(SORTED), 1.0)
    assert worker.sorted == SORTED
    assert commands == (SendReport(WorkerPhase.SORTING), SendAll())


def test_early_boundaries_are_stored_and_used_later() -> None:
    for early in (W.INITIALIZING, W.SAMPLING):
        worker, commands = step(worker_in(early), PartitionsReceived(CUT), 1.0)
        assert (worker.state, worker.cut, commands) == (early, CUT, ())
    worker = replace(worker_in(W.WAITING_FOR_PARTITION_CONFIG), cut=CUT)
    assert events_for_goal(worker, Goal(GoalStage.SORT)) == (PartitionsReceived(CUT),)


@pytest.mark.parametrize("state", [state for state in WORKER_WAY if state not in (W.INITIALIZING, W.SAMPLING)])
def test_other_boundaries_are_always_refused(state: W) -> None:
    worker = replace(worker_in(state), cut=CUT)
    with pytest.raises(WrongState, match="never change"):
        step(worker, PartitionsReceived(OTHER_CUT), 1.0)


def test_a_failure_has_its_state_and_reason() -> None:
    worker, commands = step(worker_in(W.MERGING), WorkerFailed("the disk is full", fatal=True), 1.0)
    assert (worker.state, worker.failing, worker.reason, worker.fatal) == (W.FAILED, W.MERGING, "the disk is full", True)
    assert commands[0] == ReportFailure()
    assert commands[-1] == ExitWorker(ok=False)


def test_a_restarted_worker_passes_every_state_and_keeps_its_boundaries() -> None:
    worker, _ = step(worker_in(W.MERGING), WorkerFailed("killed"), 1.0)
    worker, _ = step(worker, Restarted("started again"), 2.0)
    assert (worker.state, worker.cut, worker.sorted, worker.shuffled) == (W.INITIALIZING, CUT, None, None)
    for state in WORKER_WAY[:-1]:
        worker, _ = step(worker, ON[state], 3.0)
    assert worker.state is W.COMPLETED
    assert [one.target for one in worker.history].count(W.SORTING) == 2


def test_an_abort_removes_all_files_even_of_a_completed_worker() -> None:
    for state in (W.SORTING, W.COMPLETED):
        worker, commands = step(worker_in(state), AbortRequested("worker 2 failed"), 1.0)
        assert commands == (RemoveAll(), ExitWorker(ok=False))
    assert worker.state is W.COMPLETED


def test_a_completed_worker_cannot_fail_but_can_abort_the_job_or_end() -> None:
    worker = worker_in(W.COMPLETED)
    broken, commands = step(worker, WorkerFailed("a run cannot be read", fatal=True), 1.0)
    assert (broken.state, broken.reason, commands) == (W.COMPLETED, "a run cannot be read", (AbortJob("a run cannot be read"),))
    stale, commands = step(worker, WorkerFailed("another attempt has taken over"), 1.0)
    assert (stale.state, stale.reason, commands) == (W.COMPLETED, "another attempt has taken over", (ExitWorker(ok=False),))


# ── the goal ──


@pytest.mark.parametrize(("state", "stage"), [*itertools.product(W, GoalStage)])
def test_a_goal_never_causes_an_event_that_the_state_refuses(state: W, stage: GoalStage) -> None:
    goal = Goal(stage, cut=CUT, wants=WorkerPhase.SORTING, send=((0, 2),), reason="why")
    worker = worker_in(state)
    for event in events_for_goal(worker, goal):
        assert REACTS[type(event)][worker.state] is not Reaction.REFUSED
        worker, _ = step(worker, event, 50.0)


def test_a_missed_signal_is_replaced_by_the_goal() -> None:
    """A worker that got no signal at all catches up from one goal."""
    goal = Goal(GoalStage.MERGE, cut=CUT)
    worker = worker_in(W.WAITING_FOR_PARTITION_CONFIG)
    for own in (EVENTS[SweepDone], EVENTS[Shuffled], EVENTS[Merged]):
        (event,) = events_for_goal(worker, goal)
        worker, _ = step(worker, event, 1.0)
        worker, _ = step(worker, own, 2.0)
    assert worker.state is W.COMPLETED


def test_no_worker_continues_before_its_goal() -> None:
    assert events_for_goal(worker_in(W.WAITING_FOR_SHUFFLE_SIGNAL), Goal(GoalStage.SORT)) == ()
    assert events_for_goal(worker_in(W.WAITING_FOR_MERGE_SIGNAL), Goal(GoalStage.SHUFFLE)) == ()
    assert events_for_goal(worker_in(W.COMPLETED), Goal(GoalStage.MERGE)) == ()


def test_a_part_that_a_receiver_lost_is_sent_again_in_any_state_with_runs() -> None:
    goal = Goal(GoalStage.MERGE, send=((0, 2),))
    for state in WORKER_WAY:
        sends = [event for event in events_for_goal(worker_in(state), goal) if isinstance(event, PartsRequested)]
        assert bool(sends) == (WORKER_WAY.index(state) >= WORKER_WAY.index(W.WAITING_FOR_SHUFFLE_SIGNAL)), state
        for event in sends:
            assert step(worker_in(state), event, 1.0)[1] == (SendParts(((0, 2),)),)


def test_a_lost_report_is_sent_again() -> None:
    worker = worker_in(W.WAITING_FOR_SHUFFLE_SIGNAL)
    (event,) = events_for_goal(worker, Goal(GoalStage.SORT, wants=WorkerPhase.SORTING))
    assert step(worker, event, 1.0) == (worker, (SendReport(WorkerPhase.SORTING),))


def test_a_completed_worker_ends_only_with_the_job() -> None:
    (event,) = events_for_goal(worker_in(W.COMPLETED), Goal(GoalStage.DONE))
    worker, commands = step(worker_in(W.COMPLETED), event, 1.0)
    assert worker.job_done
    assert commands == (ExitWorker(ok=True),)
    assert events_for_goal(worker, Goal(GoalStage.DONE)) == ()


def test_a_worker_without_output_after_the_end_of_the_job_fails() -> None:
    (event,) = events_for_goal(worker_in(W.SAMPLING), Goal(GoalStage.DONE))
    assert isinstance(event, WorkerFailed)
    assert "is missing" in event.reason
