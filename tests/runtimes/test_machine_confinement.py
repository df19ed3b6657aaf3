"""The missing protections, and their remedies."""

from pathlib import Path

import pytest

from tests.support.product import NAMESPACES_REFUSED, without_confinement
from torpor.runtimes.ability import FILES, LIMITS, NETWORK, USER, Ability
from torpor.runtimes.process.confinement import (
    examine,
    missing_protections,
    ports_are_open,
)
from torpor.runtimes.process.paths import runtime_paths
from torpor.testing.defaults import process_options


def seen(*, files: bool, network: bool) -> tuple[Ability, ...]:
    return (
        Ability(FILES, files, ""),
        Ability(USER, False, "", "run Torpor as root"),
        Ability(NETWORK, network, ""),
        Ability(LIMITS, False, ""),
    )


@pytest.mark.parametrize(
    ("files", "network", "lacking"),
    [(True, True, []), (True, False, [NETWORK]), (False, True, [FILES]), (False, False, [FILES, NETWORK])],
)
def test_only_files_processes_and_network_count_as_protections(*, files: bool, network: bool, lacking: list[str]) -> None:
    abilities = seen(files=files, network=network)
    assert [ability.what for ability in missing_protections(abilities, is_root=False)] == lacking
    assert ports_are_open(abilities) is not network


def test_workspaces_that_run_as_root_count_as_unconfined() -> None:
    lacking = missing_protections(seen(files=False, network=False), is_root=True)
    assert [ability.what for ability in lacking] == [FILES, USER, NETWORK]


@pytest.mark.anyio
async def test_if_the_kernel_refuses_bubblewrap_no_package_is_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", without_confinement(tmp_path)["PATH"])
    _, abilities = await examine(process_options(cgroups=False), runtime_paths(tmp_path / "data"))
    found = {ability.what: ability for ability in abilities}
    assert NAMESPACES_REFUSED in found[FILES].how
    assert found[NETWORK].remedy == found[FILES].remedy
    assert "private networks, which cannot be blocked" in found[NETWORK].how
    assert "install" not in found[NETWORK].remedy


@pytest.mark.anyio
async def test_a_refusal_of_several_lines_is_shown_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", without_confinement(tmp_path)["PATH"])
    bubblewrap = tmp_path / "tools" / "bwrap"
    bubblewrap.write_text("#!/bin/sh\nprintf 'first reason\\n\\n  second reason\\n' >&2; exit 1\n")
    _, abilities = await examine(process_options(cgroups=False), runtime_paths(tmp_path / "data"))
    assert "first reason; second reason" in abilities[0].how
    assert not any("\n" in ability.how for ability in abilities)
