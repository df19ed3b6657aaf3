"""Test that a workspace is found without reading the others."""

import uuid
from typing import Any

import asyncpg
import pytest

from torpor.store.queries import SERVICE_STORE

pytestmark = pytest.mark.anyio

MANY = 5_000
FILLING = f"""
INSERT INTO users (id, username) SELECT gen_random_uuid(), 'user-' || number FROM generate_series(1, 50) AS number;
INSERT INTO workspaces
    (id, name, owner_id, template, desired_state, phase, deleted_at, standby_ttl_s, archive_ttl_s, created_at)
SELECT gen_random_uuid(), 'w' || number % ({MANY} / 2), owner.id, 'terminal',
       CASE WHEN number > {MANY} / 2 THEN 'DELETED' ELSE 'STANDBY' END,
       CASE WHEN number > {MANY} / 2 THEN 'DELETED' ELSE 'STANDBY' END,
       CASE WHEN number > {MANY} / 2 THEN now() END, 300, 86400, now() - make_interval(secs => number)
FROM generate_series(1, {MANY}) AS number
JOIN (SELECT id, row_number() OVER (ORDER BY id) AS at FROM users) AS owner ON owner.at = 1 + number % 50;
ANALYZE users;
ANALYZE workspaces;
"""


@pytest.fixture
async def owner(database_url: str) -> Any:
    connection = await asyncpg.connect(database_url)
    # The outbox entries would be most of the work.
    await connection.execute("ALTER TABLE workspaces DISABLE TRIGGER USER")
    await connection.execute(FILLING)
    yield connection
    await connection.close()


@pytest.mark.parametrize(
    ("statement", "arguments", "index"),
    [
        ("living_by_name", ("w7",), "workspaces_name"),
        ("workspace_by_name", ("w7", None, False, None), "workspaces_by_name"),
        ("workspace_by_name", ("w7", None, True, None), "workspaces_by_name"),
        ("list_workspaces", (None, None, None, None, 101, None), "workspaces_in_order"),
    ],
)
async def test_lookups_use_an_index(owner: Any, statement: str, arguments: tuple[Any, ...], index: str) -> None:
    plan = await owner.fetch(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {SERVICE_STORE[statement]}", *arguments)
    text = "\n".join(row[0] for row in plan)
    assert "Seq Scan on workspaces" not in text, text
    assert index in text, text


async def test_a_name_finds_the_existing_workspace_and_not_a_deleted_one(owner: Any) -> None:
    both = await owner.fetch("SELECT id, deleted_at FROM workspaces WHERE name = 'w7' ORDER BY deleted_at NULLS FIRST")
    assert [row["deleted_at"] is None for row in both] == [True, False]
    found = await owner.fetch(SERVICE_STORE["living_by_name"], "w7")
    assert [row["id"] for row in found] == [both[0]["id"]]
    assert isinstance(found[0]["id"], uuid.UUID)
