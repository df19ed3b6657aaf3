"""How is somebody asked for what must not stand in a command line?

At a terminal without an echo; else it is the first line of standard input.
"""

import getpass
import sys

from torpor.cli.exit_codes import usage
from torpor.cli.output.console import say


def prompt_text(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise usage("nobody is here who could be asked for the user name", "say it with --username")
    print(prompt, end="", file=sys.stderr, flush=True)
    word = sys.stdin.readline().strip()
    if not word:
        raise usage("no user name was given", "say it with --username")
    return word


def read_secret(prompt: str) -> str:
    secret = getpass.getpass(prompt, stream=sys.stderr) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not secret:
        raise usage(f"nothing was given for {prompt.rstrip(': ')!r}", "type it, or give it as the first line of standard input")
    return secret


def read_new_secret(prompt: str) -> str:
    """Typed twice, so that a slip of a finger locks nobody out."""
    secret = read_secret(prompt)
    while sys.stdin.isatty() and read_secret("Once more: ") != secret:
        say("torpor: the two are not the same")
        secret = read_secret(prompt)
    return secret


def confirm(question: str, otherwise: str) -> None:
    """At a terminal, what cannot be undone is done only after a yes; scripts are not asked."""
    if not sys.stdin.isatty():
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise usage(otherwise, "answer y, or say --yes", code="not_confirmed")
