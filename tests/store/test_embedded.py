"""Test that a private PostgreSQL starts, keeps its data and ends with its owner, also after a kill."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from tests.support.waiting import until
from torpor.domain.errors import Hopeless
from torpor.store import embedded
from torpor.store.embedded import EmbeddedPostgres

pytestmark = pytest.mark.anyio

# A process that starts a database, writes one row, prints that it is ready, and sleeps until it is killed.
OWNER = """
import asyncio, sys
from pathlib import Path
import asyncpg
from torpor.store.embedded import EmbeddedPostgres

async def main() -> None:
    dsn = await EmbeddedPostgres(Path(sys.argv[1])).start()
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE kept AS SELECT 1 AS row")
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(statement)
    await connection.close()


async def ask(dsn: str, question: str) -> object:
    connection = await asyncpg.connect(dsn)
    answer: object = await connection.fetchval(question)
    await connection.close()
    return answer


def start_owner(data_dir: Path, prologue: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", prologue + OWNER, str(data_dir)], stdout=subprocess.PIPE, text=True)


def effective_capabilities(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("CapEff:")[1].split()[0], 16)


def kill_hard(owner: subprocess.Popen[str]) -> None:
    owner.kill()
    owner.communicate()


async def test_a_second_start_is_fast_and_keeps_the_data(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "database")
    await execute(await postgres.start(), "CREATE TABLE kept AS SELECT 42 AS row")
    await postgres.stop()
    assert EmbeddedPostgres.processes_in(postgres.cluster) == []

    began = time.monotonic()
    async with EmbeddedPostgres(tmp_path / "database") as again:
        took_s = time.monotonic() - began
        assert await ask(again.dsn, "SELECT row FROM kept") == 42
    assert took_s < 1
    assert EmbeddedPostgres.processes_in(again.cluster) == []


async def test_the_database_is_durable_in_utf8_and_without_a_tcp_port(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path / "database") as postgres:
        assert await ask(postgres.dsn, "SHOW fsync") == "on"
        assert await ask(postgres.dsn, "SHOW server_encoding") == "UTF8"
        assert await ask(postgres.dsn, "SHOW listen_addresses") == ""
        assert postgres.socket.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "database" / "password").stat().st_mode & 0o777 == 0o600


async def test_connecting_needs_the_password(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path / "database", durable=False) as postgres:
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(host=str(postgres.socket), port=5432, user="torpor", database="torpor", password="guess")


async def test_kill_9_of_the_owner_ends_postgres_and_keeps_committed_data(tmp_path: Path) -> None:
    data_dir = tmp_path / "database"
    owner = start_owner(data_dir)
    assert owner.stdout
    assert await asyncio.to_thread(owner.stdout.readline) == "ready\n"
    kill_hard(owner)
    await until(lambda: EmbeddedPostgres.processes_in(data_dir / "cluster") == [], within_s=5)

    async with EmbeddedPostgres(data_dir) as postgres:
        assert await ask(postgres.dsn, "SELECT row FROM kept") == 1


async def test_a_start_right_after_kill_9_waits_for_the_old_process(tmp_path: Path) -> None:
    data_dir = tmp_path / "database"
    owner = start_owner(data_dir)
    assert owner.stdout
    assert await asyncio.to_thread(owner.stdout.readline) == "ready\n"
    kill_hard(owner)
    async with EmbeddedPostgres(data_dir) as postgres:
        assert await ask(postgres.dsn, "SELECT row FROM kept") == 1


@pytest.mark.parametrize("after_s", [0.05, 0.2, 0.4, 0.7])
async def test_kill_9_during_the_first_start_leaves_no_incomplete_cluster(tmp_path: Path, after_s: float) -> None:
    data_dir = tmp_path / "database"
    owner = start_owner(data_dir)
    await until(data_dir.exists)
    await asyncio.sleep(after_s)
    kill_hard(owner)
    async with EmbeddedPostgres(data_dir) as postgres:
        assert await ask(postgres.dsn, "SELECT 1") == 1
    assert list(data_dir.glob("new-*")) == []


async def test_an_old_postgres_that_still_runs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "PREDECESSOR_TIMEOUT_S", 0.1)
    data_dir = tmp_path / "database"
    owner = start_owner(data_dir)
    assert owner.stdout
    assert await asyncio.to_thread(owner.stdout.readline) == "ready\n"
    postmaster = int((data_dir / "cluster" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGSTOP)
    kill_hard(owner)
    await asyncio.sleep(0.3)
    assert EmbeddedPostgres.processes_in(data_dir / "cluster") != []
    os.kill(postmaster, signal.SIGCONT)
    async with EmbeddedPostgres(data_dir) as postgres:
        assert await ask(postgres.dsn, "SELECT row FROM kept") == 1


async def test_a_stale_pid_file_with_the_pid_of_another_process_is_ignored(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path / "database") as postgres:
        pass
    stranger = os.getpid()
    (postgres.cluster / "postmaster.pid").write_text(f"{stranger}\n{postgres.cluster}\n1\n5432\n{postgres.socket}\n\n")
    async with EmbeddedPostgres(tmp_path / "database") as again:
        assert await ask(again.dsn, "SELECT 1") == 1


async def test_databases_in_two_folders_run_at_once(tmp_path: Path) -> None:
    throwaways = [EmbeddedPostgres(tmp_path / name, durable=False) for name in ("one", "two")]
    async with throwaways[0] as one, throwaways[1] as two:
        await execute(one.dsn, "CREATE TABLE only_here (x int)")
        assert await ask(one.dsn, "SELECT to_regclass('only_here')::text") == "only_here"
        assert await ask(two.dsn, "SELECT to_regclass('only_here')::text") is None


async def test_one_folder_has_one_supervisor(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path / "database", durable=False) as first:
        with pytest.raises(Hopeless, match=rf"already in use by the process {os.getpid()}"):
            await EmbeddedPostgres(tmp_path / "database").start()
        assert await ask(first.dsn, "SELECT 1") == 1


async def test_a_long_path_with_spaces_and_umlauts(tmp_path: Path) -> None:
    data_dir = tmp_path / ("a long näme " * 15) / "database"
    postgres = EmbeddedPostgres(data_dir, durable=False)
    try:
        await postgres.start()
        assert len(os.fsencode(postgres.socket)) < 60
        assert await ask(postgres.dsn, "SELECT 1") == 1
    finally:
        await postgres.stop()
    assert not postgres.socket.exists()


async def test_a_folder_with_foreign_files_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(Hopeless, match=r"is not a database folder of Torpor: it holds thesis\.tex"):
        await EmbeddedPostgres(tmp_path).start()
    assert (tmp_path / "thesis.tex").read_text() == "dear"
    assert not (tmp_path / "lock").exists()


async def test_garbage_in_place_of_the_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "base").write_text("not a folder")
    with pytest.raises(Hopeless, match="is not a PostgreSQL database of Torpor"):
        await EmbeddedPostgres(tmp_path).start()


async def test_another_major_version_is_refused_with_a_hint(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path, durable=False) as postgres:
        pass
    (postgres.cluster / "PG_VERSION").write_text("9\n")
    with pytest.raises(Hopeless, match=r"was created by PostgreSQL 9, but .* Set PG_BIN"):
        await EmbeddedPostgres(tmp_path).start()


async def test_a_failed_start_shows_the_last_lines_of_the_log(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path, durable=False) as postgres:
        pass
    (postgres.cluster / "global" / "pg_control").write_bytes(b"")
    with pytest.raises(Hopeless, match=r"(?s)ended at once with code .*pg_control"):
        await EmbeddedPostgres(tmp_path).start()
    assert EmbeddedPostgres.processes_in(postgres.cluster) == []


async def test_a_pg_bin_without_postgres_falls_through_to_the_next(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path / "database", durable=False, environ={"PG_BIN": "/nowhere"}) as postgres:
        assert await ask(postgres.dsn, "SELECT 1") == 1


async def test_a_socket_folder_with_a_wrong_mode_is_refused(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "database", durable=False)
    postgres.socket = tmp_path / "socket"
    postgres.socket.mkdir(mode=0o755)
    with pytest.raises(Hopeless, match="mode 0700"):
        await postgres.start()


async def test_the_log_does_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOG_LIMIT_BYTES", 20_000)
    async with EmbeddedPostgres(tmp_path, durable=False) as postgres:
        shout = "DO $$ BEGIN FOR i IN 1..1000 LOOP RAISE LOG '%', repeat('x', 100); END LOOP; END $$"
        await execute(postgres.dsn, shout)
    sizes = [(tmp_path / name).stat().st_size for name in ("postgres.log", "postgres.log.1")]
    # A single chunk of a busy pipe may be longer than the limit.
    assert max(sizes) < 20_000 + 2**16


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to go by another name")
async def test_root_can_run_the_database_in_every_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("namespace", "nobody", "namespace"):
        monkeypatch.setattr(embedded, "MODES_OF_ROOT", (mode,))
        async with EmbeddedPostgres(tmp_path / "database", durable=False) as postgres:
            await execute(postgres.dsn, "CREATE TABLE IF NOT EXISTS kept (mode text)")
            await execute(postgres.dsn, f"INSERT INTO kept VALUES ('{mode}')")
            assert postgres.pid
            assert effective_capabilities(postgres.pid) == (2 if mode == "nobody" else 0)
    async with EmbeddedPostgres(tmp_path / "database", durable=False) as postgres:
        assert await ask(postgres.dsn, "SELECT count(*) FROM kept") == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to go by another name")
@pytest.mark.parametrize("mode", ["namespace", "nobody"])
async def test_root_runs_binaries_in_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(embedded, "MODES_OF_ROOT", (mode,))
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    binaries = embedded.folders_with_binaries(os.environ)[0]
    package = binaries.parents[1]
    for folder in (package, package.with_name(f"{package.name}.libs")):
        if folder.exists():
            await asyncio.to_thread(shutil.copytree, folder, private / folder.name, symlinks=True)
    environ = {**os.environ, "PG_BIN": str(private / binaries.relative_to(package.parent))}
    async with EmbeddedPostgres(tmp_path / "database", durable=False, environ=environ) as postgres:
        assert await ask(postgres.dsn, "SELECT 1") == 1


async def test_a_lock_held_by_a_child_of_a_killed_process_is_waited_for(tmp_path: Path) -> None:
    data_dir = tmp_path / "database"
    data_dir.mkdir()
    ended = await asyncio.create_subprocess_exec("/bin/true")
    await ended.wait()
    held = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    os.pwrite(held, str(ended.pid).encode(), 0)
    asyncio.get_running_loop().call_later(0.3, os.close, held)
    async with EmbeddedPostgres(data_dir, durable=False) as postgres:
        assert await ask(postgres.dsn, "SELECT 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to go by another name")
@pytest.mark.parametrize("mode", ["namespace", "nobody"])
async def test_postgres_in_every_mode_ends_with_its_owner(tmp_path: Path, mode: str) -> None:
    owner = start_owner(tmp_path, f"import torpor.store.embedded as e; e.MODES_OF_ROOT = ({mode!r},)")
    assert owner.stdout
    assert await asyncio.to_thread(owner.stdout.readline) == "ready\n"
    kill_hard(owner)
    await until(lambda: EmbeddedPostgres.processes_in(tmp_path / "cluster") == [], within_s=5)


async def test_stop_may_be_repeated_and_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "database", durable=False)
    await postgres.stop()
    for after_s in (0.01, 0.3, 0.6):
        starting = asyncio.create_task(postgres.start())
        await asyncio.sleep(after_s)
        starting.cancel()
        await asyncio.wait([starting])
        await postgres.stop()
        await until(lambda: EmbeddedPostgres.processes_in(postgres.cluster) == [])
    await postgres.start()
    await postgres.stop()
    await postgres.stop()
    assert EmbeddedPostgres.processes_in(postgres.cluster) == []


async def test_a_fresh_database_for_each_test_is_cheap(empty_database_url: str) -> None:
    assert await ask(empty_database_url, "SELECT count(*) FROM pg_stat_user_tables") == 0
