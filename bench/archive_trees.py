"""The homes that bench/archive.py archives: many small files like a developer's, and a few large ones; seeded.

Small files are the packages of this environment (`make setup`), unpacked into projects. So two runs have the same home if they
have the same packages; the digest that is printed tells.
"""

import hashlib
import os
import random
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

SEED = 16
MIB = 1 << 20
PACKAGE_FILE_BYTES = 256 << 10
"""Larger files of packages are left out: they are what the other home is for."""
LARGE_FILES = 40
NEW_VERSION = 0.85
"""The share of a project's packages that no other project has in this version. The others are copies, as in real homes."""
OWN_SOURCES = 20
"""After this many files of packages comes one of the project itself."""
CHANGED = 0.01
FIRST_MTIME_S, LAST_MTIME_S = 1_600_000_000, 1_780_000_000
NODE_MODULES = Path(__file__).parent.parent / "src/torpor/dashboard/app/node_modules"


def dice(*words: object) -> random.Random:
    return random.Random("/".join(map(str, (SEED, *words))))


# ── many small files ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Package:
    folder: Path
    unpacked_in: str
    """Below a project."""

    def files(self) -> list[Path]:
        found = [Path(above, name) for above, _, names in os.walk(self.folder) for name in names]
        return sorted(file for file in found if not file.is_symlink() and file.stat().st_size <= PACKAGE_FILE_BYTES)


def packages() -> list[Package]:
    python, node = Path(sysconfig.get_path("purelib")), NODE_MODULES
    found = [Package(folder, ".venv/lib/python3/site-packages") for folder in sorted(python.iterdir()) if folder.is_dir()]
    if node.is_dir():
        found += [Package(folder, "node_modules") for folder in sorted(node.iterdir()) if folder.is_dir()]
    return found


def another_version(content: bytes, which: random.Random) -> bytes:
    """Some lines differ, as between two versions of a package. A binary file gets other bytes at its end."""
    if b"\0" in content[:8192]:
        return content + which.randbytes(16)
    lines = content.split(b"\n")
    step = which.randrange(7, 23)
    for number in range(which.randrange(step), len(lines), step):
        lines[number] += b"  # %08x" % which.getrandbits(32)
    return b"\n".join(lines)


def source(lines: list[bytes], which: random.Random) -> bytes:
    return b"\n".join(which.choices(lines, k=which.randrange(20, 600))) + b"\n"


def project_files(number: int, found: list[Package]) -> Iterator[tuple[str, bytes, int]]:
    """Path, content and mode of every file of a project."""
    which = dice("project", number)
    lines: list[bytes] = []
    count = 0
    for package in which.sample(found, k=max(1, len(found) * 3 // 5)):
        version = number if which.random() < NEW_VERSION else which.randrange(number + 1)
        for file in package.files():
            content, below = file.read_bytes(), file.relative_to(package.folder.parent)
            if version:
                content = another_version(content, dice(below, version))
            yield f"{package.unpacked_in}/{below}", content, stat.S_IMODE(file.stat().st_mode) | stat.S_IRUSR | stat.S_IWUSR
            if file.suffix in (".py", ".ts", ".js"):
                lines = (lines + content.split(b"\n"))[-5000:]
            count += 1
            if lines and not count % OWN_SOURCES:
                own = count // OWN_SOURCES
                yield f"src/part_{own % 17:02}/module_{own}.py", source(lines, dice("own", number, own)), 0o644


def make_small(home: Path, files: int) -> None:
    found = packages()
    left, number = files, 0
    while left:
        project = home / "projects" / f"project-{number:02}"
        for path, content, mode in project_files(number, found):
            target = project / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(mode)
            left -= 1
            if not left:
                break
        (project / "latest").symlink_to("src")
        number += 1
    set_times(home)


def change_small(home: Path) -> None:
    """One line more in 1 % of the files. Half of the editors write into the file, the others replace it by another."""
    which = dice("change")
    files = regular_files(home)
    for count, file in enumerate(which.sample(files, k=max(1, round(len(files) * CHANGED)))):
        content, mode = file.read_bytes(), stat.S_IMODE(file.stat().st_mode)
        middle = content.find(b"\n", len(content) // 2) + 1
        content = content[:middle] + b"changed = %d\n" % which.getrandbits(64) + content[middle:]
        if count % 2:
            another = file.with_name(f"{file.name[:200]}.new")
            another.write_bytes(content)
            another.chmod(mode)
            another.rename(file)
        else:
            file.write_bytes(content)


# ── a few large files ─────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def words() -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    """Rows of a table are made of these, so a table shrinks to about a third."""
    which = dice("words")
    text = b"".join(b"%07d," % which.randrange(10**7) for _ in range(4096))
    return np.frombuffer(text, dtype="V8")


def block(kind: str, size: int, which: "np.random.Generator") -> bytes:
    if kind == "table":
        table = words()
        # The square root of a uniform number: some words are more frequent than others.
        chosen = (np.sqrt(which.random(size // table.itemsize + 1)) * len(table)).astype(np.int64)
        return table[chosen].tobytes()[:size]
    return which.bytes(size)


def kind_of(file: Path) -> str:
    return "table" if file.suffix == ".csv" else "noise"


def make_large(home: Path, megabytes: int) -> None:
    """Half of it are tables, half has no pattern (pictures, packed data). One begins as another does, one ends with a hole."""
    which = dice("large")
    shares = [which.uniform(0.3, 3.0) for _ in range(LARGE_FILES)]
    for number, share in enumerate(shares):
        file = home / f"data-{number % 4}" / f"file-{number:02}{'.csv' if number % 2 else '.bin'}"
        file.parent.mkdir(exist_ok=True)
        # The last has the seed of the one before it of the same kind.
        numbers = np.random.default_rng((SEED, number - 2 if number == LARGE_FILES - 1 else number))
        left = int(megabytes * 1e6 * share / sum(shares))
        with file.open("wb") as opened:
            while left:
                size = min(left, MIB)
                opened.write(block(kind_of(file), size, numbers))
                left -= size
            if number == 0:
                opened.truncate(opened.tell() + 4 * MIB)
    set_times(home)


def change_large(home: Path, block_bytes: int) -> None:
    """1 % of the blocks get other content of the same kind, in place, as a database writes."""
    which = dice("change")
    blocks = [(file, start) for file in regular_files(home) for start in range(0, file.stat().st_size, block_bytes)]
    for file, start in which.sample(blocks, k=max(1, round(len(blocks) * CHANGED))):
        size = min(block_bytes, file.stat().st_size - start)
        with file.open("r+b") as opened:
            opened.seek(start)
            opened.write(block(kind_of(file), size, np.random.default_rng((SEED, start, which.getrandbits(32)))))


# ── both ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def regular_files(home: Path) -> list[Path]:
    """In the order of their paths, so that a change is the same in each copy of a home."""
    found = [Path(above, name) for above, _, names in os.walk(home) for name in names]
    return sorted(file for file in found if not file.is_symlink())


def set_times(home: Path) -> None:
    which = dice("times")
    for path in sorted(home.rglob("*"), reverse=True):
        time_ns = which.randrange(FIRST_MTIME_S * 10**9, LAST_MTIME_S * 10**9)
        os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)


def digest_of(home: Path, time_unit_ns: int = 1) -> str:
    """Of paths, kinds, permissions, times and contents."""
    digest = hashlib.sha256()
    for path in sorted(home.rglob("*")):
        seen = path.lstat()
        what = f"{path.relative_to(home)}\0{seen.st_mode:o}\0{seen.st_mtime_ns // time_unit_ns}\0".encode(
            errors="surrogateescape"
        )
        digest.update(what)
        if stat.S_ISLNK(seen.st_mode):
            digest.update(os.fsencode(path.readlink()))
        elif stat.S_ISREG(seen.st_mode):
            with path.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()
