"""torpor kit: what is built, what is shown, and what a user is told when there is none."""

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Torpor
from torpor.cli.commands import kit as kit_command
from torpor.kit.kit_folder import current_kit


def test_without_a_kit_show_names_the_command_that_builds_it(torpor: Torpor, data: Path) -> None:
    ended = torpor("kit", "show")
    assert ended.code == 1
    assert ended.said == f"torpor: there is no kit in {data} (`torpor kit build` builds it)\n"


def test_build_and_show(torpor: Torpor, data: Path) -> None:
    built = torpor("kit", "build", "--json")
    assert built.code == 0, built.said
    assert built.said == f"{kit_command.DOING}\n"
    kit = current_kit(data)
    assert kit is not None
    assert built.json["path"] == str(kit.path)
    assert built.json["hash"] == kit.path.name
    assert built.json["architecture"] == os.uname().machine
    assert built.json["size_bytes"] == sum(built.json["parts"].values())

    again = torpor("kit", "build", "--json")
    assert (again.json, again.said) == (built.json, "")
    assert torpor("kit", "show", "--json").json == built.json
    shown = torpor("kit").text
    assert str(kit.path) in shown
    assert "obstore" in shown

    (kit.path / "added").write_text("")
    damaged = torpor("kit", "show")
    assert damaged.code == 1
    assert "have changed since it was built (`torpor kit build` builds it again)" in damaged.said


def test_a_failed_build_says_why(torpor: Torpor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/absent")
    ended = torpor("kit", "build")
    assert ended.code == 1
    assert ended.said == "torpor: the kit cannot be built: SSL_CERT_FILE names '/absent', which contains no certificate\n"
