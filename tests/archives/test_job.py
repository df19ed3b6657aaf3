"""The output of the job, and its state after it is stopped during its work."""

import json
import os
import signal
import subprocess
import time
from dataclasses import replace

import pytest

from tests.archives.s3 import S3
from tests.support.archive_jobs import DATA, HOME, KEY, MANIFEST, ArchiveWorld, Meter, as_nobody_argv, run, running
from tests.support.waiting import wait_until
from torpor.archives.archives import HomeArchives
from torpor.archives.pack import PackRequest, pack
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.archives.tree import tree_root
from torpor.domain.errors import Code


def test_secrets_are_on_standard_input_only() -> None:
    archives = HomeArchives("s3://bucket/prefix", {"secret_access_key": "hunter2"})
    for job in (archives.pack_job(KEY, HOME, 1), archives.unpack_job(KEY)):
        assert not any("hunter2" in word for word in job.argv)
        assert b"hunter2" in job.stdin
    assert "hunter2" not in repr(archives)


def test_progress_grows_and_is_not_chatty(world: ArchiveWorld) -> None:
    home = world.home()
    (home / "big").write_bytes(os.urandom(30 << 20))
    began = time.monotonic()
    ended = world.pack(home)
    took_s = time.monotonic() - began
    steps = [line["progress"] for line in ended.lines[:-1]]
    assert steps
    assert steps == sorted(steps)
    assert all(0 < done <= total == 30 << 20 for done, total in steps)
    assert len(steps) <= took_s * 5 + 1


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_in_the_middle_and_begun_again(world: ArchiveWorld, stop: signal.Signals) -> None:
    home = world.home()
    for number in range(4):
        (home / f"big{number}").write_bytes(os.urandom(20 << 20))
    root = tree_root(home)
    job = world.archives.pack_job(KEY, HOME, 7)
    with running(job, home) as process:
        process.send_signal(stop)
        process.wait(2 if stop is signal.SIGTERM else 60)
    if stop is signal.SIGTERM:
        assert not list(world.object(DATA).parent.iterdir()), "whoever is told to stop takes away what it began"
    assert not world.object(MANIFEST).exists()
    # The home has changed since the first try, so no data of that try may be used.
    (home / "big0").write_bytes(b"small")
    assert tree_root(home) != root
    root = tree_root(home)
    for _ in range(2):
        assert world.pack(home).result["manifest_root"] == root
    assert {path.name for path in world.object(DATA).parent.iterdir()} == {DATA, MANIFEST}
    # A restore that is killed is repeated.
    again = world.home("again")
    with running(world.archives.unpack_job(KEY), again) as process:
        process.send_signal(stop)
        process.wait(60)
    assert world.unpack(again).result["manifest_root"] == root == tree_root(again)


class Told(SystemExit):
    """Stops like SIGTERM, at a chosen point."""


class StoppedBetween(ArchiveStore):
    """Is stopped after the data is written and before the manifest is."""

    def write_once(self, path: str, content: bytes | bytearray) -> bool:
        raise Told


class StoppedAfter(ArchiveStore):
    """Is stopped after the manifest is written and before the result is reported."""

    def write_once(self, path: str, content: bytes | bytearray) -> bool:
        super().write_once(path, content)
        raise Told


@pytest.mark.parametrize(("place", "left"), [(StoppedBetween, set()), (StoppedAfter, {DATA, MANIFEST})])
def test_data_without_a_manifest_is_removed_when_its_writer_fails(
    world: ArchiveWorld, place: type[ArchiveStore], left: set[str]
) -> None:
    (world.home() / "a").write_bytes(b"x")
    with pytest.raises(Told):
        pack(place(StoreAddress.parse(f"file://{world.store}")), PackRequest(KEY, 3, 7), world.home(), Meter())
    assert {path.name for path in world.object(DATA).parent.iterdir()} == left
    world.pack(world.home()).result  # noqa: B018


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_stopped_job_restores_file_modes(reachable_for_all: ArchiveWorld) -> None:
    world = reachable_for_all
    closed = world.home() / "closed"
    closed.mkdir()
    (closed / "big").write_bytes(os.urandom(60 << 20))
    for path in (world.path, world.home(), closed, closed / "big"):
        os.chown(path, 65534, 65534)
    closed.chmod(0o100)
    job = as_nobody_argv("sys.exit(torpor.archives.job.main(sys.argv))")
    with running(replace(world.archives.pack_job(KEY, HOME, 7), argv=job), world.home()) as process:
        assert closed.stat().st_mode & 0o777 == 0o500
        process.terminate()
        assert process.wait(2) == 128 + signal.SIGTERM
    assert closed.stat().st_mode & 0o777 == 0o100
    assert not list(world.object(DATA).parent.iterdir())


def test_a_stopped_job_aborts_its_upload(world: ArchiveWorld, s3: S3) -> None:
    (world.home() / "big").write_bytes(os.urandom(100 << 20))
    with running(HomeArchives("s3://bucket/prefix", s3.options).pack_job(KEY, HOME, 7), world.home()) as process:
        wait_until(lambda: s3.uploads or process.poll() is not None)
        process.terminate()
        assert process.wait(2) == 128 + signal.SIGTERM
    assert not s3.uploads
    assert not s3.objects


def test_a_job_ends_when_its_output_is_closed(world: ArchiveWorld) -> None:
    home = world.home()
    (home / "big").write_bytes(bytes(50 << 20))
    job = world.archives.pack_job(KEY, HOME, 7)
    with subprocess.Popen([*job.argv, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write(job.stdin)
        process.stdin.close()
        assert not process.stderr.read()
        assert process.wait(60) == 1
    assert not world.object(MANIFEST).exists()


def test_a_home_cannot_smuggle_in_a_module(world: ArchiveWorld) -> None:
    home = world.home()
    (home / "json.py").write_text("raise SystemExit('gotcha')")
    (home / "torpor").mkdir()
    (home / "torpor" / "__init__.py").write_text("raise SystemExit('gotcha')")
    job = world.archives.pack_job(KEY, HOME, 7)
    environment = {**os.environ, "PYTHONPATH": str(home)}
    ended = subprocess.run([*job.argv, home], input=job.stdin, capture_output=True, cwd=home, env=environment, check=True)
    assert "result" in json.loads(ended.stdout.splitlines()[-1])


def test_archives_are_private(world: ArchiveWorld) -> None:
    (world.home() / "a").write_bytes(b"x")
    world.pack(world.home()).result  # noqa: B018
    for path in (world.store, *world.store.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_missing_home_is_an_error(world: ArchiveWorld) -> None:
    world.pack(world.path / "nowhere").failed_with(Code.VOLUME_NOT_READY)
    world.pack(world.home()).result  # noqa: B018
    world.unpack(world.path / "nowhere").failed_with(Code.TAR_EXTRACT_FAILED)


def test_a_job_that_sees_another_store_writes_nothing(world: ArchiveWorld) -> None:
    job = world.archives.pack_job(KEY, HOME, 7)
    order = json.loads(job.stdin)
    assert order["store"] is None, "the identity is not known before the first call"
    expected = "00000000-0000-4000-8000-00000000000a"
    ended = run(replace(job, stdin=json.dumps({**order, "store": expected}).encode()), world.home())
    error = ended.lines[-1]["error"]
    assert error["code"] == Code.S3_ACCESS_ERROR
    assert expected in error["message"]
    assert "has no identity" in error["message"]


def test_a_job_gets_the_credentials_that_it_does_not_inherit() -> None:
    archives = HomeArchives("s3://bucket/prefix", job_environment={"AWS_SECRET_ACCESS_KEY": "hunter2"})
    job = archives.pack_job(KEY, HOME, 1)
    assert json.loads(job.stdin)["environment"] == {"AWS_SECRET_ACCESS_KEY": "hunter2"}
    assert not any("hunter2" in word for word in job.argv)


def test_an_unusable_store_is_an_error(world: ArchiveWorld) -> None:
    (world.path / "file").write_bytes(b"")
    archives = HomeArchives(f"file://{world.path}/file/store")
    assert "does not exist" in run(archives.pack_job(KEY, HOME, 7), world.home()).failed_with(Code.S3_ACCESS_ERROR)
