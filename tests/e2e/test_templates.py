"""An administrator's templates run workspaces, and a broken or removed one harms neither the others nor a home."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import Product, product

pytestmark = pytest.mark.e2e

OWN = """name = "own"
title = "Files"
description = "Serves the home."
command = ["{python}", "-m", "http.server", "--bind", "127.0.0.1", "{port}"]
environment = { COLOUR = "blue" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "templates"
    made.mkdir()
    (made / "own.toml").write_text(OWN)
    (made / "bad.toml").write_text(OWN.replace('"own"', '"bad"').replace("command", "comand"))
    return made


@pytest.fixture
def here(tmp_path: Path, folder: Path) -> Iterator[Product]:
    with product(tmp_path, TORPOR_TEMPLATES_DIR=str(folder), TORPOR_RECONCILER_RETRY_BACKOFF="0.2") as running:
        yield running


def test_an_own_template_runs_and_after_its_removal_the_home_is_kept(here: Product, folder: Path) -> None:
    listed = json.loads(here.ok("templates", "--json"))
    assert [one["name"] for one in listed["items"]] == ["terminal", "code-server", "command", "jupyterlab", "own"]
    fault = "bad.toml: comand: unknown; did you mean command?"
    assert listed["broken"] == [{"name": "bad", "faults": [fault]}]
    assert f"a template cannot be used: {fault}" in here.log()
    assert fault in here.ok("doctor")
    refused = here.run("create", "other", "--template", "bad")
    assert refused.returncode == 1
    assert fault.encode() in refused.stderr

    here.ok("create", "demo", "--template", "own", "--wait")
    assert here.ok("exec", "demo", "--", "sh", "-c", "echo $COLOUR; echo kept > file; sync") == "blue\n"
    assert here.get("demo", "/file")[2] == b"kept\n"

    (folder / "own.toml").unlink()
    here.stop()
    here.up()
    failed = here.until("demo", lambda seen: seen["error"] is not None and seen["error"]["is_terminal"])
    assert "'own' of this workspace no longer exists" in failed["error"]["message"]
    assert (here.home(failed) / "file").read_text() == "kept\n"
    assert "own.toml" in here.ok("explain", "demo")
    here.ok("archive", "demo", "--wait")

    (folder / "own.toml").write_text(OWN)
    here.stop()
    here.up()
    here.ok("start", "demo", "--wait")
    assert here.get("demo", "/file")[2] == b"kept\n"
