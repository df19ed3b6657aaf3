"""Serve a terminal in a browser tab.

Runs inside a workspace's sandbox, started by file path: it uses the standard library and `websockets`, and no other module of
Torpor. A session is one shell on one pty, with its last output. A tab names its session, so that after a reload or a broken
connection it gets the same shell again, and the output that it missed.

    GET /               the page
    GET /assets/...     the files of the page, which loads no others
    WebSocket /pty      ?session=NAME (without it the shell ends with the socket), seen=OFFSET, cols=N, rows=N

Binary frames are the terminal's bytes, in both directions. An offset counts the bytes of output since the session began.
Text frames are JSON objects. From the page:

    {"resize": [cols, rows]}    the new size of the window
    {"seen": OFFSET}            all output before this offset is drawn. From then on at most one window is sent ahead

To the page, as the first frame:

    {"attached": {"new": true, "offset": OFFSET, "until": OFFSET}}

The bytes that follow begin at `offset`. Those before `until` were written before the page connected.
"""

import argparse
import asyncio
import contextlib
import fcntl
import gzip
import hashlib
import html
import json
import logging
import os
import pty
import pwd
import re
import shutil
import signal
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import NewType
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

HOST = "127.0.0.1"
# Torpor's proxy answers this path itself. Without the proxy the page learns that there is no status to follow.
STANDING = "/.torpor/standing"
ASSETS = Path(__file__).resolve().parent / "assets"

MOST_COLUMNS_OR_ROWS = 2000
LEAST_SCROLLBACK_BYTES = 4096
SESSION_NAME = re.compile(r"[A-Za-z0-9_-]{16,64}")

# Close codes for the page (4000 to 4999 are free for applications).
TAKEN_OVER = 4001
TOO_MANY = 4002
NOT_UNDERSTOOD = 1008
TOO_MUCH_INPUT = 1009

# A program that died may have left the alternate screen, the mouse mode or the paste mode on. 1047 and not 1049: the latter
# also moves the cursor to the last saved position.
TIDY = b"\x1b[?1047l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[!p\x1b[0m"
ENDED = TIDY + b"\r\n[process ended, press Enter to start again]\r\n"
NOT_STARTED = b"\r\n[no shell could be started (%s), press Enter to try again]\r\n"


@dataclass(frozen=True, slots=True)
class TerminalLimits:
    """The limits of a terminal."""

    sessions: int = 32
    scrollback_bytes: int = 256 * 1024
    input_bytes: int = 16 * 1024 * 1024
    """Typed or pasted, and not yet read by the program."""
    detached_s: float = 3600.0
    """How long a session waits for its tab to reconnect."""
    hang_up_s: float = 5.0
    """How long a shell may take to end after SIGHUP."""

    @property
    def window_bytes(self) -> int:
        """How far the pty may be ahead of the viewer: well below the scrollback, so that no unseen output is overwritten."""
        return self.scrollback_bytes // 2

    @property
    def read_bytes(self) -> int:
        return self.scrollback_bytes // 8


@dataclass(frozen=True, slots=True)
class Size:
    columns: int
    rows: int


class ProtocolError(Exception):
    """The page sent a message outside the protocol."""


class TooManySessionsError(Exception):
    """All allowed sessions are open in tabs."""


# ── files of the page ─────────────────────────────────────────────────────────────────────────────────────────────────

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
ASSET_NAMES = ("terminal.css", "terminal.js", "vendor/xterm.css", "vendor/xterm.js", "vendor/addon-fit.js")

SECURITY_HEADERS = {
    # xterm.js writes its theme and its cell sizes into its own style elements, so styles, and only they, may be inline.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class ServedFile:
    """One served file, compressed once when the program starts."""

    content_type: str
    body: bytes
    packed: bytes
    tag: str


def page(name: str, body: bytes) -> ServedFile:
    digest = hashlib.sha256(body).hexdigest()[:32]
    return ServedFile(CONTENT_TYPES[Path(name).suffix], body, gzip.compress(body, 6, mtime=0), f'"{digest}"')


def load_pages(assets: Path, workspace: str) -> dict[str, ServedFile]:
    """All served paths and their files; any other path is not found."""
    front = (assets / "terminal.html").read_text(encoding="utf-8").replace("{workspace}", html.escape(workspace))
    pages = {"/": page("terminal.html", front.encode())}
    for name in ASSET_NAMES:
        pages[f"/assets/{name}"] = page(name, (assets / name).read_bytes())
    return pages


def answer(pages: Mapping[str, ServedFile], request: Request) -> Response | None:
    """The response to a request; None if it may become a WebSocket."""
    path = urlsplit(request.path).path
    if path == STANDING and request.method == "GET":
        return respond(HTTPStatus.NO_CONTENT, b"")
    if request.method != "GET":
        return respond(HTTPStatus.METHOD_NOT_ALLOWED, b"Only GET is supported.\n", Allow="GET")
    if path == "/pty":
        if not same_origin(request.headers.get_all("Origin"), request.headers.get_all("Host")):
            return respond(HTTPStatus.FORBIDDEN, b"A terminal opens only from its own page.\n")
        return None
    found = pages.get(path)
    if found is None:
        return respond(HTTPStatus.NOT_FOUND, b"Page not found.\n")
    # The tag is not that of the compressed bytes, hence no-cache: the browser asks each time and mostly gets 304.
    fixed = {"Content-Type": found.content_type, "Cache-Control": "no-cache", "ETag": found.tag, "Vary": "Accept-Encoding"}
    if found.tag in request.headers.get("If-None-Match", ""):
        return respond(HTTPStatus.NOT_MODIFIED, b"", **fixed)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return respond(HTTPStatus.OK, found.packed, **fixed, **{"Content-Encoding": "gzip"})
    return respond(HTTPStatus.OK, found.body, **fixed)


def same_origin(origins: list[str], hosts: list[str]) -> bool:
    """Browsers always send the origin of a WebSocket; programs do not, and no other site can make them connect."""
    if not origins:
        return True
    if len(origins) != 1 or len(hosts) != 1:
        return False
    return urlsplit(origins[0]).netloc.lower() == hosts[0].strip().lower() != ""


def respond(status: HTTPStatus, body: bytes, **headers: str) -> Response:
    fields = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), "Connection": "close"}
    return Response(status.value, status.phrase, Headers({**fields, **SECURITY_HEADERS, **headers}), body)


# ── messages of the page ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """The session that a tab wants to attach to."""

    session: str | None
    seen: int
    size: Size | None


def read_attach_request(path: str) -> AttachRequest:
    query = {key: values[-1] for key, values in parse_qs(urlsplit(path).query).items()}
    name = query.get("session")
    if name is not None and not SESSION_NAME.fullmatch(name):
        raise ProtocolError("session: 16 to 64 letters, digits, - or _")
    numbers = {key: query.get(key, "0") for key in ("seen", "cols", "rows")}
    if not all(number.isascii() and number.isdigit() and len(number) < 17 for number in numbers.values()):
        raise ProtocolError("seen, cols and rows must be whole numbers")
    size = read_size([int(numbers["cols"]), int(numbers["rows"])]) if "cols" in query else None
    return AttachRequest(name, int(numbers["seen"]), size)


def read_size(value: object) -> Size:
    match value:
        case [int(columns), int(rows)] if min(columns, rows) > 0 and max(columns, rows) <= MOST_COLUMNS_OR_ROWS:
            return Size(columns, rows)
        case _:
            raise ProtocolError(f"resize: [cols, rows], each from 1 to {MOST_COLUMNS_OR_ROWS}")


def read_control(text: str) -> Size | int:
    """A control message: the new size of the window, or the offset up to which everything is drawn."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("text frames must be JSON") from None
    match message:
        case {"resize": value}:
            return read_size(value)
        case {"seen": int(offset)} if offset >= 0:
            return offset
        case _:
            raise ProtocolError("known control messages: resize, seen")


# ── a shell on a pty ──────────────────────────────────────────────────────────────────────────────────────────────────

Pid = NewType("Pid", int)

# Python ignores the last two, the parent process may have ignored the others, and a shell would inherit that: `yes | head`
# would never end, and Ctrl-C would not work.
SIGNALS_OF_A_SHELL = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)


def find_shell(environment: Mapping[str, str]) -> str:
    """The workspace's own shell, else bash, else sh."""
    wanted = (environment.get("SHELL"), "bash", "sh")
    return next((found for name in wanted if name and (found := shutil.which(name))), "/bin/sh")


def shell_environment(environment: Mapping[str, str], shell: str) -> dict[str, str]:
    """The workspace's environment without the variables for this program, and with a terminal that uses UTF-8."""
    ours = {"PYTHONPATH", "PORT"}
    kept = {name: value for name, value in environment.items() if name not in ours}
    locale = next((kept[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if kept.get(name)), "")
    if not re.search(r"utf-?8", locale, re.IGNORECASE):
        kept.pop("LC_ALL", None)
        kept.pop("LC_CTYPE", None)
        kept["LANG"] = "C.UTF-8"
    return {**kept, "SHELL": shell, "TERM": "xterm-256color", "COLORTERM": "truecolor"}


def set_size(descriptor: int, size: Size) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def signal_foreground(descriptor: int, number: signal.Signals) -> None:
    """Signal the foreground process group of a terminal."""
    with contextlib.suppress(OSError):
        # A terminal without a foreground group has group 0, which would be our own.
        if (group := os.tcgetpgrp(descriptor)) > 0:
            os.killpg(group, number)


def signal_session(leader: Pid, number: signal.Signals) -> None:
    """Signal every process of a session. A process that must survive ignores the signal (nohup) or has its own session
    (setsid)."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, PermissionError):
                if os.getsid(int(entry.name)) == leader:
                    os.kill(int(entry.name), number)


def spawn(environment: Mapping[str, str], size: Size) -> tuple[Pid, int]:
    """Start a login shell in the home directory, in a new session; return its pid and our end of its terminal."""
    shell = find_shell(environment)
    home = environment.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    variables = shell_environment(environment, shell)
    # Until exec the new process has our signal handlers, which write to the wakeup pipe of our event loop: a shell that gets
    # SIGHUP that early would stop the whole terminal.
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid, descriptor = pty.fork()
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if pid == 0:
        try:
            for number in SIGNALS_OF_A_SHELL:
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            set_size(0, size)
            with contextlib.suppress(OSError):
                os.chdir(home)
            # The leading dash marks a login shell for every shell, as login(1) does.
            os.execve(shell, [f"-{Path(shell).name}"], variables)  # noqa: S606
        finally:
            os._exit(127)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # A later shell that inherited it would keep this terminal open after we have closed it.
    os.set_inheritable(descriptor, False)
    os.set_blocking(descriptor, False)
    return Pid(pid), descriptor


class ShellProcesses:
    """Our child processes, and callbacks for their ends."""

    def __init__(self) -> None:
        self._ended: dict[Pid, Callable[[], None]] = {}
        self._none_left = asyncio.Event()
        self._none_left.set()

    def watch(self, pid: Pid, ended: Callable[[], None]) -> None:
        self._ended[pid] = ended
        self._none_left.clear()

    def signal(self, pid: Pid, number: signal.Signals) -> None:
        """Signal the process and its group. A pid that is not yet reaped cannot belong to another process."""
        if pid in self._ended:
            for send in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    send(pid, number)

    def collect(self) -> None:
        """Reap all ended processes, including orphans, which we adopt as the first process of a sandbox."""
        with contextlib.suppress(ChildProcessError):
            while pid := Pid(os.waitpid(-1, os.WNOHANG)[0]):
                self._ended.pop(pid, lambda: None)()
        if not self._ended:
            self._none_left.set()

    async def end_all(self, patience_s: float) -> None:
        """Wait for processes that were asked to end, and kill those that did not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._none_left.wait()
        for pid in list(self._ended):
            self.signal(pid, signal.SIGKILL)


# ── a session: a shell, its output and its viewer ─────────────────────────────────────────────────────────────────────


class Scrollback:
    """The last bytes of a stream; offsets count from the beginning of the stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.end = 0

    @property
    def begin(self) -> int:
        return self.end - len(self._kept)

    def append(self, data: bytes) -> None:
        self._kept += data
        self.end += len(data)
        del self._kept[: max(0, len(self._kept) - self._limit)]

    def read(self, offset: int, most: int) -> bytes:
        at = max(0, offset - self.begin)
        return bytes(self._kept[at : at + most])

    def replay_offset(self) -> int:
        """Where a new viewer begins: at the beginning of the stream, or at a whole line if the beginning is lost."""
        return self.begin if self.begin == 0 else self.begin + self._kept.find(b"\n") + 1


class Viewer:
    """A tab that shows a session."""

    def __init__(self, connection: ServerConnection, sent: int) -> None:
        self.connection = connection
        self.sent = sent
        self.seen: int | None = None

    @property
    def settled(self) -> int:
        """The offset up to which the tab has drawn the output, or at least its socket has taken it."""
        return self.sent if self.seen is None else min(self.seen, self.sent)


class Session:
    """One shell after another on one terminal. The pty is read only as fast as the viewer draws, or freely if there is no
    viewer."""

    def __init__(self, environment: Mapping[str, str], limits: TerminalLimits, children: ShellProcesses, size: Size) -> None:
        self._environment = environment
        self._limits = limits
        self._children = children
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._shell: Pid | None = None
        self._descriptor: int | None = None
        self._left_after_end = 0
        self._typed = bytearray()
        self._grown = asyncio.Event()
        self.scrollback = Scrollback(limits.scrollback_bytes)
        self.viewer: Viewer | None = None
        self._start()

    def _start(self) -> None:
        try:
            pid, self._descriptor = spawn(self._environment, self._size)
        except OSError as error:
            self.scrollback.append(NOT_STARTED % str(error).encode())
            self._grown.set()
            return
        self._shell = pid
        self._children.watch(pid, self._shell_ended)
        self._flow()

    # the terminal to the tab

    def attach(self, connection: ServerConnection, seen: int) -> tuple[Viewer, int]:
        """Make the tab the viewer of the session; it gets the output after `seen`, or all that is kept if that part is lost."""
        resumed = self.scrollback.begin <= seen <= self.scrollback.end and seen > 0
        offset = seen if resumed else self.scrollback.replay_offset()
        self.viewer = Viewer(connection, offset)
        self._flow()
        if self._descriptor is not None and not resumed and self.scrollback.end > 0:
            # A replay cannot restore the screen of a full-screen program, but the program can redraw it.
            signal_foreground(self._descriptor, signal.SIGWINCH)
        return self.viewer, self.scrollback.end

    def detach(self, viewer: Viewer) -> None:
        if self.viewer is viewer:
            self.viewer = None
            self._flow()

    async def show(self, viewer: Viewer) -> None:
        """Send the output while this is the viewer. Sending waits until the socket has room."""
        with contextlib.suppress(ConnectionClosed):
            while self.viewer is viewer:
                self._grown.clear()
                if data := self.scrollback.read(viewer.sent, self._limits.read_bytes):
                    await viewer.connection.send(data)
                    viewer.sent += len(data)
                    self._flow()
                else:
                    await self._grown.wait()

    def seen(self, viewer: Viewer, offset: int) -> None:
        viewer.seen = offset
        self._flow()

    def _viewer_keeps_up(self) -> bool:
        return self.viewer is None or self.scrollback.end - self.viewer.settled < self._limits.window_bytes

    def _flow(self) -> None:
        if self._descriptor is None:
            return
        if not self._viewer_keeps_up():
            self._loop.remove_reader(self._descriptor)
        else:
            self._loop.add_reader(self._descriptor, self._read)
            if self._shell is None:
                # A process that still holds the terminal open may never write again.
                self._loop.call_soon(self._read)

    def _read(self) -> None:
        if self._descriptor is None or not self._viewer_keeps_up():
            return
        try:
            data = os.read(self._descriptor, self._limits.read_bytes)
        except BlockingIOError:
            data = b""
        except OSError:
            # EIO: no process holds the other end. It stays so, and would wake the event loop without end.
            data = b""
            self._loop.remove_reader(self._descriptor)
        self.scrollback.append(data)
        self._grown.set()
        if self._shell is None:
            self._left_after_end -= len(data)
            if not data or self._left_after_end <= 0:
                self._end()
                return
        if data:
            self._flow()

    # the end of a shell

    def _shell_ended(self) -> None:
        self._shell = None
        # The shell's own output is shown; endless output of its orphans is not.
        self._left_after_end = self._limits.window_bytes
        self._flow()

    def _end(self) -> None:
        self._close()
        self.scrollback.append(ENDED)
        self._grown.set()

    def _close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
        self._typed.clear()

    def hang_up(self) -> None:
        """Hang up the terminal and signal its processes. (A shell that gets two signals dies before it signals its jobs.)"""
        if self._descriptor is not None and self._shell is not None:
            signal_session(self._shell, signal.SIGHUP)
            signal_session(self._shell, signal.SIGCONT)
            self._loop.call_later(self._limits.hang_up_s, self._children.signal, self._shell, signal.SIGKILL)
        self._close()

    # the tab to the terminal

    def type(self, data: bytes) -> bool:
        """Write to the program; returns False if it has left too much unread."""
        if self._descriptor is None:
            if b"\r" in data or b"\n" in data:
                self._start()
            return True
        if len(self._typed) + len(data) > self._limits.input_bytes:
            return False
        self._typed += data
        self._write()
        return True

    def _write(self) -> None:
        if self._descriptor is None:
            return
        try:
            del self._typed[: os.write(self._descriptor, self._typed[: self._limits.read_bytes])]
        except BlockingIOError:
            pass
        except OSError:
            self._typed.clear()
        if self._typed:
            self._loop.add_writer(self._descriptor, self._write)
        else:
            self._loop.remove_writer(self._descriptor)

    def resize(self, size: Size) -> None:
        self._size = size
        if self._descriptor is not None:
            set_size(self._descriptor, size)


class Sessions:
    """All sessions; if there are too many, the one that was left first is closed."""

    def __init__(self, environment: Mapping[str, str], limits: TerminalLimits) -> None:
        self._environment = environment
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, Session] = {}
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        """Timers of sessions without a viewer, the one that was left first comes first."""
        self.children = ShellProcesses()

    def open(self, name: str, size: Size) -> tuple[Session, bool]:
        """The session with this name, and whether it is new."""
        if name in self._open:
            self.keep(name)
            return self._open[name], False
        if len(self._open) >= self._limits.sessions:
            longest_left = next(iter(self._expiries), None)
            if longest_left is None:
                raise TooManySessionsError
            self.end(longest_left)
        self._open[name] = Session(self._environment, self._limits, self.children, size)
        return self._open[name], True

    def keep(self, name: str) -> None:
        if timer := self._expiries.pop(name, None):
            timer.cancel()

    def leave(self, name: str) -> None:
        """The session has no viewer for now."""
        self.keep(name)
        if name in self._open and self._open[name].viewer is None:
            self._expiries[name] = self._loop.call_later(self._limits.detached_s, self.end, name)

    def end(self, name: str) -> None:
        self.keep(name)
        if session := self._open.pop(name, None):
            session.hang_up()

    def end_all(self) -> None:
        for name in list(self._open):
            self.end(name)


# ── the program ───────────────────────────────────────────────────────────────────────────────────────────────────────


class TerminalServer:
    """Handles the WebSocket connections."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._closing: set[asyncio.Task[None]] = set()

    async def serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        try:
            wanted = read_attach_request(connection.request.path)
            name = wanted.session or f"unnamed {connection.id}"
            session, is_new = self._sessions.open(name, wanted.size or Size(80, 24))
        except ProtocolError as error:
            await connection.close(NOT_UNDERSTOOD, str(error))
            return
        except TooManySessionsError:
            await connection.close(TOO_MANY, "too many terminals are open")
            return
        if session.viewer is not None:
            self._close(session.viewer.connection)
        if wanted.size is not None:
            session.resize(wanted.size)
        viewer, until = session.attach(connection, wanted.seen)
        showing: asyncio.Task[None] | None = None
        try:
            with contextlib.suppress(ConnectionClosed):
                await connection.send(json.dumps({"attached": {"new": is_new, "offset": viewer.sent, "until": until}}))
                showing = asyncio.create_task(session.show(viewer))
                await self._listen(connection, session, viewer)
        finally:
            if showing is not None:
                showing.cancel()
            session.detach(viewer)
            if wanted.session is None:
                self._sessions.end(name)
            else:
                self._sessions.leave(name)

    async def _listen(self, connection: ServerConnection, session: Session, viewer: Viewer) -> None:
        async for message in connection:
            if session.viewer is not viewer:
                return
            if isinstance(message, bytes):
                if not session.type(message):
                    await connection.close(TOO_MUCH_INPUT, "the program does not read what is typed")
                    return
                continue
            try:
                control = read_control(message)
            except ProtocolError as error:
                await connection.close(NOT_UNDERSTOOD, str(error))
                return
            if isinstance(control, Size):
                session.resize(control)
            else:
                session.seen(viewer, control)

    def _close(self, connection: ServerConnection) -> None:
        """Close a tab whose session another tab took over, without waiting for its answer."""
        task = asyncio.create_task(connection.close(TAKEN_OVER, "opened in another tab"))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


@contextlib.contextmanager
def listening(address: str | int) -> Iterator[socket.socket]:
    """A path is a Unix socket that only this user may connect to; a number is a port on loopback."""
    if isinstance(address, int):
        with socket.create_server((HOST, address)) as server:
            yield server
        return
    with socket.socket(socket.AF_UNIX) as server:
        # The mode is set before bind, so that no other user can connect between bind and chmod.
        umask = os.umask(0o177)
        try:
            server.bind(address)
        finally:
            os.umask(umask)
        yield server


async def run(server: socket.socket, environment: Mapping[str, str], limits: TerminalLimits) -> None:
    pages = load_pages(ASSETS, environment.get("TORPOR_WORKSPACE") or "Terminal")
    sessions = Sessions(environment, limits)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, sessions.children.collect)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    logging.basicConfig(format="terminal: %(message)s", level=logging.ERROR)
    async with serve(
        TerminalServer(sessions).serve,
        sock=server,
        process_request=lambda _, request: answer(pages, request),
        # The echo of a key is too small to compress, and a flood costs more to compress than to send.
        compression=None,
        close_timeout=2,
        server_header=None,
    ):
        print(f"terminal: listening on {display_address(server)}", flush=True)
        await stopped.wait()
        sessions.end_all()
    await sessions.children.end_all(2.0)


def display_address(server: socket.socket) -> str:
    name = server.getsockname()
    return f"{name}" if server.family == socket.AF_UNIX else f"http://{HOST}:{name[1]}"


def main() -> int:
    default = TerminalLimits()
    parser = argparse.ArgumentParser(description="A terminal in a browser tab, for one workspace.")
    parser.add_argument("--socket", help="listen on this Unix socket, with mode 0600, and on no port")
    parser.add_argument("--port", type=int, default=os.environ.get("PORT"), help="default: $PORT")
    parser.add_argument("--sessions", type=int, default=default.sessions, help="maximum number of sessions")
    parser.add_argument(
        "--scrollback-bytes", type=int, default=default.scrollback_bytes, help="bytes of output kept for each session"
    )
    parser.add_argument("--detached-s", type=float, default=default.detached_s, help="seconds that a session waits for its tab")
    given = parser.parse_args()
    address = given.socket or given.port
    if address is None:
        parser.error("a socket or a port is needed: --socket, --port, or PORT in the environment")
    if given.scrollback_bytes < LEAST_SCROLLBACK_BYTES:
        parser.error(f"--scrollback-bytes: at least {LEAST_SCROLLBACK_BYTES}")
    limits = TerminalLimits(given.sessions, given.scrollback_bytes, detached_s=given.detached_s)
    try:
        with listening(address) as server:
            asyncio.run(run(server, dict(os.environ), limits))
    except OSError as error:
        print(f"terminal: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
