"""Test that a private Valkey starts, keeps its data and ends with its owner, also after a kill."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.valkey import kill_and_start_again, pid_of
from tests.support.waiting import until
from torpor.bus import embedded
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus
from torpor.domain.errors import Hopeless
from torpor.embedded_server import SOCKET_NAME_LIMIT_BYTES

pytestmark = pytest.mark.anyio

# A process that starts a bus, stores one key, prints the pid, and sleeps until it is killed.
OWNER = """
import asyncio, sys
from pathlib import Path
from torpor.bus.embedded import EmbeddedValkey
from torpor.bus.redis import Bus

async def main() -> None:
    valkey = EmbeddedValkey(Path(sys.argv[1]))
    bus = await Bus.open(await valkey.start())
    await bus.ask(("SET", "kept", "42"))
    print(valkey.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def tell(url: str, key: str, value: str) -> None:
    bus = await Bus.open(url)
    await bus.ask(("SET", key, value))
    await bus.close()


async def ask(url: str, key: str) -> object:
    bus = await Bus.open(url)
    (answer,) = await bus.ask(("GET", key))
    await bus.close()
    return answer


async def start_owner(data_dir: Path) -> tuple[asyncio.subprocess.Process, int]:
    owner = await asyncio.create_subprocess_exec(*(sys.executable, "-c", OWNER, str(data_dir)), stdout=asyncio.subprocess.PIPE)
    assert owner.stdout
    return owner, int(await owner.stdout.readline())


async def kill_hard(owner: asyncio.subprocess.Process) -> None:
    owner.kill()
    await owner.wait()


def is_running(pid: int) -> bool:
    """A zombie does not count as running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def sockets_of(pid: int) -> set[str]:
    """The inodes of its sockets."""
    names = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return {name.removeprefix("socket:[").removesuffix("]") for name in names if name.startswith("socket:")}


def internet_sockets() -> set[str]:
    return {line.split()[9] for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]}


def effective_capabilities(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("CapEff:")[1].split()[0], 16)


def can_have_a_namespace() -> bool:
    return subprocess.run(["unshare", "--user", "true"], check=False, capture_output=True).returncode == 0


async def test_a_restart_keeps_the_data(tmp_path: Path) -> None:
    valkey = EmbeddedValkey(tmp_path / "bus")
    url = await valkey.start()
    assert await valkey.start() == url
    await tell(url, "kept", "42")
    await valkey.stop()
    assert EmbeddedValkey.processes_in(valkey.data) == []
    await valkey.stop()

    assert await valkey.start() == url
    assert await ask(url, "kept") == b"42"
    await valkey.stop()
    async with EmbeddedValkey(tmp_path / "bus") as again:
        assert await ask(again.url, "kept") == b"42"


async def test_only_its_user_can_connect(tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path / "bus") as valkey:
        assert stat.S_IMODE(valkey.socket.stat().st_mode) == 0o700
        assert stat.S_IMODE(valkey.socket.parent.stat().st_mode) == 0o700
        assert sockets_of(pid_of(valkey))
        assert not sockets_of(pid_of(valkey)) & internet_sockets()


@pytest.mark.skipif(os.geteuid() != 0 or not can_have_a_namespace(), reason="only root goes by another name")
async def test_valkey_runs_without_capabilities(tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path / "bus") as valkey:
        assert effective_capabilities(pid_of(valkey)) == 0


async def test_valkey_ends_with_its_parent_and_the_next_start_keeps_the_data(tmp_path: Path) -> None:
    owner, pid = await start_owner(tmp_path / "bus")
    assert is_running(pid)
    await kill_hard(owner)
    await until(lambda: not is_running(pid))
    async with EmbeddedValkey(tmp_path / "bus") as valkey:
        assert await ask(valkey.url, "kept") == b"42"


async def test_a_stopped_predecessor_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.3)
    owner, pid = await start_owner(tmp_path / "bus")
    os.kill(pid, signal.SIGSTOP)  # it does not react to SIGTERM
    await kill_hard(owner)
    assert is_running(pid)
    async with EmbeddedValkey(tmp_path / "bus") as valkey:
        assert not is_running(pid)
        assert valkey.pid != pid
        bus = await Bus.open(valkey.url)
        assert await bus.reachable()
        await bus.close()


async def test_a_killed_valkey_can_be_started_again(tmp_path: Path) -> None:
    valkey = EmbeddedValkey(tmp_path / "bus")
    await valkey.start()
    first = pid_of(valkey)
    await kill_and_start_again(valkey)
    assert pid_of(valkey) != first
    await valkey.stop()
    assert valkey.pid is None


@pytest.mark.parametrize("name", ["x" * 120, 'it\'s a "folder" with ü, %41, # and ?'])
async def test_any_folder_name_works(tmp_path: Path, name: str) -> None:
    async with EmbeddedValkey(tmp_path / name / "bus") as valkey:
        assert len(os.fsencode(valkey.socket)) <= SOCKET_NAME_LIMIT_BYTES
        await tell(valkey.url, "kept", "42")
        assert (tmp_path / name / "bus" / "data" / "appendonlydir").is_dir()
    async with EmbeddedValkey(tmp_path / name / "bus") as again:
        assert await ask(again.url, "kept") == b"42"
    assert again.socket.parent.parent == again.data_dir or not again.socket.parent.exists()


async def test_a_second_server_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path / "bus") as first:
        with pytest.raises(Hopeless, match=str(os.getpid())):
            await EmbeddedValkey(tmp_path / "bus").start()
        assert await ask(first.url, "kept") is None


async def test_unreadable_data_is_moved_aside(tmp_path: Path) -> None:
    valkey = EmbeddedValkey(tmp_path / "bus")
    await tell(await valkey.start(), "kept", "42")
    await valkey.stop()
    (manifest,) = (valkey.data / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")

    async with valkey:
        assert await ask(valkey.url, "kept") is None
        await tell(valkey.url, "kept", "43")
    assert (tmp_path / "bus" / "unreadable" / "appendonlydir" / manifest.name).read_text() == "nonsense\n"
    async with valkey:
        assert await ask(valkey.url, "kept") == b"43"


async def test_an_incomplete_last_command_is_ignored(tmp_path: Path) -> None:
    valkey = EmbeddedValkey(tmp_path / "bus")
    await tell(await valkey.start(), "kept", "42")
    await valkey.stop()
    (log,) = (valkey.data / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as end:
        end.write(b"*3\r\n$3\r\nSET\r\n$4\r\nke")
    async with valkey:
        assert await ask(valkey.url, "kept") == b"42"


async def test_a_failed_start_gives_the_reason_and_keeps_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey = EmbeddedValkey(tmp_path / "bus")
    await tell(await valkey.start(), "kept", "42")
    await valkey.stop()
    with monkeypatch.context() as patch:
        patch.setitem(embedded.SETTINGS, "maxmemory-policy", "no such policy")
        with pytest.raises(Hopeless, match="maxmemory-policy"):
            await valkey.start()
    assert EmbeddedValkey.processes_in(valkey.data) == []
    async with valkey:
        assert await ask(valkey.url, "kept") == b"42"


async def test_a_binary_that_cannot_run_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = tmp_path / "valkey-server"
    foreign.write_bytes(b"\x7fELF of another machine")
    foreign.chmod(0o755)
    real = embedded.binaries()
    monkeypatch.setattr(embedded, "binaries", lambda: [foreign, *real])
    async with EmbeddedValkey(tmp_path / "bus"):
        pass
    monkeypatch.setattr(embedded, "binaries", lambda: [foreign])
    with pytest.raises(Hopeless, match=f"{foreign} .self."):
        await EmbeddedValkey(tmp_path / "bus").start()
    monkeypatch.setattr(embedded, "binaries", list)
    with pytest.raises(Hopeless, match="TORPOR_REDIS_URL"):
        await EmbeddedValkey(tmp_path / "bus").start()


async def test_a_socket_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    valkey = EmbeddedValkey(tmp_path / "bus")
    valkey.socket.parent.mkdir(parents=True)
    valkey.socket.parent.chmod(0o777)
    with pytest.raises(Hopeless, match="0700"):
        await valkey.start()
