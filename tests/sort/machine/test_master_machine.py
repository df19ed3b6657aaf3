"""The master opens a barrier only when all workers are in it, and reports valid only if the checks pass."""

import itertools
from dataclasses import replace

import pytest

from torpor.sort.errors import SortRefused, StaleAttempt
from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.machine.master import (
    REACTS,
    STAGE_OF,
    AnnounceRanges,
    ChoosePartitions,
    Command,
    EndJob,
    Event,
    JobFailed,
    Master,
    MergeReported,
    PartitionsChosen,
    SampleReceived,
    ShuffleReported,
    SignalWorkers,
    SortReported,
    WorkerJoined,
    check_caller,
    goal,
    move_to,
    owners,
    step,
    terms,
)
from torpor.sort.machine.reactions import IllegalTransition, Reaction, WrongState
from torpor.sort.machine.records import (
    Beat,
    GoalStage,
    MergeReport,
    OutputFile,
    PartitionMap,
    Sample,
    ShuffleReport,
    SortReport,
)
from torpor.sort.machine.states import MASTER_MAY_GO_TO, MASTER_MEANS, MASTER_WAY, MasterState, WorkerPhase, WorkerState
from torpor.sort.proof import Proof

M = MasterState
CUT = PartitionMap((Boundary(b"m", 0, 0),), (0, 1))
HALF = Proof(5, 500, 11)
SAMPLE = Sample(((b"key", 0),), 1)
SORTED = SortReport(HALF + HALF, (HALF, HALF))
SHUFFLED = ShuffleReport(HALF)


def came(name: str, *, nonce: str = "1", asked: int | None = None, size: int = 1000) -> WorkerJoined:
    return WorkerJoined(name, nonce, asked, f"{name}:1", f"{name}:2", size, 1 << 20)


def merged(partition: int, first: bytes, last: bytes, proof: Proof = HALF + HALF) -> MergeReport:
    return MergeReport((OutputFile(partition, proof, first, last),))


MERGED = merged(0, b"a", b"l")
FIRST: dict[type[Event], Event] = {
    WorkerJoined: came("a"),
    SampleReceived: SampleReceived(0, SAMPLE),
    PartitionsChosen: PartitionsChosen(CUT),
    SortReported: SortReported(0, SORTED),
    ShuffleReported: ShuffleReported(0, SHUFFLED),
    MergeReported: MergeReported(0, merged(0, b"a", b"l")),
    JobFailed: JobFailed("the disk of worker 1 is full"),
}
SECOND: list[Event] = [
    came("b"),
    SampleReceived(1, SAMPLE),
    SortReported(1, SORTED),
    ShuffleReported(1, SHUFFLED),
    MergeReported(1, merged(1, b"m", b"z")),
]
WHOLE: list[Event] = [
    FIRST[WorkerJoined],
    SECOND[0],
    FIRST[SampleReceived],
    SECOND[1],
    FIRST[PartitionsChosen],
    FIRST[SortReported],
    SECOND[2],
    FIRST[ShuffleReported],
    SECOND[3],
    FIRST[MergeReported],
    SECOND[4],
]


def master_in(state: M) -> Master:
    master = Master("job", 2, "gensort")
    if state is M.FAILED:
        return step(master_in(M.SORTING), JobFailed("broken"), 9.0)[0]
    for now, event in enumerate(WHOLE):
        if master.state is state:
            return master
        master, _ = step(master, event, float(now))
    assert master.state is state
    return master


def test_the_tables_are_total() -> None:
    assert set(FIRST) == set(REACTS)
    for event, row in REACTS.items():
        assert set(row) == set(M), event
    for table in (MASTER_MAY_GO_TO, MASTER_MEANS, STAGE_OF):
        assert set(table) == set(M)


@pytest.mark.parametrize(("source", "target"), [*itertools.product(M, M)])
def test_move_to_allows_exactly_the_table(source: M, target: M) -> None:
    if target in MASTER_MAY_GO_TO[source]:
        assert move_to(master_in(source), target, "test", 99.0).state is target
    else:
        with pytest.raises(IllegalTransition, match=f"{source} -> {target}"):
            move_to(master_in(source), target, "test", 99.0)


@pytest.mark.parametrize(("state", "kind"), [*itertools.product(M, FIRST)])
def test_every_event_in_every_state(state: M, kind: type[Event]) -> None:
    master = master_in(state)
    match REACTS[kind][state]:
        case Reaction.REFUSED:
            with pytest.raises(WrongState, match=f"{kind.__name__} is not allowed in state {state}"):
                step(master, FIRST[kind], 99.0)
        case Reaction.REPEATED:
            assert step(master, FIRST[kind], 99.0) == (master, ())
        case Reaction.LEGAL:
            after, _ = step(master, FIRST[kind], 99.0)
            assert after.state is state or after.state in MASTER_MAY_GO_TO[state]


def test_a_job_passes_through_every_state() -> None:
    master = master_in(M.COMPLETED)
    assert [one.target for one in master.history] == [*MASTER_WAY[1:]]
    assert master.verdict == "valid"
    assert replace(master, proof=False).verdict == "unproven"


# ── registration ──


def test_a_clock_that_is_set_back_gives_no_negative_time() -> None:
    master = move_to(Master("job", 1, "gensort"), M.SAMPLING, "all are there", 1000.0)
    assert move_to(master, M.FAILED, "the disk is full", 400.0).history[-1].at == 1000.0


def test_indices_follow_names_and_not_the_order_of_registration() -> None:
    for order in itertools.permutations("cab"):
        master = Master("job", 3, "gensort")
        for name in order:
            master, commands = step(master, came(name), 1.0)
        assert commands == (AnnounceRanges(),)
        assert [terms(master, name).index for name in "abc"] == [0, 1, 2]


def test_a_requested_index_is_given_and_the_others_get_the_rest() -> None:
    master = Master("job", 3, "gensort")
    for event in (came("z"), came("index 0", asked=0), came("a")):
        master, _ = step(master, event, 1.0)
    assert [terms(master, name).index for name in ("index 0", "a", "z")] == [0, 1, 2]


def test_no_worker_has_an_index_before_all_have_registered() -> None:
    master, _ = step(Master("job", 2, "gensort"), came("a"), 1.0)
    assert (terms(master, "a").index, terms(master, "a").present) == (None, 1)


def test_a_master_that_lost_its_journal_gives_a_later_attempt_than_the_worker_had() -> None:
    """An earlier process that wakes up late is then refused, as by a master that knows it."""
    master = Master("job", 2, "gensort")
    for event in (replace(came("a"), attempt=3), came("b")):
        master, _ = step(master, event, 0.0)
    assert [member.attempt for member in master.members] == [4, 1]
    with pytest.raises(StaleAttempt):
        check_caller(master, "job", 0, 3)
    master, _ = step(master, replace(came("b", nonce="another"), attempt=7), 0.0)
    assert [member.attempt for member in master.members] == [4, 8]


def test_without_a_format_the_inputs_determine_it_after_registration() -> None:
    for said, decided in ((("", "gensort"), "gensort"), (("lines", "lines"), "lines"), (("", ""), "lines")):
        master = Master("job", 2, "")
        for name, form in zip("ab", said, strict=True):
            assert master.format == ""
            master, _ = step(master, replace(came(name), format=form), 0.0)
        assert (master.state, master.format, terms(master, "a").format) == (M.SAMPLING, decided, decided)


def test_inputs_of_different_formats_fail_the_job_with_their_names() -> None:
    master, commands = Master("job", 3, ""), tuple[Command, ...]()
    for name, form in (("a", "lines"), ("b", "gensort")):
        master, commands = step(master, replace(came(name), format=form), 0.0)
    assert master.state is M.FAILED
    assert EndJob(ok=False) in commands
    assert master.reason == (
        "the inputs have different formats (b seems to be gensort, a seems to be lines); choose one with --format"
    )
    said = Master("job", 3, "lines")
    for name, form in (("a", "lines"), ("b", "gensort")):
        said, _ = step(said, replace(came(name), format=form), 0.0)
    assert said.state is M.WAITING_FOR_WORKERS, "what was said holds"


def test_a_worker_that_registers_again_may_have_another_format() -> None:
    master, _ = step(Master("job", 2, ""), replace(came("a"), format="lines"), 0.0)
    master, _ = step(master, replace(came("a", nonce="2"), format="gensort"), 0.0)
    master, _ = step(master, replace(came("b"), format="gensort"), 0.0)
    assert (master.state, master.format) == (M.SAMPLING, "gensort")


def test_one_worker_too_many_is_refused_by_name() -> None:
    with pytest.raises(SortRefused, match=r"c cannot join: this job already has its 2 workers \(a, b\)") as refused:
        step(master_in(M.SAMPLING), came("c"), 1.0)
    assert refused.value.code == "too_many"


def test_an_index_that_is_not_of_this_job_is_refused() -> None:
    with pytest.raises(SortRefused, match="--index 2 is not from 0 to 1"):
        step(Master("job", 2, "gensort"), came("x", asked=2), 1.0)


@pytest.mark.parametrize("state", [state for state in M if state is not M.FAILED])
def test_a_worker_that_restarts_is_recognised_and_given_a_new_attempt(state: M) -> None:
    master = master_in(state)
    if not master.members:
        master, _ = step(master, came("a"), 1.0)
    again, commands = step(master, came("a", nonce="2"), 99.0)
    assert (terms(again, "a").attempt, commands, again.state) == (2, (), state)
    # The same process, whose first call's answer was lost.
    assert terms(step(again, came("a", nonce="2"), 100.0)[0], "a").attempt == 2


def test_a_stale_attempt_and_unknown_workers_are_refused() -> None:
    master, _ = step(master_in(M.SORTING), came("a", nonce="2"), 1.0)
    assert check_caller(master, "job", 0, 2).identity == "a"
    with pytest.raises(StaleAttempt, match="attempt 1 of worker 0 is over: attempt 2"):
        check_caller(master, "job", 0, 1)
    with pytest.raises(SortRefused, match="this is job job, not another"):
        check_caller(master, "another", 0, 2)
    with pytest.raises(SortRefused, match="worker 7 is not registered"):
        check_caller(master, "job", 7, 2)


@pytest.mark.parametrize(
    "event",
    [SampleReceived(0, SAMPLE, 1), SortReported(0, SORTED, 1), ShuffleReported(0, SHUFFLED, 1), MergeReported(0, MERGED, 1)],
)
def test_a_report_of_an_earlier_attempt_does_not_count(event: Event) -> None:
    """The call came in time, but was taken after another attempt had registered."""
    master, _ = step(master_in(M.MERGING), came("a", nonce="2"), 1.0)
    with pytest.raises(StaleAttempt, match="attempt 1 of worker 0 is over"):
        step(master, event, 2.0)


def test_an_input_that_changed_while_its_worker_was_away_fails_the_job() -> None:
    master, commands = step(master_in(M.SORTING), came("a", nonce="2", size=900), 1.0)
    assert master.state is M.FAILED
    assert "was 1000 bytes and is now 900" in master.reason
    assert commands == (SignalWorkers(GoalStage.ABORT), EndJob(ok=False))


# ── barriers ──


@pytest.mark.parametrize(
    ("state", "first", "second"),
    [
        (M.SAMPLING, FIRST[SampleReceived], SECOND[1]),
        (M.SORTING, FIRST[SortReported], SECOND[2]),
        (M.SHUFFLING, FIRST[ShuffleReported], SECOND[3]),
        (M.MERGING, FIRST[MergeReported], SECOND[4]),
    ],
)
def test_a_barrier_has_the_latest_attempt_of_every_worker(state: M, first: Event, second: Event) -> None:
    """Worker 0 reports and is killed: its report does not count any more, and no worker goes on without it."""
    master, _ = step(master_in(state), first, 1.0)
    assert step(master, first, 2.0)[0].state is state, "reporting twice is not being two"
    master, _ = step(master, came("a", nonce="2"), 3.0)
    master, _ = step(master, second, 4.0)
    assert master.state is state
    master, commands = step(master, first, 5.0)
    assert master.state is not state
    assert commands


def test_each_barrier_opens_with_its_signal() -> None:
    master = Master("job", 2, "gensort")
    opened: list[Command] = []
    for event in WHOLE:
        master, commands = step(master, event, 1.0)
        opened += commands
    assert opened == [
        AnnounceRanges(),
        ChoosePartitions(),
        SignalWorkers(GoalStage.SORT),
        SignalWorkers(GoalStage.SHUFFLE),
        SignalWorkers(GoalStage.MERGE),
        SignalWorkers(GoalStage.DONE),
        EndJob(ok=True),
    ]


def test_a_worker_that_sorts_again_must_declare_the_same() -> None:
    master = master_in(M.MERGING)
    assert step(master, SortReported(0, replace(SORTED, seconds=3.0)), 1.0) == (master, ())
    failed, _ = step(master, SortReported(0, SortReport(HALF, (HALF, Proof()))), 1.0)
    assert failed.state is M.FAILED
    assert "declares other parts than before" in failed.reason


def test_a_report_too_early_is_refused_with_the_state_named() -> None:
    with pytest.raises(WrongState, match="MergeReported is not allowed in state Sorting"):
        step(master_in(M.SORTING), FIRST[MergeReported], 1.0)


# ── the goal ──


def beat(state: WorkerState, *, has_cut: bool = False, has_declared: bool = False) -> Beat:
    return Beat(state, 0.0, has_cut=has_cut, has_declared=has_declared)


def test_the_goal_has_the_data_that_the_worker_lacks() -> None:
    master = master_in(M.SHUFFLING)
    fresh = goal(master, 1, beat(WorkerState.WAITING_FOR_PARTITION_CONFIG), {})
    assert (fresh.stage, fresh.cut, fresh.declared) == (GoalStage.SHUFFLE, CUT, {1: (HALF, HALF)})
    known = goal(master, 1, beat(WorkerState.SHUFFLING, has_cut=True, has_declared=True), {})
    assert (known.cut, known.declared) == (None, {})
    assert [(peer.index, peer.control, peer.data) for peer in known.peers] == [(0, "a:1", "a:2"), (1, "b:1", "b:2")]


def test_the_goal_has_no_declarations_before_the_barrier() -> None:
    assert goal(master_in(M.SORTING), 0, beat(WorkerState.SORTING), {}).declared == {}


def test_a_lacking_part_is_requested_from_its_sender() -> None:
    lacks = {1: ((1, 0), (1, 1))}
    assert goal(master_in(M.MERGING), 0, beat(WorkerState.COMPLETED), lacks).send == ((1, 1),)
    assert goal(master_in(M.MERGING), 1, beat(WorkerState.SHUFFLING), lacks).send == ()


@pytest.mark.parametrize(
    ("state", "stands", "phase"),
    [
        (M.SAMPLING, WorkerState.WAITING_FOR_PARTITION_CONFIG, WorkerPhase.SAMPLING),
        (M.SORTING, WorkerState.WAITING_FOR_SHUFFLE_SIGNAL, WorkerPhase.SORTING),
        (M.SHUFFLING, WorkerState.WAITING_FOR_MERGE_SIGNAL, WorkerPhase.SHUFFLING),
        (M.MERGING, WorkerState.COMPLETED, WorkerPhase.MERGING),
    ],
)
def test_a_lost_report_is_requested_again(state: M, stands: WorkerState, phase: WorkerPhase) -> None:
    master = master_in(state)
    assert goal(master, 0, beat(stands), {}).wants is phase
    assert goal(master, 0, beat(WorkerState.INITIALIZING), {}).wants is None
    event = {
        WorkerPhase.SAMPLING: SampleReceived,
        WorkerPhase.SORTING: SortReported,
        WorkerPhase.SHUFFLING: ShuffleReported,
        WorkerPhase.MERGING: MergeReported,
    }
    told, _ = step(master, FIRST[event[phase]], 1.0)
    assert goal(told, 0, beat(stands), {}).wants is None


def test_partitions_are_assigned_in_order_and_evenly() -> None:
    assert owners(6, 3) == (0, 0, 1, 1, 2, 2)
    assert owners(2, 2) == (0, 1)


# ── the verdict ──


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        (merged(0, b"a", b"n"), merged(1, b"m", b"z"), "partition 0 ends with a greater key than partition 1 begins with"),
        (merged(0, b"a", b"l", HALF), merged(1, b"m", b"z"), "the output differs from the input"),
        (merged(0, b"a", b"l", Proof(10, 1000, 23)), merged(1, b"m", b"z"), "the output differs from the input"),
        (merged(1, b"a", b"l"), merged(1, b"m", b"z"), "2 partitions were planned"),
    ],
    ids=["out of order", "records lost", "a record changed", "a file twice"],
)
def test_the_verdict_is_valid_only_for_correct_output(first: MergeReport, second: MergeReport, fault: str) -> None:
    master, _ = step(master_in(M.MERGING), MergeReported(0, first), 1.0)
    master, commands = step(master, MergeReported(1, second), 2.0)
    assert master.state is M.FAILED
    assert fault in master.reason
    assert commands == (SignalWorkers(GoalStage.ABORT), EndJob(ok=False))


def test_empty_partitions_do_not_break_the_order() -> None:
    master = replace(
        master_in(M.MERGING), sorted={0: SortReport(HALF, (HALF, Proof())), 1: SortReport(Proof(), (Proof(), Proof()))}
    )
    master, _ = step(master, MergeReported(0, merged(0, b"x", b"z", HALF)), 1.0)
    master, _ = step(master, MergeReported(1, merged(1, b"", b"", Proof())), 2.0)
    assert master.state is M.COMPLETED
