"""Decide what a listing of an engine's objects means: homes, their records, containers, and an observation.

Pure. Containers are listed before volumes: a home that is observed as ready is then not one whose container was missed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torpor.domain.records import ObservedVolume
from torpor.ports import Fence, Home
from torpor.runtimes import object_labels
from torpor.runtimes.docker import object_names
from torpor.runtimes.docker.object_names import IDENTITY, NUMBER
from torpor.runtimes.fencing import admit
from torpor.runtimes.home_record import ABSENT, AnyRecord, HomeRecord, RecordState, RecordWords, observed, owned, parse
from torpor.runtimes.object_labels import BIRTH, EPOCH, GENERATION, KIND, WORKSPACE, ObjectKind


@dataclass(frozen=True, slots=True)
class ListedVolume:
    name: str
    labels: Mapping[str, str]
    mountpoint: str = ""


@dataclass(frozen=True, slots=True)
class ListedContainer:
    id: str
    name: str
    labels: Mapping[str, str]
    state: str
    """As the engine calls it: created, running, paused, restarting, removing, exited or dead."""
    address: str = ""
    """Its IP address, while it runs."""

    @property
    def is_live(self) -> bool:
        """Whether it may have processes."""
        return self.state in ("running", "paused", "restarting", "removing")

    @property
    def has_ended(self) -> bool:
        return self.state in ("exited", "dead")

    @property
    def workspace_id(self) -> str:
        return self.labels.get(WORKSPACE, "")

    @property
    def home(self) -> Home | None:
        generation = self.labels.get(GENERATION, "")
        return Home(self.workspace_id, int(generation)) if generation.isdecimal() else None

    @property
    def epoch(self) -> int:
        text = self.labels.get(EPOCH, "")
        return int(text) if text.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class ListedHome:
    """All objects of one home."""

    home: Home
    birth: str = ABSENT
    """Of the home's volume; ABSENT if there is none that Torpor created."""
    mountpoint: str = ""
    records: tuple[AnyRecord, ...] = ()
    """By rising number."""
    holders: Mapping[int, str] = field(default_factory=dict)
    """The ids of the containers that hold the home and one of its records, by the record's number."""
    jobs: tuple[ListedContainer, ...] = ()
    container: ListedContainer | None = None
    """The workspace's container, if it was started on this home."""

    @property
    def current(self) -> AnyRecord | None:
        return self.records[-1] if self.records else None

    @property
    def record(self) -> HomeRecord | None:
        """The current record, if it can be read and belongs to this volume (or to none, if there is no volume)."""
        return owned(self.birth, self.current)

    @property
    def next_number(self) -> int:
        return self.number + 1

    @property
    def number(self) -> int:
        """Of the current record; 0 without one."""
        return self.current.number if self.current is not None else 0

    @property
    def numbers(self) -> list[int]:
        """Of all records and holders."""
        return sorted({record.number for record in self.records} | self.holders.keys())

    @property
    def holder(self) -> str | None:
        """The container that refers to the home and its current record, so that no prune removes them."""
        return self.holders.get(self.number)

    @property
    def lacks_holder(self) -> bool:
        return self.birth != ABSENT and self.holder is None

    @property
    def epoch(self) -> int:
        return max((record.epoch for record in self.records), default=0)

    def has_won(self, nonce: str) -> bool:
        """Whether the record with this nonce is the current one, of a home that still has its volume."""
        return self.record is not None and self.record.nonce == nonce and self.birth != ABSENT

    @property
    def is_half_made(self) -> bool:
        """Whether it may be discarded: it was never complete, or its removal has begun."""
        return self.record is not None and self.record.state is not RecordState.READY

    def seen(self) -> ObservedVolume | None:
        """What an observation says about this home; None: there is no volume."""
        name = object_labels.home_name(self.home)
        number = self.current.number if self.current else 0
        words = RecordWords(
            record=f"the labels of the volume {object_names.record_name(self.home, number)}",
            missing=f"there is no volume {name}-r1 or later",
            volume=name,
            home_at=self.mountpoint or name,
        )
        return observed(self.home, self.birth, self.current, words)


@dataclass(frozen=True, slots=True)
class EngineListing:
    """All objects of an installation, or of some of its workspaces."""

    identity: str
    """Empty if the identity volume is missing."""
    homes: Mapping[Home, ListedHome]
    containers: Mapping[str, ListedContainer]
    """By workspace."""
    is_identity_held: bool = False
    """Whether a container refers to the identity volume, so that no prune removes it."""

    def only(self, workspace_ids: frozenset[str]) -> "EngineListing":
        """The part of these workspaces."""
        return replace(
            self,
            homes={home: listed for home, listed in self.homes.items() if home.workspace_id in workspace_ids},
            containers={name: container for name, container in self.containers.items() if name in workspace_ids},
        )

    def of(self, home: Home) -> ListedHome:
        return self.homes.get(home, ListedHome(home))

    def homes_of(self, workspace_id: str) -> list[ListedHome]:
        return [listed for home, listed in self.homes.items() if home.workspace_id == workspace_id]

    def runs_on(self, home: Home) -> bool:
        """Whether a container of this home may have processes."""
        container = self.containers.get(home.workspace_id)
        return container is not None and container.is_live and container.home == home

    def is_used(self, workspace_id: str) -> bool:
        """Whether there is a container of this workspace, or of a job at one of its homes."""
        return workspace_id in self.containers or any(listed.jobs for listed in self.homes_of(workspace_id))

    def epoch(self, workspace_id: str) -> int:
        """The newest epoch that changed an object of this workspace."""
        container = self.containers.get(workspace_id)
        epochs = [listed.epoch for listed in self.homes_of(workspace_id)]
        return max([*epochs, container.epoch if container is not None else 0])

    def admit(self, workspace_id: str, fence: Fence, known: int = 0) -> None:
        """Raise STALE_EPOCH for a caller with an older epoch than one in the listing, or than `known`."""
        admit(fence, max(known, self.epoch(workspace_id)))


def listing(containers: Iterable[ListedContainer], volumes: Iterable[ListedVolume]) -> EngineListing:
    """Sort objects by workspace and home. Objects without valid names or labels are not Torpor's and are left out."""
    identity = ""
    births: dict[Home, ListedVolume] = {}
    records: dict[Home, list[AnyRecord]] = {}
    for volume in volumes:
        match volume.labels.get(KIND):
            case ObjectKind.IDENTITY:
                identity = volume.labels.get(IDENTITY, "")
            case ObjectKind.HOME if (found := object_labels.parse_home_name(volume.name)) and volume.labels.get(BIRTH):
                births[found] = volume
            case ObjectKind.RECORD if parsed := object_names.parse_record_name(volume.name):
                records.setdefault(parsed[0], []).append(parse(parsed[1], volume.labels))
            case _:
                pass
    holders: dict[Home, dict[int, str]] = {}
    jobs: dict[Home, list[ListedContainer]] = {}
    running: dict[str, ListedContainer] = {}
    is_identity_held = False
    for container in containers:
        home = container.home
        match container.labels.get(KIND):
            case ObjectKind.IDENTITY:
                is_identity_held = True
            case ObjectKind.HOLDER if home is not None and container.labels.get(NUMBER, "").isdecimal():
                holders.setdefault(home, {})[int(container.labels[NUMBER])] = container.id
            case ObjectKind.JOB if home is not None:
                jobs.setdefault(home, []).append(container)
            case ObjectKind.WORKSPACE if home is not None:
                running[container.workspace_id] = container
            case _:
                pass
    homes = {
        home: ListedHome(
            home,
            births[home].labels[BIRTH] if home in births else ABSENT,
            births[home].mountpoint if home in births else "",
            tuple(sorted(records.get(home, ()), key=lambda record: record.number)),
            holders.get(home, {}),
            tuple(jobs.get(home, ())),
            one if (one := running.get(home.workspace_id)) is not None and one.home == home else None,
        )
        for home in births.keys() | records.keys() | holders.keys() | jobs.keys()
    }
    return EngineListing(identity, homes, running, is_identity_held)
