"""Measure the speed and memory of the sort beside its peers, and compare them with the bars.

All contenders get the same records in one run: `cp` and `dd` as floors, GNU sort on the ASCII variant, DuckDB, Polars and Ray
Data on Arrow and Parquet that were prepared before, the last three in their own environment (build/bench-venv, from
pins/bench.txt). First each runs once, with its result checked and its memory watched. Then come the rounds: in each, all run
one after the other, and each ratio is taken within a round. Before each run the last output is removed, the disk is synced and
the input is read once; that is not counted. Of a command the whole process counts; of a library only the time from the first
call to the written output, not its import. Long lines, 111 MB in 200 of them, are sorted beside GNU sort alone. Nothing is
asserted. Missing contenders are reported and skipped.

    python bench/sort.py [--gb 2] [--rounds 5] [--only memory,cp,...] [--tables] [--deep] [--folder DIR] [--json]
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "pins" / "bench.txt"
VENV = ROOT / "build" / "bench-venv"
PEERS = Path(__file__).resolve().parent / "sort_peers.py"
PRODUCT = (sys.executable, "-m", "torpor", "sort")

CORES = len(os.sched_getaffinity(0))
GB, MIB = 10**9, 2**20
RECORD, KEY = 100, 10
BLOCK_RECORDS = 100_000
MEMORY = "8G"
PERMITTED_ABOVE_MEMORY_MB = 100
WATCH_S, TALLY_S = 0.05, 0.5
PATIENCE_S = 3600
"""A contender that takes longer is ended, and counts as failed."""

LONG_LINES, LONG_LINES_GB = 200, 0.111
LONGEST_LINE = 15 * MIB

TABLE_GB = (0.1, 0.5, 1.0, 2.0, 4.0)
TABLE_WORKERS = (1, 2, 4, 8)
TABLE_ROUNDS = 3
DEEP_GB = (1.0, 10.0)
DEEP_FREE_BYTES = 50 * GB


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ── processes: what they cost ─────────────────────────────────────────────────────────────────────────────────────────

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Processes that a contender leaves become children of this one, so that they are counted and ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> dict[int, float]:
    """All processes below this one, with the CPU seconds of each."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                words = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                parents[int(entry.name)] = int(words[1])
                seconds[int(entry.name)] = sum(map(int, words[11:13])) * TICK_S
    ours = {os.getpid()}
    below: set[int] = set()
    while generation := {pid for pid, parent in parents.items() if parent in ours}:
        below |= generation
        ours = generation
    return {pid: seconds[pid] for pid in below}


def end_all() -> None:
    for pid in descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def reap_orphans() -> float:
    """The CPU seconds of processes that were left, after some time to end by themselves."""
    seconds, patience = 0.0, time.monotonic() + 10
    while True:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return seconds
        if pid:
            seconds += usage.ru_utime + usage.ru_stime
            continue
        if time.monotonic() > patience:
            end_all()
        time.sleep(0.02)


def busy_s() -> float:
    """The CPU seconds of all cores since the machine started, and what its host took away."""
    user, nice, system, _idle, _wait, interrupts, soft, steal = map(
        int, Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    )
    return (user + nice + system + interrupts + soft + steal) * TICK_S


def own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True, slots=True)
class Instant:
    """Reading the counters takes a while: what follows counts from `after`, what went before counts until `before`."""

    before: float
    busy: float
    own: float
    theirs: float
    after: float


class Tally:
    """Keeps the CPU time of processes that end during the run, such as Ray's workers; the kernel does not report it to us."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Tally":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(TALLY_S):
            self.now()

    def now(self) -> float:
        self._seconds |= descendants()
        return sum(list(self._seconds.values()))


def instant(tally: Tally) -> Instant:
    before = time.perf_counter()
    return Instant(before, busy_s(), own_cpu_s(), tally.now(), time.perf_counter())


@dataclass(frozen=True, slots=True)
class Cost:
    wall_s: float
    cpu_s: float
    others_cores: float
    """Cores that were busy with other work during the run, including the kernel's own writing."""


@dataclass(slots=True)
class Peak:
    own_mb: float = 0.0
    """Anonymous and shared memory of the whole tree; pages shared by several processes count once."""
    mapped_mb: float = 0.0
    """With mapped files, which the kernel may drop."""
    first_mb: float = 0.0
    """Of the first process alone, own memory."""


class Watch:
    """Reads the memory of the tree repeatedly; too expensive for runs whose time counts."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.peak = Peak()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        took = 0.0
        # Reading the maps of gigabytes takes long, and must not become the main load of the machine.
        while not self._over.wait(max(WATCH_S, 10 * took)):
            began = time.perf_counter()
            own = mapped = 0.0
            for pid in descendants():
                pages = proportional_mb(pid)
                mine = pages.get("Pss_Anon", 0.0) + pages.get("Pss_Shmem", 0.0)
                own, mapped = own + mine, mapped + pages.get("Pss", 0.0)
                if pid == self.first:
                    self.peak.first_mb = max(self.peak.first_mb, mine)
            self.peak.own_mb, self.peak.mapped_mb = max(self.peak.own_mb, own), max(self.peak.mapped_mb, mapped)
            took = time.perf_counter() - began


def proportional_mb(pid: int) -> dict[str, float]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return {}
    return {name: int(rest.split()[0]) * 1024 / 1e6 for name, _, rest in (line.partition(":") for line in lines)}


class ItFailed(Exception):
    """A contender failed; the message is its own."""


def run(command: Sequence[str], environment: Mapping[str, str], watched: bool) -> tuple[Cost, Peak]:
    """The cost from start to end, or between the lines `begin` and `end` if it prints them."""
    with tempfile.TemporaryFile() as errors, contextlib.ExitStack() as stack:
        tally = stack.enter_context(Tally())
        began, ended = instant(tally), None
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **environment}
        )
        limit = threading.Timer(PATIENCE_S, end_all)
        limit.start()
        stack.callback(limit.cancel)
        watch = stack.enter_context(Watch(process.pid)) if watched else None
        marked = False
        assert process.stdout
        for line in process.stdout:
            if line == b"begin\n":
                began, marked = instant(tally), True
            elif line == b"end\n":
                ended = instant(tally)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        ended = ended or instant(tally)
        cpu_s = usage.ru_utime + usage.ru_stime + reap_orphans()
        if marked:
            cpu_s = ended.theirs - began.theirs
        if process.returncode:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            raise ItFailed(f"exit code {process.returncode}: {' '.join(said[-3:])[-400:]}")
    wall_s = ended.before - began.after
    others = ended.busy - began.busy - (ended.own - began.own) - cpu_s
    return Cost(wall_s, cpu_s, max(0.0, others / wall_s)), watch.peak if watch else Peak()


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Place:
    """The data of one size, and the folder of the outputs."""

    folder: Path
    gb: float

    @property
    def records(self) -> int:
        return round(self.gb * GB / RECORD)

    @property
    def sixteenth(self) -> str:
        return f"{self.records * RECORD // 16 // MIB}M"

    @property
    def raw(self) -> Path:
        return self.folder / "binary"

    @property
    def ascii(self) -> Path:
        return self.folder / "ascii"

    @property
    def lines(self) -> Path:
        return self.folder / "lines"

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def sorted(self) -> Path:
        return self.folder / "sorted"

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    @property
    def output(self) -> Path:
        return self.outputs / "records"

    def empty(self) -> None:
        """Remove the output and sync the disk, so that no contender pays for the one before."""
        shutil.rmtree(self.outputs, ignore_errors=True)
        self.outputs.mkdir(parents=True)
        os.sync()


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if not file.name.startswith(".")) if path.is_dir() else [path]


def blocks_of(path: Path) -> Iterator[bytes]:
    for file in files_of(path):
        with file.open("rb", buffering=0) as opened:
            while block := opened.read(BLOCK_RECORDS * RECORD):
                yield block


def warm(path: Path) -> None:
    for _ in blocks_of(path):
        pass


@dataclass(frozen=True, slots=True)
class Seen:
    """The digest does not depend on the order of records."""

    records: int
    digest: int
    unordered: int


def look_at(blocks: Iterable[bytes]) -> Seen:
    weights = np.random.default_rng(1).integers(1, 2**62, RECORD // 4, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    count, digest, unordered, rest, last = 0, 0, 0, b"", b""
    for block in blocks:
        whole = rest + block
        rest = whole[len(whole) // RECORD * RECORD :]
        records = np.frombuffer(whole[: len(whole) - len(rest)], np.uint8).reshape(-1, RECORD)
        if not len(records):
            continue
        mixed = records.view("<u4").astype(np.uint64) @ weights
        mixed ^= mixed >> np.uint64(29)
        digest += int((mixed * np.uint64(0x9E3779B97F4A7C15)).sum())
        count += len(records)
        high = np.ascontiguousarray(records[:, :8]).view(">u8").ravel()
        low = np.ascontiguousarray(records[:, 8:KEY]).view(">u2").ravel()
        unordered += int(((high[1:] < high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] < low[:-1]))).sum())
        unordered += records[0, :KEY].tobytes() < last
        last = records[-1, :KEY].tobytes()
    if rest:
        raise ItFailed(f"{len(rest)} bytes are left at the end, which are no record")
    return Seen(count, digest % 2**64, unordered)


def look_at_lines(blocks: Iterable[bytes]) -> Seen:
    lines = b"".join(blocks).splitlines(keepends=True)
    digest = sum(int.from_bytes(hashlib.sha256(line).digest()[:8]) for line in lines)
    return Seen(len(lines), digest % 2**64, sum(later < earlier for earlier, later in pairwise(lines)))


def make_long_lines(path: Path) -> None:
    """Few lines, of very different lengths."""
    dice = np.random.default_rng(LONG_LINES)
    shares = dice.lognormal(sigma=1.5, size=LONG_LINES)
    with path.open("wb") as file:
        for size in np.minimum(shares / shares.sum() * LONG_LINES_GB * GB, LONGEST_LINE).astype(int):
            file.write(dice.integers(33, 127, size, np.uint8).data)
            file.write(b"\n")


def make_records(place: Place, ascii_variant: bool) -> None:
    """Made by the product; if it cannot, random records of the same form."""
    path = place.ascii if ascii_variant else place.raw
    words = [*PRODUCT, "generate", str(place.records), str(path), *(["--ascii"] if ascii_variant else [])]
    if subprocess.run(words, capture_output=True, check=False).returncode == 0:
        return
    say(f"{path.name}: `torpor sort generate` did not work, so these are random records")
    dice = np.random.default_rng(place.records)
    with path.open("wb") as file:
        for begin in range(0, place.records, BLOCK_RECORDS):
            shape = (min(BLOCK_RECORDS, place.records - begin), RECORD)
            records = dice.integers(32, 127, shape, np.uint8) if ascii_variant else dice.integers(0, 256, shape, np.uint8)
            if ascii_variant:
                records[:, -2:] = (13, 10)
            file.write(records.data)


# ── contenders ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    label: str
    command: Callable[[Place], list[str]]
    reads: Callable[[Place], Path | None] = lambda place: place.raw
    peer: str | None = None
    """The package that must be in the environment of the peers."""
    sorts: bool = True
    writes: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


def product(
    name: str,
    label: str,
    memory: Callable[[Place], str],
    *more: str,
    reads: Callable[[Place], Path] = lambda place: place.raw,
    form: str = "gensort",
) -> Contender:
    def command(place: Place) -> list[str]:
        words = [*PRODUCT, "run", str(reads(place)), "--output", str(place.output), "--format", form]
        return [*words, "--memory", memory(place), *more]

    return Contender(name, label, command, reads=reads)


def gnu(
    name: str,
    label: str,
    memory: Callable[[Place], str],
    *keys: str,
    reads: Callable[[Place], Path] = lambda place: place.ascii,
) -> Contender:
    def command(place: Place) -> list[str]:
        words = ["sort", f"--parallel={CORES}", "-S", memory(place), "-T", str(place.outputs), *keys]
        return [*words, "-o", str(place.output), str(reads(place))]

    return Contender(name, label, command, reads=reads, environment={"LC_ALL": "C"})


def library(name: str, label: str, what: str, package: str, memory: Callable[[Place], int]) -> Contender:
    def command(place: Place) -> list[str]:
        words = ["sort", what, str(place.tables), str(place.output), str(CORES), str(memory(place))]
        return [str(VENV / "bin" / "python"), "-P", str(PEERS), *words]

    return Contender(name, label, command, reads=lambda place: place.tables, peer=package)


def ample(_: Place) -> str:
    return MEMORY


def ample_bytes(_: Place) -> int:
    return 8 * 2**30


ALL = ("--min-share", "0")
"""As many workers as the label says, also for small data."""


def long_lines(place: Place) -> Path:
    return place.lines


def workers(count: int) -> Contender:
    return product(f"workers-{count}", f"torpor sort, {count} workers", ample, "--workers", str(count), *ALL)


FOUR = ("--workers", "4", *ALL)

CONTENDERS: dict[str, Contender] = {
    one.name: one
    for one in (
        Contender(
            "cp",
            "`cp`, into the page cache",
            lambda place: ["cp", "--reflink=never", str(place.raw), str(place.output)],
            sorts=False,
        ),
        Contender(
            "dd",
            "`dd`, O_DIRECT and fsync",
            lambda place: ["dd", f"if={place.raw}", f"of={place.output}", "bs=2M", "oflag=direct", "conv=fsync"],
            sorts=False,
        ),
        product("memory", "torpor sort, in memory, as shipped", ample),
        product("bare", "torpor sort, in memory, `--no-sync --no-proof`", ample, "--no-sync", "--no-proof"),
        product("external", "torpor sort, memory a sixteenth of the data", lambda place: place.sixteenth),
        product("four", "torpor sort, 4 workers", ample, *FOUR),
        product("four-tls", "torpor sort, 4 workers, `--tls`", ample, *FOUR, "--tls"),
        gnu("gnu-line", "GNU sort, whole line", ample),
        gnu("gnu-key", "GNU sort, by key, stable", ample, "-k1.1,1.10", "-s"),
        gnu("gnu-external", "GNU sort, whole line, memory a sixteenth of the data", lambda place: place.sixteenth),
        library("duckdb-arrow", "DuckDB, Arrow to Arrow", "duckdb-arrow", "duckdb", ample_bytes),
        library("duckdb-parquet", "DuckDB, Parquet to Parquet", "duckdb-parquet", "duckdb", ample_bytes),
        # With a sixteenth it fails.
        library(
            "duckdb-limited",
            "DuckDB, Parquet, memory limit a quarter of the data",
            "duckdb-parquet",
            "duckdb",
            lambda place: place.records * RECORD // 4,
        ),
        library("polars", "Polars, Arrow to Arrow", "polars", "polars", ample_bytes),
        library("polars-streaming", "Polars, streaming engine", "polars-streaming", "polars", ample_bytes),
        library("ray-data", "Ray Data, Parquet to Parquet", "ray-data", "ray", ample_bytes),
        Contender(
            "generate",
            "torpor sort generate",
            lambda place: [*PRODUCT, "generate", str(place.records), str(place.output)],
            reads=lambda _: None,
            sorts=False,
        ),
        Contender(
            "validate",
            "torpor sort validate",
            lambda place: [*PRODUCT, "validate", "--format", "gensort", *map(str, files_of(place.sorted))],
            reads=lambda place: place.sorted,
            writes=False,
        ),
        product("lines", "torpor sort, long lines", ample, reads=long_lines, form="lines"),
        product("lines-four", "torpor sort, long lines, 4 workers", ample, *FOUR, reads=long_lines, form="lines"),
        gnu("gnu-lines", "GNU sort, long lines, stable", ample, "-s", reads=long_lines),
        *map(workers, TABLE_WORKERS),
    )
}
TOOLS = ("generate", "validate")
LINES = ("lines", "lines-four", "gnu-lines")
COMPARED = tuple(name for name in CONTENDERS if not name.startswith("workers-") and name not in (*TOOLS, *LINES))


# ── bars ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Bar:
    """At least so many times as fast as the other, or at most so many times as long; one of the two is given."""

    ours: str
    other: str
    at_least: float | None = None
    at_most: float | None = None

    def ratio(self, ours: Cost, other: Cost) -> float:
        return ours.wall_s / other.wall_s if self.at_least is None else other.wall_s / ours.wall_s

    def wanted(self) -> str:
        if self.at_least is not None:
            return f"at least {self.at_least:g} times as fast"
        return f"at most {self.at_most:g} times as long"

    def verdict(self, ratio: float) -> str:
        if self.at_least is not None:
            return met(ratio >= self.at_least, ratio / self.at_least)
        assert self.at_most is not None
        return met(ratio <= self.at_most, self.at_most / ratio)


def met(is_met: bool, margin: float) -> str:
    return f"met, by {margin:.2f} times" if is_met else f"**not met**, lacks {1 / margin:.2f} times"


BARS = (
    Bar("memory", "gnu-line", at_least=6),
    Bar("memory", "gnu-key", at_least=6),
    Bar("memory", "duckdb-arrow", at_least=3),
    Bar("memory", "duckdb-parquet", at_least=3),
    Bar("memory", "polars", at_least=4),
    Bar("memory", "polars-streaming", at_least=4),
    Bar("memory", "ray-data", at_least=15),
    Bar("memory", "dd", at_most=2.5),
    Bar("bare", "gnu-line", at_least=9),
    Bar("bare", "cp", at_most=3.5),
    Bar("external", "gnu-external", at_least=5),
    Bar("external", "memory", at_most=2),
    Bar("four", "memory", at_most=4),
    Bar("four-tls", "memory", at_most=4),
    Bar("lines", "gnu-lines", at_most=12),
    Bar("lines-four", "gnu-lines", at_most=20),
    Bar("generate", "cp", at_least=0.4),
    Bar("validate", "cp", at_least=0.4),
)
GROWTH_AT_MOST = 1.5


# ── the environment of the peers ──────────────────────────────────────────────────────────────────────────────────────

PACKAGES = {"duckdb": ("pyarrow", "duckdb"), "polars": ("pyarrow", "polars"), "ray": ("ray[data]",)}
"""Ray Data installs pyarrow too; the records are prepared with it for all."""


def ensure_environment(wanted: Collection[str]) -> dict[str, str]:
    """Peer to version, of those that could be installed."""
    python, stamp = VENV / "bin" / "python", VENV / "pins.sha256"
    pins = hashlib.sha256(PINS.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text(encoding="ascii") == pins):
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(VENV)], check=True)
        stamp.write_text(pins, encoding="ascii")
    found: dict[str, str] = {}
    for peer in wanted:
        ask = [str(python), "-P", str(PEERS), "versions", peer]
        if subprocess.run(ask, capture_output=True, check=False).returncode:
            say(f"installing {peer} into {VENV.relative_to(ROOT)}")
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-input"]
            done = subprocess.run([*pip, "-c", str(PINS), *PACKAGES[peer]], capture_output=True, text=True, check=False)
            if done.returncode:
                reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
                say(f"WITHOUT {peer}: it could not be installed: {' '.join(reasons)[-400:]}")
                continue
        answer = subprocess.run(ask, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            found[peer] = answer.stdout.split()[1]
    return found


# ── rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Results:
    """The results of all contenders on one size of data; a round in which one failed has no cost for it."""

    gb: float
    peaks: dict[str, Peak] = field(default_factory=dict)
    rounds: list[dict[str, Cost]] = field(default_factory=list)

    def costs(self, name: str) -> list[Cost]:
        return [costs[name] for costs in self.rounds if name in costs]

    def median_s(self, name: str) -> float:
        return statistics.median(cost.wall_s for cost in self.costs(name))

    def ratios(self, bar: Bar) -> list[float]:
        return [
            bar.ratio(costs[bar.ours], costs[bar.other]) for costs in self.rounds if bar.ours in costs and bar.other in costs
        ]


def prepare(place: Place, chosen: Sequence[Contender]) -> dict[Path, Seen]:
    """Prepare what these contenders read, and describe it."""
    place.folder.mkdir(parents=True, exist_ok=True)
    make_records(place, ascii_variant=False)
    if any(one.reads(place) == place.ascii for one in chosen):
        make_records(place, ascii_variant=True)
    if any(one.reads(place) == place.lines for one in chosen):
        make_long_lines(place.lines)
    if any(one.peer for one in chosen):
        place.tables.mkdir()
        words = ["prepare", str(place.raw), str(place.tables)]
        subprocess.run([str(VENV / "bin" / "python"), "-P", str(PEERS), *words], check=True)
    if any(one.reads(place) == place.sorted for one in chosen):
        place.empty()
        subprocess.run(CONTENDERS["bare"].command(place), capture_output=True, check=True)
        place.output.rename(place.sorted)
    looks = {place.raw: look_at, place.ascii: look_at, place.lines: look_at_lines}
    return {path: replace(look(blocks_of(path)), unordered=0) for path, look in looks.items() if path.exists()}


def need_bytes(place: Place, chosen: Sequence[Contender]) -> int:
    """Disk space: the inputs (Arrow and Parquet are two), and twice the data for an output and its spilled runs."""
    inputs = {reads for one in chosen if (reads := one.reads(place))} | {place.raw}
    return place.records * RECORD * (len(inputs) + (place.tables in inputs) + 2)


def complaint(one: Contender, place: Place, source: Seen) -> str | None:
    """Whether all records are there and in order; the fault as text, or None."""
    if not one.writes:
        return None
    if one.peer:
        words = [str(VENV / "bin" / "python"), "-P", str(PEERS), "show", str(place.output)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout
            reader = process.stdout
            seen = look_at(iter(lambda: reader.read(BLOCK_RECORDS * RECORD), b""))
    else:
        look = look_at_lines if one.reads(place) == place.lines else look_at
        seen = look(blocks_of(place.output))
    if seen.records != source.records:
        return f"{seen.records:,} records came out of {source.records:,}"
    if seen.digest != source.digest:
        return "other records came out than went in"
    return f"{seen.unordered:,} pairs are out of order" if one.sorts and seen.unordered else None


def play(place: Place, names: Sequence[str], rounds: int, results: Results) -> None:
    """One run of each that is checked and watched, then the rounds. Measured results stay if it is stopped."""
    chosen = [CONTENDERS[name] for name in names]
    need, free = need_bytes(place, chosen), shutil.disk_usage(place.folder.parent).free
    if free < need:
        say(f"WITHOUT the runs on {place.gb:g} GB: {need / GB:.0f} GB of disk are needed, {free / GB:.0f} are free")
        return
    try:
        say(f"making {place.gb:g} GB of records")
        sources = prepare(place, chosen)
        able = []
        for one in chosen:
            try:
                cost, results.peaks[one.name] = go(one, place, watched=True)
                wrong = complaint(one, place, sources.get(one.reads(place) or place.raw, sources[place.raw]))
            except ItFailed as failure:
                wrong = str(failure)
            if wrong:
                say(f"WITHOUT {one.name}: {wrong}")
            else:
                able.append(one)
                say(f"{one.name}: right, {cost.wall_s:.2f} s while watched")
        for number in range(rounds):
            costs: dict[str, Cost] = {}
            results.rounds.append(costs)
            # Each round begins with another one, so that no contender always runs after the same.
            turn = number * len(able) // max(1, rounds)
            for one in able[turn:] + able[:turn]:
                try:
                    costs[one.name], _ = go(one, place, watched=False)
                except ItFailed as failure:
                    say(f"round {number + 1}: {one.name} failed: {failure}")
            say(f"round {number + 1}: " + ", ".join(f"{name} {cost.wall_s:.2f}" for name, cost in costs.items()))
    finally:
        shutil.rmtree(place.folder, ignore_errors=True)


def go(one: Contender, place: Place, watched: bool) -> tuple[Cost, Peak]:
    place.empty()
    if reads := one.reads(place):
        warm(reads)
    return run(one.command(place), one.environment, watched)


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    if not (body := list(rows)):
        return ""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cost_table(results: Results) -> str:
    head = (
        f"{results.gb:g} GB",
        "median s",
        "best s",
        "MB/s",
        "of `cp`",
        "CPU s",
        "peak memory MB",
        "with mapped files MB",
        "others' cores",
    )
    rows = []
    for name, peak in results.peaks.items():
        costs = results.costs(name)
        if not costs:
            continue
        of_cp = results.ratios(Bar(name, "cp", at_most=1))
        rows.append(
            (
                CONTENDERS[name].label,
                f"{results.median_s(name):.2f}",
                f"{min(cost.wall_s for cost in costs):.2f}",
                f"{results.gb * 1000 / results.median_s(name):,.0f}",
                f"{statistics.median(of_cp):.2f}" if of_cp else "",
                f"{statistics.median(cost.cpu_s for cost in costs):.2f}",
                f"{peak.own_mb:,.0f}",
                f"{peak.mapped_mb:,.0f}",
                f"{statistics.median(cost.others_cores for cost in costs):.2f}",
            )
        )
    return table(head, rows)


def bar_table(results: Results) -> str:
    rows = []
    for bar in BARS:
        if ratios := results.ratios(bar):
            ratio = statistics.median(ratios)
            names = (CONTENDERS[bar.ours].label, CONTENDERS[bar.other].label)
            rows.append((*names, bar.wanted(), f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", bar.verdict(ratio)))
    if results.costs("external"):
        allowed_mb = int(Place(Path(), results.gb).sixteenth[:-1]) * MIB / 1e6 + PERMITTED_ABOVE_MEMORY_MB
        peak_mb = results.peaks["external"].own_mb
        wanted, verdict = f"peak at most {allowed_mb:.0f} MB", met(peak_mb <= allowed_mb, allowed_mb / peak_mb)
        rows.append((CONTENDERS["external"].label, "", wanted, f"{peak_mb:.0f} MB", verdict))
    return table((f"at {results.gb:g} GB", "beside", "bar", "median of ratios (all)", "verdict"), rows)


def size_table(all_results: Sequence[Results]) -> str:
    """The last column is the memory of the process that was started; for `run` it includes the master."""
    names = ("memory", "external", "four")
    head = ["GB", "`cp` s", *(f"{name} s (of `cp`)" for name in names), *(f"{name} peak MB" for name in names)]
    rows = []
    for results in all_results:
        row = [f"{results.gb:g}", f"{results.median_s('cp'):.2f}" if results.costs("cp") else ""]
        for name in names:
            ratios = results.ratios(Bar(name, "cp", at_most=1))
            row.append(f"{results.median_s(name):.2f} ({statistics.median(ratios):.2f})" if ratios else "")
        row += [f"{results.peaks[name].own_mb:.0f}" if results.costs(name) else "" for name in names]
        row.append(f"{results.peaks['four'].first_mb:.0f}" if results.costs("four") else "")
        rows.append(row)
    return table([*head, "first process of four, peak MB"], rows)


def growth(all_results: Sequence[Results]) -> str:
    """How (ours / `cp`) grows from the first size to the last."""
    ratios = [results.ratios(Bar("memory", "cp", at_most=1)) for results in all_results]
    if not all(ratios):
        return "The deep run is not complete."
    low, high = (statistics.median(some) for some in (ratios[0], ratios[-1]))
    sizes = f"{all_results[0].gb:g} to {all_results[-1].gb:g} GB"
    verdict = met(high / low <= GROWTH_AT_MOST, GROWTH_AT_MOST / (high / low))
    grown = f"from {low:.2f} to {high:.2f}, {high / low:.2f} times"
    return f"From {sizes} ours / `cp` goes {grown}; the bar is at most {GROWTH_AT_MOST:g} times: {verdict}."


def machine(versions: Mapping[str, str]) -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    coreutils = subprocess.run(["sort", "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    told = [f"Python {platform.python_version()}", f"NumPy {np.__version__}", coreutils]
    told += [f"{name} {number}" for name, number in versions.items()]
    load = ", ".join(f"{load:.2f}" for load in os.getloadavg())
    hardware = f"{CORES} cores ({model}), {memory:.0f} GiB, Linux {platform.release()}"
    return f"{hardware}; {', '.join(told)}; load at the start {load}."


# ── the whole benchmark ───────────────────────────────────────────────────────────────────────────────────────────────


def answers(*words: str) -> bool:
    return subprocess.run([*PRODUCT, *words, "--help"], capture_output=True, check=False).returncode == 0


def able_names(names: Iterable[str], peers: Collection[str], has: Collection[str]) -> list[str]:
    """The contenders that can run."""
    able = []
    for name in names:
        one = CONTENDERS[name]
        command = one.command(Place(Path("none"), 0.0))
        if one.peer and one.peer not in peers:
            say(f"WITHOUT {name}: {one.peer} is not there")
        elif command[: len(PRODUCT)] == list(PRODUCT) and command[len(PRODUCT)] not in has:
            say(f"WITHOUT {name}: `torpor sort {command[len(PRODUCT)]}` does not answer")
        else:
            able.append(name)
    return able


@dataclass(frozen=True, slots=True)
class Choice:
    gb: float
    rounds: int
    only: tuple[str, ...] | None
    tables: bool
    deep: bool

    def of(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self.only is None or name in self.only]


def main(choice: Choice, folder: Path, show: Callable[..., None]) -> dict[str, Any]:
    adopt_orphans()
    wanted = choice.of([*COMPARED, *TOOLS, *LINES])
    peers = ensure_environment(list(dict.fromkeys(peer for name in wanted if (peer := CONTENDERS[name].peer))))
    has = [words for words in ("run", "generate", "validate") if answers(words)]
    described = machine(peers)
    show(described)

    def played(gb: float, names: Sequence[str], rounds: int, *tables: Callable[[Results], str]) -> Results:
        results = Results(gb)
        try:
            play(Place(folder / "data", gb), able_names(names, peers, has), rounds, results)
        finally:
            show(*(some(results) for some in tables))
        return results

    everything: dict[str, Any] = {"machine": described}
    if names := choice.of(COMPARED):
        compared = played(choice.gb, names, choice.rounds, cost_table, bar_table)
        everything["compared"] = asdict(compared)
    if names := choice.of(LINES):
        lines = played(LONG_LINES_GB, names, choice.rounds, cost_table, bar_table)
        everything["lines"] = asdict(lines)
    if names := able_names(choice.of(TOOLS), peers, has):
        tools = played(2 * choice.gb, ["cp", *names], choice.rounds, cost_table, bar_table)
        everything["tools"] = asdict(tools)
    if choice.tables:
        rounds = min(choice.rounds, TABLE_ROUNDS)
        sizes = [played(gb, ("cp", "memory", "external", "four"), rounds) for gb in TABLE_GB]
        show(size_table(sizes))
        crowd = played(choice.gb, ("cp", *(f"workers-{count}" for count in TABLE_WORKERS)), rounds, cost_table)
        everything |= {"sizes": [asdict(one) for one in sizes], "workers": asdict(crowd)}
    if choice.deep:
        free = shutil.disk_usage(folder).free
        if free < DEEP_FREE_BYTES:
            say(f"WITHOUT the deep run: {DEEP_FREE_BYTES / GB:.0f} GB of disk are needed, {free / GB:.0f} are free")
        else:
            deep = [played(gb, ("cp", "memory"), choice.rounds, cost_table) for gb in DEEP_GB]
            show(growth(deep))
            everything["deep"] = [asdict(one) for one in deep]
    return everything


def write(*paragraphs: str, file: TextIO) -> None:
    """Print at once, because a run takes long and may be stopped."""
    if said := "\n\n".join(filter(None, paragraphs)):
        print(said, end="\n\n", file=file, flush=True)


def stop(number: int, _: FrameType | None) -> None:
    """Exit, so that the data is removed and no process keeps running."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--gb", type=float, default=2.0)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--only", help=f"some of {', '.join([*COMPARED, *TOOLS, *LINES])}")
    arguments.add_argument("--tables", action="store_true", help="over data size and number of workers as well")
    arguments.add_argument("--deep", action="store_true", help="from 1 to 10 GB as well")
    arguments.add_argument("--folder", type=Path, default=ROOT / "build", help="on the disk that is to be measured")
    arguments.add_argument("--json", action="store_true", help="everything that was measured; the tables go to stderr")
    chosen = arguments.parse_args()
    signal.signal(signal.SIGTERM, stop)
    chosen.folder.mkdir(exist_ok=True)
    only = tuple(chosen.only.split(",")) if chosen.only else None
    if unknown := set(only or ()) - set(CONTENDERS):
        arguments.error(f"there is no contender {', '.join(sorted(unknown))}; choose from {', '.join(CONTENDERS)}")
    with tempfile.TemporaryDirectory(prefix="sort-bench-", dir=chosen.folder) as name:
        try:
            choice = Choice(chosen.gb, chosen.rounds, only, chosen.tables, chosen.deep)
            found = main(choice, Path(name), partial(write, file=sys.stderr if chosen.json else sys.stdout))
        finally:
            end_all()
    if chosen.json:
        print(json.dumps(found, indent=1))
