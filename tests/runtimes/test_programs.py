"""The packages of a template are installed once, completely, and work inside workspaces."""

import asyncio
import base64
import functools
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, LIMITS, unheard, until_ended
from tests.runtimes.conftest import Machine, MakeMachine
from torpor.domain.errors import Code, Failed
from torpor.ports import Container, Home, Program
from torpor.runtimes.process import programs
from torpor.testing.defaults import process_options

pytestmark = pytest.mark.anyio


def wheel(directory: Path, name: str = "greeter") -> Path:
    """A package with one script, created here, so that no index is needed."""
    files = {
        f"{name}.py": "import sys\ndef main():\n    print('hello from', sys.prefix)\n",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-1.0.dist-info/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    listed = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        listed += f"{path},sha256={digest},{len(text)}\n"
    files[f"{name}-1.0.dist-info/RECORD"] = f"{listed}{name}-1.0.dist-info/RECORD,,\n"
    target = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return target


def container(home: Home, packages: tuple[str, ...], *command: str) -> Container:
    return Container(home, 1, Program("Greeter", command, {}, packages), LIMITS)


# Creating an environment with pip takes many seconds, and is only needed without uv.
SLOW = pytest.mark.skipif(os.environ.get("TORPOR_SLOW_TESTS") != "1", reason="slow; set TORPOR_SLOW_TESTS=1")


@pytest.mark.parametrize("tool", ["uv", pytest.param("pip", marks=SLOW)])
async def test_an_installed_script_runs_in_every_workspace(
    machine: Machine, tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool == "pip":
        monkeypatch.setattr(programs, "find_uv", lambda: None)
    elif programs.find_uv() is None:
        pytest.skip("uv is not installed")
    packages = (str(wheel(tmp_path)),)
    one, two = await machine.home(), await machine.home()
    heard: list[tuple[int, int | None]] = []
    await asyncio.gather(
        *(
            machine.runtime.ensure_running(
                container(home, packages, "{programs}/bin/greeter"), FENCE, lambda *done: heard.append(done)
            )
            for home in (one, two)
        )
    )
    for home in (one, two):
        seen = await until_ended(machine, home)
        assert seen.ended is not None
        assert seen.ended.exit_code == 0, seen.ended
        assert "hello from" in seen.ended.last_lines
    assert heard
    made = list(machine.process.paths.programs.iterdir())
    assert len(made) == 1  # one installation for both, and no leftovers
    begun = asyncio.get_running_loop().time()
    await machine.runtime.ensure_running(container(one, packages, "{programs}/bin/greeter"), FENCE, unheard)
    assert asyncio.get_running_loop().time() - begun < 2


async def test_the_installer_can_use_networks_blocked_for_workspaces(
    make_machine: MakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index in a private network works for templates: Torpor itself downloads their packages."""
    if programs.find_uv() is None:
        pytest.skip("uv is not installed")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    machine = make_machine(process_options(grace_s=2.0, blocked_networks=("0.0.0.0/0", "::/0")))
    await machine.process.start()
    home = await machine.home()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(wheel(tmp_path).parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        package = f"greeter @ http://127.0.0.1:{server.server_port}/greeter-1.0-py3-none-any.whl"
        await machine.runtime.ensure_running(container(home, (package,), "{programs}/bin/greeter"), FENCE, unheard)
        server.shutdown()
    seen = await until_ended(machine, home)
    assert seen.ended is not None
    assert seen.ended.exit_code == 0, seen.ended


async def test_a_failed_installation_gives_the_reason_and_leaves_no_files(machine: Machine, tmp_path: Path) -> None:
    home = await machine.home()
    missing = str(tmp_path / "missing-1.0-py3-none-any.whl")
    with pytest.raises(Failed) as failure:
        await machine.runtime.ensure_running(container(home, (missing,), "true"), FENCE, unheard)
    assert failure.value.code is Code.PROGRAM_INSTALL_FAILED
    assert "missing" in failure.value.message
    assert list(machine.process.paths.programs.iterdir()) == []
    assert (await machine.runtime.observe()).of(home.workspace_id).container is None


async def test_an_installer_without_output_is_ended(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = tmp_path / "uv"
    stuck.write_text(f"#!/bin/sh\numask > {tmp_path}/umask\necho begun\nsleep 60\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(programs, "find_uv", lambda: str(stuck))
    monkeypatch.setattr(programs, "SILENT_S", 0.4)
    home = await machine.home()
    begun = asyncio.get_running_loop().time()
    with pytest.raises(Failed) as failure:
        await machine.runtime.ensure_running(container(home, ("x",), "true"), FENCE, unheard)
    assert failure.value.code is Code.PROGRAM_INSTALL_FAILED
    assert "begun" in failure.value.message
    assert asyncio.get_running_loop().time() - begun < 10
    assert (tmp_path / "umask").read_text() == "0022\n"
    assert list(machine.process.paths.programs.iterdir()) == []


SHELL_HEAD = "#!/bin/sh\n'''exec' {quoted} \"$0\" \"$@\"\n' '''\n"


@pytest.mark.parametrize("head", ["#!{python}\n", SHELL_HEAD.format(quoted="{python}"), SHELL_HEAD.format(quoted="'{python}'")])
def test_a_script_finds_its_interpreter_in_any_folder(tmp_path: Path, head: str) -> None:
    made, mounted = tmp_path / "made", tmp_path / "mounted"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").symlink_to(sys.executable)
    script = made / "bin" / "hello"
    script.write_text(head.format(python=made / "bin" / "python") + "import sys\nprint('hello', *sys.argv[1:])\n")
    script.chmod(0o755)
    programs.make_relocatable(made)
    made.rename(mounted)
    said = subprocess.run([mounted / "bin" / "hello", "there"], capture_output=True, text=True, check=True)
    assert said.stdout == "hello there\n"
