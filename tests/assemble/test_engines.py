"""Test that the runtime gets its options from the settings."""

import contextlib
from pathlib import Path
from typing import cast

import pytest

from torpor.assemble import engines
from torpor.assemble.engine_parts import RoleDatabases
from torpor.assemble.roles import EVERY_PART
from torpor.runtimes.process.runtime import ProcessRuntime
from torpor.settings import load


@pytest.mark.anyio
async def test_workspaces_are_started_with_the_networks_of_the_settings(tmp_path: Path) -> None:
    said = {"TORPOR_WORKSPACE_BLOCKED_NETWORKS": "10.0.0.0/8", "TORPOR_WORKSPACE_ALLOWED_NETWORKS": "10.1.2.3"}
    settings = load({"TORPOR_DATA": str(tmp_path), **said})
    async with contextlib.AsyncExitStack() as stack:
        # The runtime `process` uses no database.
        databases = cast(RoleDatabases, None)
        runtime = (await engines.choose_engine(settings, EVERY_PART, databases, stack, lambda _: None)).runtime
        assert isinstance(runtime, ProcessRuntime)
        assert runtime._options.blocked_networks == ("10.0.0.0/8",)
        assert runtime._options.allowed_networks == ("10.1.2.3/32",)
