"""Define the records that pass between the steps of the reconcile loop.

observe --Observation--> judge --Verdict--> plan --Step--> settle --Change--> store, then execute --Report--> the next pass
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from torpor.domain.errors import Reason
from torpor.domain.pack_retention import PackId
from torpor.domain.sizes import NO_SIZE, WorkspaceSize
from torpor.domain.states import HealthStatus, ObservedStatus, Operation, Outage, Outcome, Phase, Stage, Wish, WishOrigin

# ── observations ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Marker:
    """Written to a volume at the end of the operation that filled it: this volume is whole."""

    workspace_id: str
    generation: int
    manifest_root: str
    """Of the archive it was restored from; empty for a home that was created empty."""


@dataclass(frozen=True, slots=True)
class ObservedVolume:
    generation: int
    marker: Marker | None
    """None: it was not filled completely, or its marker is damaged."""
    is_illegible: bool = False
    """It is not known to be half-made, and its marker is missing or cannot be read: it is never discarded."""
    fault: str = field(default="", compare=False)
    """Why there is no marker, with the name of the file, for users."""
    home_at: str = field(default="", compare=False)
    """Without a marker: the folder where the files of the home are or should be, for users."""
    has_home: bool = True
    """False: that folder is missing, or the volume belongs to another workspace."""


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """A program that ended without a request."""

    exit_code: int
    last_lines: str
    is_stopped_outside: bool = False
    """The program did not end by itself: the engine or an administrator stopped its container."""


@dataclass(frozen=True, slots=True)
class ContainerLocation:
    """Where the agent of a running container listens, and what identifies the key that it must know."""

    host: str
    port: int
    nonce: str
    """The container's key is derived from it (`torpor.inside.proof`)."""
    key_id: str
    """Identifies the installation's key that the container's key is derived from."""


@dataclass(frozen=True, slots=True)
class ObservedContainer:
    generation: int
    revision: int
    ready: bool
    """Its port answers."""
    ended: ProgramExit | None = None
    """It no longer runs and is not removed yet. It is not live, so it does not count as present."""
    is_paused: bool = False
    """Some of its processes are paused, because the disk is almost full. `ready` keeps its last value."""
    location: ContainerLocation | None = None
    """None: it does not run, or it is reached only through the runtime in its controller."""
    waiting: str = field(default="", compare=False)
    """What it waits for, for users: a node, an image, or the end of its deletion. Empty: nothing unusual."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed resources of one workspace."""

    volumes: frozenset[ObservedVolume] = frozenset()
    container: ObservedContainer | None = None


NOTHING_SEEN = Observation()


@dataclass(frozen=True, slots=True)
class Survey:
    """The observed resources of all workspaces at a provider; a workspace that is not listed has none."""

    seen: Mapping[str, Observation] = field(default_factory=dict)

    def of(self, workspace_id: str) -> Observation:
        return self.seen.get(workspace_id, NOTHING_SEEN)


# ── the row ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ArchiveKey:
    """The key of an archive in the store, a function of the row: `{workspace_id}/{op_id}`."""

    workspace_id: str
    op_id: str

    def __str__(self) -> str:
        return f"{self.workspace_id}/{self.op_id}"

    @classmethod
    def parse(cls, text: str) -> "ArchiveKey":
        workspace_id, _, op_id = text.partition("/")
        if not workspace_id or not op_id or "/" in op_id:
            raise ValueError(f"{text!r} is not an archive key; expected WORKSPACE_ID/OP_ID")
        return cls(workspace_id, op_id)


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive that the row refers to, and the state of the home that it holds."""

    key: ArchiveKey
    generation: int
    revision: int
    manifest_root: str


@dataclass(frozen=True, slots=True)
class WorkspaceCondition:
    status: bool
    reason: str
    message: str = ""
    last_transition_time: datetime | None = None

    @property
    def outage(self) -> Outage | None:
        """Of `healthy`: the provider that cannot be reached since `last_transition_time`."""
        return Outage(self.reason) if self.reason in OUTAGES else None


OUTAGES = frozenset(outage.value for outage in Outage)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The observation, in the form that clients get."""

    volume_ready: WorkspaceCondition
    archive_ready: WorkspaceCondition
    container_ready: WorkspaceCondition
    healthy: WorkspaceCondition


NOT_OBSERVED = Conditions(
    volume_ready=WorkspaceCondition(False, "NotObserved"),
    archive_ready=WorkspaceCondition(False, "NotObserved"),
    container_ready=WorkspaceCondition(False, "NotObserved"),
    healthy=WorkspaceCondition(True, "NotObserved"),
)

# The reason of `healthy` while the next operation waits for free space on the disk of the homes.
DISK_LOW = "DiskLow"
# The reason of `container_ready` while processes of the workspace are paused because the disk is almost full.
PAUSED = "Paused"
# The reason of `container_ready` after the engine stopped the container, until it is started again.
STOPPED_OUTSIDE = "StoppedOutside"
STOPPED_OUTSIDE_MEANS = (
    "its container was stopped from outside Torpor: the engine or its machine was restarted, or an administrator stopped it"
)
# The reason of `container_ready` while the container waits for something that the message names.
WAITING = "Waiting"

# The names of the conditions in the JSON.
CONDITION_NAMES = {
    "volume_ready": "storage.volume_ready",
    "archive_ready": "storage.archive_ready",
    "container_ready": "infra.container_ready",
    "healthy": "policy.healthy",
}


@dataclass(frozen=True, slots=True)
class WorkspaceError:
    reason: Reason
    message: str
    is_terminal: bool
    operation: Operation
    error_count: int
    occurred_at: datetime
    wish_version: int
    """A later wish clears the error (except DataLost and MarkerUnreadable)."""
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recovery:
    """A request to leave ERROR, stored by the service and executed by the controller."""

    wish_version: int
    archive: Archive | None = None
    """Continue with this older archive."""
    empty: bool = False
    """Continue with an empty home."""
    accept: bool = False
    """Continue with the home whose marker cannot be read."""


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A request to replace the home by an older archive, stored by the service and executed by the controller."""

    wish_version: int
    archive: Archive
    asked_at: datetime


@dataclass(frozen=True, slots=True)
class HomeSize:
    """The measured size on disk of the home of one generation."""

    generation: int
    size_bytes: int
    measured_at: datetime


class FileCount(NamedTuple):
    """How many files of a home an operation has archived or restored. Hard links count as files."""

    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class Workspace:
    """One row. The service writes the first part, the controller the second; the database enforces this."""

    id: str
    name: str
    owner: str
    template: str
    command: tuple[str, ...]
    desired_state: Wish
    wish_version: int
    wish_origin: WishOrigin
    wished_at: datetime
    deleted_at: datetime | None
    purge: bool
    recover_request: Recovery | None
    standby_ttl_s: int
    archive_ttl_s: int
    last_access_at: datetime
    created_at: datetime

    version: int
    epoch: int
    """Rises when another controller takes the row. Every effect carries it, and providers refuse older epochs."""
    held_by: int | None
    """The member id (life) of the controller that wrote last."""
    phase: Phase
    phase_changed_at: datetime
    previous_phase: Phase | None
    observed_at: datetime | None
    conditions: Conditions
    container_present: bool
    volume_present: bool
    operation: Operation
    stage: Stage
    due_at: datetime | None
    """Its meaning depends on the stage; at REST: the earliest restart of a program that ended."""
    op_id: str | None
    op_attempt: int
    op_epoch: int
    """The epoch in which this attempt was opened; a controller that takes the row adopts the attempt before it acts."""
    op_takeovers: int
    op_started_at: datetime | None
    deadline_at: datetime | None
    progress_done: int
    progress_total: int | None
    progress_files: FileCount | None
    """None: the operation in progress does not count files."""
    generation: int
    revision: int
    home_seen: bool
    """The marker of this generation was observed: from then on the volume is expected."""
    archive: Archive | None
    error: WorkspaceError | None
    error_count: int
    quick_ends: int

    shares: Mapping[str, str] = field(default_factory=dict, hash=False)
    """User name to `use` or `manage` (`torpor.domain.access`). Written by the service."""
    location: ContainerLocation | None = None
    """Of its running container, for API and proxy, which do not ask the engine. Written by the controller."""
    archive_home_bytes: int | None = None
    """The unpacked size of the home in the archive; None: not loaded."""
    home_size: HomeSize | None = None
    """The last measurement; None: never measured."""
    sleeps_at: datetime | None = None
    """When it is stopped unless it is used; None while that is not near (`domain/sleep_warning.py`). Written by the service."""

    before_sleep: tuple[str, ...] | None = None
    """The command that runs before an automatic stop; None: the template's, empty: none. Written by the service."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Variables of its own. Written by the service."""
    size: WorkspaceSize = NO_SIZE
    """The size that it was created with. Written by the service."""
    image: str | None = None
    """The image that it was created with, as the user wrote it; None: its template's. Written by the service."""

    restore_request: RestoreRequest | None = None
    """The last request to go back to an older archive. Written by the service."""
    restored_version: int = 0
    """The `wish_version` of the last such request that was executed. Written by the controller."""
    fork_source: Archive | None = None
    """The archive of another workspace that its first home is a copy of. Written by the service."""

    @property
    def restore(self) -> RestoreRequest | None:
        """The request to go back to an older archive, until the archive replaces the home."""
        request = self.restore_request
        is_open = request is not None and request.wish_version > self.restored_version and self.deleted_at is None
        return request if is_open else None

    @property
    def heads_for(self) -> Wish:
        """The state that the next operation leads to: a home is archived before an older archive replaces it."""
        return Wish.ARCHIVED if self.restore is not None else self.desired_state

    @property
    def awaits_copy(self) -> bool:
        """Its first home is a copy that does not exist yet."""
        return self.fork_source is not None and self.archive is None and self.generation == 0

    @property
    def may_have_changes(self) -> bool:
        """The home on disk was opened for writing since its archive was written, or has no archive."""
        return self.volume_present and (self.archive is None or self.archive.revision != self.revision)

    @property
    def is_archived(self) -> bool:
        """The archive holds exactly the current state of the home."""
        return (
            self.archive is not None and self.archive.generation == self.generation and self.archive.revision == self.revision
        )

    @property
    def expects_volume(self) -> bool:
        return self.home_seen and not self.is_archived

    @property
    def attempts(self) -> int:
        """The attempts of the operation in progress, including the current one; each op_id counts from 1."""
        return max(self.op_attempt, self.error_count)

    @property
    def outage(self) -> WorkspaceCondition | None:
        """The outage that it waits for: what cannot be reached, why, and since when."""
        healthy = self.conditions.healthy
        return healthy if healthy.outage is not None else None

    @property
    def space_awaited(self) -> str | None:
        """Why it is not started or restored: the disk of the homes has too little free space."""
        healthy = self.conditions.healthy
        return healthy.message if healthy.status and healthy.reason == DISK_LOW else None

    @property
    def is_paused(self) -> bool:
        """It runs, and some of its processes are paused, because the disk is almost full."""
        return self.conditions.container_ready.reason == PAUSED

    @property
    def awaited(self) -> str | None:
        """What its container waits for."""
        ready = self.conditions.container_ready
        return ready.message if ready.reason == WAITING else None

    @property
    def disk_use(self) -> HomeSize | None:
        """The size of the current home; None: not measured yet, or no home on disk."""
        size = self.home_size
        return size if size is not None and self.volume_present and size.generation == self.generation else None

    @property
    def disk_bytes(self) -> int | None:
        """Its size on the disk of the homes; None: not known yet."""
        if not self.volume_present and self.observed_at is not None:
            return 0
        return self.disk_use.size_bytes if self.disk_use is not None else None

    @property
    def restore_bytes(self) -> int:
        """The size of its home after a restore; 0 if not known."""
        return self.archive_home_bytes or 0

    @property
    def progress(self) -> int | None:
        """In percent, if the operation in progress reports it: of the bytes, or of the files if these are all empty."""
        done, total = self.progress_done, self.progress_total
        if not total and self.progress_files is not None:
            done, total = self.progress_files
        return min(100, done * 100 // total) if total else None

    @property
    def observed_status(self) -> ObservedStatus:
        if self.container_present:
            return ObservedStatus.RUNNING
        if self.volume_present:
            return ObservedStatus.STANDBY
        return ObservedStatus.DELETED if self.deleted_at else ObservedStatus.PENDING

    @property
    def health_status(self) -> HealthStatus:
        return HealthStatus.OK if self.conditions.healthy.status else HealthStatus.ERROR


# ── the verdict ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Verdict:
    phase: Phase
    conditions: Conditions
    is_certain: bool
    """False: an expected resource is missing for the first time. No step is taken before a second observation."""
    error: WorkspaceError | None
    """The current error, old or new."""
    container_present: bool
    container_ready: bool
    volume_present: bool
    """Any volume, of any generation, whole or not."""
    volume_ready: bool
    home_present: bool
    """The volume of the row's generation, whole or not."""
    half_made: frozenset[int] = frozenset()
    """Generations without a marker: they are never started or archived."""
    ended: ProgramExit | None = None
    """The program of the row's revision ended without a request."""
    location: ContainerLocation | None = None


# ── reports of effects ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class EffectDone:
    """The actuator returned. The operation is done only when the observation confirms it."""

    written_bytes: int | None = field(default=None, compare=False)
    """Written to the home by a restore."""


@dataclass(frozen=True, slots=True)
class ProvenPack:
    """A pack whose bytes were read back and compared with its name."""

    name: str
    """`{op_id}-{sha256 of its bytes}`: the operation that wrote it, and its content."""
    size_bytes: int
    store_version: str
    """The ETag and the time of the object in the store when it was read back. Only equality has a meaning."""
    is_read_back: bool
    """This operation read it back. False: it was taken over, because it was read back not long ago and did not change."""


@dataclass(frozen=True, slots=True)
class ProvenArchive:
    """An archive was written, read back and compared."""

    archive: Archive
    size_bytes: int
    """In the store. Format 2: all packs that it names, and its root."""
    home_bytes: int
    files: int
    format: int = 1
    new_bytes: int | None = None
    """Format 2: what this operation wrote to the store."""
    packs: tuple[ProvenPack, ...] = ()
    """Format 2: all packs that it names."""
    lost: tuple[str, ...] = ()
    """Format 2: packs of its base that the operation found damaged or missing, and did not take over."""


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """The actuator failed."""

    reason: Reason
    message: str
    context: Mapping[str, Any] = field(default_factory=dict)
    wants_new_op_id: bool = False


@dataclass(frozen=True, slots=True)
class ProviderOutage:
    """The provider cannot be reached: this counts as no failure of the workspace, and pauses deadlines."""

    outage: Outage
    message: str


@dataclass(frozen=True, slots=True)
class StaleEpoch:
    """The provider refused, because it knows a later epoch for this workspace."""

    seen: int


Report = EffectDone | ProvenArchive | EffectFailed | ProviderOutage | StaleEpoch


# ── changes to write ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AttemptOpened:
    op_id: str
    operation: Operation
    attempt: int
    generation: int
    message: str = ""
    """Why it began, if no request did."""


@dataclass(frozen=True, slots=True)
class AttemptClosed:
    op_id: str
    attempt: int
    outcome: Outcome
    reason: Reason | None = None
    message: str = ""
    """Empty: the message of its opening stays."""
    done_bytes: int = 0
    """Written to the archive (if it is verified) or to the home. Other progress is not counted in bytes."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one step writes, in one transaction, if the row still has `before.version` and the writer is still a member."""

    before: Workspace
    after: Workspace
    opened: AttemptOpened | None = None
    closed: AttemptClosed | None = None
    proved: ProvenArchive | None = None
    lost: tuple[PackId | ArchiveKey, ...] = ()
    """Packs, and archives whose roots, a report says are damaged or missing."""
    if_wish_unchanged: bool = False
