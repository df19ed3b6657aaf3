"""Hypothesis has one profile, in tests/conftest.py, and no test has a deadline of its own."""

import ast
from pathlib import Path

import hypothesis

TESTS = Path(__file__).parents[1]
PROFILE = TESTS / "conftest.py"


def ways_round_the_profile(source: str) -> list[str]:
    """Calls that set a deadline for examples, or another profile."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [(call, ast.unparse(call.func).rpartition(".")[2]) for call in calls]
    return [
        f"line {call.lineno}: {ast.unparse(call)}"
        for call, name in named
        if name in ("register_profile", "load_profile")
        or (name == "settings" and any(keyword.arg == "deadline" for keyword in call.keywords))
    ]


def test_no_example_has_a_deadline() -> None:
    assert hypothesis.settings.default is not None
    assert hypothesis.settings.default.deadline is None


def test_only_the_conftest_sets_deadline_and_profile() -> None:
    found = {path: ways_round_the_profile(path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("*.py"))}
    assert len(found.pop(PROFILE)) == 2
    assert {str(path.relative_to(TESTS)): lines for path, lines in found.items() if lines} == {}


def test_the_check_sees_a_deadline() -> None:
    assert ways_round_the_profile("@settings(max_examples=3, deadline=200)\ndef test_it(): ...")
    assert ways_round_the_profile("hypothesis.settings.load_profile('mine')")
    assert not ways_round_the_profile("settings(max_examples=3); wait(deadline=3)")
