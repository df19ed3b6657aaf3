"""What a workspace on a Docker engine can reach, tried from inside, with the rules and without them."""

import asyncio
import contextlib
import json
import shlex
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from tests.contracts.runtime_contract import FENCE, unheard
from tests.runtimes.docker.conftest import MakeRuntime
from tests.runtimes.docker.engine_surroundings import (
    ON_THE_BRIDGE,
    OTHER_ADDRESS,
    OUTSIDE_PORT,
    PRIVATE,
    PUBLISHED,
    SERVICES,
    Attempt,
    Surroundings,
    reached,
    surroundings,
)
from tests.runtimes.docker.engine_surroundings import SERVE as SERVE_ALL
from tests.runtimes.docker.test_containers import SLEEPING, ready, running_program, started
from tests.runtimes.made_network import GATEWAY, MACHINE, METADATA, PUBLIC, RESOLVER
from tests.support.docker_engine import DockerEngine
from tests.support.waiting import until
from torpor.assemble.engine_findings import engine_confinement
from torpor.domain.errors import Code, Failed, Refused
from torpor.kit import layout
from torpor.ports import Home
from torpor.runtimes.ability import FORWARDING, NETWORK
from torpor.runtimes.docker.engine_network import EngineNetwork
from torpor.runtimes.docker.runtime import DockerRuntime
from torpor.runtimes.object_labels import container_name
from torpor.runtimes.running_container import AGENT_PORT
from torpor.settings import load

pytestmark = pytest.mark.anyio

PROGRAM_PORT = 9000
PROGRAM = ("{python}", "-S", "-c", SERVE_ALL, json.dumps([("tcp", "0.0.0.0", PROGRAM_PORT), ("udp", "0.0.0.0", PROGRAM_PORT)]))
OPEN: tuple[Attempt, ...] = (("tcp", PUBLIC, OUTSIDE_PORT), ("tcp", RESOLVER, 53), ("udp", RESOLVER, 53))


@pytest.fixture
def around(engine: DockerEngine) -> Iterator[Surroundings]:
    with surroundings(engine) as around:
        yield around


@pytest.fixture
def make_isolated(make_runtime: MakeRuntime, around: Surroundings) -> MakeRuntime:
    def make(**changes: object) -> DockerRuntime:
        given = {"isolation": True, "network": "", "nameservers": (RESOLVER,), "firewall_prefix": around.prefix, **changes}
        return make_runtime(**given)

    return make


@pytest.fixture
async def isolated(make_isolated: MakeRuntime) -> DockerRuntime:
    runtime = make_isolated()
    await runtime.start()
    return runtime


@pytest.fixture
async def another(make_isolated: MakeRuntime, around: Surroundings, installation: str) -> AsyncIterator[DockerRuntime]:
    """Of another installation on the same engine."""
    name = f"other-{installation}"
    runtime = make_isolated(installation=name)
    await runtime.start()
    yield runtime
    around.engine.remove_all(name)


def network_of(runtime: DockerRuntime) -> EngineNetwork:
    return runtime._options.workspace_network


def gateway_of(around: Surroundings, network: str) -> str:
    return around.engine.docker("network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", network)


def rules_of(around: Surroundings, runtime: DockerRuntime) -> list[str]:
    chain = f"TORPOR-{network_of(runtime).tag.upper()}-"
    listed = "".join(around.run(program, "-S") for program in ("iptables", "ip6tables"))
    return [line for line in listed.splitlines() if chain in line]


@pytest.mark.both_engines
async def test_a_workspace_reaches_the_internet_and_nothing_near_it(
    around: Surroundings, isolated: DockerRuntime, another: DockerRuntime, image: str
) -> None:
    home, neighbour = await started(isolated), await started(isolated, *PROGRAM)
    stranger = await started(another, *PROGRAM)
    await isolated._engine.ensure_network(isolated._options.job_network)
    kit, serving, publish = isolated._kit.name, ("tcp", "0.0.0.0", PUBLISHED), ("--publish", f"{PUBLISHED}:{PUBLISHED}")
    gateway = gateway_of(around, network_of(isolated).name)
    services: list[Attempt] = [("tcp", "0.0.0.0", port) for port in SERVICES]
    services += [("udp", "0.0.0.0", SERVICES[0]), ("tcp", gateway, ON_THE_BRIDGE)]
    with (
        around.container("bridge", kit, image, serving, options=publish) as publishing,
        around.container(isolated._options.job_network.name, kit, image, serving) as job,
        around.serving(*services),
    ):
        tcp = [(address, port) for address in (gateway, MACHINE, OTHER_ADDRESS) for port in (*SERVICES, PUBLISHED)]
        tcp += [(address, OUTSIDE_PORT) for address in (*PRIVATE, *METADATA, RESOLVER)]
        tcp += [(around.address_of_home(one), PROGRAM_PORT) for one in (neighbour, stranger)]
        tcp += [(around.address_of(one), PUBLISHED) for one in (publishing, job)]
        tcp += [(gateway, ON_THE_BRIDGE)]
        if not (await isolated._engine.dialect()).resolves_at_gateway:  # otherwise no name of a container is resolved
            tcp += [(container_name(neighbour.workspace_id), PROGRAM_PORT)]
        closed: list[Attempt] = [("tcp", address, port) for address, port in tcp]
        closed += [("connect", around.address_of_home(one), AGENT_PORT) for one in (neighbour, stranger)]
        closed += [("udp", address, SERVICES[0]) for address in (gateway, MACHINE)]
        closed += [("udp", around.address_of_home(neighbour), PROGRAM_PORT), ("udp", PRIVATE[0], 53)]
        assert await reached(isolated, home, *OPEN, *closed) == set(OPEN)
        # The same attempts succeed without the rules.
        for runtime in (isolated, another):
            await runtime._isolation.firewall.remove()
        around.open_everything()
        assert await reached(isolated, home, *OPEN, *closed) == {*OPEN, *closed}
        # Torpor's rules are enough, without Docker's.
        for runtime in (isolated, another):
            await runtime._isolation.write_rules()
        assert await reached(isolated, home, *OPEN, *closed) == set(OPEN)
        await in_jobs(around, job, ("tcp", PRIVATE[0], OUTSIDE_PORT), ("tcp", MACHINE, SERVICES[0]))


async def in_jobs(around: Surroundings, job: str, *wanted: Attempt) -> None:
    """A job reaches the archive store, in a private network or on this machine."""
    for way, address, port in wanted:
        ask = f"import socket; print(socket.create_connection(({address!r}, {port}), 5).recv(9))"
        said = await asyncio.to_thread(around.engine.docker, "exec", job, *layout.python_argv(), "-c", ask)
        assert said == "b'here'", (way, address, port)


async def test_an_allowed_network_is_open_and_this_machine_stays_closed(
    around: Surroundings, make_isolated: MakeRuntime
) -> None:
    runtime = make_isolated(
        allowed_networks=(f"{PRIVATE[0]}/32", f"{MACHINE}/32"), blocked_networks=("10.0.0.0/8", f"{PUBLIC}/32")
    )
    await runtime.start()
    home = await started(runtime)
    allowed: list[Attempt] = [("tcp", PRIVATE[0], OUTSIDE_PORT), ("tcp", GATEWAY, OUTSIDE_PORT)]
    closed: list[Attempt] = [("tcp", PUBLIC, OUTSIDE_PORT), ("tcp", RESOLVER, OUTSIDE_PORT), ("tcp", MACHINE, SERVICES[0])]
    with around.serving(("tcp", "0.0.0.0", SERVICES[0])):
        assert await reached(runtime, home, *allowed, *closed) == set(allowed)


# At once, without the detection of duplicate addresses.
WITH_IPV6 = "sysctl -qw net.ipv6.conf.{0}.accept_dad=0 net.ipv6.conf.{0}.disable_ipv6=0"


async def test_ipv6_is_closed_even_if_a_container_has_it(around: Surroundings, isolated: DockerRuntime) -> None:
    home, neighbour = (
        await started(isolated),
        await started(isolated, "{python}", "-S", "-c", SERVE_ALL, '[["tcp", "::", 9000]]'),
    )
    six = {}
    for one in (home, neighbour):
        pid = around.engine.docker("inspect", "--format", "{{.State.Pid}}", container_name(one.workspace_id))
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        run(*inside, *WITH_IPV6.format("eth0").split())
        six[one.workspace_id] = await link_local(inside, "eth0")
    around.run(*WITH_IPV6.format(network_of(isolated).bridge).split())
    bridge = await link_local(around.prefix, network_of(isolated).bridge)
    attempts: list[Attempt] = [("tcp", f"{bridge}%eth0", SERVICES[0]), ("tcp", f"{six[neighbour.workspace_id]}%eth0", 9000)]
    with around.serving(("tcp", "::", SERVICES[0])):
        assert await reached(isolated, home, *attempts) == set()
        await isolated._isolation.firewall.remove()
        around.open_everything()
        assert await reached(isolated, home, *attempts) == set(attempts)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def link_local(prefix: Sequence[str], interface: str) -> str:
    """Its address, when it can be used."""
    command = (*prefix, "ip", "-o", "-6", "addr", "show", "dev", interface, "scope", "link", "-tentative")

    async def found() -> str | None:
        words = run(*command).split()
        return words[words.index("inet6") + 1].partition("/")[0] if "inet6" in words else None

    address = await until(found)
    assert address is not None
    return address


PRIVILEGES = """
import json, os, socket
def refused(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "no"
def abstract(name):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\\0" + name)
sockets = [os.path.join(folder, name) for folder in ("/run", "/var/run", "/tmp", "/") if os.path.isdir(folder)
           for name in os.listdir(folder) if name.endswith(".sock")]
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm", "CapBnd", "CapAmb"))]
print(json.dumps({
    "raw": refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)),
    "packet": refused(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "abstract": refused(lambda: abstract("engine-socket")),
    "route": refused(lambda: open("/proc/sys/net/ipv4/ip_forward", "w")),
    "sockets": sockets,
    "caps": sorted(set(caps)),
}))
"""


async def test_a_workspace_has_no_capabilities_and_no_socket_of_the_engine(
    around: Surroundings, isolated: DockerRuntime
) -> None:
    home = await started(isolated)
    with around.serving(("abstract", "engine-socket", 0)):
        said = await isolated.execute(home.workspace_id, [*layout.python_argv(), "-c", PRIVILEGES], b"")
        outside = json.loads(around.run("python3", "-c", PRIVILEGES))
    assert json.loads(said.stdout) == {
        "raw": "PermissionError",
        "packet": "PermissionError",
        "abstract": "ConnectionRefusedError",
        "route": "OSError",
        "sockets": [],
        "caps": ["0000000000000000"],
    }, said.stderr
    assert {outside[one] for one in ("raw", "packet", "abstract")} == {"no"}, "the attempts succeed on the machine itself"
    socket_path = around.engine.url.removeprefix("unix://")
    there = await isolated.execute(home.workspace_id, ["test", "-e", socket_path], b"")
    assert there.exit_code == 1


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def resolved(runtime: DockerRuntime, home: Home, name: str) -> str:
    ask = f"import socket; print(socket.gethostbyname({name!r}))"
    done = await runtime.execute(home.workspace_id, [*layout.python_argv(), "-c", ask], b"")
    return done.stdout.decode().strip() or done.stderr.decode()


async def test_names_are_resolved_by_a_nameserver_in_a_private_network(isolated: DockerRuntime) -> None:
    assert await resolved(isolated, await started(isolated), "example.com") == PUBLIC


async def test_names_are_resolved_by_a_nameserver_on_the_loopback_of_the_machine(
    around: Surroundings, make_isolated: MakeRuntime
) -> None:
    assert around.engine.process is not None
    mounts = ["nsenter", f"--mount=/proc/{around.engine.process.pid}/ns/mnt"]
    resolver = around.engine.folder / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.53\n")
    run(*mounts, "mount", "--bind", str(resolver), "/etc/resolv.conf")
    try:
        runtime = make_isolated(nameservers=())
        await runtime.start()
        home = await started(runtime)
        with around.serving(("udp", "127.0.0.53", 53)):
            assert await resolved(runtime, home, "example.com") == PUBLIC
    finally:
        run(*mounts, "umount", "/etc/resolv.conf")


# ── lost rules ────────────────────────────────────────────────────────────────────────────────────────────────────────


LOSSES = {
    "flushed": ("iptables -F", "ip6tables -F"),
    "displaced": ("iptables -I FORWARD -j ACCEPT", "iptables -I INPUT -j ACCEPT"),
    "bypassed": ("sysctl -qw net.bridge.bridge-nf-call-iptables=0",),
}


async def test_lost_rules_are_restored_before_the_next_start(around: Surroundings, isolated: DockerRuntime) -> None:
    home, neighbour = await started(isolated), await started(isolated, *PROGRAM)
    to_neighbour: Attempt = ("tcp", around.address_of_home(neighbour), PROGRAM_PORT)
    attempts: list[Attempt] = [("tcp", MACHINE, SERVICES[0]), ("tcp", PRIVATE[0], OUTSIDE_PORT), to_neighbour]
    # A policy of DROP would close what the test wants to see open.
    around.open_everything()
    await isolated._isolation.write_rules()
    with around.serving(("tcp", "0.0.0.0", SERVICES[0])):
        for loss, commands in LOSSES.items():
            for command in commands:
                around.run(*command.split())
            lost = {to_neighbour} if loss == "bypassed" else set(attempts)
            assert await reached(isolated, home, *attempts) == lost, loss
            await isolated.ensure_running(running_program(await ready(isolated), *SLEEPING), FENCE, unheard)
            assert await reached(isolated, home, *attempts, OPEN[0]) == {OPEN[0]}, loss


ECHO = """
import pathlib, socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as one:
    one.settimeout(1)
    try:
        while one.send(b"?") and one.recv(1):
            time.sleep(0.05)
    except TimeoutError:
        pathlib.Path("cut").touch()
time.sleep(600)
"""


async def test_a_connection_that_was_opened_while_the_rules_were_lost_is_cut(
    around: Surroundings, isolated: DockerRuntime
) -> None:
    connected = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while data := await reader.read(99):
            writer.write(data)
            connected.set()
        writer.close()

    server = await asyncio.start_server(echo, "0.0.0.0", 0)  # the test is in the network of the engine's machine
    port = server.sockets[0].getsockname()[1]
    home = await ready(isolated)
    # The agent starts the program after the check of the rules, and the program tries for twenty seconds.
    await isolated.ensure_running(running_program(home, "{python}", "-S", "-c", ECHO, MACHINE, str(port)), FENCE, unheard)
    await isolated._isolation.firewall.remove()
    async with asyncio.timeout(20):
        await connected.wait()
    await isolated._isolation.write_rules()

    async def is_cut() -> bool:
        return (await isolated.execute(home.workspace_id, ["test", "-e", "cut"], b"")).exit_code == 0

    await until(is_cut)
    server.close()
    for writer in writers:  # the other end was cut off, so they do not notice
        writer.close()


@pytest.mark.both_engines
async def test_rules_that_the_engine_writes_with_its_first_container_open_nothing(
    around: Surroundings, isolated: DockerRuntime
) -> None:
    """After a boot, Podman writes its own rules before all others when it starts a container."""
    for line in around.run("iptables", "-S", "FORWARD").splitlines():
        if "NETAVARK" in line:
            around.run("iptables", *shlex.split(line.replace("-A ", "-D ", 1)))
    home = await started(isolated)
    assert await reached(isolated, home, ("tcp", PRIVATE[0], OUTSIDE_PORT)) == set()


async def test_an_observation_restores_lost_rules(around: Surroundings, isolated: DockerRuntime) -> None:
    before = rules_of(around, isolated)
    bridged = "net.bridge.bridge-nf-call-iptables"
    around.run("iptables", "-F")
    around.run("sysctl", "-qw", f"{bridged}=0")
    assert rules_of(around, isolated) != before
    await isolated.observe()

    async def restored() -> bool:
        return rules_of(around, isolated) == before and around.run("sysctl", "-n", bridged) == "1\n"

    await until(restored)


async def test_docker_can_put_its_rules_first(around: Surroundings, isolated: DockerRuntime) -> None:
    """It does so when it starts or creates a network; no check of Torpor happens then."""
    home, private = await started(isolated), ("tcp", PRIVATE[0], OUTSIDE_PORT)
    around.run("iptables", "-I", "FORWARD", "-i", network_of(isolated).bridge, "-j", "ACCEPT")
    around.engine.docker("network", "create", "between")
    try:
        assert await reached(isolated, home, OPEN[0], private) == {OPEN[0]}
        around.run("iptables", "-F", "DOCKER-USER")
        assert await reached(isolated, home, OPEN[0], private) == {OPEN[0], private}, "the rules in FORWARD are too late"
    finally:
        around.engine.docker("network", "rm", "between")


async def test_a_firewall_that_forwards_nothing_is_reported_with_a_remedy_that_works(
    around: Surroundings, isolated: DockerRuntime
) -> None:
    home = await started(isolated)
    assert not [one for one in await isolated.abilities() if one.what == FORWARDING]
    assert await doctor_says(around) == []
    around.run("iptables", "-P", "FORWARD", "DROP")
    around.run("iptables", "-F")
    await isolated._isolation.write_rules()
    assert await reached(isolated, home, OPEN[0]) == set()
    (ability,) = [one for one in await isolated.abilities() if one.what == FORWARDING]
    assert not ability.confined
    assert "policy" in ability.how
    assert (await doctor_says(around)) == [(False, ability.how, ability.remedy)]
    around.run(*ability.remedy.partition(": ")[2].split())
    assert await reached(isolated, home, OPEN[0], ("tcp", PRIVATE[0], OUTSIDE_PORT)) == {OPEN[0]}
    assert await doctor_says(around) == []


async def doctor_says(around: Surroundings) -> list[tuple[bool, str, str]]:
    """What `torpor doctor` finds about forwarding: it does not know the name of the installation."""
    found = await engine_confinement(
        load({"TORPOR_RUNTIME": "docker", "TORPOR_ENGINE_URL": around.engine.url, "HOME": "/root"})
    )
    return [(one.ok, one.detail, one.advice) for one in found if one.what == f"confinement: {FORWARDING}"]


async def test_the_agent_answers_although_the_firewall_drops_by_default(around: Surroundings, isolated: DockerRuntime) -> None:
    around.run("iptables", "-F")
    for chain in ("INPUT", "FORWARD"):
        around.run("iptables", "-P", chain, "DROP")
    try:
        home = await started(isolated)
        address = (around.address_of_home(home), AGENT_PORT)
        assert (await isolated.execute(home.workspace_id, ["echo", "here"], b"")).stdout == b"here\n"
        await isolated._isolation.firewall.remove()
        with pytest.raises(TimeoutError), contextlib.closing(socket.create_connection(address, 1)):
            pass
    finally:
        around.run("iptables", "-P", "INPUT", "ACCEPT")


# ── installations ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_removing_the_rules_of_an_installation_leaves_those_of_another(
    around: Surroundings, isolated: DockerRuntime, another: DockerRuntime
) -> None:
    before = rules_of(around, isolated)
    assert rules_of(around, another)
    await another._isolation.firewall.remove()
    assert rules_of(around, another) == []
    assert rules_of(around, isolated) == before


async def test_two_controllers_write_the_rules_once(
    around: Surroundings, make_isolated: MakeRuntime, isolated: DockerRuntime
) -> None:
    before = rules_of(around, isolated)
    others = [make_isolated() for _ in range(3)]
    await asyncio.gather(*(one.start() for one in others))
    await asyncio.gather(*(one._isolation.write_rules() for one in others))
    assert rules_of(around, isolated) == before


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_engine_whose_bridges_are_elsewhere_is_refused(around: Surroundings, make_isolated: MakeRuntime) -> None:
    """Another machine, a virtual machine, a rootless engine: its bridge is not in Torpor's network."""
    elsewhere = ("nsenter", f"--net=/run/netns/{around.outside}")
    runtime = make_isolated(firewall_prefix=elsewhere)
    (ability,) = [one for one in await runtime.abilities() if one.what == NETWORK]
    assert ability.confined, "before the network exists nothing is known"
    with pytest.raises(Refused) as refused:
        await runtime.start()
    for words in ("another machine", "Docker Desktop", "rootless", network_of(runtime).bridge, "isolation=none"):
        assert words in refused.value.message
    (ability,) = [one for one in await runtime.abilities() if one.what == NETWORK]
    assert not ability.confined
    home = await ready(runtime)
    with pytest.raises(Failed, match="isolation=none") as failed:
        await runtime.ensure_running(running_program(home, *SLEEPING), FENCE, unheard)
    assert failed.value.code is Code.CONTAINER_START_FAILED
    assert (await runtime.observe()).of(home.workspace_id).container is None


async def test_without_permission_the_start_is_refused_unless_isolation_is_none(
    around: Surroundings, make_isolated: MakeRuntime
) -> None:
    unprivileged = (*around.prefix, "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    runtime = make_isolated(firewall_prefix=unprivileged)
    (ability,) = [one for one in await runtime.abilities() if one.what == NETWORK]
    assert not ability.confined
    assert "root" in ability.remedy
    with pytest.raises(Refused, match="isolation=none") as refused:
        await runtime.start()
    assert "run Torpor as root" in refused.value.message
    accepting = make_isolated(firewall_prefix=unprivileged, isolation=False)
    await accepting.start()
    await started(accepting)
    (ability,) = [one for one in await accepting.abilities() if one.what == NETWORK]
    assert not ability.confined
    assert rules_of(around, accepting) == []


async def test_what_is_confined_is_reported(isolated: DockerRuntime) -> None:
    found = {one.what: one for one in await isolated.abilities()}
    assert found[NETWORK].confined
    assert network_of(isolated).bridge in found[NETWORK].how
    assert all(one.confined for one in found.values()), found
