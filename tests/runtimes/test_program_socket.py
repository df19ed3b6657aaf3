"""Other processes of this machine cannot connect to the programs that Torpor ships."""

import asyncio
import os
import shutil
import stat
import subprocess
from dataclasses import replace

import pytest

from tests.contracts.runtime_contract import FENCE, until_ready
from tests.contracts.test_runtime_contract import UNCONFINED
from tests.runtimes.conftest import Machine, MakeMachine
from tests.runtimes.test_unprivileged import NOBODY
from tests.support.listeners import program_socket, tcp_listeners
from tests.support.requirements import must_have
from torpor.ports import Home
from torpor.runtimes.process import ProcessOptions
from torpor.templates.catalogue import shipped
from torpor.testing.defaults import process_options

WAYS = {
    "confined": process_options(grace_s=2.0),
    "network shared": process_options(grace_s=2.0, own_network=False),
    "unconfined": UNCONFINED,
}

CONNECT = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    print("refused")
else:
    print("connected")
"""


pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)]


async def started(make_machine: MakeMachine, options: ProcessOptions) -> Machine:
    machine = make_machine(options)
    await machine.process.start()
    return machine


async def with_a_terminal(make_machine: MakeMachine, options: ProcessOptions) -> tuple[Machine, Home]:
    machine = await started(make_machine, options)
    home = await machine.home()
    await machine.up(replace(machine.serving(home), program=shipped().program(shipped().template("terminal"), None)))
    await until_ready(machine, home)
    return machine, home


async def test_the_terminal_listens_on_no_port(make_machine: MakeMachine, options: ProcessOptions) -> None:
    machine, home = await with_a_terminal(make_machine, options)
    assert tcp_listeners(machine.process.paths, home.workspace_id) == []
    request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert (await machine.ask(home.workspace_id, request)).startswith(b"HTTP/1.1 200 ")


async def test_a_listener_on_a_port_would_be_detected(make_machine: MakeMachine, options: ProcessOptions) -> None:
    machine = await started(make_machine, options)
    home = await machine.up()
    assert len(tcp_listeners(machine.process.paths, home.workspace_id)) == 1


async def test_no_other_user_can_connect_to_the_terminals_socket(make_machine: MakeMachine, options: ProcessOptions) -> None:
    machine, home = await with_a_terminal(make_machine, options)
    socket = program_socket(machine.process.paths, home.workspace_id)
    facts, folder = socket.stat(), socket.parent.stat()
    assert stat.S_ISSOCK(facts.st_mode)
    assert stat.S_IMODE(facts.st_mode) == 0o600
    if not socket.is_relative_to("/proc"):  # a folder in a sandbox is visible to its workspace only
        assert stat.S_IMODE(folder.st_mode) == 0o700
        assert facts.st_uid == folder.st_uid
    must_have(os.getuid() == 0, "root, to become another user")
    must_have(shutil.which("setpriv") and shutil.which("python3", path="/usr/bin"), "setpriv and an interpreter for every user")
    neighbour = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "/usr/bin/python3", "-c", CONNECT]
    done = await asyncio.to_thread(
        subprocess.run, [*neighbour, str(socket)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "refused\n"


async def test_the_socket_is_removed_with_its_container(make_machine: MakeMachine, options: ProcessOptions) -> None:
    machine, home = await with_a_terminal(make_machine, options)
    folder = machine.process.paths.program(home.workspace_id)
    await machine.runtime.ensure_no_container(home.workspace_id, FENCE)
    assert not folder.exists()

    folder.mkdir()  # as after a crash
    (folder / "socket").touch()
    await machine.process.close()
    await started(make_machine, options)
    assert not folder.exists()
