"""An archive is an orphan exactly if no workspace needs it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from torpor.domain.retention import (
    ACTION,
    IS_ORPHAN,
    WORDS,
    Action,
    ArchiveDecision,
    GcArchive,
    GcPolicy,
    GcWorkspace,
    OrphanMark,
    Retention,
    RetentionClass,
    RetentionReason,
    are_marks_stale,
    decide,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RETENTION = Retention(keep=2, grace=timedelta(hours=2), undelete_grace=timedelta(days=7), keep_daily=0, keep_weekly=0)
LIVING = GcWorkspace(
    id="ws",
    name="demo",
    archive_key=None,
    op_id=None,
    under_way=frozenset(),
    asked_for=None,
    is_in_error=False,
    deleted_at=None,
    gone_at=None,
    is_purged=False,
)


def ago(**parts: float) -> datetime:
    return NOW - timedelta(**parts)


def archive(name: str, *, proven: float | None, **more: Any) -> GcArchive:
    """Verified this many hours ago; None: incomplete."""
    proven_at = None if proven is None else ago(hours=proven)
    return GcArchive(key=f"ws/{name}", op_id=name, size_bytes=10, proven_at=proven_at, **more)


def decided(holder: GcWorkspace, *archives: GcArchive, are_marks_stale: bool = False) -> dict[str, ArchiveDecision]:
    found = decide(holder, archives, RETENTION, NOW, are_marks_stale=are_marks_stale)
    return {one.archive.op_id: one for one in found}


def reasons(holder: GcWorkspace, *archives: GcArchive) -> dict[str, RetentionReason]:
    return {name: one.why for name, one in decided(holder, *archives).items()}


# ── the whole space ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_reason_has_its_words_and_its_outcome() -> None:
    assert WORDS.keys() == IS_ORPHAN.keys() == set(RetentionReason)
    assert ACTION.keys() == set(RetentionClass)
    assert all(row.keys() == set(OrphanMark) for row in ACTION.values())


def is_needed(this: GcArchive, holder: GcWorkspace, newer: int) -> bool:
    """The rule of workspaces.md, section 12, written as its negation."""
    is_given_up = holder.is_purged or (
        holder.deleted_at is not None
        and holder.gone_at is not None
        and not holder.is_in_error
        and NOW - holder.gone_at > RETENTION.undelete_grace
    )
    by_operation = this.op_id in holder.under_way or (bool(holder.under_way) and this.key == holder.archive_key)
    by_row = this.key in (holder.archive_key, holder.asked_for, holder.to_restore) or this.op_id == holder.op_id
    is_recent = this.proven_at is not None and newer < RETENTION.keep
    is_wanted = not is_given_up and (holder.is_in_error or by_row or is_recent)
    return holder.is_out_of_date or by_operation or this.key in holder.to_copy or is_wanted


# (orphan since, removing since), the action if it is needed, and the action if it is not.
MARKS = {
    (None, None): (Action.KEEP, Action.MARK),
    (ago(hours=1), None): (Action.CLEAR, Action.WAIT),
    (ago(hours=3), None): (Action.CLEAR, Action.REMOVE),
    (ago(hours=3), ago(hours=1)): (Action.REMOVE, Action.REMOVE),
}


def test_an_archive_is_an_orphan_exactly_when_nothing_needs_it() -> None:
    facts: Iterator[tuple[Any, ...]] = product(
        (None, "ws/this", "ws/other"),  # archive_key
        ("this", "other"),  # op_id
        (frozenset(), frozenset({"this"}), frozenset({"other"})),  # in progress
        ({}, {"asked_for": "ws/this"}, {"to_restore": "ws/this"}, {"to_copy": frozenset({"ws/this"})}),  # requested
        (False, True),  # in error
        (None, ago(days=1), ago(days=8)),  # gone
        (False, True),  # deleted
        (False, True),  # purged
        (False, True),  # out of date
        (10, None),  # proven
        (RETENTION.keep - 1, RETENTION.keep),  # newer ones
        MARKS,
        (False, True),  # marks are stale
    )
    seen = set()
    for (
        archive_key, op_id, under_way, requested, in_error, gone_at, is_deleted, purged, out_of_date, proven, newer, mark, stale
    ) in facts:  # fmt: skip
        holder = replace(
            LIVING,
            archive_key=archive_key,
            op_id=op_id,
            under_way=under_way,
            **requested,
            is_in_error=in_error,
            deleted_at=ago(days=9) if is_deleted else None,
            gone_at=gone_at,
            is_purged=purged and is_deleted,
            is_out_of_date=out_of_date,
        )
        orphan_since, removing_since = mark
        this = archive("this", proven=proven, orphan_since=orphan_since, removing_since=removing_since)
        others = [archive(f"newer-{number}", proven=number) for number in range(newer)]
        left_over = archive("left-over", proven=None, orphan_since=ago(hours=1))
        everything = (this, *others, archive("older", proven=20), left_over)
        found = decided(holder, *everything, are_marks_stale=stale)["this"]
        seen.add((found.why, found.action))
        is_wanted = is_needed(this, holder, newer)
        action = MARKS[mark][0 if is_wanted else 1]
        if stale and action in (Action.WAIT, Action.REMOVE) and removing_since is None:
            action = Action.MARK
        if proven is None and is_wanted and removing_since is None:
            # It cannot be restored: it stays an orphan, and is not removed now.
            action = Action.MARK if stale or orphan_since is None else Action.WAIT
        assert found.action is action, (holder, this, found)
        if removing_since is None:
            since = NOW if stale or orphan_since is None else orphan_since
            assert found.goes_at == (None if is_wanted else since + RETENTION.grace)
    assert {why for why, _ in seen} == set(RetentionReason) - {RetentionReason.DAILY, RetentionReason.WEEKLY}
    assert {action for _, action in seen} == set(Action)


# ── days and weeks ────────────────────────────────────────────────────────────────────────────────────────────────────

PERIODIC = replace(RETENTION, keep=1, keep_daily=3, keep_weekly=2)


def kept_periodically(proven: Sequence[datetime]) -> set[datetime]:
    """The rule, with the calendar of the standard library: the newest, and the last of each of the last days and weeks."""
    this_monday = NOW.date() - timedelta(days=NOW.weekday())
    first_day = NOW.date() - timedelta(days=PERIODIC.keep_daily - 1)
    first_week = this_monday - timedelta(weeks=PERIODIC.keep_weekly - 1)
    days = {at.date(): at for at in sorted(proven) if at.date() >= first_day}
    weeks = {at.isocalendar()[:2]: at for at in sorted(proven) if at.date() >= first_week}
    return {max(proven), *days.values(), *weeks.values()} if proven else set()


def test_the_last_archive_of_each_day_and_week_is_kept_for_every_choice_of_times() -> None:
    hours = (1, 11, 13, 30, 37, 60, 61, 100, 150, 200, 260, 400)
    seen = set()
    for chosen in product((False, True), repeat=len(hours)):
        archives = [archive(f"a{hour}", proven=hour) for hour, is_made in zip(hours, chosen, strict=True) if is_made]
        found = decide(LIVING, archives, PERIODIC, NOW)
        kept = {one.archive.proven_at for one in found if one.action is Action.KEEP}
        assert kept == kept_periodically([one.proven_at for one in archives if one.proven_at is not None])
        seen |= {one.why for one in found}
    names = ("RECENT", "DAILY", "WEEKLY", "SUPERSEDED")
    assert seen == {RetentionReason[name] for name in names}


@pytest.mark.parametrize("every_hours", [5, 25, 90])
def test_archives_grow_old_instead_of_being_replaced(every_hours: int) -> None:
    """Collections after each archive, for three months: each of the last days and weeks with an archive still has one."""
    retention = Retention(keep=5, grace=timedelta(0), undelete_grace=timedelta(days=7), keep_daily=7, keep_weekly=4)
    kept: list[GcArchive] = []
    made: list[datetime] = []
    for number in range(90 * 24 // every_hours):
        now = NOW + timedelta(hours=number * every_hours)
        made.append(now)
        kept.append(GcArchive(f"ws/{number}", str(number), 10, now))
        kept = [one.archive for one in decide(LIVING, kept, retention, now) if one.action is Action.KEEP]
        assert len(kept) <= 5 + 7 + 4
        left = [one.proven_at for one in kept if one.proven_at is not None]
        week_ago = now.date() - timedelta(days=6)
        assert {at.date() for at in made if at.date() >= week_ago} <= {at.date() for at in left}
        first_week = now.date() - timedelta(days=now.weekday(), weeks=3)
        assert {at.isocalendar()[:2] for at in made if at.date() >= first_week} <= {at.isocalendar()[:2] for at in left}


def test_an_archive_that_the_store_has_lost_does_not_stand_for_its_day() -> None:
    lost = archive("lost", proven=30, is_there=False)
    found = decide(LIVING, (archive("new", proven=1), lost, archive("older", proven=31)), PERIODIC, NOW)
    assert {one.archive.op_id: one.why for one in found}["older"] is RetentionReason.DAILY


def test_archives_that_are_read_are_neither_marked_nor_removed() -> None:
    reader = replace(LIVING, is_read=True)
    newer = [archive(f"newer-{number}", proven=number) for number in range(RETENTION.keep)]
    for mark, action in {
        (None, None): Action.KEEP,
        (ago(hours=1), None): Action.WAIT,
        (ago(hours=3), None): Action.WAIT,
        (ago(hours=3), ago(hours=1)): Action.REMOVE,
    }.items():
        this = archive("this", proven=10, orphan_since=mark[0], removing_since=mark[1])
        assert decided(reader, this, *newer)["this"].action is action
    stale = archive("this", proven=10, orphan_since=ago(hours=3))
    assert decided(reader, stale, *newer, are_marks_stale=True)["this"].action is Action.MARK


# ── stories ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_existing_workspace_keeps_its_last_archives_and_its_current_one() -> None:
    holder = replace(LIVING, archive_key="ws/d", op_id="elsewhere")
    kept = [archive(name, proven=hours) for hours, name in enumerate("abcd")]
    assert reasons(holder, *kept) == {
        "a": RetentionReason.RECENT,
        "b": RetentionReason.RECENT,
        "c": RetentionReason.SUPERSEDED,
        "d": RetentionReason.POINTED_AT,
    }


def test_archives_proven_at_the_same_time_have_a_fixed_order() -> None:
    same = [archive(name, proven=1) for name in "abcd"]
    for order in (same, same[::-1]):
        found = reasons(LIVING, *order)
        assert sorted(name for name, why in found.items() if why is RetentionReason.RECENT) == ["c", "d"]


def test_a_missing_archive_does_not_count_as_kept() -> None:
    lost = [archive("a", proven=1, is_there=False), archive("b", proven=2, is_there=False)]
    there = [archive("c", proven=3), archive("d", proven=4), archive("e", proven=5)]
    found = reasons(LIVING, *lost, *there)
    assert [name for name, why in found.items() if why is RetentionReason.SUPERSEDED] == ["e"]


def test_an_archive_being_removed_does_not_count_as_kept() -> None:
    going = archive("a", proven=1, orphan_since=ago(hours=9), removing_since=ago(hours=3))
    found = reasons(LIVING, going, archive("b", proven=2), archive("c", proven=3), archive("d", proven=4))
    assert found == {
        "a": RetentionReason.GOING,
        "b": RetentionReason.RECENT,
        "c": RetentionReason.RECENT,
        "d": RetentionReason.SUPERSEDED,
    }


def test_an_unfinished_deletion_keeps_all_archives() -> None:
    deleting = replace(LIVING, archive_key="ws/a", deleted_at=ago(days=30))
    assert reasons(deleting, archive("a", proven=900)) == {"a": RetentionReason.CAN_BE_UNDELETED}
    for days, why in ((6, RetentionReason.CAN_BE_UNDELETED), (8, RetentionReason.EXPIRED)):
        gone = replace(deleting, gone_at=ago(days=days))
        assert reasons(gone, archive("a", proven=900)) == {"a": why}
        # Undeleted, and not reconciled since.
        assert reasons(replace(gone, deleted_at=None), archive("a", proven=900)) == {"a": RetentionReason.POINTED_AT}


def test_a_purge_removes_all_archives_except_one_being_read() -> None:
    purged = replace(LIVING, archive_key="ws/a", op_id="b", deleted_at=ago(hours=1), is_purged=True, is_in_error=True)
    both = (archive("a", proven=1), archive("b", proven=2))
    assert reasons(purged, *both) == {"a": RetentionReason.PURGED, "b": RetentionReason.PURGED}
    restoring = replace(purged, op_id="restoring", under_way=frozenset({"restoring"}))
    assert reasons(restoring, *both) == {"a": RetentionReason.UNDER_WAY, "b": RetentionReason.PURGED}


def test_an_error_protects_every_archive_and_clears_marks() -> None:
    in_error = replace(LIVING, is_in_error=True)
    archives = [archive(str(number), proven=number) for number in range(9)]
    marked = archive("marked", proven=99, orphan_since=ago(hours=1))
    found = decided(in_error, *archives, marked)
    assert {one.why for one in found.values()} == {RetentionReason.IN_ERROR}
    assert found["marked"].action is Action.CLEAR


def test_a_left_over_archive_does_not_count_as_kept_and_stays_marked() -> None:
    left_over = [archive(f"left-{number}", proven=None, orphan_since=ago(hours=1)) for number in range(5)]
    found = decided(LIVING, *left_over, archive("a", proven=1), archive("b", proven=2))
    assert {one.why for name, one in found.items() if name.startswith("left")} == {RetentionReason.LEFT_OVER}
    assert (found["a"].why, found["b"].why) == (RetentionReason.RECENT, RetentionReason.RECENT)
    in_error = decided(replace(LIVING, is_in_error=True), *left_over)
    assert {one.action for one in in_error.values()} == {Action.WAIT}


@pytest.mark.parametrize(("hours_ago", "is_stale"), [(None, True), (0, False), (2.9, False), (3.1, True), (-0.1, True)])
def test_marks_count_while_collections_are_regular(hours_ago: float | None, is_stale: bool) -> None:
    ended_at = None if hours_ago is None else ago(hours=hours_ago)
    assert are_marks_stale(ended_at, GcPolicy(RETENTION, every=timedelta(hours=1)), NOW) is is_stale
    # The grace period counts if it is longer than three intervals.
    assert are_marks_stale(ended_at, GcPolicy(RETENTION, every=timedelta(minutes=1)), NOW) is (is_stale or hours_ago == 2.9)


@pytest.mark.parametrize(("hours", "action"), [(1.99, Action.WAIT), (2, Action.WAIT), (2.01, Action.REMOVE)])
def test_the_whole_grace_period_passes(hours: float, action: Action) -> None:
    purged = replace(LIVING, deleted_at=ago(days=1), is_purged=True)
    found = decided(purged, archive("a", proven=50, orphan_since=ago(hours=hours)))["a"]
    assert found.action is action
