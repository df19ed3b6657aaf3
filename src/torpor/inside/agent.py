"""What runs first inside a workspace's container, and stands between it and Torpor?

Started by file path with a bare interpreter, so it imports the standard library only. Torpor hands it two listening Unix
sockets (as inherited file descriptors: nothing of Torpor's has to be mounted inside) and, on standard input, one line of
JSON (`Orders`). Standard input stays open as the leash: `stop SECONDS` asks for an orderly end, and its end of file means
that Torpor is gone, whereupon everything here ends at once.

- It leaves Torpor's session keyring, and gives up root for the workspace's own user, before it starts anything.
- It starts the program, and ends with the program's exit code when the program ends by itself.
- *bridge*: each connection is spliced to the program's port on loopback.
- *control*: each connection carries one request in frames (one byte of kind, four of length, then the payload):

      to the agent      R  the request, JSON: {"do": "probe"} or {"do": "execute", "argv": [...], "environment": {...}}
                        I  bytes for the command's standard input; an empty one is its end of file
      from the agent    Y, N  the program's port answers, or does not (probe)
                        O, E  bytes of standard output, of standard error
                        X  the exit code, as decimal text (execute)

  A caller that hangs up ends its command. (A terminal is a program of its own, `terminal.py`, and reached by the bridge.)
- It is process 1 of its namespace where it has one, and then reaps whatever is orphaned there.
"""

import asyncio
import contextlib
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REQUEST, INPUT = b"R", b"I"
YES, NO, OUTPUT, ERRORS, EXIT = b"Y", b"N", b"O", b"E", b"X"

LARGEST_FRAME = 1 << 20
CHUNK = 1 << 16
PROBE_S = 1.0
STRAGGLERS_S = 1.0
"""How long the rest of the tree may take once the program itself has ended on request: a shell at a terminal ignores TERM."""
HANGS_UP_S = 10.0
"""How long a caller may take to hang up after it was told how its command ended."""
AFTER_EXIT_S = 0.2
"""How long a command's output is still read after its end: what it left behind may hold the pipe for ever."""
OOM_SCORE = 300
"""When memory runs out, the kernel shall take a process of the workspace, not the agent."""

COULD_NOT_START = 127


@dataclass(frozen=True)
class Orders:
    """The first line on standard input."""

    bridge_fd: int
    control_fd: int
    port: int
    home: str
    command: tuple[str, ...]
    environment: dict[str, str]
    user: int | None
    """Become this user and group (when started as root)."""
    alone: bool
    """Whether everything in sight belongs to this container: process 1 of an own PID namespace."""
    limits: dict[str, int] = field(default_factory=dict)
    """Resource limits by name (`RLIMIT_NPROC`), where no cgroup does it."""

    @classmethod
    def parse(cls, line: bytes) -> "Orders":
        given: dict[str, Any] = json.loads(line)
        return cls(**{**given, "command": tuple(given["command"])})

    def line(self) -> bytes:
        return json.dumps(self.__dict__).encode() + b"\n"


# ── frames ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next frame; IncompleteReadError when the other side hung up."""
    head = await reader.readexactly(5)
    length = int.from_bytes(head[1:], "big")
    if length > LARGEST_FRAME:
        raise asyncio.IncompleteReadError(head, length)
    return head[:1], await reader.readexactly(length)


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Children:
    """Every process started here, and every orphan that falls to us."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._known: dict[int, tuple[subprocess.Popen[bytes], asyncio.Future[int]]] = {}
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)

    def start(
        self, argv: tuple[str, ...], *, environment: dict[str, str] | None = None, pipes: bool = False
    ) -> tuple[subprocess.Popen[bytes], "asyncio.Future[int]"]:
        process = subprocess.Popen(
            argv,
            cwd=self._orders.home,
            env={**self._orders.environment, **(environment or {})},
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else None,
            stderr=subprocess.PIPE if pipes else None,
            bufsize=0,
            start_new_session=True,
            # There is one thread here, so this is safe; it cannot be done from outside without a race.
            preexec_fn=self._before_exec,
        )
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._known[process.pid] = (process, ended)
        return process, ended

    def _before_exec(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._open_files)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
            score.write(str(OOM_SCORE))

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code
            if known := self._known.pop(pid, None):
                process, ended = known
                process.returncode = code  # Popen must not wait for a number that may be another's by now
                if not ended.done():
                    ended.set_result(code)

    def any_left(self) -> bool:
        self.reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def signal_all(self, number: int) -> None:
        """To the whole tree, sessions of their own included."""
        if self._orders.alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)
            return
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def descendants(root: int) -> list[int]:
    """Where there is no PID namespace: orphans fall to the agent (subreaper), so the tree below it is the whole container."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", entry, "stat").read_text(errors="replace")
                parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


# ── the bridge ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Splice(asyncio.Protocol):
    """One end of a bridged connection; what it reads its peer sends. A slow reader slows its writer; a half-close passes on."""

    def __init__(self) -> None:
        self.peer: Splice = self
        self.transport: asyncio.Transport | None = None
        self.read_all = False
        self.closed = False
        self._early = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # The other end may have read, and even ended, before this one stood.
        if self._early:
            transport.write(bytes(self._early))
        if self.peer.read_all:
            self.send_end()
        if self.peer.closed:
            self.close()

    def send(self, data: bytes) -> None:
        if self.transport is None:
            self._early += data
        else:
            self.transport.write(data)

    def send_end(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                self.transport.write_eof()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.peer.send(data)

    def eof_received(self) -> bool:
        self.read_all = True
        self.peer.send_end()
        if self.peer.read_all:
            self.peer.close()
            return False
        return True

    def pause_writing(self) -> None:
        if self.peer.transport is not None and not self.peer.transport.is_closing():
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer.transport is not None and not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        self.closed = True
        self.peer.close()


async def connect_to_program(port: int) -> socket.socket | None:
    """A connection to the program on loopback, whichever of its two addresses the program listens on."""
    loop = asyncio.get_running_loop()
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            continue
        try:
            await asyncio.wait_for(loop.sock_connect(connection, (host, port)), PROBE_S)
        except (TimeoutError, OSError):
            connection.close()
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    return None


async def splice(incoming: socket.socket, port: int) -> None:
    loop = asyncio.get_running_loop()
    outgoing = await connect_to_program(port)
    if outgoing is None:
        incoming.close()
        return
    outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    near, far = Splice(), Splice()
    near.peer, far.peer = far, near
    await loop.create_connection(lambda: far, sock=outgoing)
    await loop.connect_accepted_socket(lambda: near, incoming)


async def serve(listening: socket.socket, handle: Any, *arguments: Any) -> None:
    """Each connection is its own task; one that breaks breaks nothing else."""
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    tasks: set[asyncio.Task[None]] = set()
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError:  # no descriptor is free: those who are connected go on, and it comes back
            await asyncio.sleep(0.1)
            continue
        task = loop.create_task(handle(connection, *arguments))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


# ── control ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def control(connection: socket.socket, orders: Orders, children: Children) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        kind, payload = await read_frame(reader)
        request = json.loads(payload) if kind == REQUEST else {}
        match request.get("do"):
            case "probe":
                answer = await connect_to_program(orders.port)
                if answer is not None:
                    answer.close()
                writer.write(frame(NO if answer is None else YES))
            case "execute":
                await execute(request, reader, writer, children)
                await writer.drain()
                await hung_up(reader)
            case _:
                pass
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError, ValueError):
        pass  # the caller hung up, or is none of ours
    finally:
        writer.close()


async def hung_up(reader: asyncio.StreamReader) -> None:
    """The caller has heard the answer. To close before that, while it still writes, would cost it what it has not read yet."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HANGS_UP_S):
            while await reader.read(1 << 16):
                pass


async def execute(
    request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, children: Children
) -> None:
    argv = tuple(str(word) for word in request["argv"])
    try:
        process, ended = children.start(argv, environment=request.get("environment"), pipes=True)
    except (OSError, ValueError) as error:
        writer.write(frame(ERRORS, f"{argv[0] if argv else ''}: {error}\n".encode()))
        writer.write(frame(EXIT, str(COULD_NOT_START).encode()))
        return
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    loop = asyncio.get_running_loop()
    talking = [
        loop.create_task(relay(process.stdout, OUTPUT, writer)),
        loop.create_task(relay(process.stderr, ERRORS, writer)),
    ]
    listening = loop.create_task(feed(process.stdin, reader))
    try:
        # The listener ends early only when the caller hangs up.
        over_or_gone: list[asyncio.Future[Any]] = [ended, listening]
        await asyncio.wait(over_or_gone, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            await asyncio.wait(talking, timeout=AFTER_EXIT_S)
            writer.write(frame(EXIT, str(ended.result()).encode()))
            await writer.drain()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for task in (*talking, listening):
            task.cancel()
        await asyncio.gather(*talking, listening, return_exceptions=True)


async def relay(pipe: Any, kind: bytes, writer: asyncio.StreamWriter) -> None:
    reader = asyncio.StreamReader(limit=CHUNK)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while data := await reader.read(CHUNK):
            writer.write(frame(kind, data))
            await writer.drain()
    finally:
        transport.close()


async def feed(pipe: Any, reader: asyncio.StreamReader) -> None:
    """Returns when the caller is gone."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        while True:
            kind, data = await read_frame(reader)
            if kind != INPUT:
                continue
            if not data:
                transport.close()
            elif not transport.is_closing():
                writer.write(data)
                with contextlib.suppress(OSError):  # the command does not want more; that is its matter
                    await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        return
    finally:
        transport.close()


# ── from first to last ────────────────────────────────────────────────────────────────────────────────────────────────


def read_orders() -> Orders:
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, CHUNK)
        if not data:
            raise SystemExit("Torpor went away before it said what to run")
        line += data
    return Orders.parse(bytes(line))


def leave_keyring() -> None:
    """Keys in Torpor's session keyring (a Kerberos ticket, a disk's passphrase) are inherited by whoever it starts."""
    import ctypes  # there is no other way from the standard library

    keyctl = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if keyctl is not None:
        libc = ctypes.CDLL(None, use_errno=True)
        # 1 is KEYCTL_JOIN_SESSION_KEYRING; no name: a new one.
        if libc.syscall(ctypes.c_long(keyctl), ctypes.c_long(1), None) < 0 and ctypes.get_errno() not in (
            errno.ENOSYS,
            errno.EPERM,
        ):
            raise SystemExit(f"cannot leave Torpor's session keyring: {os.strerror(ctypes.get_errno())}")


def give_up_root(orders: Orders) -> None:
    if orders.user is not None:
        os.setgroups([])
        os.setresgid(orders.user, orders.user, orders.user)
        os.setresuid(orders.user, orders.user, orders.user)
    for name, value in orders.limits.items():
        which = getattr(resource, name)
        _, hard = resource.getrlimit(which)
        bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bounded, bounded))


def adopt_orphans() -> None:
    import ctypes  # only where there is no PID namespace; it is slow to load

    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


class Leash:
    """Standard input: the wish to stop, or the end of Torpor."""

    def __init__(self) -> None:
        self.grace_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._line = b""

    def listen(self) -> None:
        os.set_blocking(0, False)
        asyncio.get_running_loop().add_reader(0, self._read)

    def stop(self, grace_s: float) -> None:
        if not self.grace_s.done():
            self.grace_s.set_result(grace_s)

    def _read(self) -> None:
        try:
            data = os.read(0, CHUNK)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(0)
            self.stop(0.0)
            return
        self._line += data
        for line in self._line.split(b"\n")[:-1]:
            word, _, seconds = line.partition(b" ")
            if word == b"stop":
                self.stop(float(seconds))
        self._line = self._line.rpartition(b"\n")[2]


async def end_everything(children: Children, program: "asyncio.Future[int]", grace_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    if grace_s > 0:
        children.signal_all(signal.SIGTERM)
    hung_up = False
    while children.any_left() and loop.time() < deadline:
        if program.done() and not hung_up:
            hung_up = True
            children.signal_all(signal.SIGHUP)
            deadline = min(deadline, loop.time() + STRAGGLERS_S)
        await asyncio.sleep(0.01)
    while children.any_left():
        children.signal_all(signal.SIGKILL)
        await asyncio.sleep(0.005)


async def run(orders: Orders) -> int:
    loop = asyncio.get_running_loop()
    children = Children(orders)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the bridge has two for each connection
    leash = Leash()
    loop.add_signal_handler(signal.SIGCHLD, children.reap)
    loop.add_signal_handler(signal.SIGTERM, leash.stop, 10.0)
    try:
        _, program = children.start(orders.command)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"cannot start {orders.command[0] if orders.command else 'nothing'}: {error}\n")
        return COULD_NOT_START
    leash.listen()
    bridge = socket.socket(fileno=orders.bridge_fd)
    asked = socket.socket(fileno=orders.control_fd)
    serving = [
        loop.create_task(serve(bridge, splice, orders.port)),
        loop.create_task(serve(asked, control, orders, children)),
    ]
    asked_or_over: list[asyncio.Future[Any]] = [program, leash.grace_s]
    await asyncio.wait(asked_or_over, return_when=asyncio.FIRST_COMPLETED)
    for task in serving:
        task.cancel()
    await end_everything(children, program, leash.grace_s.result() if leash.grace_s.done() else 0.0)
    return program.result() if program.done() else 128 + signal.SIGKILL


def main() -> None:
    orders = read_orders()
    if not orders.alone:
        adopt_orphans()
    leave_keyring()
    give_up_root(orders)
    os.umask(0o022)
    # Nothing here needs unwinding, and what is left of the tree has ended.
    os._exit(asyncio.run(run(orders)))


if __name__ == "__main__":
    main()
