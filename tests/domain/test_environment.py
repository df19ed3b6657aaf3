"""Variables with a wrong name, a reserved name or too many bytes are refused; a change keeps the others."""

import pytest

from torpor.domain.environment import RESERVED, changed_environment, check_size, variable_bytes
from torpor.domain.errors import Refused
from torpor.runtimes.process import sandbox
from torpor.runtimes.process.processes import MARK


def test_variables_are_set_replaced_and_removed() -> None:
    before = {"A": "1", "B": "2"}
    assert changed_environment(before, {"B": "{port} $HOME\n", "_c9": "", "A": None, "GONE": None}) == {
        "B": "{port} $HOME\n",
        "_c9": "",
    }
    assert before == {"A": "1", "B": "2"}


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä", "A\n", "A" * 256])
def test_a_name_that_no_shell_accepts_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="is not the name of a variable") as refused:
        changed_environment({}, {name: "x"})
    assert refused.value.code == "bad_environment"


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_reserved_name_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(Refused, match=f"{name} is reserved: {RESERVED[name]}"):
        changed_environment({}, {name: "x"})


def test_what_torpor_sets_last_is_reserved() -> None:
    kept = sandbox.environment({}, home="/h", port=1, last_in_path=())
    assert kept.keys() - RESERVED.keys() == {"SHELL", "LANG", "TERM"}, "these can be replaced"
    assert MARK in RESERVED


def test_a_value_with_a_nul_is_refused() -> None:
    with pytest.raises(Refused, match="the value of A contains a NUL"):
        changed_environment({}, {"A": "x\0"})


def test_the_size_counts_bytes_of_variables_and_secrets_together() -> None:
    assert variable_bytes("A", "é") == 5
    check_size({"A": "é"}, [5], 10)
    with pytest.raises(Refused, match="have 11 bytes in total; at most 10"):
        check_size({"A": "é"}, [6], 10)
