"""Test that each visible change is recorded once, numbered in order, and kept as long as the settings say."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from torpor.domain.errors import Deposed
from torpor.domain.events import EventKind
from torpor.domain.states import Outage, Phase
from torpor.store.database import Database, Role
from torpor.store.events import EventFilter, EventStore, Outbox

pytestmark = pytest.mark.anyio

TERM = 7
OPERATION = "operation = 'STARTING', stage = 'CALL', op_id = id, deadline_at = now(), op_started_at = now()"
ERROR = """error_info = '{"reason": "Timeout", "message": "", "is_terminal": true, "operation": "NONE", "error_count": 1,
 "occurred_at": "2026-01-01T00:00:00+00:00", "wish_version": 1, "context": {}}'"""

# A change of each column that readers see, and the kind of its event.
TOLD = {
    "phase": ("phase = 'STANDBY'", "state_changed"),
    "operation": (OPERATION, "state_changed"),
    "container_present": ("container_present = true", "state_changed"),
    "volume_present": ("volume_present = true", "state_changed"),
    "location": ('location = \'{"host": "10.0.0.2"}\'', "state_changed"),
    "error_info": (ERROR, "error"),
    "desired_state": ("desired_state = 'ARCHIVED'", "state_changed"),
    "wish_version": ("wish_version = wish_version + 1", "state_changed"),
    "name": ("name = 'other'", "state_changed"),
    "deleted_at": ("desired_state = 'DELETED', deleted_at = now()", "state_changed"),
    "purge": ("desired_state = 'DELETED', deleted_at = now(), purge = true", "state_changed"),
    "progress_total": ("progress_total = 100", "state_changed"),
    "progress_files_total": ("progress_files = 0, progress_files_total = 100", "state_changed"),
    "shares": ("""shares = '{"bob": "use"}'""", "state_changed"),
    "restored_version": ("restored_version = 7", "state_changed"),
    "sleeps_at": (
        "sleeps_at = now(), phase = 'RUNNING', desired_state = 'RUNNING', last_access_at = '-infinity',"
        " phase_changed_at = '-infinity', wished_at = '-infinity'",
        "sleeping_soon",
    ),
}
# Changes of the columns that readers do not see. Due times, claims and times of use change all the time.
SILENT = {
    "version": "version + 1",
    "epoch": "epoch + 1",
    "held_by": "7",
    "phase_changed_at": "now()",
    "previous_phase": "'PENDING'",
    "observed_at": "now()",
    "conditions": "NULL",
    "stage": "stage",
    "due_at": "now()",
    "op_id": "gen_random_uuid()",
    "op_attempt": "2",
    "op_epoch": "2",
    "op_takeovers": "2",
    "op_started_at": "now()",
    "deadline_at": "now()",
    "progress_done": "3",
    "progress_files": "3",
    "generation": "3",
    "revision": "3",
    "home_seen": "true",
    "archive_key": "NULL",
    "archive_generation": "NULL",
    "archive_revision": "NULL",
    "archive_root": "NULL",
    "error_count": "1",
    "quick_ends": "1",
    "recover_request": "NULL",
    "restore_request": "NULL",
    "standby_ttl_s": "60",
    "archive_ttl_s": "60",
    "last_access_at": "now()",
    "before_sleep": "ARRAY['true']",
    "environment": '\'{"A": "1"}\'',
    "resume_state": "NULL",
    "wish_origin": "wish_origin",
    "wished_at": "now()",
    "disk_bytes": "NULL",
    "disk_generation": "NULL",
    "disk_measured_at": "NULL",
}
AT_CREATION = ("cpu", "memory_mb", "disk_mb", "image", "fork_source")
NEVER_CHANGES = {
    "id",
    "owner_id",
    "template",
    "command",
    "created_at",
    "is_settled",
    "shard",
    "look_after",
    *AT_CREATION,
}

INSERT = """
INSERT INTO workspaces (id, name, owner_id, template, desired_state, standby_ttl_s, archive_ttl_s)
VALUES ($1, $2, $3, 'command', 'STANDBY', 300, 86400)
"""


class Here:
    def __init__(self, url: str, connection: Any, service: Database, controller: Database) -> None:
        self.url = url
        self.db = connection
        self.service, self.controller = service, controller
        self.outbox = Outbox(controller)
        self.store = EventStore(service)
        self.ada, self.bob = uuid.uuid4(), uuid.uuid4()

    async def create(self, name: str, owner: uuid.UUID | None = None) -> uuid.UUID:
        workspace_id = uuid.uuid4()
        await self.db.execute(INSERT, workspace_id, name, owner or self.ada)
        return workspace_id

    async def written(self) -> list[str]:
        return [row["kind"] for row in await self.db.fetch("SELECT kind FROM outbox ORDER BY seq")]

    async def number(self, limit: int = 100) -> list[int]:
        return [event.id for event in (await self.outbox.number(TERM, limit=limit)).events]

    async def names_after(self, event_id: int, sight: EventFilter = EventFilter(), limit: int = 100) -> list[tuple[int, str]]:
        later = await self.store.after(event_id, sight, limit=limit)
        return [(event.id, event.workspace.name) for event in later.events]


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[Here]:
    connection = await asyncpg.connect(database_url)
    service = await Database.open(database_url, Role.SERVICE, connections=2)
    controller = await Database.open(database_url, Role.CONTROLLER, connections=2)
    here = Here(database_url, connection, service, controller)
    await connection.execute("INSERT INTO users (id, username) VALUES ($1, 'ada'), ($2, 'bob')", here.ada, here.bob)
    await connection.execute("INSERT INTO system_locks (lock_name, holder_id, epoch) VALUES ('leader', 'test', $1)", TERM)
    yield here
    await service.close()
    await controller.close()
    await connection.close()


# ── what is written down ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_column_either_causes_an_event_or_does_not(here: Here) -> None:
    columns = await here.db.fetch("SELECT column_name FROM information_schema.columns WHERE table_name = 'workspaces'")
    assert {row["column_name"] for row in columns} == TOLD.keys() | SILENT.keys() | NEVER_CHANGES


@pytest.mark.parametrize("column", TOLD)
async def test_a_visible_change_is_one_event(here: Here, column: str) -> None:
    change, kind = TOLD[column]
    await here.create("one")
    await here.create("two")
    await here.db.execute("TRUNCATE outbox")
    await here.db.execute(f"UPDATE workspaces SET {change} WHERE name = 'one'")
    assert await here.written() == [kind]
    assert (await here.db.fetchval("SELECT row -> $1 IS NOT NULL FROM outbox", column)) is True
    # Writing the same value is no change (a wish always is one).
    await here.db.execute("TRUNCATE outbox")
    await here.db.execute("UPDATE workspaces SET observed_at = now()")
    assert await here.written() == []


@pytest.mark.parametrize("column", SILENT)
async def test_an_internal_change_is_no_event(here: Here, column: str) -> None:
    await here.create("one")
    await here.db.execute("TRUNCATE outbox")
    await here.db.execute(f"UPDATE workspaces SET {column} = {SILENT[column]}")
    assert await here.written() == []


async def test_a_creation_is_an_event(here: Here) -> None:
    workspace_id = await here.create("one")
    (event,) = (await here.outbox.number(TERM, limit=10)).events
    assert (event.workspace.id, event.workspace.name, event.workspace.owner) == (str(workspace_id), "one", "ada")
    assert (event.kind, event.owner_id) == (EventKind.STATE_CHANGED, str(here.ada))


async def test_progress_is_an_event_in_steps_of_5_percent(here: Here) -> None:
    await here.create("one")
    await here.db.execute(f"UPDATE workspaces SET {OPERATION}, progress_total = 1000")
    await here.db.execute("TRUNCATE outbox")
    for done in range(0, 1101, 10):
        await here.db.execute("UPDATE workspaces SET progress_done = $1", done)
    assert len(await here.written()) == 20, "5, 10, ... 100 %, and nothing beyond"
    await here.db.execute(
        "UPDATE workspaces SET progress_done = 0, progress_total = 0, progress_files = 0, progress_files_total = 1000"
    )
    await here.db.execute("TRUNCATE outbox")
    for done in range(0, 1101, 10):
        await here.db.execute("UPDATE workspaces SET progress_files = $1", done)
    assert len(await here.written()) == 20, "the files, if all are empty"


@pytest.mark.parametrize("outage", Outage)
async def test_an_outage_is_one_event_at_its_beginning_and_one_at_its_end(here: Here, outage: Outage) -> None:
    async def write(reason: str, message: str, more: str = "") -> None:
        conditions = {"policy.healthy": {"status": "True", "reason": reason, "message": message}}
        await here.db.execute(
            f"UPDATE workspaces SET conditions = $1{more}, version = version + 1 WHERE name = 'one'", json.dumps(conditions)
        )

    await here.create("one")
    await here.create("two")
    await write("Healthy", "")
    await here.db.execute("TRUNCATE outbox")
    await write(outage, "1 attempt so far")
    await write(outage, "2 attempts so far")
    assert await here.written() == ["state_changed"]
    await write("Healthy", "")
    assert await here.written() == ["state_changed"] * 2
    await here.number()
    await write(outage, "again", f", {OPERATION}")
    assert await here.written() == ["state_changed"] * 3, "together with something else it is one change"


async def test_the_end_of_an_error_is_not_an_error_event(here: Here) -> None:
    await here.create("one")
    await here.db.execute("TRUNCATE outbox")
    await here.db.execute(f"UPDATE workspaces SET phase = 'ERROR', {ERROR}")
    await here.db.execute("UPDATE workspaces SET phase = 'STANDBY', error_info = NULL")
    assert await here.written() == ["error", "state_changed"]
    events = (await here.outbox.number(TERM, limit=10)).events
    assert [event.workspace.phase for event in events] == [Phase.ERROR, Phase.STANDBY], "each as it was then"


async def test_a_transaction_notifies_once_and_only_when_something_was_written(here: Here) -> None:
    heard: list[str] = []
    done = asyncio.Event()
    listener = await asyncpg.connect(here.url)
    await listener.add_listener("workspace_changes", lambda *about: heard.append(str(about[3])))
    await listener.add_listener("done", lambda *_: done.set())
    for silent in (True, False):
        done.clear()
        async with here.db.transaction():
            for number in range(3):
                if not silent:
                    await here.create(f"w-{number}")
            await here.db.execute("UPDATE workspaces SET last_access_at = now()")
            if not silent:
                await here.db.execute("UPDATE workspaces SET phase = 'ARCHIVED'")
            await here.db.execute("NOTIFY done")
        async with asyncio.timeout(10):
            await done.wait()
        assert heard == ([] if silent else [""])
    await listener.close()


# ── who may ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_both_roles_cause_events_without_write_access_to_the_outbox(here: Here) -> None:
    await here.service.execute(INSERT, uuid.uuid4(), "one", here.ada)
    await here.service.execute("UPDATE workspaces SET wish_version = wish_version + 1")
    await here.controller.execute("UPDATE workspaces SET phase = 'STANDBY'")
    assert len(await here.written()) == 3
    for statement in (
        "INSERT INTO outbox (workspace_id, owner_id, kind, row) VALUES (gen_random_uuid(), gen_random_uuid(), 'error', '{}')",
        "UPDATE outbox SET row = '{}'",
        "UPDATE outbox SET kind = 'error'",
        "UPDATE outbox SET at = now()",
        "TRUNCATE outbox",
        "INSERT INTO event_counter DEFAULT VALUES",
        "DELETE FROM event_counter",
    ):
        for database in (here.service, here.controller):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await database.execute(statement)
    for statement in ("UPDATE outbox SET event_id = 5", "DELETE FROM outbox", "UPDATE event_counter SET last_id = 9"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await here.service.execute(statement)


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_ids_have_no_gaps(here: Here) -> None:
    for number in range(5):
        await here.create(f"w-{number}")
    first = await here.number(limit=3)
    assert first == list(range(first[0], first[0] + 3))
    assert await here.number(limit=3) == [first[0] + 3, first[0] + 4]
    assert await here.number() == []
    await here.create("later")
    assert await here.number() == [first[0] + 5]


async def test_an_event_that_is_committed_late_is_not_skipped(here: Here) -> None:
    late = await asyncpg.connect(here.url)
    transaction = late.transaction()
    await transaction.start()
    await late.execute(INSERT, uuid.uuid4(), "late", here.ada)
    await here.create("early")
    seen = await here.number()
    assert await here.names_after(0) == [(seen[0], "early")]
    await transaction.commit()
    await late.close()
    (of_late,) = await here.number()
    assert of_late == seen[0] + 1
    assert await here.names_after(seen[0]) == [(of_late, "late")], "who has seen the early one sees it next"


async def test_a_reader_never_misses_one_while_many_write(here: Here) -> None:
    """A reader continues from the last id it saw, as a client does; every event comes once and in order."""
    writers, each = 4, 25
    ids = [await here.create(f"w-{number}") for number in range(writers)]
    await here.number()
    start = (await here.store.newest()).last_id
    going = writers

    async def write(workspace_id: uuid.UUID) -> None:
        nonlocal going
        connection = await asyncpg.connect(here.url)
        for turn in range(each):
            async with connection.transaction():
                await connection.execute("UPDATE workspaces SET wish_version = $2 WHERE id = $1", workspace_id, turn + 2)
                await asyncio.sleep(0.001 * (turn % 3))
        await connection.close()
        going -= 1

    async def number() -> None:
        while going:
            await here.number(limit=7)
        while await here.number(limit=7):
            pass

    async def read() -> list[tuple[int, str, int]]:
        seen: list[tuple[int, str, int]] = []
        reached = start
        async with asyncio.timeout(60):
            while len(seen) < writers * each:
                later = await here.store.after(reached, limit=5)
                seen += [(event.id, event.workspace.id, event.workspace.wish_version) for event in later.events]
                reached = later.reached
        return seen

    reading = asyncio.create_task(read())
    await asyncio.gather(*(write(one) for one in ids), number())
    seen = await reading
    assert [event_id for event_id, _, _ in seen] == list(range(start + 1, start + 1 + writers * each))
    for one in ids:
        assert [wish for _, workspace_id, wish in seen if workspace_id == str(one)] == list(range(2, each + 2))


async def test_concurrent_numbering_gives_each_event_one_id(here: Here) -> None:
    for number in range(40):
        await here.create(f"w-{number}")
    given = await asyncio.gather(*(here.number(limit=10) for _ in range(5)))
    ids = sorted(event_id for batch in given for event_id in batch)
    assert ids == list(range(ids[0], ids[0] + 40))


async def test_a_former_leader_numbers_and_prunes_nothing(here: Here) -> None:
    await here.create("one")
    before = await here.store.newest()
    with pytest.raises(Deposed):
        await here.outbox.number(TERM - 1, limit=10)
    with pytest.raises(Deposed):
        await here.outbox.prune(TERM - 1, older_than_s=0, limit=10)
    assert (await here.store.newest()).last_id == before.last_id
    assert await here.db.fetchval("SELECT count(*) FROM outbox WHERE event_id IS NOT NULL") == 0


async def test_no_term_begins_during_a_transaction_of_the_old_one(here: Here) -> None:
    """A transaction of one term is committed before the next term begins, or not at all."""
    other = await asyncpg.connect(here.url)
    async with here.controller.transaction() as connection:
        assert await connection.fetchval("SELECT leads($1)", TERM)
        await other.execute("SET lock_timeout = '50ms'")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await other.execute("UPDATE system_locks SET epoch = epoch + 1")
    await other.execute("UPDATE system_locks SET epoch = epoch + 1")
    await other.close()
    with pytest.raises(Deposed):
        await here.number()


async def test_an_event_names_the_users_whose_share_was_removed(here: Here) -> None:
    one = await here.create("one")
    for shares in ('{"bob": "use", "eve": "use"}', '{"bob": "manage", "eve": "use"}', '{"eve": "use"}', "{}"):
        await here.db.execute("UPDATE workspaces SET shares = $2::jsonb WHERE id = $1", one, shares)
    await here.db.execute("UPDATE workspaces SET name = 'other'")
    events = (await here.outbox.number(TERM, limit=100)).events
    assert [sorted(event.unshared) for event in events] == [[], [], [], ["bob"], ["eve"], []]
    bobs = EventFilter(owner_id=str(here.bob), username="bob")
    seen = await here.store.after(0, bobs, limit=100)
    assert [event.id for event in seen.events] == [events[1].id, events[2].id, events[3].id]
    assert (seen.reached, seen.takes_from(bobs)) == (events[-1].id, True)
    assert not (await here.store.after(events[3].id, bobs, limit=100)).events
    first = await here.store.after(0, bobs, limit=1)
    assert (first.reached, first.takes_from(bobs)) == (events[1].id, False)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_are_filtered_by_owner_and_workspace(here: Here) -> None:
    one = await here.create("one")
    await here.create("two")
    await here.create("three", here.bob)
    a, b, c = await here.number()
    assert await here.names_after(0) == [(a, "one"), (b, "two"), (c, "three")]
    assert await here.names_after(0, EventFilter(owner_id=str(here.ada))) == [(a, "one"), (b, "two")]
    assert await here.names_after(0, EventFilter(owner_id=str(here.bob))) == [(c, "three")]
    assert await here.names_after(0, EventFilter(workspace_id=str(one))) == [(a, "one")]
    assert await here.names_after(a, limit=1) == [(b, "two")]
    full = await here.store.after(a, limit=1)
    assert (full.reached, full.last_id) == (b, c), "there is more"
    short = await here.store.after(a, EventFilter(workspace_id=str(one)), limit=1)
    assert (short.events, short.reached) == ([], c), "nothing more of this one up to here"


async def test_the_current_state_includes_every_event_up_to_its_id(here: Here) -> None:
    one = await here.create("one")
    await here.number()
    await here.db.execute("UPDATE workspaces SET name = 'renamed'")
    standing = await here.store.standing(str(one))
    assert standing is not None
    assert (standing.shown.workspace.name, standing.last_id) == ("renamed", (await here.store.newest()).last_id)
    assert await here.store.standing(str(uuid.uuid4())) is None


async def test_an_event_without_a_newer_column_is_read(here: Here) -> None:
    await here.create("one")
    await here.db.execute("UPDATE outbox SET row = row - 'wish_origin' - 'held_by' - 'quick_ends'")
    assert len(await here.number()) == 1
    assert [name for _, name in await here.names_after(0)] == ["one"]


async def test_the_command_is_in_events_and_not_stored_with_each(here: Here) -> None:
    await here.create("one")
    await here.create("two")
    await here.db.execute("UPDATE workspaces SET command = '{serve,me}'")
    await here.db.execute("UPDATE workspaces SET wish_version = wish_version + 1")
    events = (await here.outbox.number(TERM, limit=10)).events
    assert [event.workspace.command for event in events] == [("serve", "me")] * 4
    assert len({id(event.workspace.command) for event in events}) == 1, "a page of events has it once"
    assert await here.db.fetchval("SELECT count(*) FROM outbox WHERE row ? 'command'") == 0


@pytest.mark.parametrize(("words", "is_taken"), [(["x" * 65536], True), (["x" * 65537], False), (["é" * 16384] * 3, False)])
async def test_the_size_of_a_command_is_limited(here: Here, words: list[str], is_taken: bool) -> None:
    workspace_id = await here.create("one")
    command = "UPDATE workspaces SET command = $2 WHERE id = $1"
    if is_taken:
        await here.db.execute(command, workspace_id, words)
    else:
        with pytest.raises(asyncpg.CheckViolationError, match="command_is_short"):
            await here.db.execute(command, workspace_id, words)


@pytest.mark.parametrize("fault", ['{"phase": "DREAMING"}', '{"version": "x"}', '{"created_at": "soon"}', '{"owner_id": 7}'])
async def test_an_unreadable_event_does_not_delay_the_others(here: Here, fault: str) -> None:
    await here.create("one")
    await here.create("two")
    await here.db.execute(f"UPDATE outbox SET row = row || '{fault}' WHERE seq = (SELECT min(seq) FROM outbox)")
    (two,) = await here.number()
    assert await here.names_after(0) == [(two, "two")]
    assert (await here.store.after(0, limit=100)).reached == two


# ── forgetting ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_older_than_the_retention_are_pruned(here: Here) -> None:
    for number in range(6):
        await here.create(f"w-{number}")
    ids = await here.number()
    await here.create("unnumbered")
    await here.db.execute("UPDATE outbox SET at = at - interval '2 hours' WHERE event_id <= $1 OR event_id IS NULL", ids[3])
    assert await here.outbox.prune(TERM, older_than_s=3600, limit=3) == 3
    assert await here.outbox.prune(TERM, older_than_s=3600, limit=3) == 1
    assert await here.outbox.prune(TERM, older_than_s=3600, limit=3) == 0
    later = await here.store.after(ids[3], limit=10)
    assert (later.pruned_id, [event.id for event in later.events]) == (ids[3], ids[4:])
    assert await here.number() == [ids[5] + 1], "what nobody was told of yet is not forgotten"
