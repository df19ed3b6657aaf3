"""exec: run a command in a workspace with its input, output and exit code.

A WebSocket of the API (`torpor.api.exec_stream` describes its frames) carries standard input to the command and both outputs
back, each as fast as it is read. Ctrl-C is sent on as a signal. The command ends with this process at the latest.
"""

import base64
import contextlib
import json
import os
import select
import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli.commands.logs_and_open import shell_code
from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.cli.options import Json, Name, NoWake
from torpor.cli.output.console import say, show_json
from torpor.cli.target import api_here
from torpor.cli.terminal import RawMode, TerminationSignal, read_some, signals, size, standard_input

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

CHUNK = 1 << 16
WINDOW = 1 << 18
"""How many bytes of input may be sent that the command has not read."""
STDIN, STDOUT, STDERR = 0, 1, 2
LAST_WORDS_S = 2.0
# The signal that each Ctrl-C sends; one more Ctrl-C closes the connection, which kills the command.
CTRL_C = ("INT", "TERM")


def exec_(
    name: Name,
    command: Annotated[
        list[str], typer.Argument(metavar="-- CMD...", help="The program and its arguments.", show_default=False)
    ],
    no_stdin: Annotated[bool, typer.Option("--no-stdin", "-n", help="Do not send standard input.")] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Run it in a terminal.")] = False,
    no_wake: NoWake = False,
    as_json: Json = False,
) -> None:
    """Run a command in a workspace, with its input, output and exit code."""
    descriptor = -1 if no_stdin else standard_input()
    written: dict[int, bytearray] | None = {STDOUT: bytearray(), STDERR: bytearray()} if as_json else None
    with api_here() as api:
        line = api.exec_stream(name, wake=not no_wake)
        start: dict[str, Any] = {"command": command}
        if tty:
            start["terminal"] = size()
        code = _Execution(line, name, descriptor, written, has_terminal=tty).run(start)
    if written is not None:
        said = {stream: base64.b64encode(data).decode() for stream, data in written.items()}
        show_json({"exit_code": code, "stdout": said[STDOUT], "stderr": said[STDERR]})
    raise typer.Exit(shell_code(code))


class _Execution:
    """One running command, as seen from this side."""

    def __init__(
        self, line: "ClientConnection", name: str, stdin: int, written: dict[int, bytearray] | None, *, has_terminal: bool
    ) -> None:
        self._line, self._name, self._stdin = line, name, stdin
        self._has_terminal = has_terminal
        self._heard, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        self._listener = _ExecReceiver(line, name, self._bell, written)
        self._sent = 0
        self._interrupts = 0

    def run(self, start: dict[str, Any]) -> int:
        """The exit code of the command, negative for a signal that ended this process; CommandError if there is none."""
        from websockets.exceptions import ConnectionClosed

        listener = self._listener
        has_left = False
        try:
            with signals(self._bell, signal.SIGINT) as came, RawMode(self._stdin if self._has_terminal else -1) as raw:
                try:
                    with contextlib.suppress(ConnectionClosed):
                        self._line.send(json.dumps(start))
                        listener.start()
                        has_left = self._speak(came, raw)
                finally:
                    self._line.close()
                    if listener.ident is not None:
                        listener.join(LAST_WORDS_S)
        except TerminationSignal as gone:
            return -gone.number
        finally:
            if not listener.is_alive():
                os.close(self._heard)
                os.close(self._bell)
        if has_left:
            return -signal.SIGINT
        if listener.is_unread:
            return -signal.SIGPIPE
        if listener.exit_code is None:
            raise _cut_off(self._line, self._name)
        return listener.exit_code

    def _speak(self, came: "set[int]", raw: RawMode) -> bool:
        """Send input and signals until the command ends; whether the user left before that."""
        if self._stdin < 0:
            self._end_input()
        while not self._listener.is_over:
            watched = [self._heard, self._stdin] if self._stdin >= 0 and self._room > 0 else [self._heard]
            ready, _, _ = select.select(watched, [], [])
            if self._heard in ready:
                os.read(self._heard, CHUNK)
                if not self._pass_on(came, raw):
                    return True
            if self._stdin in ready:
                data = read_some(self._stdin, min(CHUNK, self._room))
                if data:
                    self._sent += len(data)
                    self._line.send(bytes((STDIN,)) + data)
                else:
                    self._end_input()
                    self._stdin = -1
        return False

    def _pass_on(self, came: "set[int]", raw: RawMode) -> bool:
        """Send on the signals that came; False if the user wants to leave."""
        numbers = set(came)
        came.difference_update(numbers)
        if signal.SIGINT in numbers:
            if self._interrupts >= len(CTRL_C):
                return False
            self._line.send(json.dumps({"signal": CTRL_C[self._interrupts]}))
            self._interrupts += 1
        if signal.SIGCONT in numbers:
            raw.again()
        if self._has_terminal and numbers & {signal.SIGWINCH, signal.SIGCONT}:
            self._line.send(json.dumps({"resize": size()}))
        return True

    def _end_input(self) -> None:
        self._line.send(bytes((STDIN,)))

    @property
    def _room(self) -> int:
        return WINDOW - (self._sent - self._listener.taken)


class _ExecReceiver(threading.Thread):
    """Write the output of the command; write to `bell` when input was read, and at the end."""

    def __init__(self, line: "ClientConnection", name: str, bell: int, written: dict[int, bytearray] | None) -> None:
        super().__init__(daemon=True)
        self._line, self._name, self._bell, self._written = line, name, bell, written
        self._has_told = False
        self.is_over = False
        self.is_unread = False
        """The reader of standard output or standard error has closed it."""
        self.taken = 0
        self.exit_code: int | None = None

    def run(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            # While output cannot be written, no more is read, so that the sender waits.
            with contextlib.suppress(ConnectionClosed):
                for message in self._line:
                    if isinstance(message, str):
                        self._hear(json.loads(message))
                    else:
                        self._write(message[0], message[1:])
        except OSError:
            self.is_unread = True
        finally:
            self.is_over = True
            self._ring()

    def _hear(self, told: dict[str, Any]) -> None:
        if "taken" in told:
            self.taken += told["taken"]
            self._ring()
        elif "exit" in told:
            self.exit_code = told["exit"]
        elif "phase" in told and not self._has_told:
            self._has_told = True
            say(f"torpor: waking {self._name}")

    def _write(self, stream: int, data: bytes) -> None:
        if stream not in (STDOUT, STDERR):
            return
        if self._written is not None:
            self._written[stream] += data
            return
        while data:
            try:
                data = data[os.write(stream, data) :]
            except BlockingIOError:
                # Another process that shares the terminal has made it non-blocking.
                select.select([], [stream], [])

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._bell, b".")


def _cut_off(line: "ClientConnection", name: str) -> CommandError:
    said = line.close_reason or "no reason was given"
    return CommandError(
        ExitCode.UNREACHABLE,
        f"the command in {name} was interrupted: {said}",
        code="exec_closed",
        advice=f"`torpor show {name}` shows its status",
    )
