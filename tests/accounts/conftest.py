"""Fixtures of the tests of accounts."""

from collections.abc import AsyncIterator

import pytest

from tests.support.accounts_stage import AccountsStage, accounts_stage


@pytest.fixture
async def here(database_url: str, redis_url: str) -> AsyncIterator[AccountsStage]:
    async with accounts_stage(database_url, redis_url) as known:
        yield known
