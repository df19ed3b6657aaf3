"""The command as a process: streams, exit codes, waiting, and the modules that it imports."""

import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import torpor_process
from tests.cli.records import error, event, explanation, workspace
from tests.support.scripted_api import ScriptedApi, stream

LOOK = f"GET /workspaces/{workspace()['id']}"
EVENTS = f"{LOOK}/events"

pytestmark = pytest.mark.usefixtures("data")

# Modules that a client command must not import, because that takes long.
HEAVY = {
    "fastapi",
    "asyncpg",
    "obstore",
    "uvicorn",
    "structlog",
    "torpor.assemble",
    "pydantic",
    "rich",
    "asyncio",
    "websockets",
}


def going_up(api: ScriptedApi) -> None:
    api.answer("PATCH /workspaces/demo", workspace(phase="ARCHIVED"))
    states: list[dict[str, Any]] = [
        {"phase": "ARCHIVED", "operation": "RESTORING", "progress": 40},
        {"phase": "STANDBY", "operation": "STARTING"},
        {"phase": "STANDBY", "operation": "STARTING"},
        {},
    ]
    api.answer(EVENTS, stream(*[event(number, **state) for number, state in enumerate(states)], stays_open=True))


def test_start_with_wait_shows_each_change(api: ScriptedApi) -> None:
    going_up(api)
    ended = torpor_process("start", "demo", "--wait")
    assert ended.code == 0
    assert ended.text == "demo is running at http://demo.localhost:8080/\n"
    assert ended.said.splitlines() == ["demo: Archived", "demo: Restoring 40 %", "demo: Starting", "demo: Running"]
    assert [asked.method for asked in api.asked] == ["PATCH", "GET"], "one stream and no polling"


def test_waiting_at_a_terminal_draws_a_bar(api: ScriptedApi) -> None:
    api.answer("PATCH /workspaces/demo", workspace(phase="ARCHIVED"))
    restoring = event(1, phase="ARCHIVED", operation="RESTORING", progress=40)
    # The second state comes from the read after the stream has ended, so that the first is drawn for a moment.
    api.answer(EVENTS, stream(restoring))
    api.answer(LOOK, workspace(phase="ARCHIVED", operation="RESTORING", progress=40), workspace())
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "torpor", "start", "demo", "--wait", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LANG": "C.UTF-8"},
    )
    os.close(theirs)
    drawn = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        if not chunk:
            break
        drawn += chunk
    os.close(ours)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b'"phase": "RUNNING"' in out
    assert "Restoring 40 %" in drawn.decode()
    assert "━" in drawn.decode()


def test_waiting_that_ends_in_error(api: ScriptedApi) -> None:
    failed = workspace(phase="ERROR", error=error())
    api.answer("POST /workspaces", workspace(phase="PENDING"), status=201)
    starting = event(1, phase="STANDBY", operation="STARTING")
    api.answer(EVENTS, stream(starting, event(2, "error", phase="ERROR", error=error()), stays_open=True))
    api.answer(f"{LOOK}/explain", explanation())
    ended = torpor_process("create", "demo", "--wait", "--json")
    assert ended.code == 3
    assert ended.json["code"] == "ended_in_error"
    assert ended.json["workspace"] == failed
    assert ended.json["ways_out"] == explanation()["ways_out"]
    assert ended.said.splitlines()[-3:] == [
        "torpor: demo failed (Starting): RetryExceeded: STARTING failed 4 times, the last time: exit code 7"
        " (`torpor explain demo` shows the cause; what you can do:)",
        "  torpor recover demo  try again",
        "  torpor delete demo  give it up",
    ]


def test_a_closed_output_causes_no_error(api: ScriptedApi) -> None:
    api.answer("GET /workspaces", {"items": [workspace(name=f"w{number}") for number in range(500)], "next_cursor": None})
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "torpor", "list", "--json"], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert done.stderr == b""


def test_client_commands_import_no_heavy_modules(api: ScriptedApi) -> None:
    api.answer("GET /workspaces", {"items": [workspace()], "next_cursor": None})
    api.answer("GET /workspaces/demo", workspace())
    seen = "import sys; from torpor.cli.main import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    for words in (["list"], ["show", "demo"], ["__complete", "show", "de"]):
        done = subprocess.run([sys.executable, "-c", seen, *words], capture_output=True, text=True, timeout=60, check=True)
        assert "demo" in done.stdout
        assert not HEAVY & set(done.stderr.split()), words


def test_help_imports_neither_settings_nor_rich() -> None:
    seen = "import sys; from torpor.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, timeout=60, check=True)
    assert not (HEAVY | {"http.client"}) & set(done.stderr.split())


def test_version() -> None:
    ended = torpor_process("--version")
    assert ended.code == 0
    assert ended.text.startswith("torpor 0.")


def test_down_does_not_stop_another_program(data: Path) -> None:
    """Another program holds the lock: it is not stopped."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
            "f.write(str(os.getpid())); f.flush(); print('held', flush=True); time.sleep(60)",
            str(data / "torpor.pid"),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        ended = torpor_process("down")
        assert ended.code == 1
        assert "was not stopped" in ended.said
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.communicate()


# ── up in the background, and down ────────────────────────────────────────────────────────────────────────────────────

# A replacement for the server (the end-to-end tests start the real one) with the same lock, ready line and end.
PRODUCT = """
import fcntl, os, signal, sys, types

def run_up(settings):
    if settings.port == 9:
        print("torpor: port 9 is in use", file=sys.stderr)
        return 1
    with (settings.data / "torpor.pid").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.truncate(0)
        held.write(f"{os.getpid()}\\n")
        held.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        print(f"torpor is ready at http://localhost:{settings.port} (sign in as admin)")
        signal.sigwait({signal.SIGTERM})
        held.truncate(0)
    return 0

sys.modules["torpor.assemble"] = module = types.ModuleType("torpor.assemble")
module.run_up = run_up
"""


@pytest.fixture
def product(tmp_path: Path) -> str:
    folder = tmp_path / "product"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PRODUCT)
    return str(folder)


def test_up_in_the_background_and_down(product: str, data: Path) -> None:
    up = torpor_process("up", "--detach", "--port", "8123", PYTHONPATH=product)
    assert (up.code, up.text, up.said) == (0, "torpor is ready at http://localhost:8123 (sign in as admin)\n", "")
    assert (data / "torpor.log").stat().st_mode & 0o777 == 0o600
    pid = int((data / "torpor.pid").read_text())
    again = torpor_process("up", "--detach", PYTHONPATH=product)
    assert again.code == 1
    assert f"is already running in {data} (process {pid})" in again.said
    down = torpor_process("down")
    assert (down.code, down.text) == (0, f"torpor has stopped (process {pid})\n")
    assert torpor_process("down").code == 1


def test_up_in_the_background_that_fails(product: str) -> None:
    ended = torpor_process("up", "--detach", "--port", "9", PYTHONPATH=product)
    assert (ended.code, ended.text) == (1, "")
    assert ended.said.splitlines() == [
        "torpor: torpor ended before it was ready (exit code 1); its last lines:",
        "torpor: port 9 is in use",
    ]


@pytest.mark.parametrize(("said", "code", "asked"), [(b"n\n", 2, 0), (b"\n", 2, 0), (b"y\n", 0, 1)])
def test_a_purge_asks_at_a_terminal(api: ScriptedApi, said: bytes, code: int, asked: int) -> None:
    api.answer("DELETE /workspaces/demo", workspace(desired_state="DELETED"), status=202)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, said)
        words = [sys.executable, "-m", "torpor", "delete", "demo", "--purge"]
        done = subprocess.run(words, stdin=theirs, capture_output=True, timeout=60, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, len(api.asked)) == (code, asked)
    assert b"Purge 'demo'? Its home and its archives are removed permanently. [y/N]" in done.stderr
