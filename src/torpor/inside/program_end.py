"""Write and read the last line of an agent's log, which says that the program ended by itself, and with which exit code.

A container that the engine or an administrator stopped has no such line: its agent was stopped, too.
"""

import re

_LINE = re.compile(rb"torpor: the program ended with exit code (\d+)\n?\Z")


def line(exit_code: int) -> bytes:
    return b"torpor: the program ended with exit code %d\n" % exit_code


def split(log: bytes) -> tuple[bytes, int | None]:
    """The log without this line, and the exit code; None if there is no such line."""
    found = _LINE.search(log)
    return (log[: found.start()], int(found[1])) if found else (log, None)
