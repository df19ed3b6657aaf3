"""Which records travel between the steps of the loop?

observe --Observation--> judge --Verdict--> plan --Step--> settle --Change--> store, then execute --Report--> the next look
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from torpor.domain.errors import Reason
from torpor.domain.states import HealthStatus, ObservedStatus, Operation, Outage, Outcome, Phase, Stage, Wish, WishOrigin

# ── what a provider shows ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Marker:
    """Written last on a volume, by the operation that filled it: this volume is whole."""

    workspace_id: str
    generation: int
    manifest_root: str
    """Of the archive it was restored from; empty for a home that began empty."""


@dataclass(frozen=True, slots=True)
class ObservedVolume:
    generation: int
    marker: Marker | None
    """None: it was never filled to the end, or its marker is damaged."""
    is_illegible: bool = False
    """It is not known to be half-made, and its marker is missing or cannot be read: nothing discards it."""
    fault: str = field(default="", compare=False)
    """Why there is no marker, with the name of the file: for people."""
    home_at: str = field(default="", compare=False)
    """Without a marker: the folder in which the home's files are, or should be: for people."""
    has_home: bool = True
    """False: that folder is missing, or the volume is another workspace's."""


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """A program that ended by itself."""

    exit_code: int
    last_lines: str


@dataclass(frozen=True, slots=True)
class ObservedContainer:
    generation: int
    revision: int
    ready: bool
    """Its port answers."""
    ended: ProgramExit | None = None
    """It is no longer running; what is left of it is not yet removed. Not a live container, so not *present*."""
    is_paused: bool = False
    """Processes of it are paused, because the disk is almost full. `ready` is then as it was before."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one look showed of one workspace."""

    volumes: frozenset[ObservedVolume] = frozenset()
    container: ObservedContainer | None = None


NOTHING_SEEN = Observation()


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at a whole provider showed; a workspace that is not named in it has nothing there."""

    seen: Mapping[str, Observation] = field(default_factory=dict)

    def of(self, workspace_id: str) -> Observation:
        return self.seen.get(workspace_id, NOTHING_SEEN)


# ── what the row says ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ArchiveKey:
    """The place of one archive, a function of the row: `{workspace_id}/{op_id}`."""

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
    """The archive the row points at, and which state of the home it holds."""

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
        """Of `healthy`: what the workspace waits for and cannot be reached, since `last_transition_time`."""
        return Outage(self.reason) if self.reason in OUTAGES else None


OUTAGES = frozenset(outage.value for outage in Outage)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was seen, in the words that clients read."""

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

# The reason of `healthy` while nothing is in progress because the disk of the homes has too little free space for it.
DISK_LOW = "DiskLow"
# The reason of `container_ready` while processes of the workspace are paused because the disk is almost full.
PAUSED = "Paused"

# How each condition is called where clients see it.
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
    """A wish that came later clears it (but for DataLost and MarkerUnreadable)."""
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recovery:
    """A request to leave ERROR, stored by the service and carried out by the controller."""

    wish_version: int
    archive: Archive | None = None
    """Go back to this older archive."""
    empty: bool = False
    """Begin with an empty home."""
    accept: bool = False
    """Accept the home that is there without a readable marker."""


@dataclass(frozen=True, slots=True)
class HomeSize:
    """What the home of one generation took on its disk."""

    generation: int
    size_bytes: int
    measured_at: datetime


@dataclass(frozen=True, slots=True)
class Workspace:
    """One row. The service writes the first part, the controller the second, and the database sees to it."""

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
    """Rises whenever another controller takes the row, and goes with every effect: what an older one does is refused."""
    held_by: int | None
    """The life of the controller that wrote last."""
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
    """What this means depends on the stage; at REST: not before this is a program that ended started again."""
    op_id: str | None
    op_attempt: int
    op_epoch: int
    """Under which this attempt was opened; whoever takes the row adopts it before it acts."""
    op_takeovers: int
    op_started_at: datetime | None
    deadline_at: datetime | None
    progress_done: int
    progress_total: int | None
    generation: int
    revision: int
    home_seen: bool
    """The marker of this generation was seen: from then on the volume is expected to be there."""
    archive: Archive | None
    error: WorkspaceError | None
    error_count: int
    quick_ends: int

    shares: Mapping[str, str] = field(default_factory=dict, hash=False)
    """With whom it is shared: user name to `use` or `manage` (`torpor.domain.access`). Written by the service."""
    archive_home_bytes: int | None = None
    """Of the home in its archive, unpacked; None: not read."""
    home_size: HomeSize | None = None
    """As last measured; None: never."""
    sleeps_at: datetime | None = None
    """When it is stopped unless it is used again; None while that is not near (`domain.warning`). Written by the service."""

    before_sleep: tuple[str, ...] | None = None
    """The command that runs before an automatic stop; None: the template's, empty: none. Written by the service."""

    @property
    def is_archived(self) -> bool:
        """The archive holds exactly the home as it is now."""
        return (
            self.archive is not None and self.archive.generation == self.generation and self.archive.revision == self.revision
        )

    @property
    def expects_volume(self) -> bool:
        return self.home_seen and not self.is_archived

    @property
    def attempts(self) -> int:
        """At the operation under way, the present one included; a new op_id counts its own from 1."""
        return max(self.op_attempt, self.error_count)

    @property
    def outage(self) -> WorkspaceCondition | None:
        """What it waits for and cannot be reached, why, and since when."""
        healthy = self.conditions.healthy
        return healthy if healthy.outage is not None else None

    @property
    def space_awaited(self) -> str | None:
        """Why it is neither started nor restored: the disk of the homes has too little free space."""
        healthy = self.conditions.healthy
        return healthy.message if healthy.status and healthy.reason == DISK_LOW else None

    @property
    def is_paused(self) -> bool:
        """It runs, and processes of it are paused, because the disk is almost full."""
        return self.conditions.container_ready.reason == PAUSED

    @property
    def disk_use(self) -> HomeSize | None:
        """Of the home that is there now; None: not known yet, or there is none."""
        size = self.home_size
        return size if size is not None and self.volume_present and size.generation == self.generation else None

    @property
    def disk_bytes(self) -> int | None:
        """What it takes on the disk of the homes; None: not known yet."""
        if not self.volume_present and self.observed_at is not None:
            return 0
        return self.disk_use.size_bytes if self.disk_use is not None else None

    @property
    def restore_bytes(self) -> int:
        """What its home takes once it is restored, as far as that is known."""
        return self.archive_home_bytes or 0

    @property
    def progress(self) -> int | None:
        """In percent, while something is under way that can tell."""
        return min(100, self.progress_done * 100 // self.progress_total) if self.progress_total else None

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


# ── what the judge found ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Verdict:
    phase: Phase
    conditions: Conditions
    is_certain: bool
    """False: something expected is gone for the first time. Nothing is begun before a second look agrees."""
    error: WorkspaceError | None
    """The error that stands, old or new."""
    container_present: bool
    container_ready: bool
    volume_present: bool
    """Any volume, of any generation, whole or not."""
    volume_ready: bool
    home_present: bool
    """The volume of the row's generation, whole or not."""
    half_made: frozenset[int] = frozenset()
    """Generations without their marker: never started, never archived."""
    ended: ProgramExit | None = None
    """The program of the row's revision ended by itself."""


# ── what an effect reported ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class EffectDone:
    """The actuator returned. That has finished nothing; the observation will."""

    written_bytes: int | None = field(default=None, compare=False)
    """To the home, where it was filled."""


@dataclass(frozen=True, slots=True)
class ProvenArchive:
    """An archive was written, read back and compared."""

    archive: Archive
    size_bytes: int
    home_bytes: int


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """The actuator failed."""

    reason: Reason
    message: str
    context: Mapping[str, Any] = field(default_factory=dict)
    wants_new_op_id: bool = False


@dataclass(frozen=True, slots=True)
class ProviderOutage:
    """The provider as a whole cannot be reached: that counts against nobody, and pauses deadlines."""

    outage: Outage
    message: str


@dataclass(frozen=True, slots=True)
class StaleEpoch:
    """The provider has seen a later epoch for this workspace, and refused."""

    seen: int


Report = EffectDone | ProvenArchive | EffectFailed | ProviderOutage | StaleEpoch


# ── what is to be written ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AttemptOpened:
    op_id: str
    operation: Operation
    attempt: int
    generation: int


@dataclass(frozen=True, slots=True)
class AttemptClosed:
    op_id: str
    attempt: int
    outcome: Outcome
    reason: Reason | None = None
    message: str = ""
    done_bytes: int = 0
    """Written: to the archive, once it is proven, or to the home. Other progress is not counted in bytes."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one step writes, all or nothing, if the row still has `before.version` and the writer still lives."""

    before: Workspace
    after: Workspace
    opened: AttemptOpened | None = None
    closed: AttemptClosed | None = None
    proved: ProvenArchive | None = None
    if_wish_unchanged: bool = False
