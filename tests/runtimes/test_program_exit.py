"""How an ended container ended, from its exit code and its log."""

import pytest

from torpor.inside import program_end
from torpor.inside.out_of_memory import SENTENCE
from torpor.runtimes.program_exit import program_exit

SAID = b"last words\n"


@pytest.mark.parametrize("exit_code", [137, 143, 255])
def test_a_container_without_the_agents_last_line_was_stopped(exit_code: int) -> None:
    ended = program_exit(exit_code, SAID, is_out_of_memory=False)
    assert (ended.exit_code, ended.last_lines, ended.is_stopped_outside) == (exit_code, "last words\n", True)


@pytest.mark.parametrize("exit_code", [0, 1, 137, 143, 255])
def test_a_program_that_ended_by_itself_is_no_stop_and_the_line_is_not_shown(exit_code: int) -> None:
    ended = program_exit(exit_code, SAID + program_end.line(exit_code), is_out_of_memory=False)
    assert (ended.last_lines, ended.is_stopped_outside) == ("last words\n", False)


def test_memory_is_named_once_also_if_the_agent_was_ended() -> None:
    ended = program_exit(137, SAID, is_out_of_memory=True)
    assert ended.last_lines == f"last words\n{SENTENCE}"
    assert not ended.is_stopped_outside
    said = program_exit(137, SAID + SENTENCE.encode() + program_end.line(137), is_out_of_memory=True)
    assert said.last_lines.count(SENTENCE) == 1
