"""Test that a user's data is found without reading that of other users."""

import asyncpg
import pytest

pytestmark = pytest.mark.anyio
INDEXED = """
SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename = $1
"""


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("tokens", "(expires_at)"),
        ("tokens", "(user_id, kind, created_at)"),
        ("tokens", "(parent_id)"),
        ("tokens", "(creator_id)"),
        ("door_codes", "(session_id)"),
        ("audit", "(user_id, id)"),
        ("audit", "(username, id)"),
        ("audit", "(workspace_id, id)"),
        ("audit", "(workspace, id)"),
    ],
)
async def test_queried_columns_are_indexed(database_url: str, table: str, columns: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        found = [row["indexdef"] for row in await connection.fetch(INDEXED, table)]
    finally:
        await connection.close()
    assert any(columns in one for one in found), found
