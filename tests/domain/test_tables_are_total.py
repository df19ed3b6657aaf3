"""Every cell of every table is filled as `workspaces.md` defines it.

The expected data is written here a second time, by hand, from the document and not from the source.
"""

import itertools
from dataclasses import replace

import pytest

from tests.support.builders import (
    SOURCE,
    archive,
    container,
    error,
    half_made,
    look,
    seen,
    to_restore,
    unmarked,
    whole,
    workspace,
)
from torpor.domain.effects import NEXT_EFFECT
from torpor.domain.errors import CODE_MEANS, IS_RETRIED, Code, Reason
from torpor.domain.judge import RULINGS, ObservationClass, classify, compare, judge
from torpor.domain.records import (
    CONDITION_NAMES,
    NOT_OBSERVED,
    Conditions,
    Observation,
    ObservedVolume,
    Verdict,
    Workspace,
    WorkspaceCondition,
)
from torpor.domain.states import LEVEL, Operation, Phase, Stage, Wish
from torpor.domain.transitions import (
    DONE_WHEN,
    EXPECTS,
    MAKES_GENERATION,
    NEXT_OPERATION,
    STANDS_ON,
    TURNS,
    DetailedPhase,
    detailed_phase,
    may_cancel,
)
from torpor.testing.defaults import tuning

O, S, W = Operation, DetailedPhase, Wish  # noqa: E741 - the tables below are read as tables
UNDER_WAY = [operation for operation in Operation if operation is not O.NONE]

# ── total ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_detailed_phase_and_requested_state_has_its_next_operation() -> None:
    assert {(s, w) for s, row in NEXT_OPERATION.items() for w in row} == {(s, w) for s in DetailedPhase for w in Wish}


def test_every_operation_and_requested_state_has_a_rule_for_cancelling() -> None:
    assert {(o, w) for o, row in TURNS.items() for w in row} == {(o, w) for o in Operation for w in Wish}


@pytest.mark.parametrize("table", [DONE_WHEN, EXPECTS, STANDS_ON], ids=["DONE_WHEN", "EXPECTS", "STANDS_ON"])
def test_tables_over_all_operations_are_total(table: dict[Operation, object]) -> None:
    assert set(table) == set(Operation)


@pytest.mark.parametrize("table", [NEXT_EFFECT, tuning().timeouts_s], ids=["NEXT_EFFECT", "timeouts_s"])
def test_tables_over_all_operations_but_none_are_total(table: dict[Operation, object]) -> None:
    assert set(table) == set(UNDER_WAY)


def test_every_code_and_reason_has_its_meaning() -> None:
    assert set(CODE_MEANS) == set(Code)
    assert set(CODE_MEANS.values()) <= set(Reason)
    assert set(IS_RETRIED) == set(Reason)


def test_every_condition_has_a_name_for_clients() -> None:
    assert set(CONDITION_NAMES) == set(Conditions.__slots__)
    assert set(CONDITION_NAMES.values()) == {
        "storage.volume_ready",
        "storage.archive_ready",
        "infra.container_ready",
        "policy.healthy",
    }


# ── section 2, point 5: the levels ────────────────────────────────────────────────────────────────────────────────────


def test_levels_are_ordered_and_error_and_deletion_have_none() -> None:
    assert LEVEL == {Phase.PENDING: 0, Phase.ARCHIVED: 5, Phase.STANDBY: 10, Phase.RUNNING: 20}
    assert set(Phase) - set(LEVEL) == {Phase.ERROR, Phase.DELETING, Phase.DELETED}


# The phase in which each operation ends.
LEADS_TO = {
    (Phase.PENDING, O.COPYING): Phase.ARCHIVED,
    (Phase.PENDING, O.CREATE_EMPTY_ARCHIVE): Phase.ARCHIVED,
    (Phase.PENDING, O.PROVISIONING): Phase.STANDBY,
    (Phase.ARCHIVED, O.RESTORING): Phase.STANDBY,
    (Phase.STANDBY, O.STARTING): Phase.RUNNING,
    (Phase.STANDBY, O.ARCHIVING): Phase.ARCHIVED,
    (Phase.RUNNING, O.STOPPING): Phase.STANDBY,
}
NEIGHBOURS = {(0, 5), (5, 10), (10, 20), (0, 10)}


@pytest.mark.parametrize("wish", [W.ARCHIVED, W.STANDBY, W.RUNNING])
@pytest.mark.parametrize("start", LEVEL)
def test_a_path_reaches_the_requested_state_in_single_steps_in_one_direction(start: Phase, wish: Wish) -> None:
    path = [start]
    while (operation := NEXT_OPERATION[DetailedPhase[path[-1].name]][wish]) is not O.NONE:
        path.append(LEADS_TO[path[-1], operation])
        assert len(path) <= len(LEVEL), f"no end: {path}"
    levels = [LEVEL[phase] for phase in path]
    assert path[-1].value == wish.value
    assert levels in (sorted(levels), sorted(levels, reverse=True))
    assert {(min(a, b), max(a, b)) for a, b in itertools.pairwise(levels)} <= NEIGHBOURS


# ── section 4: plan ───────────────────────────────────────────────────────────────────────────────────────────────────

PLAN = """
                      ARCHIVED              STANDBY       RUNNING       DELETED
PENDING               CREATE_EMPTY_ARCHIVE  PROVISIONING  PROVISIONING  DELETING
PENDING_COPY          COPYING               COPYING       COPYING       DELETING
ARCHIVED              -                     RESTORING     RESTORING     DELETING
ADRIFT                STOPPING              STOPPING      STOPPING      STOPPING
STANDBY               ARCHIVING             -             STARTING      ARCHIVING
STANDBY_OCCUPIED      STOPPING              STOPPING      STARTING      STOPPING
RUNNING               STOPPING              STOPPING      -             STOPPING
ERROR                 -                     -             -             -
DELETING_OCCUPIED     -                     -             -             STOPPING
DELETING_UNSAVED      -                     -             -             ARCHIVING
DELETING              -                     -             -             DELETING
DELETED               -                     -             -             -
"""


def test_the_next_operation_is_the_one_of_section_4() -> None:
    header, *lines = PLAN.strip().splitlines()
    wishes = [Wish(word) for word in header.split()]
    expected = {
        DetailedPhase[name]: {
            wish: O.NONE if cell == "-" else Operation(cell) for wish, cell in zip(wishes, cells, strict=True)
        }
        for name, *cells in map(str.split, lines)
    }
    assert expected == NEXT_OPERATION


WHOLE, HALF, UNMARKED = whole(3), half_made(3), unmarked(3)
NO_HOME = ObservedVolume(3, None, True, "the home's folder is missing: /volumes/3/home", has_home=False)
STARTING_UP, READY = container(3, 7, ready=False), container(3, 7)
COVERING, OLDER = archive(3, 7), archive(2, 6)
AT_HOME = {"generation": 3, "revision": 7, "home_seen": True}


@pytest.mark.parametrize(
    ("row", "what", "expected"),
    [
        ({}, seen(), S.PENDING),
        ({"fork_source": SOURCE, "generation": 0, "revision": 0}, seen(), S.PENDING_COPY),
        ({"fork_source": SOURCE}, seen(), S.PENDING),
        ({"fork_source": SOURCE, "generation": 0, "revision": 0, "archive": archive(0, 0)}, seen(), S.ARCHIVED),
        ({"fork_source": SOURCE, "generation": 0, "desired_state": W.DELETED}, seen(), S.DELETED),
        ({"archive": OLDER}, seen(), S.ARCHIVED),
        ({}, seen(HALF), S.PENDING),
        ({"archive": OLDER}, seen(HALF), S.ARCHIVED),
        ({}, seen(HALF, container=READY), S.ADRIFT),
        ({"archive": OLDER}, seen(half_made(2), container=READY), S.ADRIFT),
        ({}, seen(WHOLE), S.STANDBY),
        ({"archive": COVERING}, seen(WHOLE), S.STANDBY),
        ({}, seen(WHOLE, container=STARTING_UP), S.STANDBY_OCCUPIED),
        ({}, seen(WHOLE, container=container(2, 7)), S.STANDBY_OCCUPIED),
        ({}, seen(WHOLE, container=READY), S.RUNNING),
        ({"desired_state": W.DELETED}, seen(), S.DELETED),
        ({"desired_state": W.DELETED}, seen(WHOLE, container=READY), S.DELETING_OCCUPIED),
        ({"desired_state": W.DELETED, "purge": True}, seen(WHOLE, container=STARTING_UP), S.DELETING_OCCUPIED),
        ({"desired_state": W.DELETED}, seen(WHOLE), S.DELETING_UNSAVED),
        ({"desired_state": W.DELETED, "archive": OLDER}, seen(WHOLE), S.DELETING_UNSAVED),
        ({"desired_state": W.DELETED, "archive": COVERING}, seen(WHOLE), S.DELETING),
        ({"desired_state": W.DELETED, "purge": True}, seen(WHOLE), S.DELETING),
        ({"desired_state": W.DELETED}, seen(HALF), S.DELETING),
    ],
)
def test_rows_have_the_expected_detailed_phase(row: dict[str, object], what: Observation, expected: DetailedPhase) -> None:
    w = workspace(**({"generation": 3, "revision": 7} | row))
    assert detailed_phase(w, judge(w, what, look().now)) is expected


# ── section 5: done when observed, deadlines ──────────────────────────────────────────────────────────────────────────


def test_deadlines_are_those_of_section_5() -> None:
    minutes = {operation: seconds / 60 for operation, seconds in tuning().timeouts_s.items()}
    assert minutes == {
        O.PROVISIONING: 5,
        O.RESTORING: 30,
        O.ACCEPTING: 5,
        O.STARTING: 5,
        O.STOPPING: 5,
        O.ARCHIVING: 30,
        O.COPYING: 30,
        O.CREATE_EMPTY_ARCHIVE: 5,
        O.DELETING: 5,
    }


def _judged(what: Observation, **row: object) -> tuple[Workspace, Verdict]:
    w = workspace(**({"generation": 3, "revision": 7} | row))
    return w, judge(w, what, look().now)


@pytest.mark.parametrize(
    ("operation", "row", "what", "done"),
    [
        (O.PROVISIONING, {}, seen(), False),
        (O.PROVISIONING, {}, seen(HALF), False),
        (O.PROVISIONING, {}, seen(whole(2)), False),
        (O.PROVISIONING, {}, seen(WHOLE), True),
        (O.RESTORING, {"archive": OLDER}, seen(HALF), False),
        (O.RESTORING, {"archive": OLDER}, seen(whole(2)), False),
        (O.RESTORING, {"archive": OLDER}, seen(WHOLE), True),
        (O.ACCEPTING, AT_HOME, seen(UNMARKED), False),
        (O.ACCEPTING, AT_HOME, seen(WHOLE), True),
        (O.STARTING, {}, seen(WHOLE), False),
        (O.STARTING, {}, seen(WHOLE, container=STARTING_UP), False),
        (O.STARTING, {}, seen(WHOLE, container=container(2, 7)), False),
        (O.STARTING, {}, seen(HALF, container=READY), False),
        (O.STARTING, {}, seen(WHOLE, container=READY), True),
        (O.STOPPING, {}, seen(WHOLE, container=READY), False),
        (O.STOPPING, {}, seen(WHOLE, container=STARTING_UP), False),
        (O.STOPPING, {}, seen(WHOLE), True),
        (O.ARCHIVING, {"archive": None}, seen(), False),
        (O.ARCHIVING, {"archive": OLDER}, seen(), False),
        (O.ARCHIVING, {"archive": COVERING}, seen(WHOLE), False),
        (O.ARCHIVING, {"archive": COVERING}, seen(HALF), False),
        (O.ARCHIVING, {"archive": COVERING}, seen(half_made(2)), True),
        (O.ARCHIVING, {"archive": COVERING}, seen(), True),
        (O.COPYING, {"fork_source": SOURCE}, seen(), False),
        (O.COPYING, {"fork_source": SOURCE, "archive": COVERING}, seen(), True),
        (O.CREATE_EMPTY_ARCHIVE, {}, seen(), False),
        (O.CREATE_EMPTY_ARCHIVE, {"archive": COVERING}, seen(), True),
        (O.DELETING, {"desired_state": W.DELETED}, seen(half_made(2)), False),
        (O.DELETING, {"desired_state": W.DELETED}, seen(container=READY), False),
        (O.DELETING, {"desired_state": W.DELETED}, seen(), True),
    ],
)
def test_an_operation_is_done_when_that_is_seen(
    operation: Operation, row: dict[str, object], what: Observation, done: bool
) -> None:
    assert DONE_WHEN[operation](*_judged(what, operation=operation, **row)) is done


def test_only_operations_that_fill_a_home_take_a_new_generation() -> None:
    assert {O.PROVISIONING, O.RESTORING} == MAKES_GENERATION


# ── beyond section 5: what an operation stands on ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("operation", "row", "what", "stands"),
    [
        (O.RESTORING, {"archive": OLDER}, seen(), True),
        (O.RESTORING, {}, seen(), False),
        (O.ACCEPTING, AT_HOME, seen(UNMARKED), True),
        (O.ACCEPTING, AT_HOME, seen(), False),
        (O.STARTING, {}, seen(WHOLE), True),
        (O.STARTING, {}, seen(HALF), False),
        (O.STARTING, {}, seen(), False),
        (O.ARCHIVING, {}, seen(WHOLE), True),
        (O.ARCHIVING, {}, seen(HALF), False),
        (O.ARCHIVING, {}, seen(WHOLE, container=STARTING_UP), False),
        (O.ARCHIVING, {"archive": COVERING}, seen(HALF), True),
        (O.ARCHIVING, {"archive": COVERING}, seen(WHOLE, container=READY), False),
        (O.COPYING, {"fork_source": SOURCE, "generation": 0}, seen(), True),
        (O.COPYING, {"fork_source": SOURCE, "generation": 3}, seen(), False),
        (O.COPYING, {"generation": 0}, seen(), False),
        (O.COPYING, {"fork_source": SOURCE, "archive": COVERING}, seen(), True),
        (O.COPYING, {"fork_source": SOURCE, "archive": COVERING}, seen(WHOLE), False),
        (O.CREATE_EMPTY_ARCHIVE, {}, seen(HALF), True),
        (O.CREATE_EMPTY_ARCHIVE, {}, seen(WHOLE), False),
        (O.DELETING, {"desired_state": W.DELETED}, seen(HALF), True),
        (O.DELETING, {"desired_state": W.DELETED}, seen(WHOLE), False),
        (O.DELETING, {"desired_state": W.DELETED, "purge": True}, seen(WHOLE), True),
        (O.DELETING, {"desired_state": W.DELETED, "archive": COVERING}, seen(WHOLE), True),
        (O.DELETING, {"desired_state": W.DELETED, "archive": OLDER}, seen(WHOLE), False),
        (O.DELETING, {"desired_state": W.ARCHIVED, "archive": COVERING}, seen(WHOLE), False),
    ],
)
def test_operations_check_their_preconditions(
    operation: Operation, row: dict[str, object], what: Observation, stands: bool
) -> None:
    assert STANDS_ON[operation](*_judged(what, operation=operation, **row)) is stands


# ── section 6: safe points ────────────────────────────────────────────────────────────────────────────────────────────

NO, YES, BEFORE, ASKED = "no", "at once", "before archive_key is stored", "while before_sleep runs"
SAFE_POINTS = {
    # wish:                  ARCHIVED STANDBY RUNNING DELETED purged
    O.NONE: (NO, NO, NO, NO, NO),
    O.PROVISIONING: (NO, NO, NO, NO, NO),
    O.RESTORING: (NO, NO, NO, YES, YES),
    O.ACCEPTING: (NO, NO, NO, NO, BEFORE),
    O.STARTING: (YES, YES, NO, YES, YES),
    O.STOPPING: (NO, NO, ASKED, NO, NO),
    O.ARCHIVING: (NO, BEFORE, BEFORE, NO, BEFORE),
    O.COPYING: (NO, NO, NO, YES, YES),
    O.CREATE_EMPTY_ARCHIVE: (NO, NO, NO, NO, NO),
    O.DELETING: (NO, NO, NO, NO, NO),
}
WISHES = ((W.ARCHIVED, False), (W.STANDBY, False), (W.RUNNING, False), (W.DELETED, False), (W.DELETED, True))


@pytest.mark.parametrize("stage", [Stage.BEFORE_SLEEP, Stage.CALL, Stage.SEE, Stage.BACKOFF])
@pytest.mark.parametrize("is_archived", [False, True])
@pytest.mark.parametrize("column", range(len(WISHES)), ids=["ARCHIVED", "STANDBY", "RUNNING", "DELETED", "purged"])
@pytest.mark.parametrize("operation", SAFE_POINTS)
def test_an_operation_is_cancelled_at_the_safe_points_of_section_6(
    operation: Operation, column: int, is_archived: bool, stage: Stage
) -> None:
    wish, purge = WISHES[column]
    row = workspace(operation=operation, desired_state=wish, purge=purge, **AT_HOME, archive=COVERING if is_archived else OLDER)
    expected = {NO: False, YES: True, BEFORE: not is_archived, ASKED: stage is Stage.BEFORE_SLEEP}
    assert may_cancel(replace(row, stage=stage)) is expected[SAFE_POINTS[operation][column]]


@pytest.mark.parametrize("wish", [W.ARCHIVED, W.STANDBY, W.RUNNING])
@pytest.mark.parametrize("operation", SAFE_POINTS)
def test_with_an_open_restore_an_operation_is_cancelled_as_for_the_wish_archived(operation: Operation, wish: Wish) -> None:
    row = workspace(operation=operation, desired_state=wish, **AT_HOME, archive=OLDER, restore_request=to_restore())
    assert may_cancel(row) is may_cancel(replace(row, desired_state=W.ARCHIVED, restore_request=None))
    assert may_cancel(replace(row, restored_version=5)) is may_cancel(replace(row, restore_request=None))


# ── section 7: errors ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_reasons_are_retried_as_section_7_says() -> None:
    assert {reason.value for reason, is_retried in IS_RETRIED.items() if is_retried} == {
        "ActionFailed",
        "Mismatch",
        "Unreachable",
    }
    assert {reason.value for reason, is_retried in IS_RETRIED.items() if not is_retried} == {
        "Timeout",
        "RetryExceeded",
        "DataLost",
        "MarkerUnreadable",
        "ImagePullFailed",
        "ContainerWithoutVolume",
    }


def test_provider_codes_mean_what_section_7_says() -> None:
    named_there = {
        "ARCHIVE_NOT_FOUND": "DataLost",
        "CHECKSUM_MISMATCH": "DataLost",
        "S3_ACCESS_ERROR": "Unreachable",
        "K8S_API_ERROR": "Unreachable",
        "TAR_EXTRACT_FAILED": "ActionFailed",
        "VOLUME_CREATE_FAILED": "ActionFailed",
        "CONTAINER_START_FAILED": "ActionFailed",
        "DISK_FULL": "ActionFailed",
        "IMAGE_PULL_FAILED": "ImagePullFailed",
        "READBACK_MISMATCH": "ActionFailed",
    }
    assert {code: CODE_MEANS[Code(code)].value for code in named_there} == named_there
    # Only these two mean a loss: every other failure leaves the data in place.
    assert {code.value for code, reason in CODE_MEANS.items() if reason is Reason.DATA_LOST} == {
        "ARCHIVE_NOT_FOUND",
        "CHECKSUM_MISMATCH",
    }


# ── section 3: judge ──────────────────────────────────────────────────────────────────────────────────────────────────

TIMED_OUT = error(Reason.TIMEOUT)
SEEN_MISSING = replace(NOT_OBSERVED, volume_ready=WorkspaceCondition(False, "Missing"))
SEEN_UNMARKED = replace(NOT_OBSERVED, volume_ready=WorkspaceCondition(False, "Unmarked"))
SEEN_ADRIFT = replace(NOT_OBSERVED, container_ready=WorkspaceCondition(False, "WithoutVolume"))


JUDGED: list[tuple[dict[str, object], Observation, Phase, Reason | None]] = [
    # 1, 2: deletion before errors
    ({"desired_state": W.DELETED}, seen(WHOLE, container=READY), Phase.DELETING, None),
    ({"desired_state": W.DELETED}, seen(container=STARTING_UP), Phase.DELETING, None),
    ({"desired_state": W.DELETED}, seen(half_made(1)), Phase.DELETING, None),
    ({"desired_state": W.DELETED, "error": TIMED_OUT}, seen(WHOLE), Phase.DELETING, Reason.TIMEOUT),
    ({"desired_state": W.DELETED, "archive": COVERING}, seen(), Phase.DELETED, None),
    ({"desired_state": W.DELETED, **AT_HOME, "conditions": SEEN_MISSING}, seen(), Phase.DELETED, None),
    ({"desired_state": W.DELETED, **AT_HOME}, seen(UNMARKED), Phase.DELETING, None),
    (
        {"desired_state": W.DELETED, **AT_HOME, "conditions": SEEN_UNMARKED},
        seen(UNMARKED),
        Phase.DELETING,
        Reason.MARKER_UNREADABLE,
    ),
    # 3: errors before resources
    ({"error": TIMED_OUT}, seen(WHOLE, container=READY), Phase.ERROR, Reason.TIMEOUT),
    ({"conditions": SEEN_ADRIFT}, seen(container=READY), Phase.ERROR, Reason.CONTAINER_WITHOUT_VOLUME),
    ({**AT_HOME, "conditions": SEEN_ADRIFT}, seen(container=READY), Phase.ERROR, Reason.CONTAINER_WITHOUT_VOLUME),
    ({**AT_HOME, "conditions": SEEN_MISSING}, seen(), Phase.ERROR, Reason.DATA_LOST),
    ({**AT_HOME, "conditions": SEEN_MISSING, "archive": OLDER}, seen(), Phase.ERROR, Reason.DATA_LOST),
    ({**AT_HOME, "conditions": SEEN_MISSING}, seen(NO_HOME), Phase.ERROR, Reason.DATA_LOST),
    ({**AT_HOME, "conditions": SEEN_UNMARKED}, seen(HALF), Phase.ERROR, Reason.MARKER_UNREADABLE),
    ({**AT_HOME, "conditions": SEEN_UNMARKED}, seen(UNMARKED), Phase.ERROR, Reason.MARKER_UNREADABLE),
    ({**AT_HOME, "conditions": SEEN_UNMARKED, "archive": COVERING}, seen(UNMARKED), Phase.ARCHIVED, None),
    # during ACCEPTING the phase stays
    ({**AT_HOME, "operation": O.ACCEPTING, "phase": Phase.STANDBY}, seen(UNMARKED), Phase.STANDBY, None),
    ({**AT_HOME, "operation": O.ACCEPTING, "conditions": SEEN_MISSING}, seen(), Phase.ERROR, Reason.DATA_LOST),
    # a first observation is in doubt: the phase stays
    ({"phase": Phase.RUNNING}, seen(container=READY), Phase.RUNNING, None),
    ({"phase": Phase.RUNNING, **AT_HOME}, seen(), Phase.RUNNING, None),
    # a newer wish clears an error, but not DataLost; a volume that is observed again clears only DataLost by absence
    ({"error": error(Reason.TIMEOUT, wish_version=4)}, seen(WHOLE), Phase.STANDBY, None),
    ({"error": error(Reason.DATA_LOST, wish_version=4)}, seen(WHOLE), Phase.ERROR, Reason.DATA_LOST),
    ({"error": error(Reason.DATA_LOST, context={"absent": True})}, seen(WHOLE), Phase.STANDBY, None),
    ({"error": error(Reason.MARKER_UNREADABLE, wish_version=4)}, seen(HALF), Phase.ERROR, Reason.MARKER_UNREADABLE),
    ({"error": error(Reason.MARKER_UNREADABLE, context={"absent": True})}, seen(WHOLE), Phase.STANDBY, None),
    ({"error": error(Reason.DATA_LOST, context={"absent": True})}, seen(HALF), Phase.ERROR, Reason.DATA_LOST),
    # 4 to 7: resources
    ({}, seen(WHOLE, container=READY), Phase.RUNNING, None),
    ({}, seen(WHOLE, container=STARTING_UP), Phase.STANDBY, None),
    ({}, seen(WHOLE, container=container(2, 7)), Phase.STANDBY, None),
    ({"archive": COVERING}, seen(WHOLE), Phase.STANDBY, None),
    ({"archive": OLDER}, seen(), Phase.ARCHIVED, None),
    ({"archive": OLDER}, seen(HALF), Phase.ARCHIVED, None),
    ({"archive": OLDER}, seen(whole(2)), Phase.ARCHIVED, None),
    ({**AT_HOME, "archive": COVERING}, seen(), Phase.ARCHIVED, None),
    ({}, seen(HALF), Phase.PENDING, None),
    ({}, seen(), Phase.PENDING, None),
]


def test_every_class_of_observations_has_its_ruling_and_a_case_here() -> None:
    assert RULINGS.keys() == set(ObservationClass)
    rows = [(workspace(**({"generation": 3, "revision": 7} | row)), what) for row, what, _, _ in JUDGED]
    assert {classify(row, compare(row, what)) for row, what in rows} == set(ObservationClass)


@pytest.mark.parametrize(("row", "what", "phase", "reason"), JUDGED)
def test_an_observation_leads_to_the_phase_of_section_3(
    row: dict[str, object], what: Observation, phase: Phase, reason: Reason | None
) -> None:
    verdict = judge(workspace(**({"generation": 3, "revision": 7} | row)), what, look().now)
    assert verdict.phase is phase
    assert (verdict.error and verdict.error.reason) == reason
    assert verdict.conditions.healthy.status is (reason is None)
