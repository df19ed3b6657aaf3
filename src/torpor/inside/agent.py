"""Supervise a workspace's program inside its container, and connect it with Torpor.

Run by a bare interpreter (`start`), so it imports the standard library only. Torpor passes three listening Unix sockets as
inherited file descriptors, so that no folder of Torpor has to be mounted inside, and one line of JSON on standard input
(`AgentOptions`). Standard input stays open: `stop SECONDS` asks for an orderly stop, and its end of file means that Torpor has
ended, and then everything here ends at once.

- The program starts before this module is loaded (`program`). If it ends by itself, the agent ends with its exit code.
- *bridge*: each connection is joined to the program's port on loopback, or to its Unix socket.
- *ports*: each connection begins with a line that names a port, and is joined to that port of this container's loopback.
- *control*: each connection carries one request in frames (one byte of kind, four of length, then the payload):

      to the agent      R  the request, JSON: {"do": "probe", "within_s": 0}, {"do": "shell", "terminal": [80, 24]} or
                           {"do": "execute", "argv": [...]}, with "terminal" if the command wants one
                        I  bytes for the command's standard input, where an empty frame is its end of file; or typed keys
                        S  the terminal's new size, as decimal text: columns, a space, rows
                        K  a signal for the command and its process group, by its name without SIG
      from the agent    Y, N  the program accepts a connection, or does not (probe)
                        O, E  bytes of standard output (or of the terminal), of standard error
                        T  how many bytes of input the command or the terminal has taken, as decimal text
                        X  the exit code, as decimal text

  When a caller disconnects, its command is killed and its shell gets SIGHUP. A caller sends at most WINDOW bytes of input that
  were not taken yet, so that unread input never delays signals, a new size or the end. The output of a command is read only as
  fast as the caller reads it.
  (The terminal in a browser tab is another program, `terminal.py`, which is reached through the bridge.)
- In a PID namespace the agent is process 1 and reaps orphans.
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
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from torpor.inside.bridge import Bridge
from torpor.inside.control_frames import (
    ERRORS,
    EXIT,
    HEAD_BYTES,
    INPUT,
    LARGEST_FRAME,
    NO,
    OUTPUT,
    REQUEST,
    SIGNAL,
    SIZE,
    TAKEN,
    YES,
    frame,
    parse_head,
)
from torpor.inside.program import CHUNK, COULD_NOT_START, AgentOptions, StartedProgram, before_exec, start

WINDOW = 1 << 16
"""How much input may be sent before the program reads it."""
PROBE_S = 1.0
LOOK_S, LOOK_PART, LONGEST_LOOK_S = 0.005, 0.02, 0.25
"""How often to check whether a new program listens: often at first, later after this part of the time that has passed."""
NAMED_WITHIN_S = 10.0
"""How long a client of *ports* may take to name a port."""
STRAGGLERS_S = 1.0
"""How long the rest of the tree may run after the program has ended on request: a shell at a terminal ignores TERM."""
AFTER_EXIT_S = 0.2
"""How long a command's output is still read after its end: a process it left behind may hold the pipe open without end."""
AFTER_EXIT_BYTES = 1 << 20
"""How much output is still read after a command's end: the size of a pipe. A process it left behind may write without end."""
HANG_UP_S = 5.0
"""How long a shell may take to end after SIGHUP."""

# Torpor may have been started with these signals ignored. A command would inherit that, and Ctrl-C would not work.
SIGNALS_OF_A_COMMAND = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
# For the template's program only: a shell must not get its port.
NOT_FOR_A_SHELL = frozenset({"PORT", "PYTHONPATH"})
# For the template's program only: with it, a Python that a command starts would import Torpor's packages.
NOT_FOR_A_COMMAND = frozenset({"PYTHONPATH"})
OF_A_TERMINAL = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
SENDABLE = frozenset({"HUP", "INT", "QUIT", "TERM", "KILL", "USR1", "USR2", "STOP", "CONT", "TSTP", "WINCH"})
MOST_COLUMNS_OR_ROWS = 2000

Target = int | str
"""Where a program listens: a port on loopback, or the path of a Unix socket."""


# ── frames ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next frame; raises IncompleteReadError when the other side has disconnected."""
    head = await reader.readexactly(HEAD_BYTES)
    if (parsed := parse_head(head)) is None:
        raise asyncio.IncompleteReadError(head, LARGEST_FRAME)
    kind, length = parsed
    return kind, await reader.readexactly(length)


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class ChildProcesses:
    """All processes started here, and all adopted orphans."""

    def __init__(self, begun: StartedProgram) -> None:
        self._orders = begun.orders
        self._open_files = begun.open_files
        self._known: dict[int, tuple[subprocess.Popen[bytes], asyncio.Future[int]]] = {}

    def start(self, argv: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], "asyncio.Future[int]"]:
        """Start a command with a pipe for each of its streams."""
        environment = self._environment(NOT_FOR_A_COMMAND)
        streams = (subprocess.PIPE, subprocess.PIPE)
        process = start(argv, self._orders.home, environment, streams, self._before_command)
        return process, self.adopt(process)

    def start_at(self, terminal: int, argv: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], "asyncio.Future[int]"]:
        """Start a command on this terminal."""
        environment = {**self._environment(NOT_FOR_A_COMMAND), **OF_A_TERMINAL}
        process = start(argv, self._orders.home, environment, (terminal, terminal), self._before_shell)
        return process, self.adopt(process)

    def adopt(self, process: subprocess.Popen[bytes]) -> "asyncio.Future[int]":
        """A future with the exit code of the process."""
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._known[process.pid] = (process, ended)
        return ended

    def start_shell(self, terminal: int) -> tuple[subprocess.Popen[bytes], "asyncio.Future[int]"]:
        """Start a login shell on this terminal."""
        kept = self._environment(NOT_FOR_A_SHELL)
        shell = find_shell(kept)
        environment = {**kept, "SHELL": shell, **OF_A_TERMINAL}
        # The leading dash marks a login shell for every shell, as login(1) does.
        argv = (f"-{os.path.basename(shell)}",)  # noqa: PTH119
        process = start(argv, self._orders.home, environment, (terminal, terminal), self._before_shell, executable=shell)
        return process, self.adopt(process)

    def _environment(self, but: frozenset[str]) -> dict[str, str]:
        return {name: value for name, value in self._orders.environment.items() if name not in but}

    def _before_command(self) -> None:
        before_exec(self._open_files)
        for number in SIGNALS_OF_A_COMMAND:
            signal.signal(number, signal.SIG_DFL)

    def _before_shell(self) -> None:
        self._before_command()
        # Take the controlling terminal of the new session: without it there is no job control and no Ctrl-C.
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

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
                process.returncode = code  # Popen must not wait for a pid that may belong to another process by now
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
        """Signal the whole tree, including other sessions."""
        if self._orders.alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)
            return
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def find_shell(environment: dict[str, str]) -> str:
    """The workspace's own shell, else the first that exists."""
    wanted = (environment.get("SHELL", ""), "/bin/bash", "/bin/sh")
    return next((shell for shell in wanted if os.path.isabs(shell) and os.access(shell, os.X_OK)), "/bin/sh")  # noqa: PTH117


def signal_session(leader: int, number: int) -> None:
    """Signal every process of a session. A process that must survive ignores the signal (nohup) or has its own session
    (setsid)."""
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry)) == leader:
                    os.kill(int(entry), number)


def descendants(root: int) -> list[int]:
    """All processes of the container if there is no PID namespace: the agent adopts orphans (subreaper), so the tree is
    complete."""
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
    """Whether the program accepts a connection, as soon as it does or when the time is up."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (connection := await connect_to_program(target)) is None:
        waited_s = loop.time() - began
        if waited_s >= within_s:
            return False
        await asyncio.sleep(min(max(LOOK_S, waited_s * LOOK_PART), LONGEST_LOOK_S))
    connection.close()
    return True


def addresses(target: Target) -> Iterator[tuple[socket.AddressFamily, tuple[str, int] | str]]:
    """Both loopback addresses, because the program may listen on either; or the socket."""
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
            # Not wait_for: it loses a cancellation that comes together with a refused connection.
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
    """The first line names the port; the bytes after it are for the program that listens there."""
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
            raise ValueError("no port was given")
        data = await loop.sock_recv(incoming, CHUNK)
        if not data:
            raise ValueError("the connection was closed before a port was given")
        read += data
    line, _, rest = read.partition(b"\n")
    if not (line.isdigit() and 0 < int(line) < 1 << 16):
        raise ValueError("no port was given")
    return int(line), rest


def is_ours(port: int) -> bool:
    """If loopback is the machine's: whether only processes of this container listen on this port."""
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
    """Each connection has its own task; an error in one does not affect the others."""
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    tasks: set[asyncio.Task[None]] = set()
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError:  # no descriptor is free: open connections continue, and accepting is retried
            await asyncio.sleep(0.1)
            continue
        task = loop.create_task(handle(connection, *arguments))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


# ── control ───────────────────────────────────────────────────────────────────────────────────────────────────────────


Handle = Callable[[dict[str, Any], asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def control(connection: socket.socket, handle: Handle) -> None:
    """Read the request of a connection and handle it."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        kind, payload = await read_frame(reader)
        await handle(json.loads(payload) if kind == REQUEST else {}, reader, writer)
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError, ValueError):
        pass  # the caller disconnected, or sent an invalid request
    finally:
        writer.close()


async def handle_request(
    orders: AgentOptions,
    children: ChildProcesses,
    request: dict[str, Any],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    match request.get("do"):
        case "probe":
            does_answer = await answers(orders.socket or orders.port, float(request.get("within_s", 0)))
            writer.write(frame(YES if does_answer else NO))
        case "execute" | "shell":
            await run_command(request, reader, writer, children)
            await writer.drain()
            await wait_for_hang_up(reader)
        case _:
            pass


async def wait_for_hang_up(reader: asyncio.StreamReader) -> None:
    """Wait until the caller has read the answer and closes. Closing while it still writes would lose unread data."""
    while await reader.read(CHUNK):
        pass


# ── commands and shells ───────────────────────────────────────────────────────────────────────────────────────────────


class Pipe:
    """Our end of a pipe or a pty. It is read no faster than the caller reads, and written as fast as the program reads."""

    def __init__(self, descriptor: int, taken: Callable[[int], None] = lambda _: None) -> None:
        self._descriptor = descriptor
        self._taken = taken
        self._unwritten = bytearray()
        self._is_ended = self._is_closed = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)

    def write(self, data: bytes) -> None:
        if len(self._unwritten) + len(data) > WINDOW:
            raise ValueError("more input was sent than is allowed")
        if self._is_ended or self._is_closed:
            self._taken(len(data))
            return
        self._unwritten += data
        self._write()

    def end(self) -> None:
        """Write the end of file after all data."""
        self._is_ended = True
        if not self._unwritten:
            self.close()

    def _write(self) -> None:
        try:
            written = os.write(self._descriptor, self._unwritten) if self._unwritten else 0
        except BlockingIOError:
            written = 0
        except OSError:
            written = len(self._unwritten)  # no process reads it any more
        del self._unwritten[:written]
        if written:
            self._taken(written)
        if self._unwritten:
            self._loop.add_writer(self._descriptor, self._write)
            return
        self._loop.remove_writer(self._descriptor)
        if self._is_ended:
            self.close()

    async def read(self, ended: "asyncio.Future[int]") -> bytes:
        """The next bytes; empty when no process is left that could write."""
        while True:
            try:
                return os.read(self._descriptor, CHUNK)
            except BlockingIOError:
                pass
            except OSError:  # EIO: no process holds the other end of a pty
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
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)


class TerminalPipe(Pipe):
    """Its input has no end of file: that is a key (Ctrl-D)."""

    def resize(self, columns: int, rows: int) -> None:
        if not (0 < columns <= MOST_COLUMNS_OR_ROWS and 0 < rows <= MOST_COLUMNS_OR_ROWS):
            raise ValueError(f"a terminal cannot have {columns} columns and {rows} rows")
        termios.tcsetwinsize(self._descriptor, (rows, columns))

    def end(self) -> None:
        pass


class Command:
    """A running command and our ends of its streams."""

    def __init__(self, pid: int, ended: "asyncio.Future[int]", stdin: Pipe, outputs: dict[bytes, Pipe]) -> None:
        self.ended = ended
        self.stdin = stdin
        self.outputs = outputs
        self._pid = pid

    def send_signal(self, name: str) -> None:
        if name not in SENDABLE:
            raise ValueError(f"there is no signal {name!r}")
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.Signals[f"SIG{name}"])

    async def close(self) -> None:
        """End the command and all processes in its process group."""
        if isinstance(self.stdin, TerminalPipe):
            await hang_up(self.stdin, self._pid, self.ended)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        for pipe in (self.stdin, *self.outputs.values()):
            pipe.close()


def start_command(request: dict[str, Any], children: ChildProcesses, taken: Callable[[int], None]) -> Command:
    argv = tuple(str(word) for word in request.get("argv", ()))
    if size := request.get("terminal"):
        columns, rows = size
        return start_at_terminal(argv, int(columns), int(rows), children, taken)
    process, ended = children.start(argv)
    ours = [take_descriptor(stream) for stream in (process.stdin, process.stdout, process.stderr)]
    outputs = {OUTPUT: Pipe(ours[1]), ERRORS: Pipe(ours[2])}
    return Command(process.pid, ended, Pipe(ours[0], taken), outputs)


def take_descriptor(stream: Any) -> int:
    """Its descriptor, which the caller has to close."""
    descriptor = os.dup(stream.fileno())
    stream.close()
    return descriptor


def start_at_terminal(
    argv: tuple[str, ...], columns: int, rows: int, children: ChildProcesses, taken: Callable[[int], None]
) -> Command:
    """Without `argv`: a login shell."""
    ours, theirs = os.openpty()
    terminal = TerminalPipe(ours, taken)
    try:
        terminal.resize(columns, rows)
        process, ended = children.start_at(theirs, argv) if argv else children.start_shell(theirs)
    except BaseException:
        terminal.close()
        raise
    finally:
        os.close(theirs)
    return Command(process.pid, ended, terminal, {OUTPUT: terminal})


async def run_command(
    request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, children: ChildProcesses
) -> None:
    try:
        command = start_command(request, children, lambda taken: writer.write(frame(TAKEN, str(taken).encode())))
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as error:
        what = next(iter(request.get("argv", ())), "no shell could be started")
        writer.write(frame(OUTPUT if "terminal" in request else ERRORS, f"{what}: {error}\n".encode()))
        writer.write(frame(EXIT, str(COULD_NOT_START).encode()))
        return
    loop = asyncio.get_running_loop()
    showing = [loop.create_task(show(pipe, kind, command.ended, writer)) for kind, pipe in command.outputs.items()]
    listening = loop.create_task(listen(command, reader))
    all_shown = asyncio.gather(*showing)
    try:
        # The listener ends early only when the caller disconnects.
        over_or_gone: list[asyncio.Future[Any]] = [command.ended, listening]
        await asyncio.wait(over_or_gone, return_when=asyncio.FIRST_COMPLETED)
        if command.ended.done():
            # The caller may take its time to read the output, but must stay connected.
            shown_or_gone: list[asyncio.Future[Any]] = [all_shown, listening]
            await asyncio.wait(shown_or_gone, return_when=asyncio.FIRST_COMPLETED)
            writer.write(frame(EXIT, str(command.ended.result()).encode()))
    finally:
        for task in (*showing, listening):
            task.cancel()
        await asyncio.gather(*showing, listening, all_shown, return_exceptions=True)
        await command.close()


async def show(pipe: Pipe, kind: bytes, ended: "asyncio.Future[int]", writer: asyncio.StreamWriter) -> None:
    left = AFTER_EXIT_BYTES
    with contextlib.suppress(OSError):
        while left > 0 and (data := await pipe.read(ended)):
            writer.write(frame(kind, data))
            await writer.drain()
            # A command that always has output must let other tasks run.
            await asyncio.sleep(0)
            left -= len(data) if ended.done() else 0


async def listen(command: Command, reader: asyncio.StreamReader) -> None:
    """Returns when the caller has disconnected or sent an invalid frame."""
    with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
        while True:
            kind, data = await read_frame(reader)
            if kind == INPUT and data:
                command.stdin.write(data)
            elif kind == INPUT:
                command.stdin.end()
            elif kind == SIGNAL:
                command.send_signal(data.decode())
            elif kind == SIZE and isinstance(command.stdin, TerminalPipe):
                columns, rows = data.split()
                command.stdin.resize(int(columns), int(rows))


async def hang_up(terminal: TerminalPipe, leader: int, ended: "asyncio.Future[int]") -> None:
    """Hang up the terminal and signal its processes. (A shell that gets two signals dies before it signals its jobs.)"""
    if not ended.done():
        signal_session(leader, signal.SIGHUP)
        signal_session(leader, signal.SIGCONT)
    terminal.close()
    await asyncio.wait([ended], timeout=HANG_UP_S)
    if not ended.done():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


# ── lifecycle ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class StopChannel:
    """Standard input: a request to stop, or the end of Torpor."""

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


async def end_everything(children: ChildProcesses, program: "asyncio.Future[int]", grace_s: float) -> None:
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


async def run(begun: StartedProgram) -> int:
    loop = asyncio.get_running_loop()
    orders, children = begun.orders, ChildProcesses(begun)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the bridge has two for each connection
    leash = StopChannel()
    loop.add_signal_handler(signal.SIGCHLD, children.reap)
    loop.add_signal_handler(signal.SIGTERM, leash.stop, 10.0)
    program = children.adopt(begun.program)
    # The program may have ended before the signal handler existed.
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
        loop.create_task(serve(asked, control, functools.partial(handle_request, orders, children))),
    ]
    asked_or_over: list[asyncio.Future[Any]] = [program, leash.grace_s]
    await asyncio.wait(asked_or_over, return_when=asyncio.FIRST_COMPLETED)
    for task in serving:
        task.cancel()
    await end_everything(children, program, leash.grace_s.result() if leash.grace_s.done() else 0.0)
    return program.result() if program.done() else 128 + signal.SIGKILL


def main(begun: StartedProgram) -> None:
    # Exit without cleanup: the rest of the tree has ended.
    os._exit(asyncio.run(run(begun)))
