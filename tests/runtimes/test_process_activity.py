"""The activity of a real container's processes is observed."""

import asyncio
from collections.abc import Callable

import pytest

from tests.contracts.test_runtime_contract import UNCONFINED
from tests.runtimes.conftest import Machine, MakeMachine
from tests.support.waiting import until
from torpor.domain.busy import Foreground, Work
from torpor.ports import Home
from torpor.runtimes.process import ProcessOptions
from torpor.testing.defaults import process_options

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("options", [process_options(grace_s=2.0), UNCONFINED], ids=["confined", "unconfined"]),
]


async def working(
    make_machine: MakeMachine, options: ProcessOptions
) -> tuple[Machine, Home, Callable[[], "asyncio.Future[Work]"]]:
    machine = make_machine(options)
    await machine.process.start()
    home = await machine.up()

    async def work() -> Work:
        return (await machine.process.work())[home.workspace_id]

    return machine, home, lambda: asyncio.ensure_future(work())


async def test_the_foreground_command_of_a_shell_is_seen_and_not_its_prompt(
    make_machine: MakeMachine, options: ProcessOptions
) -> None:
    machine, home, work = await working(make_machine, options)

    async def foreground() -> Foreground | None:
        return next(iter((await work()).foregrounds), None)

    shell = await machine.process.shell(home.workspace_id, columns=80, rows=24)
    try:
        assert await shell.read()  # the prompt
        assert await foreground() is None
        await shell.write(b"sleep 600\n")
        seen = await until(foreground)
        assert seen.command == "sleep 600"
        assert seen.quiet_s is not None
        assert seen.quiet_s < 60
        await shell.write(b"\x03")

        async def is_gone() -> bool:
            return await foreground() is None

        await until(is_gone)
    finally:
        await shell.close()


async def test_cpu_time_is_seen_also_of_a_command_that_has_ended(make_machine: MakeMachine, options: ProcessOptions) -> None:
    machine, home, work = await working(make_machine, options)
    before = (await work()).cpu_s
    burn = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    done = await machine.process.execute(home.workspace_id, ["python3", "-c", burn], b"")
    assert done.exit_code == 0
    assert (await work()).cpu_s >= before + 0.4


async def test_a_stopped_workspace_has_no_work(make_machine: MakeMachine, options: ProcessOptions) -> None:
    machine, home, _ = await working(make_machine, options)
    await machine.process.stop_all()
    assert home.workspace_id not in await machine.process.work()
