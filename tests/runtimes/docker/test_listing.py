"""What a listing means, for every combination of a home's volume and its record."""

import itertools

import pytest

from torpor.domain.errors import Code, Failed
from torpor.domain.records import Marker, ObservedVolume
from torpor.ports import Fence, Home
from torpor.runtimes.docker.listing import ListedContainer, ListedHome, ListedVolume, listing
from torpor.runtimes.docker.object_names import identity_name, parse_record_name, record_name
from torpor.runtimes.home_record import ABSENT, AnyRecord, HomeRecord, RecordState, UnreadableRecord, parse
from torpor.runtimes.object_labels import ObjectKind, home_labels, home_name, labels

HOME = Home("0d1f8a3c-0000-4000-8000-000000000001", 3)
OTHER = Home("0d1f8a3c-0000-4000-8000-000000000002", 1)
OWN, FOREIGN = "birth of the record", "birth of another volume"
MARKER = Marker(HOME.workspace_id, HOME.generation, "root")


def record(state: RecordState, marker: Marker | None = None, number: int = 4, **changes: object) -> HomeRecord:
    facts = {"revision": 2, "epoch": 5, "birth": OWN, "nonce": "nonce"} | changes
    return HomeRecord(number, state, marker, **facts)  # type: ignore[arg-type]


RECORDS: dict[str, AnyRecord | None] = {
    "none": None,
    "unreadable": UnreadableRecord(4, "why", 5),
    "half-made": record(RecordState.HALF_MADE),
    "ready": record(RecordState.READY, MARKER),
    "ready for another workspace": record(RecordState.READY, Marker(OTHER.workspace_id, HOME.generation, "root")),
    "ready for another generation": record(RecordState.READY, Marker(HOME.workspace_id, 2, "root")),
    "going": record(RecordState.GOING, MARKER),
}

HALF_MADE = ObservedVolume(3, None)
ILLEGIBLE = ObservedVolume(3, None, is_illegible=True)
WITHOUT_HOME = ObservedVolume(3, None, is_illegible=True, has_home=False)

# The columns are the home's volume: absent, the record's own, another one.
MEANS: dict[str, tuple[ObservedVolume | None, ObservedVolume | None, ObservedVolume | None]] = {
    "none": (None, ILLEGIBLE, ILLEGIBLE),
    "unreadable": (None, ILLEGIBLE, ILLEGIBLE),
    "half-made": (HALF_MADE, HALF_MADE, ILLEGIBLE),
    "ready": (None, ObservedVolume(3, MARKER), ILLEGIBLE),
    "ready for another workspace": (None, WITHOUT_HOME, ILLEGIBLE),
    "ready for another generation": (None, ILLEGIBLE, ILLEGIBLE),
    "going": (HALF_MADE, HALF_MADE, ILLEGIBLE),
}


@pytest.mark.parametrize(("said", "birth"), list(itertools.product(RECORDS, (ABSENT, OWN, FOREIGN))))
def test_every_record_with_every_volume(said: str, birth: str) -> None:
    current = RECORDS[said]
    listed = ListedHome(HOME, birth, records=() if current is None else (current,))
    seen = listed.seen()
    assert seen == MEANS[said][(ABSENT, OWN, FOREIGN).index(birth)]
    if seen is not None and seen.marker is None:
        assert seen.fault
        assert seen.home_at
    assert listed.is_half_made == (seen == HALF_MADE), "only what is seen as half-made may be discarded"


def test_every_record_has_a_row() -> None:
    assert MEANS.keys() == RECORDS.keys()


@pytest.mark.parametrize("said", [name for name, one in RECORDS.items() if isinstance(one, HomeRecord)])
@pytest.mark.parametrize("revision", [None, 0, 7])
def test_a_record_is_read_as_it_was_written(said: str, revision: int | None) -> None:
    written = RECORDS[said]
    assert isinstance(written, HomeRecord)
    written = HomeRecord(4, written.state, written.marker, revision, 5, OWN, "nonce")
    assert parse(4, written.labels()) == written


@pytest.mark.parametrize("label", sorted(record(RecordState.READY, MARKER).labels()))
@pytest.mark.parametrize("value", [None, "-1", "x", str(1 << 62)])
def test_a_record_with_a_wrong_label_is_unreadable_or_harmless(label: str, value: str | None) -> None:
    given = record(RecordState.READY, MARKER).labels()
    given.pop(label)
    if value is not None:
        given[label] = value
    found = parse(4, given)
    # A manifest root, a birth, a nonce and a workspace can be any text; they are compared with what is expected.
    if value is None or label.removeprefix("torpor.") in ("state", "revision", "epoch", "marker-generation"):
        assert isinstance(found, UnreadableRecord)
        assert label in found.why or label == "torpor.state"
        assert found.epoch == (0 if label == "torpor.epoch" else 5)
    else:
        assert isinstance(found, HomeRecord)


@pytest.mark.parametrize("order", list(itertools.permutations((3, 9, 10))))
def test_the_highest_number_is_the_current_record(order: tuple[int, ...]) -> None:
    volumes = [volume_of(record(RecordState.READY, MARKER, number, nonce=f"nonce {number}")) for number in order]
    found = listing([], [*volumes, home_volume(OWN)]).of(HOME)
    assert (found.number, found.next_number, found.numbers) == (10, 11, [3, 9, 10])
    assert found.has_won("nonce 10")
    assert not found.has_won("nonce 9")


def test_a_record_wins_only_for_a_home_that_has_its_own_volume() -> None:
    only = (record(RecordState.READY, MARKER),)
    assert ListedHome(HOME, OWN, records=only).has_won("nonce")
    for birth in (ABSENT, FOREIGN):
        assert not ListedHome(HOME, birth, records=only).has_won("nonce")


def home_volume(birth: str, home: Home = HOME) -> ListedVolume:
    return ListedVolume(home_name(home), home_labels("here", ObjectKind.HOME, home, birth=birth))


def volume_of(one: HomeRecord, home: Home = HOME) -> ListedVolume:
    return ListedVolume(record_name(home, one.number), {**home_labels("here", ObjectKind.RECORD, home), **one.labels()})


def container(kind: ObjectKind, state: str = "running", home: Home = HOME, **more: str) -> ListedContainer:
    return ListedContainer(f"id of {kind}", "name", home_labels("here", kind, home, **more), state)


def test_objects_are_sorted_by_home_and_workspace() -> None:
    found = listing(
        [
            container(ObjectKind.HOLDER, "created", number="4"),
            container(ObjectKind.WORKSPACE, epoch="6"),
            container(ObjectKind.JOB),
            ListedContainer("another", "another", {}, "running"),
        ],
        [
            home_volume(OWN),
            volume_of(record(RecordState.READY, MARKER)),
            home_volume("birth", OTHER),
            ListedVolume(identity_name("here"), labels("here", ObjectKind.IDENTITY, identity="who")),
            ListedVolume(home_name(Home(HOME.workspace_id, 9)), {}),
        ],
    )
    assert found.identity == "who"
    assert found.homes.keys() == {HOME, OTHER}
    assert found.of(HOME).holder == "id of holder"
    assert [job.id for job in found.of(HOME).jobs] == ["id of job"]
    assert found.runs_on(HOME)
    assert not found.runs_on(OTHER)
    assert found.epoch(HOME.workspace_id) == 6, "the container's epoch is newer than the record's"
    assert found.epoch(OTHER.workspace_id) == 0
    assert found.only(frozenset({OTHER.workspace_id})).homes.keys() == {OTHER}


def test_a_home_volume_without_a_birth_is_not_ours() -> None:
    """An engine creates such a volume if a container refers to one that is missing."""
    volume = ListedVolume(home_name(HOME), home_labels("here", ObjectKind.HOME, HOME))
    assert listing([], [volume]).homes == {}


@pytest.mark.parametrize(("state", "is_live"), [("running", True), ("paused", True), ("exited", False), ("created", False)])
def test_a_container_without_processes_is_not_live(state: str, is_live: bool) -> None:
    assert listing([container(ObjectKind.WORKSPACE, state)], []).runs_on(HOME) == is_live


@pytest.mark.parametrize(("epoch", "known", "is_refused"), [(4, 0, True), (5, 0, False), (6, 0, False), (6, 7, True)])
def test_an_older_epoch_is_refused(epoch: int, known: int, is_refused: bool) -> None:
    found = listing([], [volume_of(record(RecordState.HALF_MADE)), home_volume(OWN)])
    if not is_refused:
        found.admit(HOME.workspace_id, Fence("op", epoch), known)
        return
    with pytest.raises(Failed) as refusal:
        found.admit(HOME.workspace_id, Fence("op", epoch), known)
    assert refusal.value.code is Code.STALE_EPOCH
    assert refusal.value.context["seen"] == max(5, known)


@pytest.mark.parametrize("name", ["", home_name(HOME), f"{home_name(HOME)}-r0", f"{home_name(HOME)}-r01", "other-r1"])
def test_other_names_are_no_records(name: str) -> None:
    assert parse_record_name(name) is None
