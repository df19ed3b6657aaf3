"""The variables of a workspace reach its program, commands and shells, from the next start on. The real product."""

from collections.abc import Iterator

import pytest

from tests.support.product import Product, product

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LARGE = "é" * 6_000
PROGRAM = (
    "sh",
    "-c",
    'printf %s "$COLOUR" > program; printf %s "$LARGE$LARGER" > large; exec python3 -m http.server -b 127.0.0.1 $PORT',
)


@pytest.fixture
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("environment")) as running:
        yield running


def seen(here: Product, name: str, variable: str) -> dict[str, str]:
    """The value in the program, in a command and in a shell."""
    script = f'printf %s "${variable}"'
    shell = here.ok("exec", name, "--", "sh", "-lc", script)
    return {
        "program": here.get(name, "/program")[2].decode(),
        "command": here.ok("exec", name, "--", "printenv", variable),
        "shell": shell,
    }


def test_variables_reach_everything_and_a_change_applies_at_the_next_start(here: Product) -> None:
    value = "blue {port} $HOME 'x'"
    first = ("--env", f"COLOUR={value}", "--env", f"LARGE={LARGE}")
    here.ok("create", "demo", "-t", "command", *first, "--wait", "--", *PROGRAM)
    assert seen(here, "demo", "COLOUR") == {"program": value, "command": f"{value}\n", "shell": value}

    changed = here.run("env", "demo", "COLOUR=red", f"LARGER={LARGE}")
    assert b"applies at the next start" in changed.stderr
    assert here.ok("exec", "demo", "--", "printenv", "COLOUR") == f"{value}\n"
    here.ok("archive", "demo", "--wait")
    here.ok("start", "demo", "--wait")
    assert seen(here, "demo", "COLOUR") == {"program": "red", "command": "red\n", "shell": "red"}
    assert here.get("demo", "/large")[2].decode() == LARGE * 2, "as JSON, this is more than a pipe holds"

    assert here.ok("env", "demo", "--unset", "LARGE", "-u", "LARGER") == "COLOUR=red\n"
    here.ok("env", "demo", "SHELL=/bin/sh", "TERM=dumb")
    here.ok("stop", "demo", "--wait")
    here.ok("start", "demo", "--wait")
    assert here.ok("exec", "demo", "--", "printenv", "SHELL", "TERM", "COLOUR") == "/bin/sh\ndumb\nred\n"
    assert here.run("exec", "demo", "--", "printenv", "LARGE").returncode == 1
