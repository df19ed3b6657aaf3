"""Run the TypeScript tests of the dashboard in pure/."""

from pathlib import Path

from tests.dashboard.node import node


def test_the_typescript_tests_pass() -> None:
    files = sorted(str(file) for file in (Path(__file__).parent / "pure").glob("*.test.ts"))
    assert len(files) >= 5
    done = node("--test", *files)
    assert done.returncode == 0, done.stdout + done.stderr
