"""Find the escape sequence `~.` in typed keys, and the terminal modes that programs left on. Pure.

A raw terminal sends Ctrl-C to the workspace, so the user leaves with `~.` at the start of a line, as in ssh.
"""

import re

LEAVE = b"."
TILDE = b"~"
NEW_LINE = b"\r\n"

# Modes that programs turn on and should turn off: alternate screen, mouse, bracketed paste, focus events, keypad.
_MODES = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
WATCHED = frozenset(b"1 9 47 1000 1002 1003 1004 1005 1006 1015 1047 1049 2004".split())
OTHER_SCREEN = frozenset(b"47 1047 1049".split())
CURSOR = b"25"
_LONGEST = 48


class KeyFilter:
    """Filter the keys that are sent to the workspace."""

    def __init__(self) -> None:
        self._is_line_start = True
        self._has_tilde = False
        self.is_leaving = False

    def pass_on(self, keys: bytes) -> bytes:
        """The keys to send. After `~.`, `is_leaving` is set and the remaining keys are dropped."""
        passed = bytearray()
        for number in keys:
            key = bytes((number,))
            if self._has_tilde:
                self._has_tilde = False
                if key == LEAVE:
                    self.is_leaving = True
                    break
                # `~~` means one tilde; before any other key the tilde was an ordinary one.
                passed += TILDE if key == TILDE else TILDE + key
                self._is_line_start = key in NEW_LINE
            elif key == TILDE and self._is_line_start:
                self._has_tilde = True
            else:
                passed += key
                self._is_line_start = key in NEW_LINE
        return bytes(passed)


class TerminalModes:
    """Track the modes that the output has turned on."""

    def __init__(self) -> None:
        self._on: set[bytes] = set()
        self._is_cursor_hidden = False
        self._tail = b""

    def saw(self, output: bytes) -> None:
        text = self._tail + output
        for found in _MODES.finditer(text):
            is_on = found[2] == b"h"
            for mode in found[1].split(b";"):
                if mode == CURSOR:
                    self._is_cursor_hidden = not is_on
                elif mode in WATCHED:
                    (self._on.add if is_on else self._on.discard)(mode)
        # A sequence may be split between two chunks.
        begun = text.rfind(b"\x1b", -_LONGEST)
        self._tail = text[begun:] if begun >= 0 and not _MODES.match(text, begun) else b""

    @property
    def is_full(self) -> bool:
        """Whether a program uses the alternate screen."""
        return bool(self._on & OTHER_SCREEN)

    def notice(self, line: str) -> bytes:
        """The bytes that show a message: below the output, or in the top line of a full screen, without moving the rest."""
        if self.is_full:
            return b"\x1b7\x1b[1;1H\x1b[7m" + line.encode() + b"\x1b[0m\x1b[K\x1b8"
        return b"\r\n" + line.encode() + b"\r\n"

    def undo(self) -> bytes:
        """The bytes that turn off all modes that are still on; empty if all are off."""
        off = b"".join(b"\x1b[?" + mode + b"l" for mode in sorted(self._on, key=int))
        return off + (b"\x1b[?25h" if self._is_cursor_hidden else b"") + (b"\x1b[0m" if off else b"")
