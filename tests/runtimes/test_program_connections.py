"""The bridge carries bytes unchanged, and the placeholders of a command are replaced."""

import asyncio
import contextlib
import hashlib
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, free_port, unheard, until_ended, until_ready
from tests.contracts.test_runtime_contract import PYTHON
from tests.runtimes.conftest import Machine, MakeMachine
from torpor.domain.errors import Code, Failed, Refused
from torpor.inside.agent import read_frame
from torpor.inside.control_frames import EXIT, TAKEN, frame
from torpor.ports import Address, Home
from torpor.runtimes import agent_client
from torpor.runtimes.host_programs import ToolFailed
from torpor.runtimes.nameservers import usable_nameservers
from torpor.runtimes.placeholders import Placeholders
from torpor.runtimes.process.network import SUBNETS, pick_subnet, routed_networks, subnet
from torpor.testing.defaults import process_options

pytestmark = pytest.mark.anyio

# Reads to the end, then answers with the received data; `slow` waits before it reads.
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


async def test_an_invalid_reply_of_the_agent_is_an_internal_error(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(frame(EXIT, b"well"))
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "control"):
        with pytest.raises(Failed) as failure:
            await agent_client.execute(Address(unix_path=str(tmp_path / "control")), ["true"], b"", most_bytes=99)
    assert failure.value.code is Code.INTERNAL


async def test_an_invalid_reply_of_the_agent_ends_the_shell(tmp_path: Path) -> None:
    said: list[bytes] = [frame(EXIT, b"well"), frame(TAKEN, b"all"), b"O\xff\xff\xff\xff", b"O\0", b""]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(said.pop())
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "control"):
        while said:
            shell = await agent_client.shell(Address(unix_path=str(tmp_path / "control")), columns=80, rows=24)
            async with asyncio.timeout(10):
                assert await shell.read() == b""
                await shell.write(b"x" * (1 << 20))
                with pytest.raises((Failed, Refused)):
                    await shell.exit_code()
            await shell.close()
    with pytest.raises(Refused) as refusal:
        await agent_client.shell(Address(unix_path=str(tmp_path / "nobody")), columns=80, rows=24)
    assert refusal.value.code == "not_running"


@pytest.mark.parametrize("own_network", [True, False], ids=["own network", "shared network"])
async def test_the_line_with_the_port_may_arrive_in_pieces(make_machine: MakeMachine, own_network: bool) -> None:
    machine = make_machine(process_options(grace_s=2.0, own_network=own_network))
    await machine.process.start()
    port = free_port()
    home = await machine.home()
    await machine.up(machine.serving_on(home, port))
    await until_ready(machine, home)
    address = machine.runtime.address(home.workspace_id, port)
    assert address is not None

    async def said(*parts: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(address.unix_path)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.02)
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    named = address.preamble
    assert await said(named + b"ping") == b"you said ping"
    assert await said(named, b"ping") == b"you said ping"
    assert await said(named[:2], named[2:] + b"ping") == b"you said ping"
    for nonsense in (b"\n", b"0\n", b"65536\n", b"-1\n", b"+80\n", b" 80\n", b"80\r\n", b"GET / HTTP/1.1\r\n", b"0000080\n"):
        assert await said(nonsense, b"ping") == b"", nonsense


async def test_on_a_shared_network_ports_of_the_machine_are_not_reached(make_machine: MakeMachine) -> None:
    machine = make_machine(process_options(grace_s=2.0, own_network=False))
    await machine.process.start()
    home = await machine.up()

    def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"a secret")
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await machine.ask(home.workspace_id, b"ping", port) == b""


async def test_a_half_close_is_forwarded_and_no_data_is_lost(machine: Machine) -> None:
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


async def test_a_program_without_a_listener_closes_the_connection_at_once(machine: Machine) -> None:
    home = await machine.home()
    await machine.up(machine.silent(home))
    await machine.sh(home, "true")
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it does not read the rest of the data
        assert await machine.ask(home.workspace_id, b"ping") == b""


async def test_a_very_long_data_directory_works(make_machine: MakeMachine, data_dir: Path) -> None:
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
    log = machine.process.paths.log(home.workspace_id)
    assert sum(path.stat().st_size for path in log.parent.iterdir()) <= 2 << 20
    last = [line async for line in machine.runtime.logs(home.workspace_id, tail=3)]
    assert [line.split()[1] for line in last] == [b"199997", b"199998", b"199999"]


async def test_placeholders_of_a_command_are_replaced(machine: Machine) -> None:
    home = await machine.home()
    script = "test -d {inside} && test -d {site} && test {port} = $PORT && test {home} = $HOME && echo {other} $WHERE"
    container = machine.running(home, ("sh", "-c", script), WHERE="{site}")
    await machine.runtime.ensure_running(container, FENCE, unheard)
    seen = await until_ended(machine, home)
    assert seen.ended is not None
    assert seen.ended.exit_code == 0, seen.ended
    assert seen.ended.last_lines.startswith("{other} /")


def test_only_known_placeholders_are_replaced() -> None:
    known = Placeholders("/py", "/in", "/site", "/prog", 7, "/run/socket", "/h")
    assert known.fill("{python}{inside}{site}{programs}{port}{home}") == "/py/in/site/prog7/h"
    assert known.fill("{} {x} {{port}} ${HOME}") == "{} {x} {7} ${HOME}"


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_seed_gives_the_same_free_subnet() -> None:
    first = pick_subnet("a", [], [])
    assert pick_subnet("a", [], []) == first
    assert pick_subnet("a", [first], []) == (first + 1) % SUBNETS
    assert pick_subnet("a", [], [subnet(first)]) == (first + 1) % SUBNETS
    with pytest.raises(ToolFailed):
        pick_subnet("a", range(SUBNETS), [])


class Counted(list[ipaddress.IPv4Network]):
    """The number of iterations over it."""

    times = 0

    def __iter__(self) -> Iterator[ipaddress.IPv4Network]:
        self.times += 1
        return super().__iter__()


def test_a_subnet_is_found_in_few_steps_in_an_almost_full_pool() -> None:
    """For example of a VPN: the search blocks the event loop."""
    routed = Counted(ipaddress.IPv4Network(one) for one in ("100.64.0.0/11", "100.96.0.0/12", "100.127.255.252/30"))
    found = {pick_subnet(f"seed {number}", [], routed) for number in range(50)}
    assert routed.times <= 50 * 4
    assert all(not subnet(index).overlaps(network) for index in found for network in routed)
    assert subnet(pick_subnet("a", [], routed[:2])).subnet_of(ipaddress.IPv4Network("100.112.0.0/12"))
    with pytest.raises(ToolFailed):
        pick_subnet("a", [], [ipaddress.IPv4Network("100.64.0.0/11"), ipaddress.IPv4Network("100.96.0.0/11")])


def test_routes_are_read_as_the_kernel_writes_them() -> None:
    table = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "tail\t00004064\t00000000\t0001\t0\t0\t0\t0000C0FF\t0\t0\t0\n"
    )
    assert routed_networks(table) == [ipaddress.IPv4Network("192.0.2.0/24")]


def test_nameservers_on_loopback_are_ignored(tmp_path: Path) -> None:
    stub, real = tmp_path / "stub", tmp_path / "real"
    stub.write_text("# made by\nnameserver 127.0.0.53\nnameserver ::1\nsearch home\n")
    real.write_text("nameserver 192.0.2.7\nnameserver nonsense\nnameserver\n")
    assert usable_nameservers([stub, tmp_path / "missing", real]) == ("192.0.2.7",)
    assert usable_nameservers([stub]) == ()


async def test_abilities_can_be_read_without_a_start(make_machine: MakeMachine) -> None:
    machine = make_machine()
    found = await machine.process.abilities()
    assert [ability.what for ability in found] == [
        "files and processes",
        "user",
        "network",
        "name resolution",
        "memory and processes",
        "CPU",
    ]
    assert all(ability.how for ability in found)
    assert Home("a", 1)


async def test_a_change_is_reported_as_soon_as_a_program_answers(machine: Machine) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    machine.process._on_change = told.put_nowait
    home = await machine.home()
    await machine.runtime.ensure_running(machine.serving(home), FENCE, unheard)
    async with asyncio.timeout(20):
        assert await told.get() == home.workspace_id
    seen = (await machine.runtime.observe()).of(home.workspace_id).container
    assert seen is not None
    assert seen.ready
    await machine.runtime.ensure_no_container(home.workspace_id, FENCE)
    async with asyncio.timeout(20):
        assert await told.get() == home.workspace_id, "and again when it ends"
