"""How does a record look in JSON?"""

import base64
import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError, WithJsonSchema

from torpor.domain.access import Share
from torpor.domain.before_sleep import LONGEST_BEFORE_SLEEP_BYTES, MOST_BEFORE_SLEEP_WORDS
from torpor.domain.errors import Refused
from torpor.domain.explain import Explanation
from torpor.domain.hostnames import Hosts
from torpor.domain.idle import WorkLease
from torpor.domain.names import LONGEST_NAME, NAME_RULE
from torpor.domain.records import Workspace
from torpor.domain.retention import WORDS, Action, ArchiveDecision, GcWorkspace
from torpor.domain.states import Stage
from torpor.service.use import LONGEST_HOLD_S, LONGEST_REASON
from torpor.service.wishes import LONGEST_TTL_S, RunningQuota
from torpor.store.controller_members import Member
from torpor.store.rows import from_conditions, from_error
from torpor.store.service_store import Attempt, AuditRecord, NewBeforeSleep, StoredArchive
from torpor.templates.catalogue import DEFAULT, Template


def _storable(text: str) -> str:
    if "\0" in text or (not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text)):
        raise ValueError("must hold neither NUL nor half of a surrogate pair")
    return text


Text = Annotated[str, AfterValidator(_storable)]

MOST_WORDS = 1000
"""Of a command."""
LONGEST_PROGRAM = 200
"""Of a program's name in the audit log."""


def number(value: object) -> object:
    """As JSON has it: neither `true` nor "1" is a number. (1.0 is an integer there.)"""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("it must be a number")  # noqa: TRY004 - pydantic asks for a ValueError
    return value


# In what is asked for. Pydantic would also take `true` and "yes" for numbers and booleans.
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
    progress: int | None = Field(description="0 to 100, while something is under way that can tell.")
    generation: int
    revision: int
    conditions: dict[str, Condition]
    observed_status: str
    health_status: str
    error: ErrorInfo | None
    archive_key: str | None
    disk_bytes: int | None = Field(description="What its home takes on the disk of the homes; null: not known yet.")
    disk_measured_at: datetime | None = Field(description="When that was measured; null where there is no home.")
    standby_ttl: int
    archive_ttl: int
    last_access_at: datetime
    sleeps_at: datetime | None = Field(
        description="When it is stopped unless it is used again. Null until five minutes before, or a third of `standby_ttl`."
    )
    phase_changed_at: datetime
    observed_at: datetime | None
    created_at: datetime
    deleted_at: datetime | None
    purge: bool = Field(description="It was deleted for good: it cannot be brought back.")
    before_sleep: list[str] | None = Field(
        description="The command that runs before an automatic stop: null is the template's, an empty list is none."
    )
    runs_before_sleep: bool = Field(description="That command runs, or is about to; nothing has been stopped yet.")
    url: str
    shares: dict[str, Literal["use", "manage"]] = Field(description="With whom it is shared: user name to what they may.")


class CreatedWorkspace(WorkspaceOut):
    warnings: list[str] = Field(description="What its owner should know of it.")


class WorkspacePage(Wire):
    items: list[WorkspaceOut]
    next_cursor: str | None


class EventOut(Wire):
    id: int = Field(description="As `Last-Event-ID` it asks for everything later.")
    event: Literal["state_changed", "error", "sleeping_soon", "heartbeat", "reset"]
    at: datetime | None
    workspace: WorkspaceOut | None


# Described here and refused where the rule stands, with a code of its own.
Name = Annotated[Text, WithJsonSchema({"type": "string", "maxLength": LONGEST_NAME, "description": NAME_RULE})]
Ttl = Annotated[Integer, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": LONGEST_TTL_S, "description": "Seconds."})]


BeforeSleep = Annotated[
    list[Text],
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": MOST_BEFORE_SLEEP_WORDS,
            "description": "A program and its arguments, which run before an automatic stop; an empty list: none. "
            f"At most {LONGEST_BEFORE_SLEEP_BYTES} bytes in all.",
        }
    ),
]


class CreateWorkspace(Wire):
    name: Name
    template: Text = DEFAULT
    command: list[Text] = Field(default_factory=list, max_length=1000)
    desired_state: Literal["RUNNING", "STANDBY", "ARCHIVED"] = "RUNNING"
    standby_ttl: Ttl | None = None
    archive_ttl: Ttl | None = None
    before_sleep: BeforeSleep | None = Field(None, description="null: the template's.")


class ChangeWorkspace(Wire):
    """What is not named stays as it is."""

    name: Name | None = None
    desired_state: Literal["RUNNING", "STANDBY", "ARCHIVED"] | None = None
    standby_ttl: Ttl | None = None
    archive_ttl: Ttl | None = None
    before_sleep: BeforeSleep | None = Field(None, description="If it is named, null: the template's.")


class RecoverWorkspace(Wire):
    archive_key: Text | None = None
    empty: Boolean = False
    accept: Boolean = False


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
    proven_at: datetime


class ArchiveList(Wire):
    items: list[ArchiveOut]


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
    origin: str = Field(description="PERSON, IDLE (nobody had used it for long enough) or WAKE (somebody knocked).")
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
    awake_because: list[StayAwakeOut] = Field(description="What keeps it from going down a step by itself.")
    stopped_because: AskedOut | None = Field(description="Who asked that it does not run; null where it should.")


class HoldWorkspace(Wire):
    reason: Annotated[
        Text, WithJsonSchema({"type": "string", "minLength": 1, "description": f"In at most {LONGEST_REASON} characters."})
    ]
    seconds: Annotated[
        Number, WithJsonSchema({"type": "number", "minimum": 1, "maximum": LONGEST_HOLD_S, "description": "For how long."})
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
    cpu_weight: int = Field(description="Where the CPU is busy, workspaces get it in the proportion of their weights.")
    warnings: list[str] = Field(description="What to know before choosing it here.")


class TemplateList(Wire):
    items: list[TemplateOut]


class MissingOut(Wire):
    what: str
    why: str
    remedy: str = Field(description="The command or change that provides it; empty when there is none.")


class ConfinementOut(Wire):
    """What one live controller confines."""

    node_id: str
    missing: list[MissingOut] = Field(description="The protections between users that its machine lacks.")
    is_accepted: bool = Field(description="Its operator accepts several users without confinement (setting `unconfined`).")
    summary: str = Field(description="What that means for users; empty when nothing is missing.")


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
    """An archive that nobody needs."""

    key: str
    workspace: str
    workspace_id: str
    size_bytes: int | None = Field(description="null: it was never proven.")
    why: str
    means: str
    action: Action = Field(description="What a collection would do with it now.")
    orphan_since: datetime | None
    goes_at: datetime | None = Field(description="Not before this is it removed, as things stand.")


class GcReport(Wire):
    # It was stored by a leader that may be older or newer.
    model_config = ConfigDict(extra="ignore")

    started_at: datetime
    ended_at: datetime
    skipped: str | None = Field(None, description="Why it did not come to its end.")
    kept: int | None = None
    orphans: int | None = Field(None, description="Marked, and still in their grace period.")
    removed: int = 0
    freed_bytes: int = 0
    failed: dict[str, str] = Field({}, description="What could not be dealt with, and why; the next collection tries again.")
    unknown: list[str] = Field([], description="In the store, and nobody can say where they come from: never removed.")
    unknown_count: int = 0
    left_over: list[str] = Field([], description="In the store, left behind by operations that have ended: marked from now on.")
    left_over_count: int = 0
    missing: list[str] = Field([], description="In the database, not in the store.")
    missing_count: int = 0


class GcStanding(Wire):
    requested_at: datetime | None
    tried_at: datetime | None
    ran_at: datetime | None = Field(description="When the last collection began that came to its end.")
    report: GcReport | None = Field(description="What came of that one.")
    skipped: GcReport | None = Field(description="What came of the last one since then that did not come to its end.")


class GcRequested(Wire):
    requested_at: datetime


UNQUESTIONED = "unquestioned"


class GcPreview(Wire):
    would_skip: str | None = Field(description="Why a collection would touch nothing just now.")
    kept: dict[str, int] = Field(
        description="How many are kept, by reason; `unquestioned`: their workspaces have no more than are kept in any case."
    )
    would_mark: int
    waiting: int
    would_remove: int
    would_free_bytes: int
    items: list[GcItem]
    left_out: int = Field(description="How many more there are than `items` names.")
    unknown: list[str]
    unknown_count: int
    left_over: list[str] = Field(description="In the store, left behind by operations that have ended: would be marked, too.")
    left_over_count: int
    missing: list[str]
    missing_count: int
    last: GcStanding


class ShareWorkspace(Wire):
    role: Share


class ShareOut(Wire):
    username: str
    role: Share


class ShareList(Wire):
    items: list[ShareOut]


class AuditOut(Wire):
    id: int
    at: datetime
    username: str = Field(description="Who; for a sign-in that failed, the name that was tried.")
    how: str = Field(description="SESSION, TOKEN, DOOR (a workspace's own host), NOBODY or SYSTEM.")
    token_label: str
    came_from: str = Field(description="An address, where one is known and the reader may know it.")
    action: str
    workspace_id: str | None
    workspace: str = Field(description="The name it had.")
    outcome: str = Field(description="ok, or the code of the refusal.")
    detail: dict[str, Any]


class AuditPage(Wire):
    items: list[AuditOut]
    next_cursor: str | None


class LimitsOut(Wire):
    max_running_per_user: int = Field(description="How many workspaces of yours may run at once.")
    default_max_running_per_user: int = Field(description="The same of users of whom nothing else is said.")
    max_running_global: int
    running_mine: int
    running: list[str] = Field(description="The names of those of yours that run, or are about to.")


def workspace_out(workspace: Workspace, *, hosts: Hosts) -> WorkspaceOut:
    error = from_error(workspace.error)
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
        generation=workspace.generation,
        revision=workspace.revision,
        conditions={name: Condition(**stored) for name, stored in from_conditions(workspace.conditions).items()},
        observed_status=workspace.observed_status,
        health_status=workspace.health_status,
        error=ErrorInfo(**error) if error else None,
        archive_key=str(workspace.archive.key) if workspace.archive else None,
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
        url=hosts.url(workspace.name),
        shares={username: Share(role).value for username, role in workspace.shares.items()},
    )


def created_workspace(workspace: Workspace, warnings: Sequence[str], *, hosts: Hosts) -> CreatedWorkspace:
    return CreatedWorkspace(**workspace_out(workspace, hosts=hosts).model_dump(), warnings=list(warnings))


def workspace_json(workspace: Workspace, *, hosts: Hosts) -> dict[str, Any]:
    return workspace_out(workspace, hosts=hosts).model_dump(mode="json")


def new_before_sleep(body: ChangeWorkspace) -> NewBeforeSleep | None:
    """Here null is a value: it is told apart from what is not named."""
    if "before_sleep" not in body.model_fields_set:
        return None
    return NewBeforeSleep(None if body.before_sleep is None else tuple(body.before_sleep))


def share_list(workspace: Workspace) -> ShareList:
    shares = sorted(workspace.shares.items())
    return ShareList(items=[ShareOut(username=username, role=Share(role)) for username, role in shares])


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


def archive_out(stored: StoredArchive) -> ArchiveOut:
    return ArchiveOut(
        key=str(stored.archive.key),
        generation=stored.archive.generation,
        revision=stored.archive.revision,
        manifest_root=stored.archive.manifest_root,
        size_bytes=stored.size_bytes,
        home_bytes=stored.home_bytes,
        proven_at=stored.proven_at,
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
        ways_out=[WayOutOut(command=way.command, means=way.means) for way in explained.ways_out],
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


def template_out(template: Template, warnings: Sequence[str] = ()) -> TemplateOut:
    return TemplateOut(
        name=template.name,
        title=template.title,
        description=template.description,
        takes_command=template.takes_command,
        cpu_weight=template.cpu_weight,
        warnings=list(warnings),
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


def gc_report(stored: Mapping[str, Any] | None) -> GcReport | None:
    """None also for what cannot be read: it is about the past."""
    try:
        return None if stored is None else GcReport.model_validate(stored)
    except ValidationError:
        return None


# Far more than any that is given out.
LONGEST_CURSOR = 256


def to_cursor(after: Sequence[object] | None) -> str | None:
    """Where the next page begins, for whoever asked for this one: not theirs to read."""
    if after is None:
        return None
    said = [one.isoformat() if isinstance(one, datetime) else one for one in after]
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode()


def workspaces_after(cursor: str | None) -> tuple[datetime, str] | None:
    if cursor is None:
        return None
    with _given_out(cursor) as (at, workspace_id):
        return _instant(at), str(uuid.UUID(workspace_id))


def operations_after(cursor: str | None) -> tuple[datetime, str, int] | None:
    if cursor is None:
        return None
    with _given_out(cursor) as (at, op_id, attempt):
        return _instant(at), str(uuid.UUID(op_id)), _whole(attempt, 2**31)


def lines_before(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    with _given_out(cursor) as (line,):
        return _whole(line, 2**63)


@contextlib.contextmanager
def _given_out(cursor: str) -> Iterator[list[Any]]:
    try:
        if len(cursor) > LONGEST_CURSOR:
            raise ValueError("too long")  # noqa: TRY301 - told below, like everything else that it may be
        said = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
        if not isinstance(said, list):
            raise TypeError("not a list")  # noqa: TRY301 - told below, like everything else that it may be
        yield said
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Refused("bad_cursor", f"{cursor[:LONGEST_CURSOR]!r} is not a cursor that this API gave out") from error


def _instant(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("not an instant")
    # An instant that UTC has no year for is none that anything happened at.
    return at.astimezone(UTC)


def _whole(said: int, below: int) -> int:
    if not isinstance(said, int) or not 0 <= said < below:
        raise ValueError("not such a number")
    return said


def from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Refused("bad_request", f"stdin is not base64: {error}") from error


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
