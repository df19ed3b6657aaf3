"""Do bytes come through the bridge as they were sent, and are the words of a command replaced?"""

import asyncio
import contextlib
import hashlib
import ipaddress
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, unheard, until_ended, until_ready
from tests.contracts.test_runtime_contract import PYTHON
from tests.runtimes.conftest import Machine, MakeMachine
from torpor.domain.errors import Code, Failed
from torpor.inside.agent import EXIT, frame, read_frame
from torpor.ports import Home
from torpor.runtimes.process import agent_client
from torpor.runtimes.process.network import SUBNETS, pick_subnet, routed_networks, subnet, usable_nameservers
from torpor.runtimes.process.placeholders import Known
from torpor.runtimes.process.tools import ToolFailed

pytestmark = pytest.mark.anyio

# Reads to the end, then answers with what it got; `slow` waits before it reads.
DIGEST = """
import hashlib, os, socket, threading, time
def answer(connection):
    with connection:
        digest, size = hashlib.sha256(), 0
        while data := connection.recv(65536):
            digest.update(data); size += len(data)
        connection.sendall(f"{size} {digest.hexdigest()}".encode() + b"." * 1000000)
server = socket.create_server(("::1", int(os.environ["PORT"])), family=socket.AF_INET6)
while True:
    threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
"""


async def test_an_agent_that_talks_nonsense_is_an_error_of_ours(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(frame(EXIT, b"well"))
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "control"):
        with pytest.raises(Failed) as failure:
            await agent_client.execute(str(tmp_path / "control"), ["true"], b"", most_bytes=99)
    assert failure.value.code is Code.INTERNAL


async def test_a_half_close_passes_and_nothing_is_lost(machine: Machine) -> None:
    home = await machine.home()
    await machine.up(machine.running(home, (PYTHON, "-S", "-c", DIGEST)))
    await until_ready(machine, home)
    address = machine.runtime.address(home.workspace_id)
    assert address is not None

    async def ask(much: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(address.unix_path)
        writer.write(much)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer

    for much in (b"", b"x", bytes(range(256)) * 40000):
        said = f"{len(much)} {hashlib.sha256(much).hexdigest()}".encode()
        assert list(await asyncio.gather(ask(much), ask(much))) == [said + b"." * 1000000] * 2


async def test_a_program_that_does_not_listen_hangs_up_at_once(machine: Machine) -> None:
    home = await machine.home()
    await machine.up(machine.silent(home))
    await machine.sh(home, "true")
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # what was sent is not read any more
        assert await machine.ask(home.workspace_id, b"ping") == b""


async def test_a_very_long_data_directory_is_no_trouble(make_machine: MakeMachine, data_dir: Path) -> None:
    machine = make_machine(data=data_dir / ("long" * 50) / ("longer" * 30))
    await machine.process.start()
    home = await machine.up()
    assert await machine.ask(home.workspace_id, b"ping") == b"you said ping"
    await machine.process.close()


async def test_the_log_on_disk_is_bounded(machine: Machine) -> None:
    home = await machine.home()
    script = "for n in range(200000): print('line', n, 'x' * 20)"
    await machine.up(machine.running(home, (PYTHON, "-S", "-c", script)))
    await until_ended(machine, home)
    log = machine.process.places.log(home.workspace_id)
    assert sum(path.stat().st_size for path in log.parent.iterdir()) <= 2 << 20
    last = [line async for line in machine.runtime.logs(home.workspace_id, tail=3)]
    assert [line.split()[1] for line in last] == [b"199997", b"199998", b"199999"]


async def test_words_of_a_command_are_replaced_inside(machine: Machine) -> None:
    home = await machine.home()
    script = "test -d {inside} && test -d {site} && test {port} = $PORT && test {home} = $HOME && echo {other} $WHERE"
    container = machine.running(home, ("sh", "-c", script), WHERE="{site}")
    await machine.runtime.ensure_running(container, FENCE, unheard)
    seen = await until_ended(machine, home)
    assert seen.ended is not None
    assert seen.ended.exit_code == 0, seen.ended
    assert seen.ended.last_lines.startswith("{other} /")


def test_only_known_words_are_replaced() -> None:
    known = Known("/py", "/in", "/site", "/prog", 7, "/h")
    assert known.fill("{python}{inside}{site}{programs}{port}{home}") == "/py/in/site/prog7/h"
    assert known.fill("{} {x} {{port}} ${HOME}") == "{} {x} {7} ${HOME}"


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_subnet_is_the_same_for_the_same_and_free() -> None:
    first = pick_subnet("a", [], [])
    assert pick_subnet("a", [], []) == first
    assert pick_subnet("a", [first], []) == (first + 1) % SUBNETS
    assert pick_subnet("a", [], [subnet(first)]) == (first + 1) % SUBNETS
    with pytest.raises(ToolFailed):
        pick_subnet("a", range(SUBNETS), [])


def test_routes_are_read_as_the_kernel_writes_them() -> None:
    table = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "tail\t00004064\t00000000\t0001\t0\t0\t0\t0000C0FF\t0\t0\t0\n"
    )
    assert routed_networks(table) == [ipaddress.IPv4Network("192.0.2.0/24")]


def test_nameservers_on_loopback_are_of_no_use(tmp_path: Path) -> None:
    stub, real = tmp_path / "stub", tmp_path / "real"
    stub.write_text("# made by\nnameserver 127.0.0.53\nnameserver ::1\nsearch home\n")
    real.write_text("nameserver 192.0.2.7\nnameserver nonsense\nnameserver\n")
    assert usable_nameservers([stub, tmp_path / "missing", real]) == ("192.0.2.7",)
    assert usable_nameservers([stub]) == ()


async def test_abilities_can_be_asked_without_starting(make_machine: MakeMachine) -> None:
    machine = make_machine()
    found = await machine.process.abilities()
    assert [ability.what for ability in found] == [
        "files and processes",
        "user",
        "network",
        "name resolution",
        "memory and processes",
    ]
    assert all(ability.how for ability in found)
    assert Home("a", 1)
