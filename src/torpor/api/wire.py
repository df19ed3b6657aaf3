"""The JSON of workspaces, archives, events and the audit log: models, and conversions from records."""

import base64
import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    ValidationError,
    WithJsonSchema,
    field_validator,
)

from torpor.api.action_words import command_of, meaning_of
from torpor.domain.access import Share
from torpor.domain.before_sleep import LONGEST_BEFORE_SLEEP_BYTES, MOST_BEFORE_SLEEP_WORDS
from torpor.domain.errors import Refused
from torpor.domain.explain import Explanation
from torpor.domain.hostnames import Hosts
from torpor.domain.idle import WorkLease
from torpor.domain.image_reference import LONGEST_REFERENCE
from torpor.domain.missing_homes_latch import Latch
from torpor.domain.names import LONGEST_NAME, NAME_RULE
from torpor.domain.pack_retention import PACK_WORDS, PackDecision
from torpor.domain.records import CONDITION_NAMES, Workspace, WorkspaceCondition, WorkspaceError
from torpor.domain.retention import WORDS, Action, ArchiveDecision, GcWorkspace
from torpor.domain.sizes import NO_SIZE, WorkspaceSize
from torpor.domain.states import Stage
from torpor.domain.workspace_secrets import SecretEntry
from torpor.service.time_machine import ArchiveListing
from torpor.service.use import LONGEST_HOLD_S, LONGEST_REASON
from torpor.service.wishes import LONGEST_TTL_S, RunningQuota
from torpor.store.controller_members import Member
from torpor.store.service_store import Attempt, AuditRecord, NewBeforeSleep, StoredArchive
from torpor.templates.catalogue import DEFAULT, DEFAULT_WITH_IMAGE, Catalogue


def _storable(text: str) -> str:
    if "\0" in text or (not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text)):
        raise ValueError("must not contain NUL or half of a surrogate pair")
    return text


Text = Annotated[str, AfterValidator(_storable)]

MOST_WORDS = 1000
"""In a command."""
LONGEST_PROGRAM = 200
"""The longest program name in the audit log."""


def number(value: object) -> object:
    """Accept numbers as JSON defines them: `true` and "1" are not numbers, and 1.0 is an integer."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("it must be a number")  # noqa: TRY004 - pydantic asks for a ValueError
    return value


# For request bodies. Pydantic alone would also accept `true` as a number and "yes" as a boolean.
Integer = Annotated[int, BeforeValidator(number)]
Number = Annotated[float, BeforeValidator(number)]
Boolean = StrictBool


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Condition(Wire):
    status: Literal["True", "False"]
    reason: str
    message: str
    last_transition_time: datetime | None


class ErrorInfo(Wire):
    reason: str
    message: str
    is_terminal: bool
    operation: str
    error_count: int
    context: dict[str, Any]
    occurred_at: datetime
    wish_version: int


class SizeOut(Wire):
    """null: not stated; then the template's counts, or the installation's default."""

    cpu: float | None = Field(None, description="Cores.")
    memory_mb: int | None = Field(None, description="MiB of memory.")
    disk_mb: int | None = Field(None, description="MiB of disk space.")


class RestoreOut(Wire):
    archive_key: str
    asked_at: datetime = Field(description="When the restore was requested.")


class ProgressOut(Wire):
    bytes: int = Field(description="Of the home, archived or restored so far.")
    bytes_total: int | None = Field(description="Null if it is not known.")
    files: int = Field(description="Files and hard links, archived or restored so far.")
    files_total: int | None = Field(description="Null if it is not known.")


class WorkspaceOut(Wire):
    id: str
    name: str
    owner: str
    template: str
    command: list[str]
    desired_state: str
    wish_version: int
    phase: str
    previous_phase: str | None = Field(description="The phase from which it last entered ERROR.")
    operation: str
    op_id: str | None
    progress: int | None = Field(description="0 to 100 while an operation is in progress that reports it.")
    progress_detail: ProgressOut | None = Field(
        description="The same in bytes and files, while a home is archived or restored."
    )
    generation: int
    revision: int
    conditions: dict[str, Condition]
    observed_status: str
    health_status: str
    error: ErrorInfo | None
    archive_key: str | None
    restore: RestoreOut | None = Field(
        description="The requested restore of an older archive, until that archive replaces the home; null: none."
    )
    forked_from: str | None = Field(description="The archive that its first home is a copy of; null: it is no fork.")
    disk_bytes: int | None = Field(description="The disk space that the home uses; null: not known yet.")
    disk_measured_at: datetime | None = Field(description="When the disk space was measured; null: there is no home on disk.")
    standby_ttl: int
    archive_ttl: int
    last_access_at: datetime
    sleeps_at: datetime | None = Field(
        description="When the workspace will be stopped automatically unless it is used. "
        "Null until five minutes before that, or a third of `standby_ttl`."
    )
    phase_changed_at: datetime
    observed_at: datetime | None
    created_at: datetime
    deleted_at: datetime | None
    purge: bool = Field(description="The workspace is deleted for good and cannot be undeleted.")
    before_sleep: list[str] | None = Field(
        description="The command that runs before an automatic stop: null is the template's, an empty list is none."
    )
    runs_before_sleep: bool = Field(description="The `before_sleep` command runs or is about to run; the program still runs.")
    size: SizeOut = Field(description="The size that it was created with.")
    image: str | None = Field(description="The image that it was created with; null: its template's, or the runtime's default.")
    url: str
    shares: dict[str, Literal["use", "manage"]] = Field(description="The users with whom it is shared, and the role of each.")


class CreatedWorkspace(WorkspaceOut):
    warnings: list[str] = Field(description="What the owner should know about this workspace.")


class WorkspacePage(Wire):
    items: list[WorkspaceOut]
    next_cursor: str | None


class EventOut(Wire):
    id: int = Field(description="Send it as `Last-Event-ID` to get all later events.")
    event: Literal["state_changed", "error", "sleeping_soon", "heartbeat", "reset"]
    at: datetime | None
    workspace: WorkspaceOut | None


# The schema only describes these limits. The rules refuse other values with a code of their own.
Name = Annotated[Text, WithJsonSchema({"type": "string", "maxLength": LONGEST_NAME, "description": NAME_RULE})]
Ttl = Annotated[Integer, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": LONGEST_TTL_S, "description": "Seconds."})]


BeforeSleep = Annotated[
    list[Text],
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": MOST_BEFORE_SLEEP_WORDS,
            "description": "A program and its arguments that run before an automatic stop; an empty list: none. "
            f"At most {LONGEST_BEFORE_SLEEP_BYTES} bytes in total.",
        }
    ),
]


class CreateSize(Wire):
    """Fields that are left out have the template's value, or the installation's default."""

    cpu: Number | None = Field(None, description="Cores, such as 2 or 0.5.")
    memory_mb: Integer | None = Field(None, description="MiB of memory.")
    disk_mb: Integer | None = Field(None, description="MiB of disk space.")


class EnvironmentOut(Wire):
    environment: dict[str, str] = Field(description="Name to value.")


class CreateWorkspace(Wire):
    name: Name
    template: Text | None = Field(
        None, description=f"null: `{DEFAULT}`, or `{DEFAULT_WITH_IMAGE}` if the workspace has an image."
    )
    command: list[Text] = Field(default_factory=list, max_length=1000)
    desired_state: Literal["RUNNING", "STANDBY", "ARCHIVED"] = "RUNNING"
    standby_ttl: Ttl | None = None
    archive_ttl: Ttl | None = None
    before_sleep: BeforeSleep | None = Field(None, description="null: the template's default.")
    environment: dict[Text, Text] = Field(
        default_factory=dict, description="Variables for the program, commands and shells: name to value."
    )
    size: CreateSize | None = Field(None, description="null: the template's, or the installation's default.")
    image: Text | None = Field(
        None,
        max_length=LONGEST_REFERENCE,
        description="The reference of an image, such as `python:3.12`, on a runtime that runs images. null: the template's.",
    )


class ChangeWorkspace(Wire):
    """Fields that are left out keep their values."""

    name: Name | None = None
    desired_state: Literal["RUNNING", "STANDBY", "ARCHIVED"] | None = None
    standby_ttl: Ttl | None = None
    archive_ttl: Ttl | None = None
    before_sleep: BeforeSleep | None = Field(None, description="null: the template's default. Left out: no change.")
    environment: dict[Text, Text | None] = Field(
        default_factory=dict,
        description="Variables to set, or with null to remove; others keep their values. They apply at the next start.",
    )


class RecoverWorkspace(Wire):
    archive_key: Text | None = None
    empty: Boolean = False
    accept: Boolean = False


class RestoreWorkspace(Wire):
    archive_key: Text


class ForkWorkspace(Wire):
    name: Name
    archive_key: Text | None = Field(None, description="null: the archive that the home was last archived to or restored from.")
    desired_state: Literal["RUNNING", "STANDBY", "ARCHIVED"] = "RUNNING"


class OperationOut(Wire):
    op_id: str
    kind: str
    attempt: int
    generation: int
    started_at: datetime
    ended_at: datetime | None
    seconds: float | None
    outcome: str | None
    reason: str | None
    message: str
    done_bytes: int


class OperationList(Wire):
    items: list[OperationOut]
    next_cursor: str | None


class ArchiveOut(Wire):
    key: str
    generation: int
    revision: int
    manifest_root: str
    size_bytes: int
    home_bytes: int
    made_at: datetime = Field(description="The home had this state then.")
    proven_at: datetime
    format: int = Field(description="1: one object. 2: packs that archives of the same workspace share.")
    new_bytes: int = Field(description="What was written to the archive store for it; the rest is shared with others.")
    is_damaged: bool = Field(description="A part of it could not be read back, or was different. It cannot be restored.")
    is_current: bool = Field(description="The home was last archived to it or restored from it.")


class ArchiveList(Wire):
    items: list[ArchiveOut]
    has_changes: bool = Field(description="The home on disk may have changes that no archive has.")


class WaitingOut(Wire):
    what: str
    until: datetime | None


class WayOutOut(Wire):
    command: str
    means: str


class StayAwakeOut(Wire):
    why: str
    words: str
    until: datetime | None


class AskedOut(Wire):
    origin: str = Field(description="PERSON (a user's request), IDLE (the automatic stop) or WAKE (the automatic start).")
    at: datetime
    words: str


class ExplanationOut(Wire):
    name: str
    summary: str
    lines: list[str]
    wish: str
    phase: str
    operation: str
    waiting_for: WaitingOut | None
    next: str | None
    why: str | None
    ways_out: list[WayOutOut]
    awake_because: list[StayAwakeOut] = Field(description="What keeps the workspace from its automatic stop or archiving.")
    stopped_because: AskedOut | None = Field(description="The request that stopped it; null if its requested state is RUNNING.")


class HoldWorkspace(Wire):
    reason: Annotated[
        Text, WithJsonSchema({"type": "string", "minLength": 1, "description": f"At most {LONGEST_REASON} characters."})
    ]
    seconds: Annotated[
        Number,
        WithJsonSchema(
            {"type": "number", "minimum": 1, "maximum": LONGEST_HOLD_S, "description": "How long to keep it awake."}
        ),
    ]


class WorkLeaseOut(Wire):
    id: str
    reason: str
    created_by: str
    created_at: datetime
    expires_at: datetime


class WorkLeaseList(Wire):
    items: list[WorkLeaseOut]


class ExecCommand(Wire):
    command: list[Text] = Field(min_length=1, max_length=MOST_WORDS)


class Exec(ExecCommand):
    stdin: str = Field("", description="Base64.", json_schema_extra={"contentEncoding": "base64"})


class ExecOut(Wire):
    exit_code: int
    stdout: str = Field(description="Base64.")
    stderr: str = Field(description="Base64.")


class TemplateOut(Wire):
    name: str
    title: str
    description: str
    takes_command: bool
    cpu_weight: int = Field(description="When the CPU is busy, workspaces share it in proportion to their weights.")
    warnings: list[str] = Field(description="What to know before you choose this template in this installation.")
    origin: Literal["shipped", "added"] = Field(description="Torpor brings it, or the administrator added it.")
    command: list[str] = Field(description="The program and its arguments; empty: the workspace brings its own.")
    environment: dict[str, str] = Field(description="Variables for the program, and for everything else in the workspace.")
    packages: list[str] = Field(description="PyPI packages that are installed on first use.")
    npm: list[str] = Field(description="npm packages that are installed on first use.")
    cpu_keeps_awake: bool = Field(description="Whether programs that use the CPU keep the workspace awake.")
    before_sleep: list[str] = Field(description="The command that runs before an automatic stop; empty: none.")
    size: SizeOut = Field(description="The size of a workspace that is created without one.")
    image: str = Field(description="The image that it runs in, on a runtime that runs images; empty: the runtime's default.")
    image_command: list[str] = Field(description="The program on a runtime that runs images; empty: the same as `command`.")
    takes_image: bool = Field(description="Whether a workspace of this template must name an image.")
    needs_command: bool = Field(description="Whether a workspace of this template must bring a command.")


class BrokenTemplateOut(Wire):
    name: str = Field(description="The name of the file without its suffix; empty: the whole folder cannot be read.")
    faults: list[str] = Field(description="Each names the file, the field and what to do.")


class TemplateList(Wire):
    items: list[TemplateOut]
    broken: list[BrokenTemplateOut] = Field(description="Files of the administrator that cannot be used.")


class MissingOut(Wire):
    what: str
    why: str
    remedy: str = Field(description="The command or change that provides the protection; empty: there is none.")


class ConfinementOut(Wire):
    """The confinement of one live controller."""

    node_id: str
    missing: list[MissingOut] = Field(description="The protections between users that the controller's machine lacks.")
    is_accepted: bool = Field(description="The operator accepts several users without confinement (setting `unconfined`).")
    summary: str = Field(description="What that means for users; empty: no protection is missing.")


class ConfinementList(Wire):
    items: list[ConfinementOut]


class LatchOut(Wire):
    provider: str
    since: datetime
    expected: int
    missing: int
    released_at: datetime | None


class LatchList(Wire):
    items: list[LatchOut]


class GcItem(Wire):
    """An archive that no workspace needs."""

    key: str
    workspace: str
    workspace_id: str
    size_bytes: int | None = Field(
        description="What its removal frees. null: its space is in packs, which are removed later, or it was never verified."
    )
    why: str
    means: str
    action: Action = Field(description="What a collection would do with the archive now.")
    orphan_since: datetime | None
    goes_at: datetime | None = Field(
        description="The archive is not removed before this time; null: a program that reads it must end first."
    )


class GcPackItem(Wire):
    """A pack that no archive needs."""

    name: str
    workspace: str
    workspace_id: str
    size_bytes: int
    why: str
    means: str
    action: Action = Field(description="What a collection would do with the pack now.")
    orphan_since: datetime | None
    goes_at: datetime | None = Field(
        description="The pack is not removed before this time; null: an operation of its workspace must end first."
    )


class GcPackDifferences(Wire):
    """The differences between the packs in the database and those in the store."""

    # Part of a report that was stored by a leader of an older or newer version.
    model_config = ConfigDict(extra="ignore")

    unknown: list[str] = Field([], description="Packs in the store of unknown origin. They are never removed.")
    unknown_count: int = 0
    left_over: list[str] = Field([], description="Packs in the store that ended operations left behind.")
    left_over_count: int = 0
    missing: list[str] = Field([], description="Packs in the database that are not in the store, or have another size there.")
    missing_count: int = 0


class GcPackReport(GcPackDifferences):
    """What a collection did with packs, the parts of archives of format 2."""

    kept: int | None = None
    orphans: int | None = Field(None, description="Packs that are marked and still in their grace period.")
    damaged: int | None = Field(None, description="Packs whose last proof failed.")
    removed: int = 0
    unreadable_roots: dict[str, str] = Field(
        {},
        description="Archives whose roots in the store cannot be read or differ from the database, and why. No archive or pack "
        "of their workspaces is removed.",
    )


class GcPackPreview(GcPackDifferences):
    """What a collection would do with packs now."""

    kept: int
    kept_reasons: dict[str, int] = Field(description="How many packs are kept, by reason.")
    would_mark: int
    waiting: int
    would_remove: int
    would_free_bytes: int
    items: list[GcPackItem]
    left_out: int = Field(description="How many more packs there are than `items` lists.")


class GcReport(Wire):
    # The report was stored by a leader of an older or newer version.
    model_config = ConfigDict(extra="ignore")

    started_at: datetime
    ended_at: datetime
    skipped: str | None = Field(None, description="Why the collection did not complete.")
    kept: int | None = None
    orphans: int | None = Field(None, description="Archives that are marked and still in their grace period.")
    removed: int = 0
    freed_bytes: int = 0
    failed: dict[str, str] = Field({}, description="Archives that failed, and why; the next collection tries again.")
    unknown: list[str] = Field([], description="Objects in the store of unknown origin. They are never removed.")
    unknown_count: int = 0
    left_over: list[str] = Field(
        [], description="Archives in the store that ended operations left behind. They are marked now."
    )
    left_over_count: int = 0
    missing: list[str] = Field([], description="Archives in the database that are not in the store.")
    missing_count: int = 0
    packs: GcPackReport = Field(
        default_factory=lambda: GcPackReport.model_validate({}), description="What it did with packs of archives of format 2."
    )


class GcStanding(Wire):
    requested_at: datetime | None
    tried_at: datetime | None
    ran_at: datetime | None = Field(description="When the last complete collection began.")
    report: GcReport | None = Field(description="The result of that collection.")
    skipped: GcReport | None = Field(description="The result of the last incomplete collection since then.")


class GcRequested(Wire):
    requested_at: datetime


UNQUESTIONED = "unquestioned"


class GcPreview(Wire):
    would_skip: str | None = Field(description="Why a collection would change no archive now; null: it would.")
    kept: dict[str, int] = Field(
        description="How many archives are kept, by reason. `unquestioned`: their workspaces have no more than are always kept."
    )
    would_mark: int
    waiting: int
    would_remove: int
    would_free_bytes: int
    items: list[GcItem]
    left_out: int = Field(description="How many more archives there are than `items` lists.")
    unknown: list[str]
    unknown_count: int
    left_over: list[str] = Field(
        description="Archives in the store that ended operations left behind. They would be marked, too."
    )
    left_over_count: int
    missing: list[str]
    missing_count: int
    packs: GcPackPreview = Field(description="What it would do with packs of archives of format 2.")
    last: GcStanding


class ShareWorkspace(Wire):
    role: Share


class ShareOut(Wire):
    username: str
    role: Share


class ShareList(Wire):
    items: list[ShareOut]


class SetSecret(Wire):
    value: SecretStr = Field(description="The value. No call returns it.", json_schema_extra={"writeOnly": True})

    @field_validator("value", mode="after")
    @classmethod
    def _is_storable(cls, value: SecretStr) -> SecretStr:
        _storable(value.get_secret_value())
        return value


class SecretOut(Wire):
    name: str = Field(description="The name of the secret, and of the variable.")
    set_at: datetime = Field(description="When the value was set.")


class SecretList(Wire):
    items: list[SecretOut]


class AuditOut(Wire):
    id: int
    at: datetime
    username: str = Field(description="The user; for a failed sign-in, the name that was entered.")
    how: str = Field(description="SESSION, TOKEN, DOOR (a workspace's own host), NOBODY (not signed in) or SYSTEM.")
    token_label: str
    came_from: str = Field(description="The address, if it is known and you may see it.")
    action: str
    workspace_id: str | None
    workspace: str = Field(description="The name that the workspace had.")
    outcome: str = Field(description="ok, or the code of the error.")
    detail: dict[str, Any]


class AuditPage(Wire):
    items: list[AuditOut]
    next_cursor: str | None


class LimitsOut(Wire):
    max_running_per_user: int = Field(description="How many of your workspaces may run at once.")
    default_max_running_per_user: int = Field(description="The default for users without a limit of their own.")
    max_running_global: int
    running_mine: int
    running: list[str] = Field(description="The names of your workspaces that run or are about to start.")


def _progress_out(workspace: Workspace) -> ProgressOut | None:
    files = workspace.progress_files
    if files is None:
        return None
    return ProgressOut(
        bytes=workspace.progress_done, bytes_total=workspace.progress_total, files=files.done, files_total=files.total
    )


def workspace_out(workspace: Workspace, *, hosts: Hosts) -> WorkspaceOut:
    return WorkspaceOut(
        id=workspace.id,
        name=workspace.name,
        owner=workspace.owner,
        template=workspace.template,
        command=list(workspace.command),
        desired_state=workspace.desired_state,
        wish_version=workspace.wish_version,
        phase=workspace.phase,
        previous_phase=workspace.previous_phase,
        operation=workspace.operation,
        op_id=workspace.op_id,
        progress=workspace.progress,
        progress_detail=_progress_out(workspace),
        generation=workspace.generation,
        revision=workspace.revision,
        conditions={name: condition_out(getattr(workspace.conditions, field)) for field, name in CONDITION_NAMES.items()},
        observed_status=workspace.observed_status,
        health_status=workspace.health_status,
        error=error_out(workspace.error) if workspace.error else None,
        archive_key=str(workspace.archive.key) if workspace.archive else None,
        restore=_restore_out(workspace),
        forked_from=str(workspace.fork_source.key) if workspace.fork_source else None,
        disk_bytes=workspace.disk_bytes,
        disk_measured_at=workspace.disk_use.measured_at if workspace.disk_use else None,
        standby_ttl=workspace.standby_ttl_s,
        archive_ttl=workspace.archive_ttl_s,
        last_access_at=workspace.last_access_at,
        sleeps_at=workspace.sleeps_at,
        phase_changed_at=workspace.phase_changed_at,
        observed_at=workspace.observed_at,
        created_at=workspace.created_at,
        deleted_at=workspace.deleted_at,
        purge=workspace.purge,
        before_sleep=None if workspace.before_sleep is None else list(workspace.before_sleep),
        runs_before_sleep=workspace.stage is Stage.BEFORE_SLEEP,
        size=size_out(workspace.size),
        image=workspace.image,
        url=hosts.url(workspace.name),
        shares={username: Share(role).value for username, role in workspace.shares.items()},
    )


def _restore_out(workspace: Workspace) -> RestoreOut | None:
    restore = workspace.restore
    return RestoreOut(archive_key=str(restore.archive.key), asked_at=restore.asked_at) if restore is not None else None


def size_out(size: WorkspaceSize) -> SizeOut:
    return SizeOut(cpu=size.cpu, memory_mb=size.memory_mb, disk_mb=size.disk_mb)


def new_size(body: CreateWorkspace) -> WorkspaceSize:
    size = body.size
    return NO_SIZE if size is None else WorkspaceSize(size.cpu, size.memory_mb, size.disk_mb)


def condition_out(condition: WorkspaceCondition) -> Condition:
    return Condition(
        status="True" if condition.status else "False",
        reason=condition.reason,
        message=condition.message,
        last_transition_time=condition.last_transition_time,
    )


def error_out(error: WorkspaceError) -> ErrorInfo:
    return ErrorInfo(
        reason=error.reason,
        message=error.message,
        is_terminal=error.is_terminal,
        operation=error.operation,
        error_count=error.error_count,
        context=dict(error.context),
        occurred_at=error.occurred_at,
        wish_version=error.wish_version,
    )


def created_workspace(workspace: Workspace, warnings: Sequence[str], *, hosts: Hosts) -> CreatedWorkspace:
    return CreatedWorkspace(**workspace_out(workspace, hosts=hosts).model_dump(), warnings=list(warnings))


def workspace_json(workspace: Workspace, *, hosts: Hosts) -> dict[str, Any]:
    return workspace_out(workspace, hosts=hosts).model_dump(mode="json")


def new_before_sleep(body: ChangeWorkspace) -> NewBeforeSleep | None:
    """null is a value here, so it is distinguished from a field that is left out."""
    if "before_sleep" not in body.model_fields_set:
        return None
    return NewBeforeSleep(None if body.before_sleep is None else tuple(body.before_sleep))


def share_list(workspace: Workspace) -> ShareList:
    shares = sorted(workspace.shares.items())
    return ShareList(items=[ShareOut(username=username, role=Share(role)) for username, role in shares])


def secret_out(entry: SecretEntry) -> SecretOut:
    return SecretOut(name=entry.name, set_at=entry.set_at)


def audit_out(line: AuditRecord) -> AuditOut:
    entry = line.entry
    return AuditOut(
        id=line.id,
        at=line.at,
        username=entry.username,
        how=entry.how,
        token_label=entry.token_label,
        came_from=entry.came_from,
        action=entry.action,
        workspace_id=entry.workspace_id,
        workspace=entry.workspace,
        outcome=entry.outcome,
        detail=dict(entry.detail),
    )


def limits_out(room: RunningQuota) -> LimitsOut:
    return LimitsOut(
        max_running_per_user=room.per_user,
        default_max_running_per_user=room.default_per_user,
        max_running_global=room.overall,
        running_mine=len(room.running),
        running=list(room.running),
    )


def operation_out(attempt: Attempt) -> OperationOut:
    seconds = (attempt.ended_at - attempt.started_at).total_seconds() if attempt.ended_at else None
    return OperationOut(
        op_id=attempt.op_id,
        kind=attempt.kind,
        attempt=attempt.attempt,
        generation=attempt.generation,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        seconds=seconds,
        outcome=attempt.outcome,
        reason=attempt.reason,
        message=attempt.message,
        done_bytes=attempt.done_bytes,
    )


def archive_list(listing: ArchiveListing) -> ArchiveList:
    current = listing.workspace.archive
    return ArchiveList(
        items=[archive_out(one, is_current=one.archive == current) for one in listing.items],
        has_changes=listing.workspace.may_have_changes,
    )


def archive_out(stored: StoredArchive, *, is_current: bool) -> ArchiveOut:
    return ArchiveOut(
        key=str(stored.archive.key),
        generation=stored.archive.generation,
        revision=stored.archive.revision,
        manifest_root=stored.archive.manifest_root,
        size_bytes=stored.size_bytes,
        home_bytes=stored.home_bytes,
        made_at=stored.made_at,
        proven_at=stored.proven_at,
        format=stored.format,
        new_bytes=stored.size_bytes if stored.new_bytes is None else stored.new_bytes,
        is_damaged=stored.is_damaged,
        is_current=is_current,
    )


def explanation_out(workspace: Workspace, explained: Explanation) -> ExplanationOut:
    waiting, stopped = explained.waiting_for, explained.stopped
    return ExplanationOut(
        name=workspace.name,
        summary=explained.summary,
        lines=list(explained.lines),
        wish=workspace.desired_state,
        phase=workspace.phase,
        operation=workspace.operation,
        waiting_for=WaitingOut(what=waiting.what, until=waiting.until) if waiting else None,
        next=explained.next_step,
        why=explained.why,
        ways_out=[WayOutOut(command=command_of(one, workspace.name), means=meaning_of(one)) for one in explained.actions],
        awake_because=[StayAwakeOut(why=stay.why, words=stay.words, until=stay.until) for stay in explained.awake],
        stopped_because=AskedOut(origin=stopped.origin, at=stopped.at, words=stopped.words) if stopped else None,
    )


def work_lease_out(lease: WorkLease) -> WorkLeaseOut:
    return WorkLeaseOut(
        id=lease.id,
        reason=lease.reason,
        created_by=lease.created_by,
        created_at=lease.created_at,
        expires_at=lease.expires_at,
    )


def confinement_out(member: Member) -> ConfinementOut:
    told = member.confinement
    missing = [MissingOut(what=one.what, why=one.why, remedy=one.remedy) for one in told.missing]
    return ConfinementOut(node_id=member.node_id, missing=missing, is_accepted=told.is_accepted, summary=told.summary)


def template_list(catalogue: Catalogue, warnings: Mapping[str, Sequence[str]]) -> TemplateList:
    items = [
        TemplateOut(
            name=one.name,
            title=one.title,
            description=one.description,
            takes_command=one.takes_command,
            cpu_weight=one.cpu_weight,
            warnings=list(warnings.get(one.name, ())),
            origin="added" if one.name in catalogue.added else "shipped",
            command=list(one.command),
            environment=dict(one.environment),
            packages=list(one.packages),
            npm=list(one.npm),
            cpu_keeps_awake=one.cpu_keeps_awake,
            before_sleep=list(one.before_sleep),
            size=size_out(one.size),
            image=one.image,
            image_command=list(one.image_command),
            takes_image=one.takes_image,
            needs_command=one.needs_command,
        )
        for one in catalogue.available.values()
    ]
    broken = [BrokenTemplateOut(name=one.name, faults=list(one.faults)) for one in catalogue.broken]
    return TemplateList(items=items, broken=broken)


def latch_out(latch: Latch) -> LatchOut:
    return LatchOut(
        provider=latch.provider,
        since=latch.since,
        expected=latch.expected,
        missing=latch.missing,
        released_at=latch.released_at,
    )


def gc_item(holder: GcWorkspace, decision: ArchiveDecision) -> GcItem:
    return GcItem(
        key=decision.archive.key,
        workspace=holder.name,
        workspace_id=holder.id,
        size_bytes=decision.archive.size_bytes,
        why=decision.why,
        means=WORDS[decision.why],
        action=decision.action,
        orphan_since=decision.archive.orphan_since,
        goes_at=decision.goes_at,
    )


def gc_pack_item(holder: GcWorkspace, decision: PackDecision) -> GcPackItem:
    return GcPackItem(
        name=decision.pack.name,
        workspace=holder.name,
        workspace_id=holder.id,
        size_bytes=decision.pack.size_bytes,
        why=decision.why,
        means=PACK_WORDS[decision.why],
        action=decision.action,
        orphan_since=decision.pack.orphan_since,
        goes_at=decision.goes_at,
    )


def gc_report(stored: Mapping[str, Any] | None) -> GcReport | None:
    """None also for a report that cannot be read: an old report must not fail the call."""
    try:
        return None if stored is None else GcReport.model_validate(stored)
    except ValidationError:
        return None


def to_json_value(value: object) -> object:
    """A datetime as text, for JSON that is not written by a model; other values unchanged."""
    return value.isoformat() if isinstance(value, datetime) else value


# Much longer than any cursor of this API.
LONGEST_CURSOR = 256


def to_cursor(after: Sequence[object] | None) -> str | None:
    """Where the next page begins, opaque to clients."""
    if after is None:
        return None
    return base64.urlsafe_b64encode(json.dumps([to_json_value(one) for one in after]).encode()).decode()


def workspaces_after(cursor: str | None) -> tuple[datetime, str] | None:
    if cursor is None:
        return None
    with _parsed(cursor) as (at, workspace_id):
        return _instant(at), str(uuid.UUID(workspace_id))


def operations_after(cursor: str | None) -> tuple[datetime, str, int] | None:
    if cursor is None:
        return None
    with _parsed(cursor) as (at, op_id, attempt):
        return _instant(at), str(uuid.UUID(op_id)), _whole(attempt, 2**31)


def lines_before(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    with _parsed(cursor) as (line,):
        return _whole(line, 2**63)


@contextlib.contextmanager
def _parsed(cursor: str) -> Iterator[list[Any]]:
    try:
        if len(cursor) > LONGEST_CURSOR:
            raise ValueError("too long")  # noqa: TRY301 - refused below, like every other fault
        values = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
        if not isinstance(values, list):
            raise TypeError("not a list")  # noqa: TRY301 - refused below, like every other fault
        yield values
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Refused("bad_cursor", f"{cursor[:LONGEST_CURSOR]!r} is not a cursor of this API") from error


def _instant(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("without a time zone")
    # OverflowError for instants outside of the years of UTC.
    return at.astimezone(UTC)


def _whole(number: int, below: int) -> int:
    if not isinstance(number, int) or not 0 <= number < below:
        raise ValueError("not a number in this range")
    return number


def from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Refused("bad_request", f"stdin is not base64: {error}") from error


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
