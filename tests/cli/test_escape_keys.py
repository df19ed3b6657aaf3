"""Keys are sent unchanged except `~.`, and terminal modes that programs leave on are tracked."""

import pytest

from torpor.cli.escape_keys import KeyFilter, TerminalModes


def passed(*chunks: bytes) -> tuple[bytes, bool]:
    typed = KeyFilter()
    return b"".join(map(typed.pass_on, chunks)), typed.is_leaving


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"ls\r"], (b"ls\r", False)),
        ([b"a~.b"], (b"a~.b", False)),
        ([b"~."], (b"", True)),
        ([b"ls\r~."], (b"ls\r", True)),
        ([b"ls\r", b"~", b".", b"more"], (b"ls\r", True)),
        ([b"~~."], (b"~.", False)),
        ([b"~x~."], (b"~x~.", False)),
        ([b"~\r~."], (b"~\r", True)),
        ([b"\x03\xff\x00~"], (b"\x03\xff\x00~", False)),
    ],
)
def test_only_a_tilde_and_a_dot_at_the_start_of_a_line_end_the_shell(chunks: list[bytes], expected: tuple[bytes, bool]) -> None:
    leaving, rest = KeyFilter(), b""
    for chunk in chunks:
        rest += b"" if leaving.is_leaving else leaving.pass_on(chunk)
    assert (rest, leaving.is_leaving) == expected


def test_keys_may_arrive_in_any_pieces() -> None:
    keys = b"a~.\r~~.\r~x\r~."
    assert passed(keys) == passed(*[keys[at : at + 1] for at in range(len(keys))])


def undone(*chunks: bytes) -> bytes:
    screen = TerminalModes()
    for chunk in chunks:
        screen.saw(chunk)
    return screen.undo()


def test_nothing_is_undone_for_a_program_that_cleaned_up() -> None:
    assert undone(b"\x1b[?1049h\x1b[?25lhello\x1b[?25h\x1b[?1049l\x1b[31mred") == b""


def test_modes_that_a_program_left_on_are_switched_off() -> None:
    assert undone(b"\x1b[?1049h\x1b[?1000;1006h\x1b[?25l") == b"\x1b[?1000l\x1b[?1006l\x1b[?1049l\x1b[?25h\x1b[0m"
    assert undone(b"\x1b[?25l") == b"\x1b[?25h"


def test_a_notice_is_a_separate_line_or_the_top_line_of_a_full_screen() -> None:
    screen = TerminalModes()
    assert screen.notice("soon") == b"\r\nsoon\r\n"
    screen.saw(b"\x1b[?1049h")
    assert screen.notice("soon") == b"\x1b7\x1b[1;1H\x1b[7msoon\x1b[0m\x1b[K\x1b8"
    screen.saw(b"\x1b[?1049l")
    assert screen.notice("soon") == b"\r\nsoon\r\n"


def test_a_sequence_may_arrive_in_pieces() -> None:
    output = b"text\x1b[?2004hmore\x1b[?25l\x1b[0m"
    pieces = [output[at : at + 1] for at in range(len(output))]
    assert undone(*pieces) == undone(output) == b"\x1b[?2004l\x1b[?25h\x1b[0m"


def test_an_endless_sequence_is_not_kept() -> None:
    screen = TerminalModes()
    screen.saw(b"\x1b]0;" + b"x" * 10_000)
    screen.saw(b"\x1b" + b"y" * 10_000)
    assert len(screen._tail) < 100
