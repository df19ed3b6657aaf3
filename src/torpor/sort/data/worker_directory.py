"""Where does a worker keep what, for whom alone, and what of it stays when it starts again?

    scratch/  journal  journal.reserve  worker.pid  runs/run.00000  parts/part.00000.00000  manifests/NAME.json
    output/   partition.00000           and until the job is Completed: .torpor-sort.json, .torpor-sort.pid, .torpor-sort/

Both directories are locked by flock(2), which the kernel ends with the process, whatever killed it.
"""

import json
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
    is_whole,
    read_manifest,
    remove,
    temporary,
    to_sort_failed,
    writing,
)
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
# What lies there under other names is somebody else's, whatever it is called.
OURS_ASIDE = re.compile(rf"(?:{_OURS}(?:\.json)?(?:\.\d+)?(?:\.partial)?\.\d+|journal)\.partial")


class RemovalGroup(Enum):
    """What is removed together."""

    TEMPORARIES = "temporaries"
    RUNS = "runs"
    LOCAL_PARTS = "local parts"
    """Those that the worker has made for itself."""
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
"""By the state in which a worker failed; what is kept is not removed."""


@dataclass(frozen=True, slots=True)
class ReusableFiles:
    """What need not be made again."""

    runs: Mapping[int, FileManifest]
    parts: Mapping[tuple[int, int], FileManifest]
    """By partition and sender."""
    outputs: Mapping[int, FileManifest]


NOTHING = ReusableFiles({}, {}, {})


class WorkerDirectory:
    """One worker's directories. With `share_output` other workers write into the same output directory: it is neither
    locked nor marked here, and only the worker's own partitions are ever touched."""

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

    # ---- for whom

    def refuse_overlap(self, inputs: Sequence[Path]) -> None:
        """Inputs are never written, and output is never removed with the scratch it lies in."""
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
        """Makes both directories and takes them for this process alone, until it ends or `unlock`s."""
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
        """Marks the output directory for this job; refused if it holds anything that is not of this job.

        Where it is shared, whoever shares it out has marked it, and it is only looked at.
        """
        marked = self.is_claimed(job, worker)
        hidden = (MARKER, STATE, OUTPUT_PID, temporary(self.marker, 0).name)
        foreign = [name for name in _names(self.output) if name not in hidden and not (marked and _is_output(name))]
        if foreign:
            more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
            raise SortRefused(
                "not_empty",
                f"the output directory {self.output} holds {', '.join(foreign[:3])}{more}, which is not of this job;"
                " allowed is a directory that is empty or does not exist",
            )
        if not marked:
            self._mark({"job": job, "worker": worker})

    def is_claimed(self, job: str, worker: str) -> bool:
        marker = self._marked()
        return marker.get("job") == job and (self.share_output or marker.get("worker") == worker)

    def finish_output(self, job: str, worker: str) -> None:
        """The job is Completed. Said where the output is: the scratch, and the master, may be gone when somebody asks again."""
        self._mark({"job": job, "worker": worker, "is_done": True})

    def is_finished(self, job: str, worker: str) -> bool:
        return self.is_claimed(job, worker) and bool(self._marked().get("is_done"))

    def _mark(self, marker: Mapping[str, object]) -> None:
        if not self.share_output:
            with writing(self.marker, 0, sync=True) as writer:
                writer.write(json.dumps(marker).encode() + b"\n")

    def _marked(self) -> Mapping[str, object]:
        try:
            marker = json.loads(self.marker.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        except OSError as error:
            raise to_sort_failed(error, self.marker, "reading") from error
        return marker if isinstance(marker, dict) else {}

    def release_output(self) -> None:
        """The job is Completed, and the output is the user's. Where it is shared, whoever shares it out does this."""
        if not self.share_output:
            remove(self.marker)

    def remove_output(self) -> None:
        """Of a job that failed: what is whole of it is not the sorted data, and must not look like it."""
        self._remove(frozenset({RemovalGroup.TEMPORARIES, RemovalGroup.OUTPUTS}), NOTHING, None, ())

    # ---- what stays

    def vouched(self, path: Path, kind: FileKind, job: str, boundaries: str) -> FileManifest | None:
        """What vouches for this file, if the file is that one, of this job and these boundaries."""
        manifest = read_manifest(self.manifest_of(path))
        if manifest is None or (manifest.kind, manifest.job, manifest.boundaries) != (kind, job, boundaries):
            return None
        return manifest if is_whole(path, manifest) else None

    def keep(self, job: str, boundaries: str, own: Collection[int] = ()) -> ReusableFiles:
        """What is there and vouched for; all else of runs, parts and outputs is removed. Who uses it proves its records.

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
        """Nothing is vouched for any more. Outputs stay until `keep`, which then removes them."""
        self._remove(frozenset(RemovalGroup) - {RemovalGroup.OUTPUTS}, NOTHING, None, ())
        for path in self._own_manifests():
            remove(path)

    def clean(
        self, failing_state: WorkerState, kept: ReusableFiles = NOTHING, *, index: int | None = None, own: Collection[int] = ()
    ) -> None:
        """Removes what a worker that failed in this state leaves, by the table. `index` is the worker's, if it has one."""
        self._remove(REMOVED[failing_state], kept, index, own)

    def remove_temporaries(self, own: Collection[int] = ()) -> None:
        """In a shared output directory only those of the partitions that are `own`: others are being written just now."""
        for directory in (self.scratch, self.runs, self.parts, self.manifests):
            for path in _listed(directory):
                if OURS_ASIDE.fullmatch(path.name):
                    remove(path)
        for path in self._claimed():
            if path.name.endswith(PARTIAL) and self._touches(path.name, own):
                remove(path)

    def remove_scratch(self, *, journal: bool = True) -> None:
        """Only what is ours: somebody may have given a directory that he uses for other things as well.

        Without `journal` that is left, with its reserve.
        """
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
            # First what vouches for it: a file alone is nothing, a manifest alone would be a lie.
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
        """What lies in the output directory, if it is marked: of a directory without a mark nothing is removed, ever."""
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
        f"the {inner} {inside} lies in the {outer} {around}; inputs, scratch and output must lie apart from each other",
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
        return  # Not there, not empty, or a mount point: all of them are fine.
