"""shell: open a terminal in a workspace.

The workspace has a pseudo-terminal. A WebSocket of the API connects it with the terminal of this process: binary frames carry
input and output, text frames carry sizes and the exit code.
"""

import contextlib
import json
import os
import select
import signal
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from torpor.cli.commands.logs_and_open import shell_code
from torpor.cli.escape_keys import KeyFilter, TerminalModes
from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.cli.options import Name, NoWake
from torpor.cli.output.wording import sleep_line
from torpor.cli.target import api_here
from torpor.cli.terminal import RawMode, TerminationSignal, read_some, signals, size, standard_input

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

CHUNK = 1 << 16
STDOUT, STDERR = 1, 2
END_OF_INPUT = b"\x04"
# If no program reads when the input ends, the end is lost. So it is sent several times, with growing pauses.
END_AGAIN_S = 0.25
LONGEST_PAUSE_S = 30.0
ENDS_TOLD = 10
LAST_WORDS_S = 2.0


def shell(name: Name, no_wake: NoWake = False) -> None:
    """Open a terminal in a workspace; `~.` at the start of a line leaves."""
    with api_here() as api:
        line = api.shell(name, *size(), wake=not no_wake)
        try:
            code = run_shell_session(line, name)
        except TerminationSignal as gone:
            code = -gone.number
    raise typer.Exit(shell_code(code))


def run_shell_session(line: "ClientConnection", name: str) -> int:
    """Connect this terminal with the shell until it ends: its exit code; CommandError if it has none."""
    heard, bell = os.pipe()
    os.set_blocking(bell, False)
    screen, typed = TerminalModes(), KeyFilter()
    listener = _ShellReceiver(line, name, screen, bell)
    descriptor = standard_input()
    try:
        with signals(bell) as came, RawMode(descriptor) as raw:
            listener.start()
            try:
                _speak(line, listener, descriptor, heard, came, typed, raw)
            finally:
                line.close()
                listener.join(LAST_WORDS_S)
                with contextlib.suppress(OSError):
                    _write(screen.undo())
    finally:
        if not listener.is_alive():
            os.close(heard)
            os.close(bell)
    if listener.exit_code is not None:
        return listener.exit_code
    raise _how_it_ended(line, name, has_left=typed.is_leaving)


class _ShellReceiver(threading.Thread):
    """Show the output of the shell; write to `bell` at the end."""

    def __init__(self, line: "ClientConnection", name: str, screen: TerminalModes, bell: int) -> None:
        super().__init__(daemon=True)
        self._line, self._name, self._screen, self._bell = line, name, screen, bell
        self._has_told = False
        self.has_begun = False
        self.is_over = False
        self.exit_code: int | None = None

    def run(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            # While output cannot be written, no more is read, so that the sender waits.
            with contextlib.suppress(ConnectionClosed, OSError):
                for message in self._line:
                    if isinstance(message, str):
                        self._hear(json.loads(message))
                    else:
                        self.has_begun = True
                        self._screen.saw(message)
                        _write(message)
        finally:
            self.is_over = True
            with contextlib.suppress(OSError):
                os.write(self._bell, b".")

    def _hear(self, told: dict[str, Any]) -> None:
        if "exit" in told:
            self.exit_code = told["exit"]
        elif "phase" in told and not self._has_told:
            self._has_told = True
            with contextlib.suppress(OSError):
                os.write(STDERR, b"torpor: waking the workspace\r\n")
        elif "sleeping_soon" in told:
            said = sleep_line(self._name, told["sleeping_soon"], datetime.now().astimezone())
            with contextlib.suppress(OSError):
                os.write(STDERR, self._screen.notice(said))


def _speak(
    line: "ClientConnection",
    listener: _ShellReceiver,
    descriptor: int,
    heard: int,
    came: "set[int]",
    typed: KeyFilter,
    raw: RawMode,
) -> None:
    """Send input and sizes until the shell ends or the user leaves."""
    from websockets.exceptions import ConnectionClosed

    is_terminal = os.isatty(descriptor) if descriptor >= 0 else False
    has_ended, last = descriptor < 0, b"\n"
    pause_s, ends_told = END_AGAIN_S, 0
    with contextlib.suppress(ConnectionClosed):
        while not listener.is_over and not typed.is_leaving:
            watched = [heard] if has_ended else [heard, descriptor]
            ready, _, _ = select.select(watched, [], [], pause_s if has_ended and ends_told < ENDS_TOLD else None)
            if heard in ready:
                os.read(heard, CHUNK)
                if signal.SIGCONT in came:
                    raw.again()
                if came:
                    came.clear()
                    line.send(json.dumps({"resize": size()}))
            elif not ready and listener.has_begun:
                line.send(END_OF_INPUT)
                ends_told += 1
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if descriptor in ready:
                keys = read_some(descriptor, CHUNK)
                if not keys:
                    has_ended = True
                    if last not in b"\r\n":
                        # A last line without a line end would never be read.
                        line.send(b"\n")
                    continue
                last = keys[-1:]
                passed = typed.pass_on(keys) if is_terminal else keys
                if passed:
                    line.send(passed)


def _how_it_ended(line: "ClientConnection", name: str, *, has_left: bool) -> CommandError:
    if has_left:
        return CommandError(
            ExitCode.INTERRUPTED,
            f"you left {name}; the programs in its terminal were told to end",
            code="left",
            advice=f"`torpor shell {name}` opens a new terminal",
        )
    if os.isatty(STDOUT):
        # The last output may not end with a line end.
        with contextlib.suppress(OSError):
            _write(b"\r\n")
    said = line.close_reason or "no reason was given"
    return CommandError(
        ExitCode.UNREACHABLE,
        f"the terminal in {name} was closed: {said}",
        code="shell_closed",
        advice=f"`torpor show {name}` shows its status",
    )


def _write(content: bytes) -> None:
    while content:
        try:
            content = content[os.write(STDOUT, content) :]
        except BlockingIOError:
            # Another process that shares the terminal has made it non-blocking.
            select.select([], [STDOUT], [])
