"""A pack is removed exactly if no archive needs it, nothing is in progress, and its grace period has passed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

from torpor.domain.pack_retention import IS_ORPHAN_PACK, PACK_WORDS, GcPack, PackReason, decide_packs
from torpor.domain.retention import Action, GcWorkspace, Retention

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RETENTION = Retention(keep=2, grace=timedelta(hours=2), undelete_grace=timedelta(days=7), keep_daily=0, keep_weekly=0)
HOLDER = GcWorkspace(
    id="ws",
    name="demo",
    archive_key=None,
    op_id="op",
    under_way=frozenset(),
    asked_for=None,
    is_in_error=False,
    deleted_at=None,
    gone_at=None,
    is_purged=False,
)
FRESH, RIPE = NOW - timedelta(hours=1), NOW - timedelta(hours=3)


def test_every_reason_has_its_words_and_its_outcome() -> None:
    assert PACK_WORDS.keys() == IS_ORPHAN_PACK.keys() == set(PackReason)


def test_only_a_pack_that_nothing_needs_is_marked_and_only_after_the_grace_period_removed() -> None:
    seen = set()
    for is_named, under_way, is_read, in_error, purged, out_of_date, is_proven, mark, stale in product(
        (False, True),
        (frozenset(), frozenset({"op"})),
        (False, True),
        (False, True),
        (False, True),
        (False, True),
        (True, False),
        ((None, None), (FRESH, None), (RIPE, None), (RIPE, FRESH)),
        (False, True),
    ):
        holder = replace(
            HOLDER,
            under_way=under_way,
            is_read=is_read,
            is_in_error=in_error,
            is_purged=purged,
            is_out_of_date=out_of_date,
        )
        pack = GcPack("op-hash", 10, NOW if is_proven else None, is_named, *mark)
        [found] = decide_packs(holder, [pack], RETENTION, NOW, are_marks_stale=stale)
        seen.add((found.why, found.action))
        is_busy = bool(under_way) or is_read
        is_wanted = is_named or out_of_date or (in_error and not purged)
        context = (holder, pack, found)
        if mark[1] is not None:
            assert found.action is Action.REMOVE, context
            assert found.why is PackReason.GOING, context
            continue
        if found.action is Action.REMOVE:
            assert mark[0] == RIPE, context
            assert not any((is_wanted, is_busy, stale)), context
        elif not (is_wanted or is_busy):
            assert found.action is (Action.MARK if stale or mark[0] is None else Action.WAIT), context
        if is_busy and not is_wanted and mark[0] is None:
            assert found.action is Action.KEEP, context
        if is_wanted and is_proven:
            assert found.action is (Action.KEEP if mark[0] is None else Action.CLEAR), context
        if not is_proven:
            # The database keeps a pack that was never proven marked.
            assert found.action is not Action.CLEAR, context
        assert (found.goes_at is None) == (is_wanted or is_busy), context
    assert {why for why, _ in seen} == set(PackReason)
    assert {action for _, action in seen} == set(Action)
