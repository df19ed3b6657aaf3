"""Every change of a record, from every record with every volume."""

import itertools
from collections.abc import Callable

import pytest

from tests.runtimes.docker.test_listing import FOREIGN, HOME, MARKER, OTHER, OWN, RECORDS
from torpor.domain.errors import Code, Failed
from torpor.domain.records import Marker
from torpor.runtimes import record_changes
from torpor.runtimes.docker.listing import ListedHome
from torpor.runtimes.home_record import ABSENT, HomeRecord, RecordState

Change = Callable[[ListedHome], HomeRecord | None]
EPOCH, NONCE = 9, "new nonce"
NEW = Marker(HOME.workspace_id, HOME.generation, "new root")

CHANGES: dict[str, Change] = {
    "made": lambda listed: record_changes.made(listed, EPOCH, NONCE, "new birth"),
    "marked": lambda listed: record_changes.marked(listed, NEW, EPOCH, NONCE),
    "opened": lambda listed: record_changes.opened(listed, 7, EPOCH, NONCE),
    "admitted": lambda listed: record_changes.admitted(listed, EPOCH, NONCE),
    "going": lambda listed: record_changes.going(listed, EPOCH, NONCE, archived_revision=2, is_running=False),
    "given up": lambda listed: record_changes.going(listed, EPOCH, NONCE, archived_revision=None, is_running=True),
    "discarded": lambda listed: record_changes.discarded(listed, EPOCH, NONCE),
}

CREATE, NOT_READY, REOPENED = Code.VOLUME_CREATE_FAILED, Code.VOLUME_NOT_READY, Code.VOLUME_REOPENED
HALF, READY, GOING = RecordState.HALF_MADE, RecordState.READY, RecordState.GOING
Outcome = Code | RecordState | None
# By record: with an absent volume, with the record's own, with another one.
OUTCOMES: dict[str, dict[str, tuple[Outcome, Outcome, Outcome]]] = {
    "made": {
        "none": (HALF, None, None),
        "unreadable": (CREATE, None, None),
        "half-made": (HALF, None, None),
        "ready": (CREATE, None, None),
        "ready for another workspace": (CREATE, None, None),
        "ready for another generation": (CREATE, None, None),
        "going": (CREATE, CREATE, None),
    },
    "marked": {
        "none": (NOT_READY, READY, READY),
        "unreadable": (NOT_READY, READY, READY),
        "half-made": (NOT_READY, READY, READY),
        "ready": (NOT_READY, READY, READY),
        "ready for another workspace": (NOT_READY, NOT_READY, READY),
        "ready for another generation": (NOT_READY, READY, READY),
        "going": (NOT_READY, NOT_READY, READY),
    },
    "opened": {name: (NOT_READY, READY if name == "ready" else NOT_READY, NOT_READY) for name in RECORDS},
    "admitted": {
        "none": (None, None, None),
        "unreadable": (None, None, None),
        "half-made": (HALF, HALF, None),
        "ready": (READY, READY, None),
        "ready for another workspace": (READY, READY, None),
        "ready for another generation": (READY, READY, None),
        "going": (GOING, GOING, None),
    },
    "going": {
        "none": (REOPENED, REOPENED, REOPENED),
        "unreadable": (REOPENED, REOPENED, REOPENED),
        "half-made": (GOING, GOING, REOPENED),
        "ready": (GOING, GOING, REOPENED),
        "ready for another workspace": (GOING, GOING, REOPENED),
        "ready for another generation": (GOING, GOING, REOPENED),
        "going": (None, None, REOPENED),
    },
    "given up": {name: (None, None, GOING) if name == "going" else (GOING, GOING, GOING) for name in RECORDS},
    "discarded": {
        "none": (NOT_READY, NOT_READY, NOT_READY),
        "unreadable": (NOT_READY, NOT_READY, NOT_READY),
        "half-made": (GOING, GOING, NOT_READY),
        "ready": (NOT_READY, NOT_READY, NOT_READY),
        "ready for another workspace": (NOT_READY, NOT_READY, NOT_READY),
        "ready for another generation": (NOT_READY, NOT_READY, NOT_READY),
        "going": (None, None, NOT_READY),
    },
}


def listed_home(said: str, birth: str) -> ListedHome:
    current = RECORDS[said]
    return ListedHome(HOME, birth, records=() if current is None else (current,))


@pytest.mark.parametrize(("change", "said", "birth"), list(itertools.product(CHANGES, RECORDS, (ABSENT, OWN, FOREIGN))))
def test_every_change_from_every_state(change: str, said: str, birth: str) -> None:
    expected = OUTCOMES[change][said][(ABSENT, OWN, FOREIGN).index(birth)]
    listed = listed_home(said, birth)
    if isinstance(expected, Code):
        with pytest.raises(Failed) as refusal:
            CHANGES[change](listed)
        assert refusal.value.code is expected
        return
    after = CHANGES[change](listed)
    if expected is None:
        assert after is None
        return
    assert after is not None
    assert after.state is expected
    assert (after.number, after.epoch, after.nonce) == (listed.next_number, EPOCH, NONCE)
    if birth != ABSENT:
        assert after.birth == birth, "it belongs to the volume that is there"


def test_a_repeated_change_writes_nothing() -> None:
    marked = record_changes.marked(listed_home("half-made", OWN), NEW, EPOCH, NONCE)
    assert marked is not None
    listed = ListedHome(HOME, OWN, records=(marked,))
    assert record_changes.marked(listed, NEW, EPOCH, "another nonce") is None
    assert record_changes.admitted(listed, EPOCH, "another nonce") is None
    opened = record_changes.opened(listed, 7, EPOCH, NONCE)
    assert opened is not None
    assert record_changes.opened(ListedHome(HOME, OWN, records=(opened,)), 7, EPOCH, "another nonce") is None


def test_a_revision_never_falls() -> None:
    listed = listed_home("ready", OWN)
    for revision, expected in ((1, 2), (2, 2), (3, 3)):
        after = record_changes.opened(listed, revision, EPOCH, NONCE)
        assert after is not None
        assert after.revision == expected


@pytest.mark.parametrize(("archived", "running", "is_refused"), [(1, False, True), (2, False, False), (2, True, True)])
def test_a_home_that_may_have_changed_since_its_archive_stays(archived: int, running: bool, is_refused: bool) -> None:
    listed = listed_home("ready", OWN)
    if is_refused:
        with pytest.raises(Failed):
            record_changes.going(listed, EPOCH, NONCE, archived_revision=archived, is_running=running)
    else:
        assert record_changes.going(listed, EPOCH, NONCE, archived_revision=archived, is_running=running)


def test_an_accepted_home_whose_record_was_lost_is_not_removed_before_it_was_started() -> None:
    accepted = record_changes.marked(listed_home("none", OWN), MARKER, EPOCH, NONCE)
    assert accepted is not None
    listed = ListedHome(HOME, OWN, records=(accepted,))
    with pytest.raises(Failed, match="start the workspace once"):
        record_changes.going(listed, EPOCH, NONCE, archived_revision=9, is_running=False)
    opened = record_changes.opened(listed, 3, EPOCH, NONCE)
    assert opened is not None
    assert opened.revision == 3
    assert record_changes.going(ListedHome(HOME, OWN, records=(opened,)), EPOCH, NONCE, archived_revision=3, is_running=False)


def test_a_marker_of_another_workspace_is_written_as_it_is_given() -> None:
    """The caller decides; the observation then says that the home is not this workspace's."""
    after = record_changes.marked(listed_home("half-made", OWN), Marker(OTHER.workspace_id, HOME.generation, ""), EPOCH, NONCE)
    assert after is not None
    seen = ListedHome(HOME, OWN, records=(after,)).seen()
    assert seen is not None
    assert not seen.has_home
