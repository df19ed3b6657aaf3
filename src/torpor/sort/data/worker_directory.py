"""Manage the directories of a worker: names, locks, and which files stay after a restart.

    scratch/  journal  journal.reserve  worker.pid  runs/run.00000  parts/part.00000.00000  manifests/NAME.json
    output/   partition.00000           and until the job is Completed: .torpor-sort.json, .torpor-sort.pid, .torpor-sort/

Both directories are locked by flock(2). The kernel releases the lock when the process ends, for any reason.
"""

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType

from torpor.sort.data.directory_lock import DirectoryLock, make_directory
from torpor.sort.data.files import (
    PARTIAL,
    FileKind,
    FileManifest,
    atomic_file,
    is_whole,
    read_manifest,
    remove,
    temporary,
    to_sort_failed,
)
from torpor.sort.documents import decode, encode
from torpor.sort.errors import SortRefused
from torpor.sort.machine.states import WorkerState

MARKER = ".torpor-sort.json"
STATE = ".torpor-sort"
OUTPUT_PID = ".torpor-sort.pid"
SCRATCH_PID = "worker.pid"

RUN = re.compile(r"run\.(\d{5,})")
PART = re.compile(r"part\.(\d{5,})\.(\d{5,})")
OUTPUT = re.compile(r"partition\.(\d{5,})")
_OURS = r"(?:run\.\d{5,}|part\.\d{5,}\.\d{5,}|partition\.\d{5,})"
OUR_MANIFEST = re.compile(rf"{_OURS}\.json")
# Files with other names belong to the user.
OURS_ASIDE = re.compile(rf"(?:{_OURS}(?:\.json)?(?:\.\d+)?(?:\.partial)?\.\d+|journal)\.partial")


class RemovalGroup(Enum):
    """Files that are removed together."""

    TEMPORARIES = "temporaries"
    RUNS = "runs"
    LOCAL_PARTS = "local parts"
    """Parts that the worker has made for itself."""
    PARTS = "parts"
    OUTPUTS = "outputs"


_TEMPORARIES = frozenset({RemovalGroup.TEMPORARIES})
_SORTED = _TEMPORARIES | {RemovalGroup.RUNS, RemovalGroup.LOCAL_PARTS}
_SHUFFLED = _SORTED | {RemovalGroup.PARTS}
_MERGED = _SHUFFLED | {RemovalGroup.OUTPUTS}

REMOVED: Mapping[WorkerState, frozenset[RemovalGroup]] = {
    WorkerState.INITIALIZING: _TEMPORARIES,
    WorkerState.SAMPLING: _TEMPORARIES,
    WorkerState.WAITING_FOR_PARTITION_CONFIG: _TEMPORARIES,
    WorkerState.SORTING: _SORTED,
    WorkerState.WAITING_FOR_SHUFFLE_SIGNAL: _SORTED,
    WorkerState.SHUFFLING: _SHUFFLED,
    WorkerState.WAITING_FOR_MERGE_SIGNAL: _SHUFFLED,
    WorkerState.MERGING: _MERGED,
    WorkerState.COMPLETED: _TEMPORARIES,
    WorkerState.FAILED: _TEMPORARIES,
}
"""By the state in which a worker failed. Files that are kept are not removed."""


@dataclass(frozen=True, slots=True)
class OutputMarker:
    """The file in an output directory that names the job and the worker that write to it."""

    job: str
    worker: str
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class ReusableFiles:
    """Files that need not be made again."""

    runs: Mapping[int, FileManifest]
    parts: Mapping[tuple[int, int], FileManifest]
    """By partition and sender."""
    outputs: Mapping[int, FileManifest]


NOTHING = ReusableFiles({}, {}, {})


class WorkerDirectory:
    """One worker's directories. With `share_output` other workers write into the same output directory: it is neither locked
    nor marked here, and only the worker's own partitions are changed."""

    def __init__(self, scratch: Path, output: Path, *, share_output: bool = False) -> None:
        self.scratch = scratch.absolute()
        self.output = output.absolute()
        self.share_output = share_output
        self._locks: list[DirectoryLock] = []

    # ---- names

    @property
    def journal(self) -> Path:
        return self.scratch / "journal"

    @property
    def runs(self) -> Path:
        return self.scratch / "runs"

    @property
    def parts(self) -> Path:
        return self.scratch / "parts"

    @property
    def manifests(self) -> Path:
        return self.scratch / "manifests"

    @property
    def marker(self) -> Path:
        return self.output / MARKER

    def run_file(self, number: int) -> Path:
        return self.runs / f"run.{number:05d}"

    def part_file(self, partition: int, sender: int) -> Path:
        return self.parts / f"part.{partition:05d}.{sender:05d}"

    def output_file(self, partition: int) -> Path:
        return self.output / f"partition.{partition:05d}"

    def manifest_of(self, file: Path) -> Path:
        return self.manifests / f"{file.name}.json"

    # ---- locks and markers

    def refuse_overlap(self, inputs: Sequence[Path]) -> None:
        """Refuse directories inside each other: inputs are never written, and output is never removed together with the
        scratch."""
        scratch, output = self.scratch.resolve(), self.output.resolve()
        if output.is_relative_to(scratch):
            raise _overlap("output", self.output, "scratch", self.scratch)
        if scratch.is_relative_to(output) and not scratch.is_relative_to(output / STATE):
            raise _overlap("scratch", self.scratch, "output", self.output)
        for path in inputs:
            resolved = path.resolve()
            for name, directory in (("output", output), ("scratch", scratch)):
                if directory.is_relative_to(resolved):
                    raise _overlap(name, directory, "input", path)
                if resolved.is_relative_to(directory):
                    raise _overlap("input", path, name, directory)

    def lock(self, wait_s: float) -> None:
        """Make both directories and lock them for this process, until it ends or calls `unlock`."""
        end = time.monotonic() + wait_s
        try:
            self._locks.append(DirectoryLock(self.scratch, "scratch", SCRATCH_PID, end - time.monotonic(), mode=0o700))
            if self.share_output:
                make_directory(self.output, "output", 0o777)
            else:
                self._locks.append(DirectoryLock(self.output, "output", OUTPUT_PID, end - time.monotonic(), mode=0o777))
            for directory in (self.runs, self.parts, self.manifests):
                make_directory(directory, "scratch", 0o700)
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        while self._locks:
            self._locks.pop().release()

    def __enter__(self) -> "WorkerDirectory":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.unlock()

    def claim_output(self, job: str, worker: str) -> None:
        """Mark the output directory for this job. Refused if it has files that are not of this job.

        A shared directory is marked by the process that shares it, and only checked here.
        """
        marked = self.is_claimed(job, worker)
        hidden = (MARKER, STATE, OUTPUT_PID, temporary(self.marker, 0).name)
        foreign = [name for name in _names(self.output) if name not in hidden and not (marked and _is_output(name))]
        if foreign:
            more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
            raise SortRefused(
                "not_empty",
                f"the output directory {self.output} holds {', '.join(foreign[:3])}{more}, which does not belong to this job;"
                " choose a directory that is empty or does not exist",
            )
        if not marked:
            self._mark(OutputMarker(job, worker))

    def is_claimed(self, job: str, worker: str) -> bool:
        marker = self._read_marker()
        return marker is not None and marker.job == job and (self.share_output or marker.worker == worker)

    def finish_output(self, job: str, worker: str) -> None:
        """Mark the job as completed. The marker is in the output directory, because scratch and master may not exist at the
        next start."""
        self._mark(OutputMarker(job, worker, is_done=True))

    def is_finished(self, job: str, worker: str) -> bool:
        marker = self._read_marker()
        return marker is not None and marker.is_done and self.is_claimed(job, worker)

    def _mark(self, marker: OutputMarker) -> None:
        if not self.share_output:
            with atomic_file(self.marker, 0, sync=True) as writer:
                writer.write(encode(marker) + b"\n")

    def _read_marker(self) -> OutputMarker | None:
        try:
            return decode(OutputMarker, self.marker.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise to_sort_failed(error, self.marker, "reading") from error

    def release_output(self) -> None:
        """The job is Completed, and the output belongs to the user. A shared directory is released by the process that shares
        it."""
        if not self.share_output:
            remove(self.marker)

    def remove_output(self) -> None:
        """After a job that failed: its complete files are not the sorted data and must not look like it."""
        self._remove(frozenset({RemovalGroup.TEMPORARIES, RemovalGroup.OUTPUTS}), NOTHING, None, ())

    # ---- files that stay

    def vouched(self, path: Path, kind: FileKind, job: str, boundaries: str) -> FileManifest | None:
        """The manifest of this file, if the file matches it and it is of this job and these boundaries."""
        manifest = read_manifest(self.manifest_of(path))
        if manifest is None or (manifest.kind, manifest.job, manifest.boundaries) != (kind, job, boundaries):
            return None
        return manifest if is_whole(path, manifest) else None

    def keep(self, job: str, boundaries: str, own: Collection[int] = ()) -> ReusableFiles:
        """Keep the files that match their manifests, and remove all other runs, parts and outputs. The reader proves the
        records.

        `own` are the partitions whose outputs this worker writes; in an output directory of its own, all are.
        """

        def vouched(path: Path, kind: FileKind) -> FileManifest | None:
            return self.vouched(path, kind, job, boundaries)

        runs = {number: found for number, path in self._runs() if (found := vouched(path, FileKind.RUN))}
        parts = {name: found for name, path in self._parts() if (found := vouched(path, FileKind.PART))}
        outputs = {number: found for number, path in self._outputs(own) if (found := vouched(path, FileKind.OUTPUT))}
        kept = ReusableFiles(runs, parts, outputs)
        self._remove(frozenset(RemovalGroup), kept, None, own)
        names = {f"{manifest.name}.json" for manifest in (*runs.values(), *parts.values(), *outputs.values())}
        for path in self._own_manifests():
            if path.name not in names:
                remove(path)
        return kept

    def forget(self) -> None:
        """Remove all manifests, runs and parts. Outputs stay until `keep` removes them."""
        self._remove(frozenset(RemovalGroup) - {RemovalGroup.OUTPUTS}, NOTHING, None, ())
        for path in self._own_manifests():
            remove(path)

    def clean(
        self, failing_state: WorkerState, kept: ReusableFiles = NOTHING, *, index: int | None = None, own: Collection[int] = ()
    ) -> None:
        """Remove the files of a worker that failed in this state, by the table. `index` is the worker's index, if it
        has one."""
        self._remove(REMOVED[failing_state], kept, index, own)

    def remove_temporaries(self, own: Collection[int] = ()) -> None:
        """Remove temporary files. In a shared output directory only those of `own` partitions: other workers are writing
        theirs."""
        for directory in (self.scratch, self.runs, self.parts, self.manifests):
            for path in _listed(directory):
                if OURS_ASIDE.fullmatch(path.name):
                    remove(path)
        for path in self._claimed():
            if path.name.endswith(PARTIAL) and self._touches(path.name, own):
                remove(path)

    def remove_scratch(self, *, journal: bool = True) -> None:
        """Remove only our own files: the user may use the directory for other things. Without `journal` the journal and its
        reserve stay."""
        self._remove(frozenset(RemovalGroup) - {RemovalGroup.OUTPUTS}, NOTHING, None, ())
        for path in self._own_manifests():
            remove(path)
        for directory in (self.runs, self.parts, self.manifests):
            _remove_if_empty(directory)
        if journal:
            for path in (self.journal, self.journal.with_name("journal.reserve")):
                remove(path)

    def _remove(self, what: frozenset[RemovalGroup], kept: ReusableFiles, index: int | None, own: Collection[int]) -> None:
        if RemovalGroup.TEMPORARIES in what:
            self.remove_temporaries(own)
        if RemovalGroup.RUNS in what:
            self._remove_all(path for number, path in self._runs() if number not in kept.runs)
        if RemovalGroup.PARTS in what or RemovalGroup.LOCAL_PARTS in what:
            self._remove_all(
                path
                for name, path in self._parts()
                if name not in kept.parts and (RemovalGroup.PARTS in what or name[1] == index)
            )
        if RemovalGroup.OUTPUTS in what and self._claimed():
            self._remove_all(path for number, path in self._outputs(own) if number not in kept.outputs)

    def _remove_all(self, paths: Iterator[Path]) -> None:
        for path in list(paths):
            # The manifest goes first: a file without a manifest is ignored, a manifest without its file would be wrong.
            remove(self.manifest_of(path))
            remove(path)

    def _own_manifests(self) -> Iterator[Path]:
        return (path for path in _listed(self.manifests) if OUR_MANIFEST.fullmatch(path.name))

    def _runs(self) -> Iterator[tuple[int, Path]]:
        for path in _listed(self.runs):
            if found := RUN.fullmatch(path.name):
                yield int(found[1]), path

    def _parts(self) -> Iterator[tuple[tuple[int, int], Path]]:
        for path in _listed(self.parts):
            if found := PART.fullmatch(path.name):
                yield (int(found[1]), int(found[2])), path

    def _outputs(self, own: Collection[int]) -> Iterator[tuple[int, Path]]:
        for path in _listed(self.output):
            if (found := OUTPUT.fullmatch(path.name)) and self._touches(path.name, own):
                yield int(found[1]), path

    def _claimed(self) -> list[Path]:
        """The files in the output directory, if it is marked. In a directory without a marker no file is ever removed."""
        return _listed(self.output) if self.marker.exists() else []

    def _touches(self, name: str, own: Collection[int]) -> bool:
        if not self.share_output:
            return _is_output(name)
        found = OUTPUT.match(name)
        return found is not None and int(found[1]) in own


def _is_output(name: str) -> bool:
    """Also under its temporary name."""
    found = OUTPUT.match(name)
    return found is not None and (found.end() == len(name) or name.endswith(PARTIAL))


def _overlap(inner: str, inside: Path, outer: str, around: Path) -> SortRefused:
    return SortRefused(
        "overlap",
        f"the {inner} {inside} is inside the {outer} {around}; inputs, scratch and output must be separate directories",
    )


def _names(directory: Path) -> list[str]:
    return [path.name for path in _listed(directory)]


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise to_sort_failed(error, directory, "reading the directory") from error


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return  # It does not exist, is not empty, or is a mount point: each of these is fine.
