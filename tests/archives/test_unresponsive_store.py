"""A store that accepts connections and never answers blocks only the call."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archives.s3 import S3, Silence
from tests.support.archive_jobs import HOME, KEY, ArchiveWorld
from tests.support.waiting import until, wait_until
from torpor.archives import archives
from torpor.archives.archives import HomeArchives
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.domain.errors import Refused, Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def silence() -> Iterator[Silence]:
    with Silence() as server:
        yield server


async def test_other_threads_work_while_a_store_does_not_answer(silence: Silence) -> None:
    quiet = HomeArchives("s3://bucket", silence.options)
    asked = [asyncio.create_task(quiet.manifest_root(KEY)) for _ in range(100)]
    try:
        await until(lambda: len(silence.visitors) >= archives.CALLS_AT_ONCE, within_s=20)
        async with asyncio.timeout(5):
            await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(10)))
        assert len(silence.visitors) == archives.CALLS_AT_ONCE
        await quiet.close()
        with pytest.raises(Unavailable):
            await quiet.manifest_root(KEY)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)


async def test_concurrent_reachability_checks_share_one_request(silence: Silence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "REACHABLE_TIMEOUT_S", 1.0)
    quiet = HomeArchives("s3://bucket", silence.options)
    impatient = asyncio.create_task(quiet.reachable())
    await asyncio.sleep(0)
    impatient.cancel()
    for _ in range(2):
        assert await asyncio.gather(*(quiet.reachable() for _ in range(50))) == [False] * 50
    assert len(silence.visitors) == 1


async def test_the_result_of_a_reachability_check_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    store.mkdir()
    there = HomeArchives(f"file://{store}")
    assert await there.reachable()
    store.rmdir()
    store.touch()
    assert await there.reachable()
    monkeypatch.setattr(archives, "REMEMBERED_S", 0.0)
    assert not await there.reachable()


async def test_a_failed_call_does_not_use_the_cached_result(tmp_path: Path) -> None:
    """The reused answer is older than the failure."""
    store = tmp_path / "store"
    store.mkdir()
    there = HomeArchives(f"file://{store}")
    assert await there.reachable()
    store.rmdir()
    store.touch()
    with pytest.raises(Unavailable):
        await there.create_empty(KEY, HOME, 0)


def test_the_interpreter_ends_while_calls_are_pending(silence: Silence) -> None:
    script = (
        "import asyncio, json, sys\n"
        "from torpor.archives.archives import HomeArchives\n"
        "from torpor.domain.records import ArchiveKey\n"
        "async def main():\n"
        "    quiet = HomeArchives('s3://bucket', json.loads(sys.argv[1]))\n"
        "    asked = [asyncio.create_task(quiet.manifest_root(ArchiveKey('w', 'o'))), asyncio.create_task(quiet.reachable())]\n"
        "    await asyncio.wait(asked, timeout=2)\n"
        "    await quiet.close()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", script, json.dumps(silence.options)]
    ended = subprocess.run(command, capture_output=True, timeout=15, check=True)
    assert not ended.stderr
    assert len(silence.visitors) == 2


def test_a_job_stops_while_the_store_does_not_answer(world: ArchiveWorld, silence: Silence) -> None:
    """The job stops as soon as the store's client returns; the runtime does not wait for that."""
    job = HomeArchives("s3://bucket", {**silence.options, "timeout": "1s"}).pack_job(KEY, HOME, 7)
    with subprocess.Popen([*job.argv, world.home()], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stderr
        process.stdin.write(job.stdin)
        process.stdin.close()
        wait_until(lambda: silence.visitors)
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
        assert not process.stderr.read()


# ── plain http ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["allow_http", "ALLOW_HTTP", "aws_allow_http", "AWS_ALLOW_HTTP"])
def test_plain_http_when_it_is_allowed(s3: S3, name: str) -> None:
    options = {**s3.options, name: s3.options["allow_http"]}
    if name != "allow_http":
        del options["allow_http"]
    assert ArchiveStore(StoreAddress.parse("s3://bucket"), options, pauses_s=()).size("a") is None


@pytest.mark.parametrize("name", ["endpoint", "aws_endpoint_url"])
def test_an_endpoint_with_http_allows_it(s3: S3, name: str) -> None:
    options = dict(s3.options)
    options[name] = options.pop("endpoint")
    del options["allow_http"]
    assert ArchiveStore(StoreAddress.parse("s3://bucket"), options, pauses_s=()).size("a") is None


def test_an_endpoint_without_a_host_is_refused(s3: S3) -> None:
    with pytest.raises(Refused, match="has no host"):
        ArchiveStore(StoreAddress.parse("s3://bucket"), {**s3.options, "endpoint": "http://:9000"}, pauses_s=()).size("a")


def test_plain_http_to_an_endpoint_of_the_environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(s3.options)
    del options["allow_http"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", options.pop("endpoint"))
    assert ArchiveStore(StoreAddress.parse("s3://bucket"), options, pauses_s=()).size("a") is None
