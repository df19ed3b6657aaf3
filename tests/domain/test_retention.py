"""Is nothing an orphan that somebody needs, and everything that nobody does?"""

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
    Decision,
    Holder,
    Mark,
    Retention,
    Stored,
    Why,
    decide,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RETENTION = Retention(keep=2, grace=timedelta(hours=2), undelete_grace=timedelta(days=7))
LIVING = Holder(
    id="ws",
    name="demo",
    archive_key=None,
    op_id=None,
    under_way=frozenset(),
    asked_for=None,
    is_in_error=False,
    deleted_at=None,
    is_gone=False,
    is_purged=False,
)


def ago(**parts: float) -> datetime:
    return NOW - timedelta(**parts)


def archive(name: str, *, proven: float, **more: Any) -> Stored:
    """Proven so many hours ago."""
    return Stored(key=f"ws/{name}", op_id=name, size_bytes=10, proven_at=ago(hours=proven), **more)


def decided(holder: Holder, *archives: Stored) -> dict[str, Decision]:
    return {one.archive.op_id: one for one in decide(holder, archives, RETENTION, NOW)}


def reasons(holder: Holder, *archives: Stored) -> dict[str, Why]:
    return {name: one.why for name, one in decided(holder, *archives).items()}


# ── the whole space ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_reason_has_its_words_and_its_outcome() -> None:
    assert WORDS.keys() == IS_ORPHAN.keys() == set(Why)
    assert ACTION.keys() == {True, False}
    assert all(row.keys() == set(Mark) for row in ACTION.values())


def is_needed(this: Stored, holder: Holder, newer: int) -> bool:
    """The rule of workspaces.md, section 12, told the other way round."""
    is_given_up = holder.is_purged or (
        holder.deleted_at is not None
        and holder.is_gone
        and not holder.is_in_error
        and NOW - holder.deleted_at > RETENTION.undelete_grace
    )
    by_operation = this.op_id in holder.under_way or (bool(holder.under_way) and this.key == holder.archive_key)
    by_row = this.key in (holder.archive_key, holder.asked_for) or this.op_id == holder.op_id
    return by_operation or (not is_given_up and (holder.is_in_error or by_row or newer < RETENTION.keep))


def test_an_archive_is_an_orphan_exactly_when_nobody_needs_it() -> None:
    marks = ((None, None), (ago(hours=1), None), (ago(hours=3), None), (ago(hours=3), ago(hours=1)))
    facts = product(
        (None, "ws/this", "ws/other"),  # archive_key
        ("this", "other"),  # op_id
        (frozenset(), frozenset({"this"}), frozenset({"other"})),  # under way
        (None, "ws/this", "ws/other"),  # asked for
        (False, True),  # in error
        (None, ago(days=1), ago(days=8)),  # deleted
        (False, True),  # gone
        (False, True),  # purged
        range(4),  # newer ones
        marks,
    )
    seen = set()
    for archive_key, op_id, under_way, asked_for, in_error, deleted_at, gone, purged, newer, (orphan, removing) in facts:
        holder = replace(
            LIVING,
            archive_key=archive_key,
            op_id=op_id,
            under_way=under_way,
            asked_for=asked_for,
            is_in_error=in_error,
            deleted_at=deleted_at,
            is_gone=gone and deleted_at is not None,
            is_purged=purged and deleted_at is not None,
        )
        this = archive("this", proven=10, orphan_since=orphan, removing_since=removing)
        others = [archive(f"newer-{number}", proven=number) for number in range(newer)]
        found = decided(holder, this, *others, archive("older", proven=20))["this"]
        seen.add((found.why, found.action))
        if removing is not None:
            # There is no way back.
            assert found.action is Action.REMOVE
            continue
        if is_needed(this, holder, newer):
            assert found.action is (Action.KEEP if orphan is None else Action.CLEAR), (holder, found)
            assert found.goes_at is None
        else:
            assert found.action is {None: Action.MARK, ago(hours=1): Action.WAIT, ago(hours=3): Action.REMOVE}[orphan]
            assert found.goes_at == (orphan or NOW) + RETENTION.grace
    assert {why for why, _ in seen} == set(Why)
    assert {action for _, action in seen} == set(Action)


# ── stories ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_living_workspace_keeps_its_last_ones_and_what_it_points_at() -> None:
    holder = replace(LIVING, archive_key="ws/d", op_id="elsewhere")
    kept = [archive(name, proven=hours) for hours, name in enumerate("abcd")]
    assert reasons(holder, *kept) == {"a": Why.RECENT, "b": Why.RECENT, "c": Why.SUPERSEDED, "d": Why.POINTED_AT}


def test_the_last_ones_are_told_apart_when_they_were_proven_at_the_same_moment() -> None:
    same = [archive(name, proven=1) for name in "abcd"]
    for order in (same, same[::-1]):
        found = reasons(LIVING, *order)
        assert sorted(name for name, why in found.items() if why is Why.RECENT) == ["c", "d"]


def test_what_the_store_has_lost_takes_nobodys_place() -> None:
    lost = [archive("a", proven=1, is_there=False), archive("b", proven=2, is_there=False)]
    there = [archive("c", proven=3), archive("d", proven=4), archive("e", proven=5)]
    found = reasons(LIVING, *lost, *there)
    assert [name for name, why in found.items() if why is Why.SUPERSEDED] == ["e"]


def test_what_is_going_takes_nobodys_place() -> None:
    going = archive("a", proven=1, orphan_since=ago(hours=9), removing_since=ago(hours=3))
    found = reasons(LIVING, going, archive("b", proven=2), archive("c", proven=3), archive("d", proven=4))
    assert found == {"a": Why.GOING, "b": Why.RECENT, "c": Why.RECENT, "d": Why.SUPERSEDED}


def test_a_deletion_that_is_not_over_gives_up_nothing() -> None:
    deleting = replace(LIVING, archive_key="ws/a", deleted_at=ago(days=30))
    assert reasons(deleting, archive("a", proven=900)) == {"a": Why.CAN_BE_UNDELETED}
    assert reasons(replace(deleting, is_gone=True), archive("a", proven=900)) == {"a": Why.EXPIRED}


def test_a_purge_gives_up_everything_but_what_is_being_read() -> None:
    purged = replace(LIVING, archive_key="ws/a", op_id="b", deleted_at=ago(hours=1), is_purged=True, is_in_error=True)
    both = (archive("a", proven=1), archive("b", proven=2))
    assert reasons(purged, *both) == {"a": Why.PURGED, "b": Why.PURGED}
    restoring = replace(purged, op_id="restoring", under_way=frozenset({"restoring"}))
    assert reasons(restoring, *both) == {"a": Why.UNDER_WAY, "b": Why.PURGED}


def test_an_error_protects_every_archive_and_takes_back_marks() -> None:
    in_error = replace(LIVING, is_in_error=True)
    archives = [archive(str(number), proven=number) for number in range(9)]
    marked = archive("marked", proven=99, orphan_since=ago(hours=1))
    found = decided(in_error, *archives, marked)
    assert {one.why for one in found.values()} == {Why.IN_ERROR}
    assert found["marked"].action is Action.CLEAR


@pytest.mark.parametrize(("hours", "action"), [(1.99, Action.WAIT), (2, Action.WAIT), (2.01, Action.REMOVE)])
def test_the_whole_grace_period_passes(hours: float, action: Action) -> None:
    purged = replace(LIVING, deleted_at=ago(days=1), is_purged=True)
    found = decided(purged, archive("a", proven=50, orphan_since=ago(hours=hours)))["a"]
    assert found.action is action
