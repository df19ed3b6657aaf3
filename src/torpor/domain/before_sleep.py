"""Decide which command runs before a workspace is stopped automatically, and whether it may be run.

A command is a program and its arguments. It runs without a shell.
"""

from torpor.domain.errors import Refused
from torpor.domain.records import Workspace
from torpor.domain.states import Phase, Wish, WishOrigin

LONGEST_BEFORE_SLEEP_BYTES = 4096
"""Of all words together: every event carries them."""
MOST_BEFORE_SLEEP_WORDS = 100


def sleeps_by_itself(workspace: Workspace) -> bool:
    """Whether it runs and its automatic stop is requested. A stop that a user requested is not automatic."""
    return (
        workspace.phase is Phase.RUNNING
        and workspace.desired_state is Wish.STANDBY
        and workspace.wish_origin is WishOrigin.IDLE
    )


def chosen_before_sleep(own: tuple[str, ...] | None, of_template: tuple[str, ...]) -> tuple[str, ...]:
    """The workspace's own command if it has one, else the template's. An empty own command switches the template's off."""
    return of_template if own is None else own


def before_sleep_fault(words: object) -> str | None:
    """What is wrong with this command; None if it is valid. An empty command means: no command."""
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        return "must be a program and its arguments, a list of texts"
    if words and not words[0]:
        return "has no program: its first word is empty"
    if any("\0" in word for word in words):
        return "must not contain a NUL character"
    if len(words) > MOST_BEFORE_SLEEP_WORDS:
        return f"has {len(words)} words; at most {MOST_BEFORE_SLEEP_WORDS} are allowed"
    size = sum(len(word.encode("utf-8", "surrogatepass")) for word in words)
    if size > LONGEST_BEFORE_SLEEP_BYTES:
        return f"has {size} bytes; at most {LONGEST_BEFORE_SLEEP_BYTES} are allowed (put a longer one into a file of the home)"
    return None


def check_before_sleep(words: tuple[str, ...] | None) -> None:
    if words is not None and (fault := before_sleep_fault(words)) is not None:
        raise Refused("bad_before_sleep", f"before_sleep {fault}.")
