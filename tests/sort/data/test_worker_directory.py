"""Each worker has its directories for itself, and after a restart exactly the valid files stay."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.small_disk import fill, small_disk
from torpor.sort.data.directory_lock import _take
from torpor.sort.data.files import FileKind, FileManifest, write_manifest
from torpor.sort.data.worker_directory import NOTHING, REMOVED, WorkerDirectory
from torpor.sort.errors import SortFailed, SortRefused
from torpor.sort.machine.states import WorkerState
from torpor.sort.proof import Proof

JOB, BOUNDARIES = "job-1", "digest-1"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[WorkerDirectory]:
    with WorkerDirectory(tmp_path / "scratch", tmp_path / "output") as place:
        place.lock(0)
        yield place


def tree(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def refusal(act: Callable[[], None]) -> SortRefused:
    with pytest.raises(SortRefused) as caught:
        act()
    return caught.value


# ---- locks


def test_names(tmp_path: Path) -> None:
    place = WorkerDirectory(tmp_path / "s", tmp_path / "o")
    assert place.journal == tmp_path / "s/journal"
    assert place.run_file(7) == tmp_path / "s/runs/run.00007"
    assert place.part_file(12, 3) == tmp_path / "s/parts/part.00012.00003"
    assert place.output_file(123456) == tmp_path / "o/partition.123456"
    assert place.manifest_of(place.run_file(7)) == tmp_path / "s/manifests/run.00007.json"


OVERLAPS: dict[str, tuple[str, str, str, str | None]] = {
    # scratch, output, input, what is refused
    "apart": ("s", "o", "in", None),
    "the scratch is in the output's own folder": ("o/.torpor-sort/worker.0", "o", "in", None),
    "names that only begin alike": ("in-scratch", "in-output", "in", None),
    "the output is an input": ("s", "in", "in", "the output"),
    "the output is in an input": ("s", "in/out", "in", "the output"),
    "the output is hidden in an input": ("s", "in/.out", "in", "the output"),
    "the scratch is in an input": ("in/s", "o", "in", "the scratch"),
    "an input is in the output": ("s", "o", "o/in", "the input"),
    "an input is in the scratch": ("s", "o", "s/in", "the input"),
    "the output is the scratch": ("s", "s", "in", "the output"),
    "the output is in the scratch": ("s", "s/runs", "in", "the output"),
    "the scratch is in the output": ("o/s", "o", "in", "the scratch"),
    "a way round": ("s", "o/../in/out", "in", "the output"),
    "a link": ("s", "link/out", "in", "the output"),
    "a link to the input": ("s", "in/out", "link", "the output"),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_overlapping_inputs_scratch_and_output_are_refused(tmp_path: Path, case: str) -> None:
    scratch, output, given, told = OVERLAPS[case]
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")
    place = WorkerDirectory(tmp_path / scratch, tmp_path / output)
    if told is None:
        place.refuse_overlap([tmp_path / given])
    else:
        refused = refusal(lambda: place.refuse_overlap([tmp_path / "fine", tmp_path / given]))
        assert refused.code == "overlap"
        assert refused.message.startswith(told)


def test_an_input_file_in_the_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert refusal(lambda: WorkerDirectory(tmp_path / "s", tmp_path).refuse_overlap([tmp_path / "file"])).code == "overlap"
    WorkerDirectory(tmp_path / "s", tmp_path / "o").refuse_overlap([tmp_path / "file"])


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for scratch, output, named in (("file", "o", "scratch"), ("file/s", "o", "scratch"), ("s", "file", "output")):
        place = WorkerDirectory(tmp_path / scratch, tmp_path / output)
        refused = refusal(lambda place=place: place.lock(0))  # type: ignore[misc]
        assert refused.code == "bad_directory"
        assert refused.message.startswith(f"the {named} directory {tmp_path}")
    # After a refusal no directory stays locked.
    with WorkerDirectory(tmp_path / "s", tmp_path / "o") as place:
        place.lock(0)


HOLDER = """
import sys, time
from pathlib import Path
from torpor.sort.data.worker_directory import WorkerDirectory
WorkerDirectory(Path(sys.argv[1]), Path(sys.argv[2]), share_output=len(sys.argv) > 3).lock(0)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hold() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that locks directories and keeps them."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", HOLDER, *map(str, arguments)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_process_in_the_same_directories_is_refused(
    tmp_path: Path, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    scratch, output = tmp_path / "scratch", tmp_path / "output"
    holder = hold(scratch, output)
    for wanted, named in (((scratch, tmp_path / "o"), "scratch"), ((tmp_path / "s", output), "output")):
        refused = refusal(lambda wanted=wanted: WorkerDirectory(*wanted).lock(0.1))  # type: ignore[misc]
        assert refused.code == "in_use"
        assert refused.message.startswith(f"the {named} directory {tmp_path / named} is in use by process {holder.pid};")
    # A process that was refused one of them has locked none of them.
    with WorkerDirectory(tmp_path / "s", tmp_path / "o") as place:
        place.lock(0)


def test_a_killed_holder_frees_the_directories_for_a_waiting_process(
    tmp_path: Path, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = hold(tmp_path / "s", tmp_path / "o")
    waiting = subprocess.Popen(
        [sys.executable, "-c", HOLDER.replace(".lock(0)", ".lock(60)"), tmp_path / "s", tmp_path / "o"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert waiting.poll() is None
        assert (tmp_path / "s/worker.pid").read_text() == f"{holder.pid}\n"
        holder.send_signal(signal.SIGKILL)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "locked\n"
        assert (tmp_path / "s/worker.pid").read_text() == f"{waiting.pid}\n"
    finally:
        waiting.kill()
        waiting.communicate()


def test_a_stopped_holder_keeps_the_directories(tmp_path: Path, hold: Callable[..., subprocess.Popen[str]]) -> None:
    holder = hold(tmp_path / "s", tmp_path / "o")
    holder.send_signal(signal.SIGSTOP)
    assert refusal(lambda: WorkerDirectory(tmp_path / "s", tmp_path / "o").lock(0.1)).code == "in_use"


def test_a_shared_output_is_not_locked(tmp_path: Path, hold: Callable[..., subprocess.Popen[str]]) -> None:
    hold(tmp_path / "s", tmp_path / "o", "shared")
    with WorkerDirectory(tmp_path / "s2", tmp_path / "o", share_output=True) as place:
        place.lock(0)
    assert refusal(lambda: WorkerDirectory(tmp_path / "s", tmp_path / "o", share_output=True).lock(0)).code == "in_use"


def test_a_directory_removed_under_a_lock_can_be_locked_again(tmp_path: Path) -> None:
    with WorkerDirectory(tmp_path / "s", tmp_path / "o") as first, WorkerDirectory(tmp_path / "s", tmp_path / "o2") as second:
        first.lock(0)
        shutil.rmtree(tmp_path / "s")
        second.lock(0)
        assert refusal(lambda: WorkerDirectory(tmp_path / "s", tmp_path / "o3").lock(0)).code == "in_use"


def test_a_lock_on_a_removed_directory_does_not_count(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    directory.mkdir()
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        assert _take(descriptor, directory)
        directory.rename(tmp_path / "away")
        assert not _take(descriptor, directory)
        directory.mkdir()
        assert not _take(descriptor, directory)
    finally:
        os.close(descriptor)


def test_unlocking_removes_all_files_and_can_be_repeated(place: WorkerDirectory) -> None:
    place.unlock()
    place.unlock()
    assert tree(place.scratch.parent) == []
    with WorkerDirectory(place.scratch, place.output) as again:
        again.lock(0)


def test_scratch_is_private(place: WorkerDirectory) -> None:
    assert place.scratch.stat().st_mode & 0o077 == 0


# ---- markers


def test_an_output_directory_has_a_marker_until_the_job_is_completed(place: WorkerDirectory) -> None:
    place.claim_output(JOB, "worker-a")
    assert json.loads(place.marker.read_bytes()) == {"job": JOB, "worker": "worker-a", "is_done": False}
    place.output_file(3).write_bytes(b"")
    (place.output / "partition.00004.1.partial").write_bytes(b"")
    (place.output / ".torpor-sort").mkdir()
    place.claim_output(JOB, "worker-a")
    place.release_output()
    place.release_output()
    assert not place.marker.exists()
    # Now it belongs to the user and is not overwritten.
    assert refusal(lambda: place.claim_output(JOB, "worker-a")).code == "not_empty"


@pytest.mark.parametrize("name", ["precious.txt", "partition.00000", "partition.00000.bak", ".hidden"])
def test_an_output_directory_that_is_not_empty_is_refused(place: WorkerDirectory, name: str) -> None:
    (place.output / name).write_bytes(b"precious")
    refused = refusal(lambda: place.claim_output(JOB, "worker-a"))
    assert refused.code == "not_empty"
    assert name in refused.message
    assert (place.output / name).read_bytes() == b"precious"
    assert not place.marker.exists()


@pytest.mark.parametrize("name", ["precious.txt", "partition.00000.bak", "partition.1", "partition.00000.1.partial.bak"])
def test_the_marker_covers_only_partitions(place: WorkerDirectory, name: str) -> None:
    place.claim_output(JOB, "worker-a")
    (place.output / name).write_bytes(b"precious")
    assert refusal(lambda: place.claim_output(JOB, "worker-a")).code == "not_empty"


@pytest.mark.parametrize(("job", "worker"), [("job-2", "worker-a"), (JOB, "worker-b")])
def test_files_of_another_job_or_worker_are_refused(place: WorkerDirectory, job: str, worker: str) -> None:
    place.claim_output(JOB, "worker-a")
    place.claim_output(job, worker)  # No file was written yet, so the directory can be claimed.
    place.output_file(0).write_bytes(b"")
    assert refusal(lambda: place.claim_output(JOB, "worker-a")).code == "not_empty"
    place.claim_output(job, worker)


def test_many_foreign_files_are_not_all_named(place: WorkerDirectory) -> None:
    for number in range(9):
        (place.output / f"file{number}").write_bytes(b"")
    assert "holds file0, file1, file2 and 6 more, which" in refusal(lambda: place.claim_output(JOB, "a")).message


@pytest.mark.parametrize("content", [b"", b"[]", b'{"job": "job-1"', b"\xff"])
def test_a_damaged_marker_covers_nothing(place: WorkerDirectory, content: bytes) -> None:
    place.marker.write_bytes(content)
    place.output_file(0).write_bytes(b"")
    assert refusal(lambda: place.claim_output(JOB, "a")).code == "not_empty"


def test_a_shared_output_is_marked_by_its_owner(tmp_path: Path) -> None:
    owner = WorkerDirectory(tmp_path / "o/.torpor-sort", tmp_path / "o")
    worker = WorkerDirectory(tmp_path / "o/.torpor-sort/worker.1", tmp_path / "o", share_output=True)
    with owner, worker:
        owner.lock(0)
        owner.claim_output(JOB, "run")
        worker.lock(0)
        owner.output_file(0).write_bytes(b"")
        worker.claim_output(JOB, "worker.1")
        worker.release_output()
        assert owner.marker.exists()
        owner.release_output()
        assert not owner.marker.exists()
        assert refusal(lambda: worker.claim_output(JOB, "worker.1")).code == "not_empty"


# ---- files that stay


def put(place: WorkerDirectory, path: Path, kind: FileKind, *, job: str = JOB, boundaries: str = BOUNDARIES) -> None:
    data = path.name.encode() * 10
    path.write_bytes(data)
    manifest = FileManifest(path.name, job, kind, boundaries, Proof(1, len(data), 5))
    write_manifest(place.manifest_of(path), manifest, 0, sync=False)


def furnish(place: WorkerDirectory) -> None:
    """Create all files of a worker, complete."""
    place.claim_output(JOB, "a")
    put(place, place.run_file(0), FileKind.RUN)
    put(place, place.run_file(1), FileKind.RUN)
    put(place, place.part_file(4, 0), FileKind.PART)
    put(place, place.part_file(4, 1), FileKind.PART)
    put(place, place.output_file(4), FileKind.OUTPUT)
    put(place, place.output_file(5), FileKind.OUTPUT)
    for directory in (place.scratch, place.runs, place.parts, place.manifests):
        (directory / "run.00009.0.partial").write_bytes(b"")
    (place.output / "partition.00006.0.partial").write_bytes(b"")
    place.journal.write_bytes(b"the journal")
    place.journal.with_name("journal.reserve").write_bytes(b"")


def names_of(place: WorkerDirectory) -> set[str]:
    """Data and temporary files, each by its name."""
    manifests = {name for name in tree(place.manifests) if name.endswith(".json")}
    found = {Path(name).name for top in (place.scratch, place.output) for name in tree(top)} - manifests
    assert manifests == {
        f"{name}.json" for name in found if name.startswith(("run.", "part")) and not name.endswith(".partial")
    }
    return found - {"journal", "journal.reserve", "worker.pid", ".torpor-sort.json", ".torpor-sort.pid"}


RUNS = {"run.00000", "run.00001"}
LOCAL = {"part.00004.00001"}
RECEIVED = {"part.00004.00000"}
OUTPUTS = {"partition.00004", "partition.00005"}


def test_the_table_is_total() -> None:
    assert REMOVED.keys() == set(WorkerState)


@pytest.mark.parametrize("state", WorkerState)
def test_a_failure_in_each_state_leaves_the_files_of_the_table(place: WorkerDirectory, state: WorkerState) -> None:
    furnish(place)
    place.clean(state, index=1)
    match state:
        case WorkerState.SORTING | WorkerState.WAITING_FOR_SHUFFLE_SIGNAL:
            left = RECEIVED | OUTPUTS
        case WorkerState.SHUFFLING | WorkerState.WAITING_FOR_MERGE_SIGNAL:
            left = OUTPUTS
        case WorkerState.MERGING:
            left = set()
        case _:
            left = RUNS | LOCAL | RECEIVED | OUTPUTS
    assert names_of(place) == left
    assert place.journal.read_bytes() == b"the journal"
    place.clean(state, index=1)
    assert names_of(place) == left


def test_kept_files_are_not_removed(place: WorkerDirectory) -> None:
    furnish(place)
    place.run_file(1).write_bytes(b"torn")
    kept = place.keep(JOB, BOUNDARIES)
    place.clean(WorkerState.MERGING, kept)
    assert names_of(place) == {"run.00000"} | LOCAL | RECEIVED | OUTPUTS


def test_complete_files_are_kept(place: WorkerDirectory) -> None:
    furnish(place)
    kept = place.keep(JOB, BOUNDARIES)
    assert (set(kept.runs), set(kept.parts), set(kept.outputs)) == ({0, 1}, {(4, 0), (4, 1)}, {4, 5})
    assert kept.parts[4, 1].proof.checksum == 5
    assert names_of(place) == RUNS | LOCAL | RECEIVED | OUTPUTS
    assert place.keep(JOB, BOUNDARIES) == kept


def other_job(place: WorkerDirectory, path: Path) -> None:
    put(place, path, FileKind.RUN, job="job-2")


def other_boundaries(place: WorkerDirectory, path: Path) -> None:
    put(place, path, FileKind.RUN, boundaries="digest-2")


def other_kind(place: WorkerDirectory, path: Path) -> None:
    put(place, path, FileKind.PART)


def shorter(place: WorkerDirectory, path: Path) -> None:
    os.truncate(path, 3)


def without_manifest(place: WorkerDirectory, path: Path) -> None:
    place.manifest_of(path).unlink()


def with_torn_manifest(place: WorkerDirectory, path: Path) -> None:
    place.manifest_of(path).write_bytes(b'{"name": "ru')


def with_manifest_of_another(place: WorkerDirectory, path: Path) -> None:
    place.manifest_of(path).write_bytes(place.manifest_of(place.run_file(0)).read_bytes())


def gone(place: WorkerDirectory, path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        other_job,
        other_boundaries,
        other_kind,
        shorter,
        without_manifest,
        with_torn_manifest,
        with_manifest_of_another,
        gone,
    ],
)
def test_a_file_that_does_not_match_is_removed_with_its_manifest(
    place: WorkerDirectory, damage: Callable[[WorkerDirectory, Path], None]
) -> None:
    furnish(place)
    damage(place, place.run_file(1))
    kept = place.keep(JOB, BOUNDARIES)
    assert set(kept.runs) == {0}
    assert names_of(place) == {"run.00000"} | LOCAL | RECEIVED | OUTPUTS


def test_files_of_another_job_are_not_kept(place: WorkerDirectory) -> None:
    furnish(place)
    assert place.keep("job-2", BOUNDARIES) == NOTHING
    assert names_of(place) == set()


def test_nothing_is_removed_from_an_unclaimed_output_directory(place: WorkerDirectory) -> None:
    furnish(place)
    place.release_output()
    precious = tree(place.output)
    place.remove_temporaries()
    place.keep("job-2", BOUNDARIES)
    place.clean(WorkerState.MERGING)
    place.remove_scratch()
    assert tree(place.output) == precious


def test_only_temporary_files_are_removed(place: WorkerDirectory) -> None:
    furnish(place)
    place.remove_temporaries()
    assert names_of(place) == RUNS | LOCAL | RECEIVED | OUTPUTS


def test_only_own_files_are_removed_from_scratch(place: WorkerDirectory) -> None:
    furnish(place)
    (place.scratch / "notes of the user").write_bytes(b"")
    place.remove_scratch(journal=False)
    assert tree(place.scratch) == ["journal", "journal.reserve", "notes of the user", "worker.pid"]
    place.remove_scratch()
    place.remove_scratch()
    assert tree(place.scratch) == ["notes of the user", "worker.pid"]
    assert place.output_file(4).exists()


def test_files_of_others_in_a_shared_output_are_kept(tmp_path: Path) -> None:
    with WorkerDirectory(tmp_path / "s", tmp_path / "o", share_output=True) as place:
        place.lock(0)
        WorkerDirectory(tmp_path / "run", tmp_path / "o").claim_output(JOB, "run")
        for partition in (4, 5, 6):
            put(place, place.output_file(partition), FileKind.OUTPUT)
            (place.output / f"partition.{partition:05d}.0.partial").write_bytes(b"")
        os.truncate(place.output_file(4), 1)
        os.truncate(place.output_file(6), 1)
        kept = place.keep(JOB, BOUNDARIES, own={4, 5})
        assert set(kept.outputs) == {5}
        assert tree(place.output) == [".torpor-sort.json", "partition.00005", "partition.00006", "partition.00006.0.partial"]
        place.clean(WorkerState.MERGING)
        assert tree(place.output) == [".torpor-sort.json", "partition.00005", "partition.00006", "partition.00006.0.partial"]
        place.clean(WorkerState.MERGING, own={4, 5})
        assert tree(place.output) == [".torpor-sort.json", "partition.00006", "partition.00006.0.partial"]


def test_a_full_disk_is_reported_when_directories_are_locked(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk / "s").mkdir()
        (disk / "o").mkdir()
        fill(disk)
        place = WorkerDirectory(disk / "s", disk / "o")
        with pytest.raises((SortFailed, SortRefused), match=r"[Nn]o space (is )?left on"):
            place.lock(0)


def test_waiting_for_a_lock_lasts_as_long_as_requested(tmp_path: Path) -> None:
    with WorkerDirectory(tmp_path / "s", tmp_path / "o") as place:
        place.lock(0)
        began = time.monotonic()
        refusal(lambda: WorkerDirectory(tmp_path / "s", tmp_path / "o").lock(0.3))
        # Only a lower bound: it measures the wait, not the speed.
        assert time.monotonic() - began >= 0.3


FOREIGN = (
    "film.mkv.partial",
    "runs/thesis.partial",
    "runs/run.txt",
    "parts/part.notes",
    "manifests/deployment.yaml",
    "manifests/x.json",
)


def test_foreign_files_in_scratch_are_kept(place: WorkerDirectory) -> None:
    """The user may use the directory for other things."""
    furnish(place)
    for name in FOREIGN:
        (place.scratch / name).write_text("precious")
    place.keep(JOB, BOUNDARIES)
    place.forget()
    place.clean(WorkerState.MERGING)
    place.remove_scratch()
    assert [name for name in FOREIGN if not (place.scratch / name).exists()] == []
