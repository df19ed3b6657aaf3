"""Workspaces can see, write, reach and use only what they should."""

import asyncio
import contextlib
import ctypes
import ipaddress
import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, unheard, until_ended, until_ready
from tests.contracts.test_runtime_contract import PYTHON
from tests.runtimes.conftest import Machine, MakeMachine
from tests.support.requirements import must_have
from torpor.ports import Home, Limits
from torpor.runtimes.ability import FILES
from torpor.runtimes.host_programs import call
from torpor.runtimes.process import network
from torpor.runtimes.process.network import MARK, POOL, VethNetwork, pick_subnet, subnet
from torpor.testing.defaults import process_options

pytestmark = pytest.mark.anyio


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_other_homes_and_the_data_of_torpor_are_hidden(machine: Machine) -> None:
    await machine.must("files and processes")
    one, two = await machine.up(), await machine.up()
    await machine.sh(one, "echo treasure > secret.txt")
    assert (machine.process.paths.volume(one) / "home" / "secret.txt").read_text() == "treasure\n"
    assert (await machine.sh(two, "ls -A /home")).stdout == b"workspace\n"
    assert (await machine.sh(two, "ls -A $HOME")).stdout == b""
    for path in (
        machine.data,
        machine.process.paths.run,
        machine.process.paths.volume(one),
        Path.home() / ".ssh",
        "/etc/shadow",
    ):
        assert (await machine.sh(two, f"test -e {path}")).exit_code == 1, path
    found = await machine.sh(two, "find / -xdev -name secret.txt -o -xdev -name marker.json 2>/dev/null | grep -v ^/proc")
    assert found.stdout == b""


async def test_the_home_is_the_only_place_to_write_besides_tmp(machine: Machine) -> None:
    await machine.must("files and processes")
    home = await machine.up()
    for place in (
        "/",
        "/usr",
        "/usr/local/bin",
        "/etc",
        "/home",
        "/opt",
        "/opt/torpor/inside",
        "/opt/torpor/site",
        "/run",
        "/var",
    ):
        assert (await machine.sh(home, f"touch {place}/intruder")).exit_code != 0, place
    for place in ("/home/workspace", "/tmp", "/var/tmp", "/dev/shm"):
        assert (await machine.sh(home, f"touch {place}/mine")).exit_code == 0, place


async def test_files_beside_the_program_socket_take_no_disk_space(machine: Machine) -> None:
    await machine.must("files and processes")
    home = await machine.up()
    assert (await machine.sh(home, "echo mine > /run/program/mine && cat /run/program/mine")).stdout == b"mine\n"
    assert list(machine.process.paths.run.rglob("mine")) == []
    sandbox = next(ability.how for ability in await machine.process.abilities() if ability.what == FILES)
    must_have("limited by memory only" not in sandbox, "a bubblewrap that bounds a tmpfs")
    assert (await machine.sh(home, "head -c 200000 /dev/zero > /run/program/large")).exit_code != 0


async def test_tmp_is_private(machine: Machine) -> None:
    await machine.must("files and processes")
    one, two = await machine.up(), await machine.up()
    await machine.sh(one, "touch /tmp/mine")
    assert (await machine.sh(two, "ls -A /tmp")).stdout == b""


async def environments_in_sight(machine: Machine, home: Home) -> str:
    """The variables of the process, and of all processes that it can read, except Torpor's if they share its user."""
    abilities = {ability.what: ability.confined for ability in await machine.process.abilities()}
    others = "; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'" if abilities[FILES] or abilities["user"] else ""
    return (await machine.sh(home, f"env{others}")).stdout.decode()


async def test_the_environment_contains_no_variables_of_torpor(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_SECRET_KEY", "hunter2")
    monkeypatch.setenv("DATABASE_URL", "postgresql://hunter2@db/torpor")
    machine = make_machine()
    await machine.process.start()
    home = await machine.up()
    shown = await environments_in_sight(machine, home)
    assert "hunter2" not in shown
    assert "TORPOR" not in shown


async def test_a_job_gets_no_secret_from_the_environment(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_SECRET_KEY", "hunter2")
    home = await machine.home()
    job = machine.python_job("say(result=dict(os.environ))", writes=False)
    assert "hunter2" not in (await machine.runtime.run_at_home(home, job, FENCE, unheard)).values()


async def test_a_job_gets_object_store_credentials_and_a_workspace_does_not(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT_KEY"}
    for name in names:
        monkeypatch.setenv(name, "hunter2")
    home = await machine.home()
    job = machine.python_job("say(result=dict(os.environ))", writes=False)
    assert names <= (await machine.runtime.run_at_home(home, job, FENCE, unheard)).keys()
    await machine.up(machine.serving(home))
    await until_ready(machine, home)
    shown = await environments_in_sight(machine, home)
    assert "hunter2" not in shown


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the calls are those of x86_64")
async def test_kernel_keys_of_torpor_cannot_be_read(machine: Machine) -> None:
    await machine.must("files and processes")
    add_key, keyctl, session, read, revoke = 248, 250, -3, 11, 3
    libc = ctypes.CDLL(None, use_errno=True)
    key = libc.syscall(add_key, b"user", secrets.token_hex(8).encode(), b"hunter2", 7, session)
    must_have(key > 0, "keys in the kernel")
    buffer = ctypes.create_string_buffer(99)
    try:
        assert libc.syscall(keyctl, read, key, buffer, 99) == 7  # it can be read here
        home = await machine.up()
        asking = f"ctypes.CDLL(None).syscall({keyctl}, {read}, {key}, ctypes.create_string_buffer(99), 99)"
        code = f"import ctypes; print({asking})"
        assert (await machine.sh(home, f"/usr/bin/python3 -S -c '{code}'")).stdout == b"-1\n"
    finally:
        libc.syscall(keyctl, revoke, key)


# ── processes and users ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_sees_only_its_own_processes(machine: Machine) -> None:
    await machine.must("files and processes")
    home = await machine.up()
    names = (await machine.sh(home, "cat /proc/[0-9]*/comm")).stdout.decode().split()
    assert len(names) <= 5, names
    assert (await machine.sh(home, f"kill -0 {os.getpid()}")).exit_code != 0


async def test_each_workspace_has_its_own_user_and_cannot_become_another(machine: Machine) -> None:
    await machine.must("user")
    homes = [await machine.up(), await machine.up()]
    users = [int((await machine.sh(home, "id -u")).stdout) for home in homes]
    assert len({0, os.getuid(), *users}) == 3
    for home, user in zip(homes, users, strict=True):
        assert (machine.process.paths.volume(home) / "home").stat().st_uid == user
        status = (await machine.sh(home, "cat /proc/self/status /proc/$PPID/status")).stdout.decode()
        assert status.count("NoNewPrivs:\t1") == 2
        assert status.count("CapEff:\t0000000000000000") == 2
        assert status.count("CapPrm:\t0000000000000000") == 2


# ── network ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def try_to_reach(host: str, port: int) -> str:
    code = f"import socket; socket.create_connection(({host!r}, {port}), timeout=1).sendall(b'x')"
    return f'{PYTHON} -S -c "{code}"'


def addresses_of_this_machine() -> list[str]:
    shown = json.loads(subprocess.run(["ip", "-j", "-4", "addr"], check=True, capture_output=True).stdout)
    return [address["local"] for link in shown for address in link["addr_info"]]


async def test_the_machine_itself_cannot_be_reached(machine: Machine) -> None:
    await machine.must("network")
    home = await machine.up()
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            pass  # it does answer here
        results = await asyncio.gather(*(machine.sh(home, try_to_reach(host, port)) for host in addresses_of_this_machine()))
    assert all(result.exit_code != 0 for result in results)


async def test_another_workspace_cannot_be_reached(machine: Machine) -> None:
    await machine.must("network")
    must_have(os.getuid() == 0, "root, to know a workspace's address")
    one, two = await machine.up(), await machine.up()
    listen = "import socket,time; s=socket.create_server(('0.0.0.0', 9000)); print('up', flush=True); time.sleep(60)"
    serving = asyncio.ensure_future(machine.sh(two, f'{PYTHON} -S -c "{listen}"'))
    await machine.sh(two, "until grep -q :2328 /proc/net/tcp; do sleep 0.01; done")
    address = (await machine.sh(two, "hostname -I || ip -4 -o addr show eth0")).stdout.decode().split()[0]
    assert address.startswith("100.")
    assert (await machine.sh(two, try_to_reach(address, 9000))).exit_code == 0  # it does answer there
    assert (await machine.sh(one, try_to_reach(address, 9000))).exit_code != 0
    with pytest.raises(OSError), socket.create_connection((address, 9001), timeout=1):
        pass
    serving.cancel()


@contextlib.contextmanager
def an_internet(address: str) -> Iterator[None]:
    """A network namespace behind a veth, with a server that returns the client's address."""
    name = f"it{secrets.token_hex(4)}"
    gateway = address.rpartition(".")[0] + ".1"
    code = (
        "import socket\n"
        f"s = socket.create_server(({address!r}, 8080))\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    c, peer = s.accept(); c.sendall(peer[0].encode()); c.close()\n"
    )
    subprocess.run(["ip", "netns", "add", name], check=True)
    server = None
    try:
        steps = f"link add {name} type veth peer name eth0 netns {name}\naddr add {gateway}/24 dev {name}\nlink set {name} up\n"
        subprocess.run(["ip", "-batch", "-"], input=steps, text=True, check=True)
        steps = f"link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up\n"
        subprocess.run(["ip", "-n", name, "-batch", "-"], input=steps, text=True, check=True)
        command = ["ip", "netns", "exec", name, "/usr/bin/python3", "-S", "-c", code]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        yield
    finally:
        if server is not None:
            server.kill()
            server.communicate()
        subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", name], check=False, stderr=subprocess.DEVNULL)


def fetch(address: str, port: int = 8080) -> str:
    code = f"import socket; print(socket.create_connection(('{address}', {port}), timeout=2).recv(99).decode())"
    return f'{PYTHON} -S -c "{code}"'


async def test_outgoing_connections_use_the_address_of_this_machine(machine: Machine) -> None:
    await machine.must("network")
    must_have(os.getuid() == 0, "root, to build something to reach")
    net = f"198.18.{secrets.randbelow(250)}"
    with an_internet(f"{net}.2"):
        home = await machine.up()
        answer = await machine.sh(home, fetch(f"{net}.2"))
        assert answer.stdout.decode().strip() == f"{net}.1", answer


async def test_cloud_metadata_addresses_are_blocked(machine: Machine) -> None:
    await machine.must("network")
    must_have(os.getuid() == 0, "root, to build something to reach")
    net = f"169.254.{1 + secrets.randbelow(250)}"
    with an_internet(f"{net}.2"):
        home = await machine.up()
        with socket.create_connection((f"{net}.2", 8080), timeout=2):
            pass  # it does answer here
        assert (await machine.sh(home, fetch(f"{net}.2"))).exit_code != 0


async def test_a_port_that_this_machine_forwards_is_blocked(machine: Machine) -> None:
    await machine.must("network")
    must_have(os.getuid() == 0, "root, to build something to reach")
    net = f"198.18.{secrets.randbelow(250)}"
    rule = f"PREROUTING -d {net}.1/32 -p tcp --dport 8081 -j DNAT --to-destination {net}.2:8080".split()
    with an_internet(f"{net}.2"):
        home = await machine.up()
        await call("iptables", "-w", "5", "-t", "nat", "-A", *rule)
        try:
            assert (await machine.sh(home, fetch(f"{net}.1", 8081))).exit_code != 0
            assert (await machine.sh(home, fetch(f"{net}.2"))).exit_code == 0
        finally:
            await call("iptables", "-w", "5", "-t", "nat", "-D", *rule)


async def test_rules_removed_by_a_firewall_reload_are_restored(machine: Machine) -> None:
    await machine.must("network")
    must_have(os.getuid() == 0, "root")
    setup = machine.process._setup
    assert setup is not None
    assert setup.veths is not None
    before = await setup.veths._rules_there()
    await setup.veths._remove_rules()
    assert await setup.veths._rules_there() == []
    await asyncio.gather(*[machine.up(machine.silent(await machine.home())) for _ in range(3)])
    assert await setup.veths._rules_there() == before


def test_only_packets_from_our_interfaces_are_masqueraded() -> None:
    rules = VethNetwork("12345", (), blocked=(), allowed=()).rules().splitlines()
    marked = [line for line in rules if "MARK --set" in line]
    assert marked == [f"-A TORPOR-12345-FWD -i torp12345+ -j MARK --set-xmark {MARK}"]
    assert all(f"-m mark --mark {MARK}" in line for line in rules if "POSTROUTING" in line)


def test_a_cloud_address_in_the_pool_is_not_assigned() -> None:
    metadata = "100.100.100.200/32"
    assert metadata in process_options().blocked_networks
    index = (int(ipaddress.IPv4Address("100.100.100.200")) - int(POOL.network_address)) // 4
    taken = set(range(1 << 20)) - {index, index + 1}
    veths = VethNetwork("12345", (), blocked=process_options().blocked_networks, allowed=())
    assert pick_subnet("anybody", taken, veths._not_ours()) == index + 1


def test_an_allowed_network_in_the_pool_is_not_assigned() -> None:
    """For example of a VPN: a route to a workspace would hide it."""
    first = (int(ipaddress.IPv4Address("100.99.0.0")) - int(POOL.network_address)) // 4
    taken = set(range(1 << 20)) - {first, first + 64}
    veths = VethNetwork("12345", (), blocked=process_options().blocked_networks, allowed=("100.99.0.0/24",))
    assert pick_subnet("anybody", taken, veths._not_ours()) == first + 64


def test_the_chain_for_forwarding_accepts_only_answers_and_allows_before_it_blocks() -> None:
    veths = VethNetwork("12345", ("192.0.2.53",), blocked=("10.0.0.0/8", "fc00::/7"), allowed=("10.1.2.0/24", "fd12::/64"))
    rules = [
        line.removeprefix("-A TORPOR-12345-FWD ")
        for line in veths.rules().splitlines()
        if line.startswith("-A TORPOR-12345-FWD")
    ]
    assert [rule for rule in rules if rule.endswith("ACCEPT")] == [
        "-o torp12345+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    ]
    assert rules[-5:] == [
        "-o torp+ -j DROP",
        "-d 192.0.2.53/32 -p udp --dport 53 -j RETURN",
        "-d 192.0.2.53/32 -p tcp --dport 53 -j RETURN",
        "-d 10.1.2.0/24 -j RETURN",
        "-d 10.0.0.0/8 -j REJECT --reject-with icmp-admin-prohibited",
    ]


async def test_the_check_of_abilities_changes_nothing(
    make_machine: MakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwarding = tmp_path / "ip_forward"
    forwarding.write_text("0")
    monkeypatch.setattr(network, "FORWARDING", forwarding)
    machine = make_machine()
    assert await machine.process.abilities()
    assert forwarding.read_text() == "0"


async def test_concurrent_starts_get_different_addresses(machine: Machine) -> None:
    await machine.must("network")
    must_have(os.getuid() == 0, "root")
    homes = [await machine.home() for _ in range(4)]
    await asyncio.gather(*(machine.up(machine.silent(home)) for home in homes))
    shown = [(await machine.sh(home, "ip -4 -o addr show eth0")).stdout.decode().split()[3] for home in homes]
    assert len(set(shown)) == 4


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_process_above_the_memory_limit_is_killed_and_no_other(machine: Machine) -> None:
    await machine.must("memory and processes")
    home, other = await machine.home(), await machine.up()
    container = replace(machine.serving(home), limits=Limits(memory_bytes=96 << 20, processes=64))
    await machine.up(container)
    await until_ready(machine, home)
    hog = await machine.sh(home, f"{PYTHON} -S -c \"x = b'x' * (400 << 20)\"")
    assert hog.exit_code == 137
    assert (await until_ready(machine, home)).ended is None  # the kernel killed the process with the memory, not the program
    assert (await machine.sh(other, "echo well")).stdout == b"well\n"


async def test_a_program_above_the_memory_limit_is_reported_as_ended(machine: Machine) -> None:
    await machine.must("memory and processes")
    home = await machine.home()
    greedy = machine.running(home, (PYTHON, "-S", "-c", "x = b'x' * (400 << 20)"))
    await machine.up(replace(greedy, limits=Limits(memory_bytes=96 << 20, processes=64)))
    seen = await until_ended(machine, home)
    assert seen.ended is not None
    assert seen.ended.exit_code == 137


async def test_a_fork_bomb_is_limited_and_can_be_stopped(machine: Machine) -> None:
    await machine.must("memory and processes")
    home, other = await machine.home(), await machine.up()
    bomb = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)\n"
    container = machine.running(home, (PYTHON, "-S", "-c", bomb))
    await machine.up(replace(container, limits=Limits(memory_bytes=256 << 20, processes=40)))
    setup = machine.process._setup
    assert setup is not None
    assert setup.cgroups is not None
    counts: list[int] = []
    for _ in range(1000):
        counts += [len(setup.cgroups.members(name)) for name in setup.cgroups.names()]
        if counts.count(40) > 20:
            break
        await asyncio.sleep(0.01)
    assert max(counts) == 40
    assert (await machine.sh(other, "echo well")).stdout == b"well\n"
    await machine.runtime.ensure_no_container(home.workspace_id, FENCE)
    assert len(setup.cgroups.names()) == 1


def test_the_first_and_the_last_subnet_are_in_the_pool() -> None:
    assert str(subnet(0)) == "100.64.0.0/30"
    assert str(subnet((1 << 20) - 1)) == "100.127.255.252/30"
