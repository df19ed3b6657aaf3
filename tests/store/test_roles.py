"""Test that the database itself allows one writer per column, and refuses invalid rows."""

import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support.control_plane import control_plane
from torpor.domain.states import Wish
from torpor.store.database import Database, Role

pytestmark = pytest.mark.anyio

SERVICE_WRITES = {
    "name": "'other'",
    "desired_state": "'STANDBY'",
    "wish_version": "wish_version + 1",
    "wish_origin": "'IDLE'",
    "wished_at": "now()",
    "deleted_at": "NULL",
    "purge": "false",
    "recover_request": "NULL",
    "restore_request": "NULL",
    "standby_ttl_s": "60",
    "archive_ttl_s": "60",
    "last_access_at": "now()",
    "shares": "'{}'",
    "sleeps_at": "now()",
    "before_sleep": "NULL",
    "environment": "'{}'",
    "resume_state": "NULL",
}
CONTROLLER_WRITES = {
    "version": "version + 1",
    "restored_version": "1",
    "epoch": "1",
    "held_by": "1",
    "phase": "'STANDBY'",
    "phase_changed_at": "now()",
    "previous_phase": "NULL",
    "observed_at": "now()",
    "conditions": "NULL",
    "container_present": "false",
    "volume_present": "false",
    "location": "null",
    "operation": "'NONE'",
    "stage": "'REST'",
    "due_at": "NULL",
    "op_id": "NULL",
    "op_attempt": "0",
    "op_epoch": "0",
    "op_takeovers": "0",
    "op_started_at": "NULL",
    "deadline_at": "NULL",
    "progress_done": "0",
    "progress_total": "NULL",
    "progress_files": "NULL",
    "progress_files_total": "NULL",
    "generation": "1",
    "revision": "1",
    "home_seen": "false",
    "archive_key": "NULL",
    "archive_generation": "NULL",
    "archive_revision": "NULL",
    "archive_root": "NULL",
    "error_info": "NULL",
    "error_count": "0",
    "quick_ends": "0",
    "disk_bytes": "NULL",
    "disk_generation": "NULL",
    "disk_measured_at": "NULL",
}
AT_CREATION = ("cpu", "memory_mb", "disk_mb", "image", "fork_source")
NOBODY_WRITES = {
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


@pytest.fixture
async def populated(database_url: str) -> AsyncIterator[str]:
    async with control_plane(database_url, runs=False) as here:
        await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
        yield database_url


async def test_every_column_has_exactly_one_writer(populated: str) -> None:
    owner = await asyncpg.connect(populated)
    columns = await owner.fetch("SELECT column_name FROM information_schema.columns WHERE table_name = 'workspaces'")
    await owner.close()
    assert {row["column_name"] for row in columns} == SERVICE_WRITES.keys() | CONTROLLER_WRITES.keys() | NOBODY_WRITES
    for role, writes in ((Role.SERVICE, SERVICE_WRITES), (Role.CONTROLLER, CONTROLLER_WRITES)):
        database = await Database.open(populated, role)
        for column, value in (SERVICE_WRITES | CONTROLLER_WRITES).items():
            statement = f"UPDATE workspaces SET {column} = {value}"
            if column in writes:
                await database.execute(statement)
            else:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await database.execute(statement)
        await database.close()


async def test_a_controller_neither_creates_nor_deletes_workspaces(populated: str) -> None:
    database = await Database.open(populated, Role.CONTROLLER)
    for statement in (
        "DELETE FROM workspaces",
        "INSERT INTO workspaces (id) VALUES (gen_random_uuid())",
        "SELECT * FROM tokens",
        "SELECT * FROM work_leases",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await database.execute(statement)
    await database.close()


@pytest.mark.parametrize(
    ("constraint", "change"),
    [
        ("error_has_no_operation", "phase = 'ERROR', error_info = '{}', operation = 'STARTING', stage = 'CALL', op_id = id,"
         " deadline_at = now(), op_started_at = now()"),
        ("error_says_why", "phase = 'ERROR'"),
        ("deleted_is_a_wish", "deleted_at = now()"),
        ("deleted_is_a_wish", "desired_state = 'DELETED'"),
        ("purged_is_deleted", "purge = true"),
        ("operation_has_stage", "operation = 'STARTING', op_id = id, deadline_at = now(), op_started_at = now()"),
        ("operation_has_stage", "stage = 'CALL'"),
        ("operation_has_id", "operation = 'STARTING', stage = 'CALL', deadline_at = now(), op_started_at = now()"),
        ("operation_has_deadline", "operation = 'STARTING', stage = 'CALL', op_id = id"),
        ("archive_is_whole", "archive_key = id::text || '/x'"),
        ("archive_is_ours", "archive_key = 'other/x', archive_generation = 1, archive_revision = 1, archive_root = ''"),
        ("workspaces_name_check", "name = 'Not-A-Label'"),
        ("workspaces_name_check", "name = 'a--b'"),
        ("workspaces_desired_state_check", "desired_state = 'HIBERNATING'"),
        ("workspaces_phase_check", "phase = 'ASLEEP'"),
        ("before_sleep_is_short", "before_sleep = ARRAY[repeat('x', 4097)]"),
        ("environment_is_a_short_object", "environment = '[]'"),
        ("environment_is_a_short_object", "environment = jsonb_build_object('A', repeat('x', 1048576))"),
        ("before_sleep_is_of_a_stop", "operation = 'STARTING', stage = 'BEFORE_SLEEP', op_id = id, deadline_at = now(),"
         " op_started_at = now()"),
    ],
)  # fmt: skip
async def test_constraints_refuse_invalid_rows(populated: str, constraint: str, change: str) -> None:
    owner = await asyncpg.connect(populated)
    try:
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await owner.execute(f"UPDATE workspaces SET {change}")
        assert refused.value.constraint_name == constraint
    finally:
        await owner.close()


async def test_one_operation_at_a_time_in_the_history(populated: str) -> None:
    owner = await asyncpg.connect(populated)
    insert = (
        "INSERT INTO operations (workspace_id, op_id, attempt, kind, generation, epoch, started_at)"
        " SELECT id, $1, 1, 'STARTING', 1, 1, now() FROM workspaces"
    )
    await owner.execute(insert, uuid.uuid4())
    with pytest.raises(asyncpg.UniqueViolationError):
        await owner.execute(insert, uuid.uuid4())
    await owner.close()


@pytest.mark.parametrize(
    ("role", "statement", "is_allowed"),
    [
        (Role.SERVICE, "DELETE FROM archives", False),
        (Role.SERVICE, "UPDATE archives SET orphan_since = NULL", False),
        (Role.SERVICE, "UPDATE housekeeping SET gc_requested_at = now()", True),
        (Role.SERVICE, "UPDATE housekeeping SET gc_ran_at = now()", False),
        (Role.CONTROLLER, "DELETE FROM archives", True),
        (Role.CONTROLLER, "UPDATE archives SET proven_at = now(), orphan_since = now()", True),
        (Role.CONTROLLER, "UPDATE archives SET orphan_since = now(), removing_since = now()", True),
        (Role.CONTROLLER, "UPDATE archives SET manifest_root = 'another'", False),
        (Role.CONTROLLER, "UPDATE housekeeping SET gc_tried_at = now(), gc_ran_at = now(), gc_report = '{}'", True),
        (Role.CONTROLLER, "UPDATE housekeeping SET gc_requested_at = now()", False),
        (Role.CONTROLLER, "UPDATE housekeeping SET archive_store = 'x', gc_terms = '{}', gc_skipped = '{}'", True),
        (Role.SERVICE, "UPDATE housekeeping SET archive_store = 'x'", False),
        (Role.SERVICE, "UPDATE housekeeping SET secret_key_id = 'x'", True),
        (Role.CONTROLLER, "UPDATE housekeeping SET secret_key_id = 'x'", False),
        (Role.CONTROLLER, "INSERT INTO housekeeping DEFAULT VALUES", False),
    ],
)
async def test_each_role_has_its_permissions_for_garbage_collection(
    database_url: str, role: Role, statement: str, is_allowed: bool
) -> None:
    database = await Database.open(database_url, role)
    try:
        if is_allowed:
            await database.execute(statement)
        else:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await database.execute(statement)
    finally:
        await database.close()


@pytest.mark.parametrize(
    ("role", "statement", "is_allowed"),
    [
        (Role.SERVICE, "INSERT INTO audit (username, how, action) VALUES ('ada', 'SYSTEM', 'x')", True),
        # Audit entries cannot be changed.
        (Role.SERVICE, "UPDATE audit SET username = 'bob'", False),
        (Role.SERVICE, "DELETE FROM audit", False),
        (Role.CONTROLLER, "SELECT * FROM audit", False),
        (Role.CONTROLLER, "INSERT INTO audit (username, how, action) VALUES ('ada', 'SYSTEM', 'x')", False),
        (Role.SERVICE, "DELETE FROM creations", True),
        (Role.SERVICE, "UPDATE creations SET key = 'x'", False),
        (Role.CONTROLLER, "SELECT * FROM creations", False),
        (Role.CONTROLLER, "SELECT * FROM door_codes", False),
    ],
)
async def test_each_role_has_its_permissions_for_the_audit_log(
    database_url: str, role: Role, statement: str, is_allowed: bool
) -> None:
    database = await Database.open(database_url, role)
    try:
        if is_allowed:
            await database.execute(statement)
        else:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await database.execute(statement)
    finally:
        await database.close()
