"""Test that the last lines of removed containers are kept, and forgotten with their workspace."""

import uuid

import pytest

from tests.support.control_plane import control_plane
from torpor.domain.states import Wish
from torpor.store.database import Database, Role
from torpor.store.kept_logs import MOST_BYTES, StoredLogs

pytestmark = pytest.mark.anyio


async def test_the_latest_lines_are_kept_and_a_service_only_reads_them(database_url: str) -> None:
    async with control_plane(database_url, runs=False) as here:
        made = await here.wishes.create(here.user, name="demo", desired_state=Wish.STANDBY)
        controller = await Database.open(database_url, Role.CONTROLLER)
        service = await Database.open(database_url, Role.SERVICE)
        try:
            logs = StoredLogs(controller)
            assert await logs.read(made.id) == b""
            await logs.keep(made.id, b"one\n")
            await logs.keep(made.id, b"two\n\xff\x00")
            assert await StoredLogs(service).read(made.id) == b"two\n\xff\x00"
            await logs.keep(made.id, b"x" * (MOST_BYTES + 1) + b"end")
            assert (await logs.read(made.id)).endswith(b"xend")
            with pytest.raises(Exception, match="permission denied"):
                await StoredLogs(service).keep(made.id, b"")
        finally:
            await controller.close()
            await service.close()


async def test_a_workspace_of_another_installation_has_none(database_url: str) -> None:
    async with control_plane(database_url, runs=False):
        controller = await Database.open(database_url, Role.CONTROLLER)
        try:
            logs = StoredLogs(controller)
            for unknown in (str(uuid.uuid4()), "no id"):
                await logs.keep(unknown, b"lines\n")
                assert await logs.read(unknown) == b""
        finally:
            await controller.close()
