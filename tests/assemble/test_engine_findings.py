"""Test what `torpor doctor` reports about an engine that does not answer."""

from pathlib import Path

import pytest

from torpor.assemble.engine_findings import engine_confinement, engine_findings
from torpor.settings import load

pytestmark = pytest.mark.anyio


async def test_a_chosen_engine_that_does_not_answer_blocks(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/no.sock"
    settings = load({"TORPOR_DATA": str(tmp_path), "TORPOR_RUNTIME": "podman", "TORPOR_ENGINE_URL": url})
    (found,) = await engine_findings(settings)
    assert (found.what, found.ok, found.blocks) == ("engine", False, True)
    assert url in found.detail
    assert "TORPOR_ENGINE_URL" in found.advice
    assert await engine_confinement(settings) == []
