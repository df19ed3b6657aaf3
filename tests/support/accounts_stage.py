"""Accounts on a real PostgreSQL and a real Valkey, with passwords that are quick to hash."""

import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
from pwdlib.hashers.argon2 import Argon2Hasher

from torpor.accounts import Accounts, Caller
from torpor.accounts.passwords import Passwords
from torpor.bus.login_throttle import Throttle
from torpor.bus.redis import Bus
from torpor.bus.revocations import Revocations
from torpor.store.database import Database, Role
from torpor.store.user_store import UserStore
from torpor.testing.defaults import DEFAULTS

PASSWORD = "correct horse"
HOME, ELSEWHERE = "192.0.2.1", "198.51.100.7"
INSERT = """
INSERT INTO workspaces (id, name, owner_id, template, desired_state, standby_ttl_s, archive_ttl_s)
VALUES ($1, $2, $3, 'command', 'STANDBY', 300, 86400)
"""


def quick(time_cost: int = 1) -> Passwords:
    return Passwords(Argon2Hasher(time_cost=time_cost, memory_cost=8, parallelism=1))


@dataclass(frozen=True)
class AccountsStage:
    accounts: Accounts
    store: UserStore
    database: Database
    bus: Bus
    db: Any
    """A connection as the owner of the database."""
    admin: Caller
    """The caller `root`, by a token."""

    def another_process(self, **how: Any) -> Accounts:
        """The same accounts in another process, which has received no message yet."""
        options = {"session_ttl_s": DEFAULTS.session_ttl, **how}
        return Accounts(self.store, Revocations(self.bus), Throttle(self.bus), passwords=quick(), **options)

    async def sign_up(self, username: str, *, is_admin: bool = False) -> str:
        """Returns the user's id."""
        made = await self.accounts.create_user(self.admin, username, password=PASSWORD, is_admin=is_admin)
        return made.user.id

    async def sign_in(self, username: str, *, came_from: str = HOME) -> str:
        return await self.accounts.sign_in(username, PASSWORD, came_from=came_from, user_agent="a browser")

    async def session(self, username: str) -> Caller:
        return await self.accounts.recognise(await self.sign_in(username), came_from=HOME)

    async def workspace(self, name: str, owner: str) -> str:
        workspace_id = uuid.uuid4()
        await self.db.execute(INSERT, workspace_id, name, uuid.UUID((await self.accounts.user(owner)).user.id))
        return str(workspace_id)

    async def audited(self, action: str) -> list[Any]:
        return list(await self.db.fetch("SELECT * FROM audit WHERE action = $1 ORDER BY id", action))


@contextlib.asynccontextmanager
async def accounts_stage(database_url: str, redis_url: str, **how: Any) -> AsyncIterator[AccountsStage]:
    async with contextlib.AsyncExitStack() as stack:
        database = await Database.open(database_url, Role.SERVICE)
        stack.push_async_callback(database.close)
        bus = await Bus.open(redis_url)
        stack.push_async_callback(bus.close)
        connection = await asyncpg.connect(database_url)
        stack.push_async_callback(connection.close)
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        store = UserStore(database)
        accounts = Accounts(
            store, Revocations(bus), Throttle(bus), passwords=quick(), **{"session_ttl_s": DEFAULTS.session_ttl, **how}
        )
        user = await accounts.ensure_admin("root", PASSWORD)
        await accounts.ensure_token(user, "test", "torpor_root")
        yield AccountsStage(accounts, store, database, bus, connection, await accounts.recognise("torpor_root", came_from=HOME))
