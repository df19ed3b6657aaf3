"""Workspaces start with the reported confinement, even if a later examination would have another result."""

# ruff: noqa: ASYNC240 - nothing else runs in the loop of these tests

from pathlib import Path

import pytest

from tests.contracts.runtime_contract import until_ready
from tests.runtimes.conftest import MakeMachine
from torpor.runtimes.ability import FILES, Ability
from torpor.testing.defaults import process_options

pytestmark = pytest.mark.anyio

# Refuses while the file exists, like a busy machine. It does not confine, so no workspace may start with it.
SOMETIMES_REFUSES = "#!/bin/sh\ntest ! -e '{refuses}'\n"


@pytest.fixture
def refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that decides whether bubblewrap refuses on this machine."""
    refuses = tmp_path / "refuses"
    bubblewrap = tmp_path / "bwrap"
    bubblewrap.write_text(SOMETIMES_REFUSES.format(refuses=refuses))
    bubblewrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return refuses


def files(abilities: tuple[Ability, ...]) -> bool:
    return next(ability.confined for ability in abilities if ability.what == FILES)


async def test_workspaces_run_with_the_confinement_reported_before_the_start(make_machine: MakeMachine, refuses: Path) -> None:
    machine = make_machine(process_options(grace_s=2.0, own_network=False))
    refuses.touch()
    told = await machine.process.abilities()
    assert not files(told)
    refuses.unlink()
    await machine.process.start()
    home = await machine.up()
    await until_ready(machine, home)
    assert files(await machine.process.abilities()) == files(told)


async def test_the_next_start_checks_the_confinement_again(make_machine: MakeMachine, refuses: Path) -> None:
    machine = make_machine(process_options(grace_s=2.0, own_network=False))
    await machine.process.start()
    assert files(await machine.process.abilities())
    refuses.touch()
    assert files(await machine.process.abilities())
    await machine.process.close()
    await machine.process.start()
    assert not files(await machine.process.abilities())
