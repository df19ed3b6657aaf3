"""`torpor serve` with the runtime `docker`: all processes of an installation have the same key file."""

import asyncio
import re
import secrets
from base64 import b64encode
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster

pytestmark = [pytest.mark.anyio, pytest.mark.long]


def a_key(path: Path) -> str:
    path.write_bytes(b64encode(secrets.token_bytes(32)))
    path.chmod(0o600)
    return str(path)


async def refused(here: Cluster, role: str, key: str) -> str:
    """What a process with this key says before it ends with exit code 1. Without an engine, too."""
    node = here.begin(role, runtime="docker", secret_key_file=key, engine_url=f"unix://{here.folder}/none.sock")
    assert await asyncio.to_thread(node.process.wait, 60) == 1
    return node.said()


async def test_a_process_with_another_key_file_is_refused_until_its_key_is_accepted(tmp_path: Path) -> None:
    ours, other = a_key(tmp_path / "ours"), a_key(tmp_path / "other")
    async with cluster(tmp_path) as here:
        first = await here.serve("api", runtime="docker", secret_key_file=ours)
        for role in ("api", "controller"):
            said = await refused(here, role, other)
            assert f"the key file {other} is the key" in said
            assert "Give this process the same key file" in said
            assert "does not exist" not in said, "the key is checked first"
        await here.serve("api", runtime="docker", secret_key_file=ours)

        found = re.search(r"TORPOR_ACCEPT_SECRET_KEY=([0-9a-f]+)", said)
        assert found is not None
        await here.serve("api", runtime="docker", secret_key_file=other, accept_secret_key=found[1])
        said = await refused(here, "api", ours)
        assert f"have the key {found[1]}" in said
        assert first.is_alive
