"""A process runtime for each test, and the requirements on this machine."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, marker_of, ready_volume, unheard, until_ready
from tests.contracts.test_runtime_contract import OnThisMachine
from tests.support.requirements import must_have
from torpor.ports import Container, ExecResult, Home
from torpor.runtimes.process import ProcessOptions
from torpor.testing.defaults import process_options


class Machine(OnThisMachine):
    """The contract's world with more helpers."""

    async def must(self, what: str) -> None:
        ability = next(ability for ability in await self.process.abilities() if ability.what == what)
        must_have(ability.confined, f"{what}: {ability.how}")

    async def home(self) -> Home:
        return await ready_volume(self)

    async def up(self, container: Container | None = None) -> Home:
        home = container.home if container else await self.home()
        await self.runtime.ensure_running(container or self.serving(home), FENCE, unheard)
        if container is None:
            await until_ready(self, home)
        return home

    async def sh(self, home: Home, script: str) -> ExecResult:
        return await self.runtime.execute(home.workspace_id, ["sh", "-c", script], b"")


@pytest.fixture
async def data_dir() -> AsyncIterator[Path]:
    # Not pytest's directory: other users cannot enter it, and without bubblewrap they need the path to their home.
    data = Path(tempfile.mkdtemp(prefix="torpor-test-"))
    await asyncio.to_thread(data.chmod, 0o711)
    yield data
    await asyncio.to_thread(shutil.rmtree, data)


MakeMachine = Callable[..., Machine]


@pytest.fixture
async def make_machine(data_dir: Path) -> AsyncIterator[MakeMachine]:
    made: list[Machine] = []

    def make(options: ProcessOptions | None = None, data: Path | None = None) -> Machine:
        made.append(Machine(data or data_dir, options or process_options(grace_s=2.0)))
        return made[-1]

    yield make
    for machine in made:
        await machine.process.close()


@pytest.fixture
async def machine(make_machine: MakeMachine) -> Machine:
    machine = make_machine()
    await machine.process.start()
    return machine


__all__ = ["marker_of"]
