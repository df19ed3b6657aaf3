"""A secret reaches the programs of its workspace and nothing else; without its key only the start fails. The real product."""

import contextlib
import os
from pathlib import Path

import asyncpg
import pytest

from tests.support.listeners import processes_of
from tests.support.product import Product, product
from torpor.runtimes.process.paths import runtime_paths

pytestmark = [pytest.mark.e2e, pytest.mark.anyio, pytest.mark.long]

VALUE = "correct-horse-battery-staple"
PROGRAM = ("sh", "-c", 'printf %s "$TOKEN" | wc -c > length; exec python3 -m http.server -b 127.0.0.1 $PORT')


def set_secret(here: Product, name: str, key: str, value: str = VALUE) -> None:
    done = here.run("secrets", "set", name, key, stdin=value.encode())
    assert done.returncode == 0, done.stderr


async def dump(database_url: str) -> str:
    """All rows of all tables as text, with bytes as they are and in hexadecimal."""
    connection = await asyncpg.connect(database_url)
    try:
        tables = await connection.fetch("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        found = []
        for one in tables:
            found += [row[0] for row in await connection.fetch(f'SELECT t::text FROM "{one["table_name"]}" AS t')]
    finally:
        await connection.close()
    return "\n".join(found)


def processes_with_value(what: str) -> set[int]:
    """The processes of the machine that have the value in /proc/PID/`what`."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if VALUE.encode() in (entry / what).read_bytes():
                    found.add(int(entry.name))
    return found


def files_with_value(folder: Path) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and VALUE.encode() in path.read_bytes():
                found.append(path)
    return found


async def test_a_value_is_where_it_is_needed_and_nowhere_else(empty_database_url: str, tmp_path: Path) -> None:
    with product(tmp_path, TORPOR_DATABASE_URL=empty_database_url, TORPOR_LOG_LEVEL="debug") as here:
        here.ok("create", "demo", "-t", "command", "--env", "TOKEN=a variable", "--wait", "--", *PROGRAM)
        set_secret(here, "demo", "TOKEN")
        here.ok("stop", "demo", "--wait")
        here.ok("start", "demo", "--wait")
        assert here.ok("exec", "demo", "--", "printenv", "TOKEN") == f"{VALUE}\n", "it replaces the variable of its name"
        assert here.get("demo", "/length")[2].strip() == str(len(VALUE)).encode()

        assert processes_with_value("cmdline") == set()
        inside = set(processes_of(runtime_paths(here.data), here.show("demo")["id"]))
        assert processes_with_value("environ"), "the program was looked at"
        assert processes_with_value("environ") <= inside
        shown = "".join(
            here.ok(*words)
            for words in (
                ("show", "demo", "--json"),
                ("explain", "demo", "--json"),
                ("secrets", "list", "demo", "--json"),
                ("env", "demo", "--json"),
                ("audit", "--json"),
                ("history", "demo", "--json"),
                ("logs", "demo"),
            )
        )
        assert VALUE not in shown
        assert "secret.set" in shown
        stored = await dump(empty_database_url)
        assert "secret.set" in stored
        assert VALUE not in stored
        assert VALUE.encode().hex() not in stored
        assert (here.data / "secrets.key").stat().st_mode & 0o777 == 0o600

        # The program's home and log are the workspace's own; here the program writes the value to neither.
        here.ok("archive", "demo", "--wait")
        assert VALUE not in (tmp_path / "up.log").read_text(encoding="utf-8")
        assert files_with_value(tmp_path) == []

        here.ok("delete", "demo", "--purge", "--yes", "--wait")
        connection = await asyncpg.connect(empty_database_url)
        assert await connection.fetchval("SELECT count(*) FROM secrets") == 0
        await connection.close()
    assert files_with_value(tmp_path) == []


def test_without_its_key_a_workspace_does_not_start_and_its_home_is_kept(tmp_path: Path) -> None:
    with product(tmp_path, TORPOR_RECONCILER_RETRY_BACKOFF="0.2") as here:
        here.ok("create", "demo", "--wait")
        here.ok("exec", "demo", "--", "sh", "-c", "echo kept > file; sync")
        set_secret(here, "demo", "TOKEN")
        here.ok("stop", "demo", "--wait")
        key, aside = here.data / "secrets.key", tmp_path / "aside"
        key.rename(aside)
        failed = here.run("start", "demo", "--wait")
        assert failed.returncode == 3
        assert b"the secret TOKEN cannot be decrypted" in failed.stderr
        assert b"is missing" in failed.stderr
        assert (here.home(here.show("demo")) / "file").read_text() == "kept\n"
        here.ok("archive", "demo", "--wait")

        set_secret(here, "demo", "OTHER")
        failed = here.run("start", "demo", "--wait")
        assert b"the secret TOKEN cannot be decrypted: it is encrypted with the key" in failed.stderr
        set_secret(here, "demo", "TOKEN", "new")
        here.ok("start", "demo", "--wait")
        assert here.ok("exec", "demo", "--", "sh", "-c", "cat file; echo $TOKEN $OTHER") == f"kept\nnew {VALUE}\n"
