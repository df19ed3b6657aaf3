"""Ask the user for a name, a password or a confirmation.

Secrets must not be arguments. They are read from the terminal without echo, or else from the first line of standard input.
"""

import getpass
import sys

from torpor.cli.exit_codes import usage
from torpor.cli.output.console import say


def prompt_text(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise usage("standard input is not a terminal, so you cannot be asked for the username", "use --username")
    print(prompt, end="", file=sys.stderr, flush=True)
    word = sys.stdin.readline().strip()
    if not word:
        raise usage("the username is empty", "type it, or use --username")
    return word


def read_secret(prompt: str) -> str:
    secret = getpass.getpass(prompt, stream=sys.stderr) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not secret:
        raise usage(f"{prompt.rstrip(': ')!r} is empty", "type it, or send it as the first line of standard input")
    return secret


def read_new_secret(prompt: str) -> str:
    """Typed twice at a terminal, so that a typing error does not lock a user out."""
    secret = read_secret(prompt)
    while sys.stdin.isatty() and read_secret("Repeat: ") != secret:
        say("torpor: the passwords differ; try again")
        secret = read_secret(prompt)
    return secret


def read_whole_secret(prompt: str) -> str:
    """All of standard input, without the last line end, so that a secret can have lines; at a terminal one line."""
    if sys.stdin.isatty():
        return read_secret(prompt)
    try:
        secret = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise usage("the value on standard input is not UTF-8", "encode it, for example with base64") from None
    secret = secret.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise usage(f"{prompt.rstrip(': ')!r} is empty", "send it on standard input, such as `torpor secrets set ... < file`")
    return secret


def confirm(question: str, otherwise: str) -> None:
    """At a terminal, ask before an action that cannot be undone; scripts are not asked."""
    if not sys.stdin.isatty():
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise usage(otherwise, "answer y, or use --yes", code="not_confirmed")
