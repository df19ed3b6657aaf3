"""What is around an engine in a test: public and private addresses outside, services of its machine, other containers."""

import contextlib
import json
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.runtimes.made_network import GATEWAY, MACHINE, METADATA, PUBLIC, PYTHON, RESOLVER, TRY, configure
from tests.support.docker_engine import DockerEngine
from torpor.kit import layout
from torpor.ports import Home
from torpor.runtimes.docker.runtime import DockerRuntime
from torpor.runtimes.object_labels import container_name

OTHER_ADDRESS = "198.51.100.200"
"""A public address of the machine, besides that of its default route."""
PRIVATE = ("10.20.30.40", "172.16.0.9", "192.168.250.5", GATEWAY, "100.99.1.1")
"""Not in networks that Docker chooses for its bridges."""
OUTSIDE = tuple(address for address in (RESOLVER, PUBLIC, *PRIVATE, *METADATA) if address != GATEWAY)
# PostgreSQL, Redis, Torpor's API.
SERVICES = (5432, 6379, 7700)
ON_THE_BRIDGE = 9999
PUBLISHED = 8090
OUTSIDE_PORT = 8080
WITHIN_S = 2
"""Longer than any answer takes within one machine."""

SERVE = r"""
import json, socket, sys, threading
def answer_tcp(server):
    while True:
        server.accept()[0].sendall(b"here")
def answer_udp(server):
    while True:
        data, ancillary, _, peer = server.recvmsg(999, 999)
        # A nameserver: every name has the address 198.51.100.7.
        answer = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton("198.51.100.7")
        question = data[12:].split(b"\0", 1)[0] + b"\0\0\1\0\1"
        reply = data[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question + answer
        server.sendmsg([reply if len(data) > 12 else data], ancillary, 0, peer)
for way, host, port in json.loads(sys.argv[1]):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if way == "abstract":
        server = socket.socket(socket.AF_UNIX)
        server.bind("\0" + host)
        server.listen()
    elif way == "tcp":
        server = socket.create_server((host, port), family=family, reuse_port=True)
    else:
        server = socket.socket(family, socket.SOCK_DGRAM)
        server.setsockopt(socket.IPPROTO_IP, 8, 1)
        server.bind((host, port))
    threading.Thread(target=answer_udp if way == "udp" else answer_tcp, args=(server,)).start()
print("up", flush=True)
"""

Attempt = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Surroundings:
    engine: DockerEngine
    outside: str
    """The network namespace outside of the engine's machine."""

    @property
    def prefix(self) -> tuple[str, ...]:
        assert self.engine.process is not None
        return ("nsenter", f"--net=/proc/{self.engine.process.pid}/ns/net")

    def run(self, *command: str, stdin: str = "") -> str:
        """Run a command in the network of the engine's machine."""
        done = subprocess.run([*self.prefix, *command], input=stdin, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def serving(self, *services: Attempt) -> Iterator[None]:
        """Services of the engine's machine."""
        with _serving(self.prefix, services):
            yield

    @contextlib.contextmanager
    def container(
        self, network: str, kit_volume: str, image: str, *services: Attempt, options: tuple[str, ...] = ()
    ) -> Iterator[str]:
        """The id of a container that is not Torpor's, with these services."""
        kit = ("--volume", f"{kit_volume}:{layout.MOUNT}:ro")
        command = (*layout.python_argv(), "-c", SERVE, json.dumps(services))
        container = self.engine.docker("run", "--detach", "--network", network, *options, *kit, image, *command)
        try:
            yield container
        finally:
            self.engine.docker("rm", "--force", container)

    def address_of(self, container: str) -> str:
        return self.engine.docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", container)

    def address_of_home(self, home: Home) -> str:
        return self.address_of(container_name(home.workspace_id))

    def open_everything(self) -> None:
        """Docker's own rules close some connections as well, so a proof without rules needs them to be gone."""
        for program in ("iptables", "ip6tables"):
            self.run(program, "-F", "FORWARD")
            self.run(program, "-P", "FORWARD", "ACCEPT")


@contextlib.contextmanager
def _serving(prefix: tuple[str, ...], services: tuple[Attempt, ...]) -> Iterator[None]:
    server = subprocess.Popen([*prefix, PYTHON, "-S", "-c", SERVE, json.dumps(services)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        yield
    finally:
        server.kill()
        server.communicate()


@contextlib.contextmanager
def surroundings(engine: DockerEngine) -> Iterator[Surroundings]:
    """The engine's machine gets a default route to the outside. At the end its firewall is as before."""
    outside, link = f"out-{secrets.token_hex(4)}", f"up{secrets.token_hex(4)}"
    around = Surroundings(engine, outside)
    saved = {program: around.run(f"{program}-save", "-t", "filter") for program in ("iptables", "ip6tables")}
    subprocess.run(["ip", "netns", "add", outside], check=True)
    try:
        around.run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0")
        around.run("ip", "link", "set", "eth0", "netns", outside)
        configure(
            outside,
            ["link set lo up", f"addr add {GATEWAY}/24 dev eth0", "link set eth0 up"]
            + [f"addr add {address}/32 dev lo" for address in OUTSIDE],
        )
        around.run("ip", "addr", "add", f"{MACHINE}/24", "dev", link)
        around.run("ip", "addr", "add", OTHER_ADDRESS, "dev", link)
        around.run("ip", "link", "set", link, "up")
        around.run("ip", "route", "add", "default", "via", GATEWAY)
        ways: list[Attempt] = [("tcp", "0.0.0.0", OUTSIDE_PORT), ("tcp", "0.0.0.0", 53), ("udp", "0.0.0.0", 53)]
        with _serving(("ip", "netns", "exec", outside), tuple(ways)):
            yield around
    finally:
        subprocess.run([*around.prefix, "ip", "link", "del", link], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "netns", "del", outside], check=False)
        for program, rules in saved.items():
            around.run(f"{program}-restore", stdin=rules)


async def reached(runtime: DockerRuntime, home: Home, *attempts: Attempt) -> set[Attempt]:
    """Those of these attempts that a program in the workspace succeeds with; all are made at the same time."""
    command = [*layout.python_argv(), "-c", TRY, json.dumps(attempts), str(WITHIN_S)]
    done = await runtime.execute(home.workspace_id, command, b"")
    assert done.exit_code == 0, done.stderr
    outcomes = json.loads(done.stdout)
    return {one for one in attempts if outcomes["{} {} {}".format(*one)] == "open"}
