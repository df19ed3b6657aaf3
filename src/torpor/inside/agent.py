"""What stands inside a workspace's container between its program and Torpor?

Run by a bare interpreter (`start`), so it imports the standard library only. Torpor hands it three listening Unix sockets (as
inherited file descriptors: nothing of Torpor's has to be mounted inside) and, on standard input, one line of JSON (`Orders`).
Standard input stays open as the leash: `stop SECONDS` asks for an orderly end, and its end of file means that Torpor is gone,
whereupon everything here ends at once.

- The program has begun before this is loaded (`program`); it ends with the program's exit code when that ends by itself.
- *bridge*: each connection is spliced to the program's port on loopback, or to the Unix socket that it listens on instead.
- *ports*: each connection begins with a line that names a port, and is spliced to that port of this container's loopback.
- *control*: each connection carries one request in frames (one byte of kind, four of length, then the payload):

      to the agent      R  the request, JSON: {"do": "probe", "within_s": 0},
                           {"do": "execute", "argv": [...], "environment": {...}} or {"do": "shell", "columns": 80, "rows": 24}
                        I  bytes for the command's standard input, where an empty one is its end of file; or typed ones
                        S  the terminal's new size, as decimal text: columns, a space, rows (shell)
      from the agent    Y, N  the program takes a connection, or does not (probe)
                        O, E  bytes of standard output (or of the terminal), of standard error
                        T  how many of the typed bytes the terminal has taken, as decimal text (shell)
                        X  the exit code, as decimal text (execute, shell)

  A caller that hangs up ends its command, and hangs up its shell. A shell's caller sends at most WINDOW bytes that were not
  yet taken, so that its new size and its end are never held up by what a program does not read.
  (The terminal in a browser tab is a program of its own, `terminal.py`, and reached by the bridge.)
- It is process 1 of its namespace where it has one, and then reaps whatever is orphaned there.
"""

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import resource
import signal
import socket
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torpor.inside.bridge import Bridge
from torpor.inside.program import CHUNK, COULD_NOT_START, Begun, Orders, before_exec, start

REQUEST, INPUT, SIZE = b"R", b"I", b"S"
YES, NO, OUTPUT, ERRORS, TAKEN, EXIT = b"Y", b"N", b"O", b"E", b"T", b"X"

LARGEST_FRAME = 1 << 20
WINDOW = 1 << 16
"""How much may be typed ahead of the program that reads it."""
PROBE_S = 1.0
LOOK_S = 0.005
"""How often it is tried whether a program that has just begun listens by now."""
NAMED_WITHIN_S = 10.0
"""How long whoever connects to *ports* may take to name one."""
STRAGGLERS_S = 1.0
"""How long the rest of the tree may take once the program itself has ended on request: a shell at a terminal ignores TERM."""
HANGS_UP_S = 10.0
"""How long a caller may take to hang up after it was told how its command ended."""
AFTER_EXIT_S = 0.2
"""How long a command's output is still read after its end: what it left behind may hold the pipe for ever."""
AFTER_EXIT_BYTES = 1 << 18
"""How much of a terminal is still shown after its shell's end: what it left behind may write for ever, too."""
HANG_UP_S = 5.0
"""How long a shell has to end after it was hung up."""

# Whoever started Torpor may have ignored them, and a shell would inherit that: Ctrl-C would end nothing.
SIGNALS_OF_A_SHELL = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
# Meant for the program of the template, not for what a person starts beside it: that one has the port already.
NOT_FOR_A_SHELL = frozenset({"PORT", "PYTHONPATH"})
MOST_COLUMNS_OR_ROWS = 2000

Target = int | str
"""Where a program listens: a port on loopback, or the path of a Unix socket."""


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

    def __init__(self, begun: Begun) -> None:
        self._orders = begun.orders
        self._open_files = begun.open_files
        self._known: dict[int, tuple[subprocess.Popen[bytes], asyncio.Future[int]]] = {}

    def start(
        self, argv: tuple[str, ...], environment: dict[str, str]
    ) -> tuple[subprocess.Popen[bytes], "asyncio.Future[int]"]:
        streams = (subprocess.PIPE, subprocess.PIPE)
        process = start(argv, self._orders.home, {**self._orders.environment, **environment}, streams, self._before_exec)
        return process, self.adopt(process)

    def adopt(self, process: subprocess.Popen[bytes]) -> "asyncio.Future[int]":
        """From here on its end is told."""
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._known[process.pid] = (process, ended)
        return ended

    def start_shell(self, terminal: int) -> tuple[subprocess.Popen[bytes], "asyncio.Future[int]"]:
        """A login shell whose terminal this is."""
        kept = {name: value for name, value in self._orders.environment.items() if name not in NOT_FOR_A_SHELL}
        shell = find_shell(kept)
        environment = {**kept, "SHELL": shell, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        # The dash is how login(1) tells any shell, whatever its options, that it is a login shell.
        argv = (f"-{os.path.basename(shell)}",)  # noqa: PTH119
        process = start(argv, self._orders.home, environment, (terminal, terminal), self._before_shell, executable=shell)
        return process, self.adopt(process)

    def _before_shell(self) -> None:
        self._before_exec()
        for number in SIGNALS_OF_A_SHELL:
            signal.signal(number, signal.SIG_DFL)
        # The terminal of the session that was just begun: without it there is no job control, and no Ctrl-C.
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def _before_exec(self) -> None:
        before_exec(self._open_files)

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


def find_shell(environment: dict[str, str]) -> str:
    """The workspace's own shell, else whatever there is."""
    wanted = (environment.get("SHELL", ""), "/bin/bash", "/bin/sh")
    return next((shell for shell in wanted if os.path.isabs(shell) and os.access(shell, os.X_OK)), "/bin/sh")  # noqa: PTH117


def signal_session(leader: int, number: int) -> None:
    """Tell every process of a session; who does not want to hear of it ignores it (nohup) or left it (setsid)."""
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry)) == leader:
                    os.kill(int(entry), number)


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


async def answers(target: Target, within_s: float) -> bool:
    """Whether the program takes a connection, as soon as it does so or the time is up."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while (connection := await connect_to_program(target)) is None:
        if loop.time() >= end:
            return False
        await asyncio.sleep(LOOK_S)
    connection.close()
    return True


def addresses(target: Target) -> Iterator[tuple[socket.AddressFamily, tuple[str, int] | str]]:
    """On loopback, whichever of its two addresses the program listens on; or the socket."""
    if isinstance(target, str):
        yield socket.AF_UNIX, target
    else:
        yield socket.AF_INET, ("127.0.0.1", target)
        yield socket.AF_INET6, ("::1", target)


async def connect_to_program(target: Target) -> socket.socket | None:
    loop = asyncio.get_running_loop()
    for family, address in addresses(target):
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            continue
        try:
            # Not wait_for: it forgets that it was cancelled when a refusal comes at the same moment.
            async with asyncio.timeout(PROBE_S):
                await loop.sock_connect(connection, address)
        except (TimeoutError, OSError):
            connection.close()
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    return None


async def splice_to_any(incoming: socket.socket, bridge: Bridge, *, own_network: bool) -> None:
    """The first line names the port; what follows it is for whoever listens there."""
    try:
        async with asyncio.timeout(NAMED_WITHIN_S):
            port, early = await read_port(incoming)
    except (TimeoutError, OSError, ValueError):
        incoming.close()
        return
    if own_network or is_ours(port):
        await splice(incoming, bridge, port, early)
    else:
        incoming.close()


async def read_port(incoming: socket.socket) -> tuple[int, bytes]:
    loop = asyncio.get_running_loop()
    read = b""
    while b"\n" not in read:
        if len(read) > len("65535"):
            raise ValueError("no port was named")
        data = await loop.sock_recv(incoming, CHUNK)
        if not data:
            raise ValueError("it hung up before it named a port")
        read += data
    line, _, rest = read.partition(b"\n")
    if not (line.isdigit() and 0 < int(line) < 1 << 16):
        raise ValueError("no port was named")
    return int(line), rest


def is_ours(port: int) -> bool:
    """Where loopback is the machine's: whether it is only processes of this container that listen on this port."""
    listening = {
        f"socket:[{fields[9]}]"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if os.path.exists(table)  # noqa: PTH110
        for fields in map(str.split, Path(table).read_text().splitlines()[1:])
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
    }
    held: set[str] = set()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                with contextlib.suppress(OSError):
                    held.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))  # noqa: PTH115
    return bool(listening) and listening <= held


async def splice(incoming: socket.socket, bridge: Bridge, target: Target, early: bytes = b"") -> None:
    outgoing = await connect_to_program(target)
    if outgoing is None:
        incoming.close()
        return
    if outgoing.family != socket.AF_UNIX:
        outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bridge.splice(incoming, outgoing, early)


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
                does_answer = await answers(orders.socket or orders.port, float(request.get("within_s", 0)))
                writer.write(frame(YES if does_answer else NO))
            case "execute":
                await execute(request, reader, writer, children)
                await writer.drain()
                await hung_up(reader)
            case "shell":
                await shell(request, reader, writer, children)
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
        process, ended = children.start(argv, request.get("environment") or {})
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


# ── shells ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Terminal:
    """Our end of a pty. It is read no faster than somebody looks, and written as fast as the program reads."""

    def __init__(self, descriptor: int, taken: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._taken = taken
        self._typed = bytearray()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)

    def resize(self, columns: int, rows: int) -> None:
        if not (0 < columns <= MOST_COLUMNS_OR_ROWS and 0 < rows <= MOST_COLUMNS_OR_ROWS):
            raise ValueError(f"a terminal of {columns} columns and {rows} rows")
        termios.tcsetwinsize(self._descriptor, (rows, columns))

    def type(self, data: bytes) -> None:
        if len(self._typed) + len(data) > WINDOW:
            raise ValueError("more was typed than was agreed")
        self._typed += data
        self._write()

    def _write(self) -> None:
        try:
            written = os.write(self._descriptor, self._typed) if self._typed else 0
        except BlockingIOError:
            written = 0
        except OSError:
            written = len(self._typed)  # nobody will ever read it
        del self._typed[:written]
        if written:
            self._taken(written)
        if self._typed:
            self._loop.add_writer(self._descriptor, self._write)
        else:
            self._loop.remove_writer(self._descriptor)

    async def read(self, ended: "asyncio.Future[int]") -> bytes:
        """What it shows next; nothing when nobody is there any more who could write to it."""
        while True:
            try:
                return os.read(self._descriptor, CHUNK)
            except BlockingIOError:
                pass
            except OSError:  # EIO: nobody holds the other end
                return b""
            is_over = ended.done()
            if not await self._readable(ended, AFTER_EXIT_S if is_over else None) and is_over:
                return b""

    async def _readable(self, ended: "asyncio.Future[int]", within_s: float | None) -> bool:
        readable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._descriptor, lambda: None if readable.done() else readable.set_result(None))
        waiting: list[asyncio.Future[Any]] = [readable] if ended.done() else [readable, ended]
        try:
            await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._loop.remove_reader(self._descriptor)
        return readable.done()

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        os.close(self._descriptor)


async def shell(
    request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, children: Children
) -> None:
    terminal: Terminal | None = None
    try:
        ours, theirs = os.openpty()
        try:
            terminal = Terminal(ours, lambda taken: writer.write(frame(TAKEN, str(taken).encode())))
            terminal.resize(int(request["columns"]), int(request["rows"]))
            process, ended = children.start_shell(theirs)
        finally:
            os.close(theirs)
    except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        if terminal is not None:
            terminal.close()
        writer.write(frame(OUTPUT, f"no shell could be started: {error}\r\n".encode()))
        writer.write(frame(EXIT, str(COULD_NOT_START).encode()))
        return
    loop = asyncio.get_running_loop()
    showing = loop.create_task(show(terminal, ended, writer))
    listening = loop.create_task(listen(terminal, reader))
    try:
        # The listener ends early only when the caller hangs up.
        over_or_gone: list[asyncio.Future[Any]] = [ended, listening]
        await asyncio.wait(over_or_gone, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            # However long the caller takes to read it; but not longer than the caller is there.
            await asyncio.wait([showing, listening], return_when=asyncio.FIRST_COMPLETED)
            writer.write(frame(EXIT, str(ended.result()).encode()))
    finally:
        for task in (showing, listening):
            task.cancel()
        await asyncio.gather(showing, listening, return_exceptions=True)
        await hang_up(terminal, process.pid, ended)


async def show(terminal: Terminal, ended: "asyncio.Future[int]", writer: asyncio.StreamWriter) -> None:
    left = AFTER_EXIT_BYTES
    with contextlib.suppress(OSError):
        while left > 0 and (data := await terminal.read(ended)):
            writer.write(frame(OUTPUT, data))
            await writer.drain()
            # A terminal that always has more would leave nobody else a turn.
            await asyncio.sleep(0)
            left -= len(data) if ended.done() else 0


async def listen(terminal: Terminal, reader: asyncio.StreamReader) -> None:
    """Returns when the caller is gone, or says what no caller of ours would."""
    with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
        while True:
            kind, data = await read_frame(reader)
            if kind == INPUT:
                terminal.type(data)
            elif kind == SIZE:
                columns, rows = data.split()
                terminal.resize(int(columns), int(rows))


async def hang_up(terminal: Terminal, leader: int, ended: "asyncio.Future[int]") -> None:
    """The terminal is gone, and everybody at it hears of it. (A shell that is told twice dies before it tells its jobs.)"""
    if not ended.done():
        signal_session(leader, signal.SIGHUP)
        signal_session(leader, signal.SIGCONT)
    terminal.close()
    await asyncio.wait([ended], timeout=HANG_UP_S)
    if not ended.done():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


# ── from first to last ────────────────────────────────────────────────────────────────────────────────────────────────


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


async def run(begun: Begun) -> int:
    loop = asyncio.get_running_loop()
    orders, children = begun.orders, Children(begun)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the bridge has two for each connection
    leash = Leash()
    loop.add_signal_handler(signal.SIGCHLD, children.reap)
    loop.add_signal_handler(signal.SIGTERM, leash.stop, 10.0)
    program = children.adopt(begun.program)
    # It may have ended before anybody listened.
    children.reap()
    leash.listen()
    bridge = Bridge()
    bridge.listen()
    bridged = socket.socket(fileno=orders.bridge_fd)
    ports = socket.socket(fileno=orders.ports_fd)
    asked = socket.socket(fileno=orders.control_fd)
    serving = [
        loop.create_task(serve(bridged, splice, bridge, orders.socket or orders.port)),
        loop.create_task(serve(ports, functools.partial(splice_to_any, own_network=orders.own_network), bridge)),
        loop.create_task(serve(asked, control, orders, children)),
    ]
    asked_or_over: list[asyncio.Future[Any]] = [program, leash.grace_s]
    await asyncio.wait(asked_or_over, return_when=asyncio.FIRST_COMPLETED)
    for task in serving:
        task.cancel()
    await end_everything(children, program, leash.grace_s.result() if leash.grace_s.done() else 0.0)
    return program.result() if program.done() else 128 + signal.SIGKILL


def main(begun: Begun) -> None:
    # Nothing here needs unwinding, and what is left of the tree has ended.
    os._exit(asyncio.run(run(begun)))
