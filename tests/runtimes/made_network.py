"""Two network namespaces that a test makes: one for a machine that runs Torpor, one for the outside.

They have no other connections. So a test can place servers at private and metadata addresses, and no packet leaves
the namespaces.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import prometheus_client
import structlog

import torpor
from tests.support.requirements import must_have
from torpor.runtimes.host_programs import find
from torpor.testing.defaults import process_options

USER = 54321
PYTHON = "/usr/bin/python3"

# The machine is in a home network, like a laptop: its gateway has a private address.
MACHINE, GATEWAY = "192.168.77.2", "192.168.77.1"
MACHINE_6, GATEWAY_6 = "fd77::2", "fd77::1"
# Addresses of the machine besides that of its default route.
MACHINES_OTHER = ("198.51.100.200", "2001:db8::200")
RESOLVER = "10.20.30.53"
PUBLIC, OTHER_PUBLIC, PUBLIC_6 = "198.51.100.7", "203.0.113.9", "2001:db8::7"
PRIVATE = ("10.20.30.40", "172.20.0.9", "192.168.5.5", GATEWAY, "100.99.1.1")
METADATA = ("169.254.169.254", "100.100.100.200", "168.63.129.16")
PRIVATE_6 = ("fd12:3456::9", "fd00:ec2::254", GATEWAY_6)
LINK_LOCAL_6 = "fe80::1"
MULTICAST = ("239.1.2.3", "ff02::1:9")
OUTSIDE = (RESOLVER, PUBLIC, OTHER_PUBLIC, *PRIVATE, *METADATA)

SERVE = """
import socket, struct, sys, threading
gateway, group, group_6 = sys.argv[1:]
def tcp(port):
    server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    def accept():
        while True:
            connection, peer = server.accept()
            connection.sendall(peer[0].encode())
            connection.close()
    threading.Thread(target=accept).start()
def udp(port):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # Answers from the address that was asked.
    server.setsockopt(socket.IPPROTO_IP, 8, 1)
    server.bind(("0.0.0.0", port))
    server.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(gateway))
    def answer():
        while True:
            data, ancillary, _, peer = server.recvmsg(99, 99)
            server.sendmsg([data], ancillary, 0, peer)
    threading.Thread(target=answer).start()
def udp_6(port):
    server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind(("::", port))
    joined = socket.inet_pton(socket.AF_INET6, group_6) + struct.pack("i", socket.if_nametoindex("eth0"))
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, joined)
    def answer():
        while True:
            data, peer = server.recvfrom(99)
            server.sendto(data, peer)
    threading.Thread(target=answer).start()
tcp(8080), tcp(53), udp(53), udp(8080), udp_6(8080)
print("up", flush=True)
"""

# Runs in a workspace: tries all addresses at the same time and prints the results.
TRY = """
import errno, json, socket, sys, threading
found = {}
def attempt(way, host, port):
    kind = socket.SOCK_DGRAM if way == "udp" else socket.SOCK_STREAM
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, kind) as one:
            one.settimeout(float(sys.argv[2]) if len(sys.argv) > 2 else 8)
            address = socket.getaddrinfo(host, port, family, kind)[0][4]
            if way == "udp":  # not connected: who answers a group is not known
                one.sendto(b"?", address)
            else:
                one.connect(address)
            if way != "connect":  # the server waits for the client's first words
                one.recv(99)
        outcome = "open"
    except TimeoutError:
        outcome = "no answer"
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error))
    found[f"{way} {host} {port}"] = outcome
threads = [threading.Thread(target=attempt, args=one) for one in json.loads(sys.argv[1])]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(found))
"""

# Runs in the machine's namespace: the real runtime with one workspace.
LIFE = """
import asyncio, json, subprocess, sys, uuid
from pathlib import Path
from torpor.domain.disk import Disk
from torpor.domain.records import Marker
from torpor.ports import Container, Fence, Home, Limits, Program
from torpor.runtimes.process import ProcessOptions, ProcessRuntime
from torpor.runtimes.process.disk_guard import DiskGuard

data, options, python, attempts, scripts, between, attempt = json.loads(sys.argv[1])
fence = Fence("op", 1)

async def live():
    runtime = ProcessRuntime(Path(data), options=ProcessOptions(**options))
    await runtime.start()
    said = {"abilities": {one.what: [one.confined, one.how, one.remedy] for one in await runtime.abilities()}}
    # A service of the machine itself.
    await asyncio.start_server(lambda _, writer: writer.close(), None, 8080)
    try:
        subprocess.run(["sh", "-c", between], check=True)
        home = Home(str(uuid.uuid4()), 1)
        await runtime.ensure_volume(home, fence)
        await runtime.mark_volume(home, Marker(home.workspace_id, 1, ""), fence)
        program = Program("t", ("sleep", "600"))
        await runtime.ensure_running(Container(home, 1, program, Limits(1 << 29, 64)), fence, print)
        tried = await runtime.execute(home.workspace_id, [python, "-S", "-c", attempt, json.dumps(attempts)], b"")
        said["tried"] = json.loads(tried.stdout)
        said["scripts"] = []
        for script in scripts:
            done = await runtime.execute(home.workspace_id, ["sh", "-c", script], b"")
            said["scripts"].append([done.exit_code, (done.stdout + done.stderr).decode()])
        said["log"] = [line.decode() async for line in runtime.logs(home.workspace_id, tail=50)]
        await DiskGuard(lambda: Disk("/", 0), 1 << 30, runtime._containers, lambda _: None, None).look()
        stopped = 'for one in /proc/[0-9]*; do grep -qs "T (stopped)" $one/status && cat $one/comm; done; true'
        done = await runtime.execute(home.workspace_id, ["sh", "-c", stopped], b"")
        said["paused"] = done.stdout.decode().split()
    finally:
        await runtime.close()
    print(json.dumps(said))
asyncio.run(live())
"""


@dataclass(frozen=True, slots=True)
class Said:
    """The report of the runtime and a workspace."""

    abilities: dict[str, tuple[bool, str, str]]
    tried: dict[str, str]
    scripts: list[tuple[int, str]]
    log: list[str]
    paused: list[str]
    """The processes of the workspace that were stopped when the disk was full."""

    def reached(self) -> set[str]:
        return {attempt for attempt, outcome in self.tried.items() if outcome == "open"}


@dataclass(frozen=True, slots=True)
class MadeNetwork:
    machine: str
    """The name of the namespace in which Torpor runs."""
    folder: Path

    def run(self, *command: str, **how: Any) -> "subprocess.CompletedProcess[str]":
        inside = ["nsenter", f"--net=/run/netns/{self.machine}", *command]
        return subprocess.run(inside, capture_output=True, text=True, timeout=120, **how)

    def live(
        self,
        *attempts: tuple[str, str, int],
        as_user: bool = False,
        scripts: tuple[str, ...] = (),
        between: str = "true",
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Said:
        """Run the real runtime with one workspace in it, as root or as a normal user, and try these addresses there.

        `between`: a command of this machine between the start of the runtime and the workspace's.
        """
        # The settings, which have the defaults, need packages that the system interpreter does not have.
        options = asdict(process_options(**{"grace_s": 1.0, "nameservers": (RESOLVER,), "cgroups": False, **options}))
        data = self.folder / f"data-{secrets.token_hex(4)}"
        given = json.dumps([str(data), options, PYTHON, attempts, scripts, between, TRY])
        command = [PYTHON, "-c", LIFE, given]
        if as_user:
            become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
            tun = 'mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", tun, "sh", *become]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder / "source"), **(environ or {})}
        done = self.run(*command, env=environment, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return Said(**json.loads(done.stdout.splitlines()[-1]))


@contextlib.contextmanager
def made_network() -> Iterator[MadeNetwork]:
    must_have(os.getuid() == 0, "root, to make network namespaces")
    for tool in ("ip", "nsenter", "unshare", "setpriv", "iptables"):
        must_have(find(tool), tool)
    must_have(Path(PYTHON).exists(), "an interpreter that every user may run")
    version = subprocess.run([PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True, check=True)
    must_have(version.stdout == b"True\n", "a system interpreter of 3.11 or newer")
    machine, outside = (f"{kind}{secrets.token_hex(4)}" for kind in ("tm", "to"))
    folder = Path(tempfile.mkdtemp(prefix="torpor-test-"))
    os.chown(folder, USER, USER)
    # The source may be in a directory that only root can read.
    for package in (torpor, structlog, prometheus_client):
        source = Path(str(package.__file__)).parent
        ignored = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(source, folder / "source" / source.name, ignore=ignored)
    server = None
    try:
        for name in (machine, outside):
            subprocess.run(["ip", "netns", "add", name], check=True)
        steps = [
            "link set lo up",
            f"link add eth0 type veth peer name eth0 netns {outside}",
            f"addr add {MACHINE}/24 dev eth0",
            f"addr add {MACHINE_6}/64 dev eth0 nodad",
            "link set eth0 up",
            *(f"addr add {address} dev lo" for address in MACHINES_OTHER),
        ]
        configure(machine, steps)
        steps = ["link set lo up", f"addr add {GATEWAY}/24 dev eth0", f"addr add {GATEWAY_6}/64 dev eth0 nodad"]
        steps += [f"addr add {LINK_LOCAL_6}/64 dev eth0 nodad", "link set eth0 up"]
        steps += [f"addr add {address}/32 dev lo" for address in OUTSIDE if address != GATEWAY]
        steps += [f"addr add {address}/128 dev lo nodad" for address in (PUBLIC_6, *PRIVATE_6) if address != GATEWAY_6]
        configure(outside, steps)
        configure(machine, [f"route add default via {GATEWAY}", f"-6 route add default via {GATEWAY_6}"])
        command = ["ip", "netns", "exec", outside, PYTHON, "-S", "-c", SERVE, GATEWAY, *MULTICAST]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        yield MadeNetwork(machine, folder)
    finally:
        if server is not None:
            server.kill()
            server.communicate()
        for name in (machine, outside):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder)


def configure(namespace: str, steps: list[str]) -> None:
    for step in steps:
        subprocess.run(["ip", "-n", namespace, *step.split()], check=True)
