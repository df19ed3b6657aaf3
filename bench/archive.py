"""Measure archives of two homes beside `tar | zstd`, restic and borg: first, restored, 1 % changed, unchanged.

    small   117,000 files, about 1.4 GB: packages and sources of a developer (bench/archive_trees.py)
    large   2 GB in 40 files, half of it without a pattern

In each round each tool does all steps with its own copy of the home, one tool after the other, and a ratio compares runs of one
round. The median of the rounds counts. Torpor runs as the real job of the product: its archives are read back and proven before
the job ends, and what it restores is synced. tar, restic and borg prove nothing. The file system is synced before each step,
and a step ends with its process.

    first       the archive of a home that no tool has seen
    restore     into an empty directory
    second      1 % of the files changed; of large files, 1 % of the blocks
    unchanged   nothing changed since then

In the first round everything that was restored is compared with the home. Then Torpor does the same steps once with an S3 store
that counts requests. With `--wake`, the real product archives each home and a request wakes it; `--torpor` names the command of
another version. The format is that of the archives which it writes.

Creating files is slow on a file system that is full or in use. As root, `--own-gb 40` measures on a new one.

restic and borg are Debian packages (apt-get install restic borgbackup zstd). Missing tools are named and left out.

    python bench/archive.py [--rounds 3] [--small-files 117000] [--large-mb 2000] [--change-kib 4096] [--only small,tar]
                            [--wake] [--torpor COMMAND] [--folder DIR] [--own-gb 40] [--json]
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.archive_trees import change_large, change_small, digest_of, make_large, make_small, regular_files
from bench.objects import WRITES, CountedStore, counted_store
from bench.sort import busy_s, own_cpu_s, proportional_mb
from tests.support.product import SERVE_HOME, TORPOR, Product

from torpor.archives.archives import HomeArchives
from torpor.domain.records import ArchiveKey, ProvenArchive
from torpor.ports import ArchiveBase, Home, HomeJob

ROOT = Path(__file__).parent.parent
WATCH_S = 0.1
STEP_S = 3600.0
"""The longest that a step may take."""
NOT_REAL = {"tmpfs", "ramfs", "overlay"}
STEPS = ("first", "restore", "second", "unchanged")
"""Those that are shown. Between the last two there can be one more restore."""
WORKSPACE = "0d1f8a3c-0000-4000-8000-000000000016"
REVISION = 1


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ── processes: what they cost ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Command:
    argv: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Cost:
    wall_s: float
    cpu_s: float
    """User and system, of the process and all its children."""
    memory_mb: float
    """At the peak: own memory of all processes of the step, without mapped files."""
    objects: int
    written_mb: float
    """Files of the store that are new or changed, and their bytes."""
    others_cores: float
    """Cores that were busy with other work, including the kernel's own writing."""


class Failure(Exception):
    """A tool failed; the message is its own."""


def tree_of(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in os.scandir(f"/proc/{pid}/task"):
            for child in Path(task.path, "children").read_text(encoding="ascii").split():
                yield from tree_of(int(child))


class MemoryWatch:
    """Reads the memory of a process and all its children repeatedly, with at most a fiftieth of a core."""

    def __init__(self, pid: int) -> None:
        self.peak_mb = 0.0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        took_s = 0.0
        while not self._over.wait(max(WATCH_S, 50 * took_s)):
            began = time.perf_counter()
            pages = [proportional_mb(pid) for pid in tree_of(self._pid)]
            self.peak_mb = max(self.peak_mb, sum(some.get("Pss_Anon", 0.0) + some.get("Pss_Shmem", 0.0) for some in pages))
            took_s = time.perf_counter() - began


def end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def files_in(store: Path) -> dict[Path, tuple[int, int]]:
    found = ((file, file.stat()) for file in store.rglob("*") if file.is_file())
    return {file: (seen.st_size, seen.st_mtime_ns) for file, seen in found}


def run(command: Command, store: Path) -> tuple[Cost, bytes]:
    """What a process cost, and its output."""
    before = files_in(store)
    os.sync()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given.write(command.stdin)
        given.seek(0)
        busy, own, began = busy_s(), own_cpu_s(), time.perf_counter()
        process = subprocess.Popen(
            command.argv,
            cwd=command.folder,
            env={**os.environ, **command.environment},
            stdin=given,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        limit = threading.Timer(STEP_S, end_group, [process.pid])
        limit.start()
        try:
            with MemoryWatch(process.pid) as watch:
                _, status, usage = os.wait4(process.pid, 0)
                wall_s = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            limit.cancel()
            end_group(process.pid)
        cpu_s = usage.ru_utime + usage.ru_stime
        others = busy_s() - busy - (own_cpu_s() - own) - cpu_s
        output.seek(0)
        errors.seek(0)
        said = output.read()
        if process.returncode:
            words = (said[-1000:] + errors.read()[-1000:]).decode(errors="replace").strip()
            raise Failure(f"exit code {process.returncode}: {words}")
    written = [file for file, seen in files_in(store).items() if before.get(file) != seen]
    written_mb = sum(file.stat().st_size for file in written) / 1e6
    return Cost(wall_s, cpu_s, watch.peak_mb, len(written), written_mb, max(0.0, others / wall_s)), said


# ── the tools ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Tool:
    """How a tool is called. One object is used for one copy of a home, with one store."""

    name = ""
    programs: tuple[str, ...] = ()
    archives_restored_home = True
    """Torpor archives the home that it has restored: a restore leaves the facts beside it by which the next archive recognises
    unchanged files. restic and borg recognise files by path, inode and times, so a restored home is new to them; they get
    their best case, the home that they have archived first."""
    keeps_nanoseconds = True

    def __init__(self, store: Path) -> None:
        self.store = store

    def prepare(self) -> None:
        """What is not measured."""

    def archive(self, home: Path) -> Command:
        raise NotImplementedError

    def restore(self, home: Path) -> Command:
        """The last archive, into an empty directory."""
        raise NotImplementedError

    def archived(self, said: bytes) -> None:
        """The output of `archive`."""


class Tar(Tool):
    name = "tar"
    programs = ("bash", "tar", "zstd")
    keeps_nanoseconds = False

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self._count = 0

    def archive(self, home: Path) -> Command:
        self._count += 1
        return self._shell(home, f'tar -cf - . | zstd -q -T0 -o "{self.store}/{self._count}.tar.zst"')

    def restore(self, home: Path) -> Command:
        return self._shell(home, f'zstd -q -dc -T0 "{self.store}/{self._count}.tar.zst" | tar -xpf -')

    def _shell(self, home: Path, line: str) -> Command:
        return Command(("bash", "-o", "pipefail", "-c", line), home)


class Restic(Tool):
    name = "restic"
    programs = ("restic",)
    archives_restored_home = False

    def prepare(self) -> None:
        run(self._command(self.store, "init"), self.store)

    def archive(self, home: Path) -> Command:
        return self._command(home, "backup", "--host", "bench", ".")

    def restore(self, home: Path) -> Command:
        return self._command(home, "restore", "latest", "--target", ".")

    def _command(self, folder: Path, *words: str) -> Command:
        cache = self.store.with_name("restic-cache")
        environment = {"RESTIC_PASSWORD": "bench", "RESTIC_REPOSITORY": str(self.store), "RESTIC_CACHE_DIR": str(cache)}
        return Command(("restic", "--quiet", *words), folder, environment)


class Borg(Tool):
    """Without encryption, which is its fastest mode, and with the compression of tar here."""

    name = "borg"
    programs = ("borg",)
    archives_restored_home = False

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self._count = 0

    def prepare(self) -> None:
        run(self._command(self.store, "init", "--encryption", "none", str(self.store)), self.store)

    def archive(self, home: Path) -> Command:
        self._count += 1
        return self._command(home, "create", "--compression", "zstd,3", f"{self.store}::{self._count}", ".")

    def restore(self, home: Path) -> Command:
        return self._command(home, "extract", f"{self.store}::{self._count}")

    def _command(self, folder: Path, *words: str) -> Command:
        environment = {"BORG_BASE_DIR": str(self.store.with_name("borg")), "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
        return Command(("borg", *words), folder, environment)


class Torpor(Tool):
    """The job of the product, with the orders that it gives."""

    format = 1

    def __init__(self, store: Path, url: str | None = None, options: Mapping[str, str] | None = None) -> None:
        super().__init__(store)
        self._archives = HomeArchives(url or f"file://{store}", options)
        self._key = ArchiveKey(WORKSPACE, str(uuid.uuid4()))
        self._generation = 1
        self._last: ProvenArchive | None = None

    def archive(self, home: Path) -> Command:
        """With the last archive as the base, as the controller knows it when it was proven not long ago."""
        base = None
        if self._last is not None and self.format == 2:
            trusted = {pack.name: pack.store_version for pack in self._last.packs}
            base = ArchiveBase(self._last.archive.key, self._last.archive.manifest_root, trusted, frozenset())
        self._key = ArchiveKey(WORKSPACE, str(uuid.uuid4()))
        return self._command(home, self._archives.pack_job(self._key, self._home, REVISION, format=self.format, base=base))

    def restore(self, home: Path) -> Command:
        assert self._last is not None
        self._generation += 1
        return self._command(home, self._archives.unpack_job(self._key, self._last.archive.manifest_root))

    def archived(self, said: bytes) -> None:
        result = json.loads(said.splitlines()[-1])["result"]
        self._last = self._archives.proven(self._key, self._home, REVISION, result)
        assert self._last.format == self.format

    @property
    def _home(self) -> Home:
        return Home(WORKSPACE, self._generation)

    def _command(self, home: Path, job: HomeJob) -> Command:
        return Command((*job.argv, str(home)), home.parent, stdin=job.stdin)


class Format1(Torpor):
    name = "format-1"


class Format2(Torpor):
    name = "format-2"
    format = 2


TOOLS: tuple[type[Tool], ...] = (Tar, Restic, Borg, Format1, Format2)
SHOWN = {"tar": "tar, `zstd -T0`", "format-1": "Torpor, format 1", "format-2": "Torpor, format 2"}


def missing(tool: type[Tool]) -> list[str]:
    return [program for program in tool.programs if shutil.which(program) is None]


# ── the homes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    make: Callable[[Path], None]
    change: Callable[[Path], None]


def new_home(volume: Path) -> Path:
    """As in the product: a volume is a directory in which only `home` is the workspace's."""
    home = volume / "home"
    home.mkdir(parents=True)
    return home


def copied(source: Path, home: Path) -> None:
    subprocess.run(["cp", "-a", f"{source}/.", str(home)], check=True)


def must_equal(restored: Path, home: Path, tool: Tool) -> None:
    unit_ns = 1 if tool.keeps_nanoseconds else 10**9
    if digest_of(restored, unit_ns) != digest_of(home, unit_ns):
        raise Failure("the restored home is not the home that was archived")


# ── rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def life(tool: Tool, tree: Tree, source: Path, folder: Path, is_checked: bool) -> Iterator[tuple[str, Cost]]:
    """All steps of a tool with one copy of a home."""

    def archive(home: Path) -> Cost:
        cost, said = run(tool.archive(home), tool.store)
        tool.archived(said)
        return cost

    def restore(volume: str) -> tuple[Path, Cost]:
        home = new_home(folder / volume)
        return home, run(tool.restore(home), tool.store)[0]

    home = new_home(folder / "volume-1")
    copied(source, home)
    tool.prepare()
    yield "first", archive(home)
    restored, cost = restore("volume-2")
    yield "restore", cost
    if is_checked:
        must_equal(restored, home, tool)
    if tool.archives_restored_home:
        restored, home = home, restored
    shutil.rmtree(restored)
    tree.change(home)
    yield "second", archive(home)
    if is_checked or tool.archives_restored_home:
        restored, cost = restore("volume-3")
        yield "restore again", cost
        if is_checked:
            must_equal(restored, home, tool)
        if tool.archives_restored_home:
            home = restored
    yield "unchanged", archive(home)


Costs = dict[tuple[str, str], list[Cost]]
"""By tool and step, one for each round."""


def play(tree: Tree, source: Path, tools: Sequence[type[Tool]], rounds: int, folder: Path) -> Costs:
    costs: Costs = {}
    failed: set[type[Tool]] = set()
    for number in range(rounds):
        for tool in tools:
            if tool in failed:
                continue
            work = folder / f"{tree.name}-{tool.name}"
            store = work / "store"
            store.mkdir(parents=True)
            try:
                for step, cost in life(tool(store), tree, source, work, is_checked=number == 0):
                    say(f"{tree.name}, round {number + 1}, {tool.name}, {step}: {cost.wall_s:.2f} s")
                    if step in STEPS:
                        costs.setdefault((tool.name, step), []).append(cost)
            except Failure as error:
                say(f"WITHOUT {tool.name}: {error}")
                failed.add(tool)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return costs


def cost_table(costs: Costs, tools: Sequence[type[Tool]]) -> str:
    lines = [
        "| step | tool | median s (all) | of tar | CPU s | peak memory MB | objects | MB written | others' cores |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for step in STEPS:
        for tool in tools:
            if (rounds := costs.get((tool.name, step))) is None:
                continue
            every = ", ".join(f"{cost.wall_s:.2f}" for cost in rounds)
            bars = costs.get((Tar.name, step), [])
            ratios = [cost.wall_s / bar.wall_s for cost, bar in zip(rounds, bars, strict=False)]
            cells = (
                step,
                SHOWN.get(tool.name, tool.name),
                f"{statistics.median(cost.wall_s for cost in rounds):.2f} ({every})",
                f"{statistics.median(ratios):.2f}" if ratios else "",
                f"{statistics.median(cost.cpu_s for cost in rounds):.2f}",
                f"{max(cost.memory_mb for cost in rounds):.0f}",
                "" if step == "restore" else f"{statistics.median(cost.objects for cost in rounds):.0f}",
                "" if step == "restore" else f"{statistics.median(cost.written_mb for cost in rounds):,.1f}",
                f"{statistics.median(cost.others_cores for cost in rounds):.1f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Requests = dict[str, dict[str, Counter[str]]]
"""By format and step."""


def count_requests(tree: Tree, source: Path, folder: Path, formats: Sequence[type[Torpor]]) -> Requests:
    found: Requests = {}
    for tool in formats:
        work = folder / f"{tree.name}-requests"
        (work / "store").mkdir(parents=True)
        try:
            with counted_store(folder) as store:
                found[tool.name] = requests_of(store, tool, tree, source, work)
        except Failure as error:
            say(f"WITHOUT the requests of {tool.name}: {error}")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return found


def requests_of(store: CountedStore, tool: type[Torpor], tree: Tree, source: Path, work: Path) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    job = tool(work / "store", "s3://bench/archives", store.options)
    with store.counting() as requests:
        for step, _ in life(job, tree, source, work, is_checked=False):
            found[step] = Counter(requests)
            requests.clear()
    return found


def request_table(found: Requests) -> str:
    lines = ["| step | format | write | read | list | of them |", "|---|---|---|---|---|---|"]
    for step in STEPS:
        for name, steps in found.items():
            requests = steps[step]
            written, listed = sum(requests[kind] for kind in WRITES), requests["list"]
            each = ", ".join(f"{count} {kind}" for kind, count in sorted(requests.items()))
            lines.append(f"| {step} | {SHOWN[name]} | {written} | {requests.total() - written - listed} | {listed} | {each} |")
    return "\n".join(lines)


# ── waking ────────────────────────────────────────────────────────────────────────────────────────────────────────────

NAME = "bench"
WAKE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Wake:
    format: int
    archive_s: float
    """From the wish until the workspace is ARCHIVED."""
    first_byte_s: float
    """From the request to the archived workspace until the first byte of its program's answer."""


def wakes(tree: Tree, source: Path, rounds: int, folder: Path, command: str) -> list[Wake]:
    """The first archive is that of a new home; the later ones are of a restored home in which nothing changed."""
    work = folder / f"{tree.name}-wake"
    work.mkdir()
    here = Product(work / "data", environment={"TORPOR_WAKE_PATIENCE": f"{WAKE_S:.0f}"}, command=command)
    found = []
    try:
        with here.running():
            here.api("POST", "/workspaces", {"name": NAME, "template": "command", "command": list(SERVE_HOME)})
            settled(here, "RUNNING")
            wish(here, "STANDBY")
            home = here.home(here.api("GET", f"/workspaces/{NAME}"))
            owner = home.stat()
            copied(source, home)
            subprocess.run(["chown", "-R", "-h", f"{owner.st_uid}:{owner.st_gid}", str(home)], check=True)
            for number in range(rounds):
                os.sync()
                archive_s = wish(here, "ARCHIVED")
                os.sync()
                first_byte_s = request(here)
                store = here.data / "archives"
                found.append(Wake(2 if any(store.glob("*/packs")) else 1, archive_s, first_byte_s))
                say(f"{tree.name}, wake {number + 1}: {first_byte_s:.2f} s")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return found


def settled(here: Product, phase: str) -> None:
    end = time.monotonic() + WAKE_S
    while (seen := here.api("GET", f"/workspaces/{NAME}"))["phase"] != phase or seen["operation"] != "NONE":
        if seen["phase"] == "ERROR" or time.monotonic() > end:
            raise Failure(f"the workspace is not {phase}: {json.dumps(seen)}")
        time.sleep(0.02)


def wish(here: Product, state: str) -> float:
    """The seconds until it has come true."""
    began = time.perf_counter()
    here.api("PATCH", f"/workspaces/{NAME}", {"desired_state": state})
    settled(here, state)
    return time.perf_counter() - began


def request(here: Product) -> float:
    lines = [
        "GET / HTTP/1.1",
        f"Host: {NAME}.localhost:{here.port}",
        f"Authorization: Bearer {here.token}",
        "Connection: close",
    ]
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", here.port), timeout=WAKE_S) as connection:
        connection.sendall("\r\n".join((*lines, "", "")).encode())
        answer = connection.recv(1 << 16)
    took_s = time.perf_counter() - began
    if not answer.startswith((b"HTTP/1.0 200", b"HTTP/1.1 200")):
        raise Failure(f"the request was answered with {answer[:200]!r}")
    return took_s


def wake_table(found: Mapping[str, list[Wake]]) -> str:
    lines = [
        "| home | format | ARCHIVED to first byte: median s (all) | first archive s | archive of the restored home: median s |",
        "|---|---|---|---|---|",
    ]
    for name, each in found.items():
        every = ", ".join(f"{wake.first_byte_s:.2f}" for wake in each)
        later = [wake.archive_s for wake in each[1:]]
        cells = (
            name,
            ", ".join(sorted({str(wake.format) for wake in each})),
            f"{statistics.median(wake.first_byte_s for wake in each):.2f} ({every})",
            f"{each[0].archive_s:.2f}",
            f"{statistics.median(later):.2f}" if later else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# ── everything ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Choice:
    rounds: int
    trees: tuple[Tree, ...]
    tools: tuple[type[Tool], ...]
    is_wake: bool
    torpor: str


def file_system(folder: Path) -> str:
    words = ["stat", "-f", "-c", "%T", str(folder)]
    named = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    return {"ext2/ext3": "ext4", "overlayfs": "overlay"}.get(named, named)


@contextlib.contextmanager
def own_file_system(folder: Path, gigabytes: int) -> Iterator[Path]:
    """A new ext4 in a file: on a file system that others use, a new file can take twenty times as long as on this one."""
    image, mount = folder / "image", folder / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(gigabytes << 30)
    # The tables are written now, so that the kernel does not write them beside the measured work.
    complete = "lazy_itable_init=0,lazy_journal_init=0"
    subprocess.run(["mkfs.ext4", "-q", "-F", "-i", "32768", "-E", complete, str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def first_line(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def machine(folder: Path, tools: Sequence[type[Tool]]) -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    programs = {"tar": ("tar", "--version"), "restic": ("restic", "version"), "borg": ("borg", "--version")}
    versions = [first_line(*programs[tool.name]) for tool in tools if tool.name in programs]
    load = " ".join(f"{number:.1f}" for number in os.getloadavg())
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {platform.release()}, {file_system(folder)}, "
        f"Python {platform.python_version()}, {', '.join(versions)}; load {load}."
    )


def described(tree: Tree, source: Path) -> str:
    files = regular_files(source)
    size = sum(file.stat().st_size for file in files)
    return f"### {tree.name}: {len(files):,} files, {size / 1e6:,.0f} MB (digest {digest_of(source)[:12]})"


def main(choice: Choice, folder: Path, show: Callable[..., None]) -> dict[str, Any]:
    show(machine(folder, choice.tools))
    everything: dict[str, Any] = {"machine": machine(folder, choice.tools)}
    woken: dict[str, list[Wake]] = {}
    for tree in choice.trees:
        source = folder / tree.name
        source.mkdir()
        tree.make(source)
        show(described(tree, source))
        if choice.is_wake:
            try:
                woken[tree.name] = wakes(tree, source, choice.rounds, folder, choice.torpor)
            except Failure as error:
                say(f"WITHOUT the wakes of {tree.name}: {error}")
        else:
            costs = play(tree, source, choice.tools, choice.rounds, folder)
            show(cost_table(costs, choice.tools))
            formats = [tool for tool in choice.tools if issubclass(tool, Torpor) and (tool.name, "unchanged") in costs]
            requests = count_requests(tree, source, folder, formats)
            if requests:
                show(request_table(requests))
            everything[tree.name] = {
                "costs": [
                    {"tool": tool, "step": step, "rounds": list(map(asdict, each))} for (tool, step), each in costs.items()
                ],
                "requests": requests,
            }
        shutil.rmtree(source)
    if woken:
        show(wake_table(woken))
        everything["wake"] = {name: list(map(asdict, each)) for name, each in woken.items()}
    return everything


def write(*paragraphs: str, file: TextIO) -> None:
    """Print at once, because a run takes long and may be stopped."""
    print("\n\n".join(paragraphs), end="\n\n", file=file, flush=True)


def stop(number: int, _: FrameType | None) -> None:
    """Exit, so that the data is removed and no process keeps running."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--small-files", type=int, default=117_000)
    arguments.add_argument("--large-mb", type=int, default=2000)
    arguments.add_argument("--change-kib", type=int, default=4096, help="the size of a changed block of a large file")
    arguments.add_argument("--only", help=f"some of small, large, {', '.join(tool.name for tool in TOOLS)}")
    arguments.add_argument("--wake", action="store_true", help="only wake archived workspaces, in the real product")
    arguments.add_argument("--torpor", default=TORPOR, help="the command of the version that is woken")
    arguments.add_argument("--folder", type=Path, default=ROOT / "build", help="on the disk that is to be measured")
    arguments.add_argument("--own-gb", type=int, default=0, help="on a new ext4 of this size, in a file in the folder (root)")
    arguments.add_argument("--json", action="store_true", help="everything that was measured; the tables go to stderr")
    chosen = arguments.parse_args()
    signal.signal(signal.SIGTERM, stop)
    chosen.folder.mkdir(exist_ok=True)
    if (kind := file_system(chosen.folder)) in NOT_REAL:
        raise SystemExit(f"bench/archive: {chosen.folder} is on {kind}. Choose a directory on a disk with --folder.")
    trees = (
        Tree("small", partial(make_small, files=chosen.small_files), change_small),
        Tree(
            "large", partial(make_large, megabytes=chosen.large_mb), partial(change_large, block_bytes=chosen.change_kib << 10)
        ),
    )
    only = set(chosen.only.split(",")) if chosen.only else set()
    if unknown := only - {tree.name for tree in trees} - {tool.name for tool in TOOLS}:
        arguments.error(f"--only does not know {', '.join(sorted(unknown))}")
    for tool in TOOLS:
        if lacking := missing(tool):
            say(f"WITHOUT {tool.name}: {', '.join(lacking)} missing (apt-get install restic borgbackup zstd)")
    choice = Choice(
        chosen.rounds,
        tuple(tree for tree in trees if tree.name in only) or trees,
        tuple(tool for tool in TOOLS if not missing(tool) and (tool.name in only or not only & {one.name for one in TOOLS})),
        chosen.wake,
        chosen.torpor,
    )
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="archive-bench-", dir=chosen.folder)))
        if chosen.own_gb:
            place = stack.enter_context(own_file_system(place, chosen.own_gb))
        result = main(choice, place, partial(write, file=sys.stderr if chosen.json else sys.stdout))
    if chosen.json:
        print(json.dumps(result, indent=1))
