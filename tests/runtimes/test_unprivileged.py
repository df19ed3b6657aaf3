"""Without root the runtime confines with user namespaces and pasta, as far as the kernel permits."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import prometheus_client
import pytest
import structlog

import torpor
from tests.contracts.test_runtime_contract import SERVE
from tests.support.requirements import must_have
from torpor.runtimes.host_programs import find
from torpor.testing.defaults import process_options

NOBODY = 54321
PYTHON = "/usr/bin/python3"

# Runs as another user with the system's interpreter, and prints its results as one line of JSON.
LIFE = """
import asyncio, json, socket, sys, uuid
from pathlib import Path
from torpor.domain.records import Marker
from torpor.ports import Container, Fence, Home, HomeJob, Limits, Program
from torpor.runtimes.process import ProcessOptions, ProcessRuntime

data, options, serve = json.loads(sys.argv[1])
fence = Fence("op", 1)

async def live():
    runtime = ProcessRuntime(Path(data), options=ProcessOptions(**options))
    await runtime.start()
    said = {"abilities": {ability.what: [ability.confined, ability.how] for ability in await runtime.abilities()}}
    try:
        home = Home(str(uuid.uuid4()), 1)
        await runtime.ensure_volume(home, fence)
        await runtime.mark_volume(home, Marker(home.workspace_id, 1, ""), fence)
        program = Program("t", ("{python}", "-S", "-c", serve))
        await runtime.ensure_running(Container(home, 1, program, Limits(1 << 29, 64)), fence, print)
        for _ in range(1000):
            seen = (await runtime.observe()).of(home.workspace_id).container
            if seen.ready or seen.ended:
                break
            await asyncio.sleep(0.01)
        said["ready"], said["ended"] = seen.ready, str(seen.ended)
        if not seen.ready:
            print(json.dumps(said))
            return
        async def sh(script):
            done = await runtime.execute(home.workspace_id, ["sh", "-c", script], b"")
            return [done.exit_code, done.stdout.decode(), done.stderr.decode()]
        server = socket.create_server(("0.0.0.0", 0))
        port = server.getsockname()[1]
        look = "ls -A /home; test -e DATA || echo hidden; touch /usr/x /etc/x 2>/dev/null || echo read-only"
        said["sees"] = await sh(look.replace("DATA", data))
        async def python(*lines):
            done = await runtime.execute(home.workspace_id, ["python3", "-S", "-c", "\\n".join(lines)], b"")
            return done.exit_code
        said["loopback"] = await python("import socket", f"socket.create_connection(('127.0.0.1', {port}), 1)")
        fork = "    if os.fork() == 0: time.sleep(5); os._exit(0)"
        said["bomb"] = await python("import os, time", "for n in range(300):", fork)
        said["hog"] = await python("x = bytes(2 << 30)")
        reader, writer = await asyncio.open_unix_connection(runtime.address(home.workspace_id).unix_path)
        writer.write(b"ping")
        said["answer"] = (await reader.read()).decode()
        writer.close()
        inner = runtime.paths.volume(home) / "home"
        (inner / "ro").mkdir(); (inner / "ro" / "file").write_text("x"); (inner / "ro").chmod(0o500)
        await runtime.ensure_no_container(home.workspace_id, fence)
        await runtime.ensure_no_volume(home, fence, archived_revision=1)
    finally:
        await runtime.close()
    said["left"] = [str(path) for path in Path(data, "volumes", ".trash").iterdir()]
    print(json.dumps(said))
asyncio.run(live())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    must_have(os.getuid() == 0, "root, to become another user")
    path = Path(tempfile.mkdtemp(prefix="torpor-test-"))
    os.chown(path, NOBODY, NOBODY)
    # The source may be in a directory that only root can read.
    for package in (torpor, structlog, prometheus_client):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, path / "source" / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    yield path
    shutil.rmtree(path)


def live(place: Path, before: str, *tools: str) -> dict[str, object]:
    """Run as another user after these commands, in a separate mount namespace, so that they do not affect others."""
    must_have(Path(PYTHON).exists(), "an interpreter that everybody may run")
    for tool in tools:
        must_have(find(tool), tool)
    must_have(find("setpriv") and find("unshare"), "util-linux")
    version = subprocess.run([PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True, check=True)
    must_have(version.stdout == b"True\n", "a system interpreter of 3.11 or newer")
    # The settings, which have the defaults, need packages that the system interpreter does not have.
    options = asdict(process_options(grace_s=2.0))
    given = json.dumps([str(place / "data"), options, SERVE])
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", PYTHON, "-c", LIFE, given]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{before} && exec "$@"', "sh", *become],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(place / "source")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_a_workspace_is_confined_by_user_namespaces_and_pasta(place: Path) -> None:
    said = live(place, "mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200", "bwrap", "pasta")
    abilities = said["abilities"]
    assert isinstance(abilities, dict)
    must_have(abilities["files and processes"][0], abilities["files and processes"][1])
    assert said["ready"], said
    assert said["sees"] == [0, "workspace\nhidden\nread-only\n", ""]
    must_have(abilities["network"][0], abilities["network"][1])
    assert said["loopback"] != 0
    assert said["bomb"] != 0
    assert said["hog"] != 0
    assert said["answer"] == "you said ping"
    assert said["left"] == []


def test_without_its_own_network_a_workspace_gets_a_free_port(place: Path) -> None:
    said = live(place, "mount -t tmpfs tmpfs /dev/net", "bwrap")
    abilities = said["abilities"]
    assert isinstance(abilities, dict)
    assert not abilities["network"][0]
    must_have(abilities["files and processes"][0], abilities["files and processes"][1])
    if find("pasta"):
        assert abilities["network"][1].startswith("pasta needs /dev/net/tun, which Torpor's user cannot read and write")
    assert said["ready"], said
    assert said["sees"] == [0, "workspace\nhidden\nread-only\n", ""]
    assert said["answer"] == "you said ping"


# Each disables bubblewrap: it is not installed, or the kernel refuses its requests.
USELESS = {
    "missing": "mount --bind {empty} {bwrap}",
    "refused": "mount --bind {failing} {bwrap}",
}


@pytest.mark.parametrize("why", USELESS)
def test_without_bubblewrap_a_workspace_runs_as_the_user_of_torpor_in_a_private_folder(place: Path, why: str) -> None:
    place.chmod(0o700)
    empty, failing = place / "empty", place / "failing"
    empty.touch(0o644)
    failing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    failing.chmod(0o755)
    bwrap = find("bwrap")
    hide = USELESS[why].format(empty=empty, failing=failing, bwrap=bwrap) if bwrap else "true"
    must_have(bwrap or why == "missing", "bubblewrap, to break it")
    said = live(place, hide)
    abilities = said["abilities"]
    assert isinstance(abilities, dict)
    assert not abilities["files and processes"][0]
    assert not abilities["network"][0]
    assert said["ready"], said
    assert said["answer"] == "you said ping"
    assert said["bomb"] != 0
    assert said["hog"] != 0
    assert said["left"] == []
