"""Extract an archive without Torpor: one file that needs only Python 3.11 and zstd, so you can copy it to any Linux machine.

It does not import Torpor, and checks all that it reads. `docs/reference/archive-format.md` describes the format.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

try:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdDecompressor, ZstdError
    else:
        from backports.zstd import ZstdDecompressor, ZstdError
except ImportError:
    sys.exit("extract: Python has no zstd here. Use Python 3.14 or newer, or run: pip install backports.zstd")

BLOCK_BYTES = 4 << 20
HOLE_BYTES = 1 << 16
MOST_DOCUMENT_BYTES = 256 << 20
FRAMES_KEPT = 8
MOST_WARNINGS = 20
PROGRESS_S = 5.0
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
FILE, BLOCK, BLOCKS, TREE, REFS, HOME = (
    b"torpor archive 2 %b\0" % domain for domain in (b"file", b"block", b"blocks", b"tree", b"refs", b"home")
)
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
FORGED = "Torpor did not write this archive."
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)

Content = Iterator[tuple[int, bytes | memoryview]]
"""Offsets and data. What is left out is zeros."""


class ExtractError(Exception):
    """The archive cannot be extracted."""


class DamagedPart(ExtractError):
    """A part of the archive is missing or differs. The others can be extracted."""


class ArchivedEntry(NamedTuple):
    path: bytes
    kind: bytes
    mode: int
    uid: bytes
    gid: bytes
    """"home" instead of a number: the home's own user or group."""
    mtime_ns: int
    size: int
    target: bytes
    xattrs: Mapping[bytes, bytes]
    digest: str


def shown(path: bytes) -> str:
    return repr(os.fsdecode(path))


def digest_of(domain: bytes, data: bytes | memoryview) -> str:
    digest = hashlib.sha256(domain + len(data).to_bytes(8, "big"))
    digest.update(data)
    return digest.hexdigest()


@lru_cache
def digest_of_zeros(length: int) -> str:
    return digest_of(BLOCK, bytes(length))


def inflated(stored: bytes, most: int) -> bytes:
    """The content of exactly one zstd frame, at most so many bytes."""
    frame = ZstdDecompressor()
    try:
        data = frame.decompress(stored, most + 1)
        while len(data) <= most and not frame.eof and (more := frame.decompress(b"", most + 1 - len(data))):
            data += more
    except (ZstdError, EOFError) as error:
        raise DamagedPart(f"not readable as zstd: {error}") from error
    if len(data) > most or not frame.eof or frame.unused_data:
        raise DamagedPart("a zstd frame has another length than expected")
    return data


def read_object(path: Path, start: int = 0, length: int | None = None) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(length)
    except FileNotFoundError as error:
        raise DamagedPart(f"{path} is missing") from error
    except OSError as error:
        raise DamagedPart(f"{path} cannot be read: {error.strerror}") from error
    if length is not None and len(data) != length:
        raise DamagedPart(f"{path} ends too early")
    return data


def check_path(path: bytes) -> None:
    if any(name in (b"", b".", b"..") or b"\0" in name for name in path.split(b"/")):
        raise ExtractError(f"the path {shown(path)} leads out of the home. {FORGED}")


# ── format 2 ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ArchiveInPacks:
    def __init__(self, objects: Path, workspace_id: str, op_id: str) -> None:
        self._packs = objects / workspace_id / "packs"
        self._frames: dict[tuple[str, int], bytes] = {}
        self._bytes, self._shown_at = 0, time.monotonic()
        self._lost: set[int] = set()
        """The sections whose tree documents are damaged."""
        path = objects / workspace_id / "archives" / f"{op_id}.json.zst"
        try:
            text = inflated(read_object(path), MOST_DOCUMENT_BYTES)
            # The checksum is the first field: it is computed with an empty text in its place.
            begin, checksum, end = text[:13], text[13:77], text[77:]
            if begin != b'{"checksum":"' or hashlib.sha256(begin + end).hexdigest().encode() != checksum:
                raise ExtractError("its checksum differs from its content")  # noqa: TRY301
            said: dict[str, Any] = json.loads(text)
            if (said["format"], said["workspace_id"], said["op_id"]) != (2, workspace_id, op_id):
                raise ExtractError(f"it is of another archive, {said['workspace_id']}/{said['op_id']}, or of another format")  # noqa: TRY301
            self._names = [str(pack["name"]) for pack in said["packs"]]
            if not all(re.fullmatch(rf"{ID}-[0-9a-f]{{64}}", name) for name in self._names):
                raise ExtractError("it has a pack with an invalid name")  # noqa: TRY301
            self._sections: list[Any] = said["sections"]
            self._root, self._home_mtime_ns = said["manifest_root"], int(said["home"]["mtime_ns"])
            self._home_bytes = int(said["home_bytes"])
        except (ExtractError, *UNREADABLE) as error:
            raise ExtractError(
                f"the root {path} is damaged: {error}. Copy it again: without it, nothing can be extracted"
            ) from error

    def check(self, report: "ExtractReport") -> None:
        """Read all entries before anything is created."""
        home, last = hashlib.sha256(HOME), b""
        for number, (count, *_) in enumerate(self._sections):
            try:
                for row in self._rows(number):
                    home.update(b"\0".join(row) + b"\0")
                    key = row[0].replace(b"/", b"\0")
                    if row[0] == b"." and row[1] == b"d" and not number and not last:
                        continue
                    check_path(row[0])
                    if key <= last:
                        raise ExtractError(f"the entries are out of order at {shown(row[0])}. {FORGED}")
                    last = key
            except DamagedPart as error:
                self._lost.add(number)
                after = shown(last.replace(b"\0", b"/")) if last else "the beginning"
                report.damaged(f"{count} entries after {after} were not extracted: {error}")
        if not self._lost and home.hexdigest() != self._root:
            report.damaged(f"the entries have the root {home.hexdigest()}, the archive says {self._root}")

    def entries(self) -> Iterator[tuple[ArchivedEntry, Content]]:
        for number, (_, _, stored, *_) in enumerate(self._sections):
            if number in self._lost:
                continue
            refs: dict[str, Any] | DamagedPart
            try:
                refs = json.loads(self._document(stored, REFS))
            except (DamagedPart, *UNREADABLE) as error:
                refs = DamagedPart(f"where its content is cannot be read: {error}")
            position = digests = 0
            for row in self._rows(number):
                entry = self._entry(row)
                yield entry, self._content(entry, refs, position, digests)
                if entry.kind == b"f" and entry.size:
                    count = -(-entry.size // BLOCK_BYTES)
                    position += count
                    digests += count if count > 1 else 0

    def _document(self, stored: Sequence[Any], domain: bytes) -> bytes:
        pack, start, length, raw, digest = stored
        name = self._names[pack]
        if not 0 < raw <= MOST_DOCUMENT_BYTES:
            raise DamagedPart(f"a document of {raw} bytes in {self._packs / name} is too large")
        data = self._inflated(name, start, length, raw)
        if digest_of(domain, data) != digest:
            raise DamagedPart(f"a document in {self._packs / name} differs from the root")
        return data

    def _rows(self, number: int) -> list[tuple[bytes, ...]]:
        """The rows of a section, from its tree document."""
        try:
            count, stored, *_ = self._sections[number]
            head, _, rest = self._document(stored, TREE).partition(b"\n")
            rows_said, *lengths = map(int, head.split(b" "))
            columns, begin = [], 0
            for length in lengths:
                columns.append(rest[begin : begin + length].split(b"\0"))
                begin += length
            rows = list(zip(*columns, strict=True))
            if not rows or (len(rows), len(lengths), begin) != (rows_said, 10, len(rest)) or len(rows) != count:
                raise DamagedPart("a tree document has wrong lengths")
        except UNREADABLE as error:
            raise DamagedPart(f"a tree document cannot be read: {error}") from error
        return rows

    def _entry(self, row: tuple[bytes, ...]) -> ArchivedEntry:
        path, kind, mode, uid, gid, mtime_ns, size, target, xattrs, digest = row
        try:
            pairs = (pair.decode().partition("=") for pair in xattrs.split(b",") if pair)
            attributes = {bytes.fromhex(name): bytes.fromhex(value) for name, _, value in pairs}
            time_ns = int(mtime_ns) if mtime_ns else self._home_mtime_ns
            return ArchivedEntry(path, kind, int(mode, 8), uid, gid, time_ns, int(size), target, attributes, digest.decode())
        except UNREADABLE as error:
            raise ExtractError(f"the entry {shown(path)} cannot be read: {error}. {FORGED}") from error

    def _content(self, entry: ArchivedEntry, refs: dict[str, Any] | DamagedPart, position: int, first: int) -> Content:
        """The blocks of a file that are not zeros, each checked before it is passed on."""
        if entry.size == 0:
            return
        if isinstance(refs, DamagedPart):
            raise refs
        try:
            count = -(-entry.size // BLOCK_BYTES)
            digests = [entry.digest] if count == 1 else refs["digests"][first : first + count]
            if count > 1:
                joined = BLOCKS + entry.size.to_bytes(8, "big") + bytes.fromhex("".join(digests))
                if hashlib.sha256(joined).hexdigest() != entry.digest:
                    raise DamagedPart("the hashes of its blocks differ from its own")
            for number, digest in zip(range(count), digests, strict=True):
                begin = number * BLOCK_BYTES
                length = min(BLOCK_BYTES, entry.size - begin)
                frame, offset = refs["frame"][position + number], refs["offset"][position + number]
                if frame == -1:
                    if digest != digest_of_zeros(length):
                        raise DamagedPart("a block of it is not zeros")
                else:
                    pack, *place = refs["frames"][frame]
                    name = refs["packs"][pack]
                    data = memoryview(self._frame(name, *place))[offset : offset + length]
                    if digest_of(FILE if count == 1 else BLOCK, data) != digest:
                        raise DamagedPart(f"its content in {self._packs / name} differs from the archive")
                    yield begin, data
                self._show_progress(length)
        except UNREADABLE as error:
            raise DamagedPart(f"its refs document cannot be read: {error}") from error

    def _show_progress(self, length: int) -> None:
        self._bytes += length
        if time.monotonic() > self._shown_at + PROGRESS_S:
            self._shown_at = time.monotonic()
            say(f"{self._bytes >> 20} of {self._home_bytes >> 20} MiB")

    def _frame(self, name: str, start: int, length: int, raw: int) -> bytes:
        """Neighbours are in the same frames, of which the last ones are kept."""
        data = self._frames.pop((name, start), None)
        if data is None:
            if name not in self._names or not 0 < raw <= BLOCK_BYTES:
                raise DamagedPart(f"a refs document refers to {name}, or to a part of it, that the root does not have")
            data = self._inflated(name, start, length, raw)
            while len(self._frames) >= FRAMES_KEPT:
                del self._frames[next(iter(self._frames))]
        self._frames[name, start] = data
        return data

    def _inflated(self, name: str, start: int, length: int, raw: int) -> bytes:
        data = read_object(self._packs / name, start, length)
        try:
            data = inflated(data, raw)
        except DamagedPart as error:
            raise DamagedPart(f"{self._packs / name} is damaged at byte {start}: {error}") from error
        if len(data) != raw:
            raise DamagedPart(f"{self._packs / name} is damaged at byte {start}: a frame has another length")
        return data


# ── format 1 ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def explain_format_1(folder: Path) -> str:
    """An archive of format 1 is a tar file. Compare its hash with the manifest, and say how to extract it."""
    tar = folder / "home.tar.zst"
    try:
        # The head of the manifest is a zstd frame of its own.
        head = ZstdDecompressor().decompress(read_object(folder / "manifest.json.zst"), MOST_DOCUMENT_BYTES)
        expected = json.loads(head + b"]}")["parts"][0]["sha256"]
        with tar.open("rb") as file:
            is_intact = hashlib.file_digest(file, "sha256").hexdigest() == expected
    except (ExtractError, ZstdError, OSError, *UNREADABLE) as error:
        raise ExtractError(f"the archive in {folder} is damaged: {error}. Copy it again.") from error
    state = "intact" if is_intact else "damaged: copy it again, or extract what is readable"
    return f"{folder} is of format 1, a tar file, and {state}. Extract it with: zstd -dc {tar} | tar -x --xattrs -C DIR"


# ── the directory ─────────────────────────────────────────────────────────────────────────────────────────────────────


class TargetDirectory:
    """Creates all entries relative to open directories and follows no link, so it does not write outside."""

    def __init__(self, path: Path, report: "ExtractReport", *, makes_parents: bool) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        seen = os.fstat(self._fd)
        self._owner = (seen.st_uid, seen.st_gid) if os.geteuid() == 0 else None
        # A setuid program in a home must not become one of root.
        self._is_roots = seen.st_uid == 0
        self._report = report
        self._makes_parents = makes_parents
        self._open: list[tuple[bytes, int]] = []
        """The directories down to the last one."""
        self._directories: list[ArchivedEntry] = []

    def put(self, entry: ArchivedEntry, content: Content) -> None:
        if entry.path == b".":
            self._directories.append(entry)
            return
        above, _, name = entry.path.rpartition(b"/")
        at = self._directory(above)
        place = b"/proc/self/fd/%d/%b" % (at, name)
        if entry.kind == b"d":
            os.mkdir(name, stat.S_IRWXU, dir_fd=at)
            self._directories.append(entry)
        elif entry.kind == b"f":
            self._file(entry, content, at, name)
        elif entry.kind == b"h":
            self._link(entry, at, name)
        elif entry.kind == b"l":
            os.symlink(entry.target, name, dir_fd=at)
            self._set_attributes(place, entry)
        elif entry.kind == b"p":
            os.mkfifo(name, stat.S_IRUSR | stat.S_IWUSR, dir_fd=at)
            self._set_attributes(place, entry)
        else:
            raise DamagedPart(f"its kind {entry.kind!r} is unknown")

    def finish(self) -> None:
        """The attributes of directories come last: children change their times, and some become unreadable."""
        for entry in reversed(self._directories):
            self._set_attributes(self._directory(b"" if entry.path == b"." else entry.path), entry)
        while self._open:
            os.close(self._open.pop()[1])
        os.close(self._fd)

    def _directory(self, path: bytes) -> int:
        names = path.split(b"/") if path else []
        while [name for name, _ in self._open] != names[: len(self._open)]:
            os.close(self._open.pop()[1])
        for name in names[len(self._open) :]:
            above = self._open[-1][1] if self._open else self._fd
            if self._makes_parents:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, stat.S_IRWXU, dir_fd=above)
            self._open.append((name, os.open(name, OPEN_DIRECTORY, dir_fd=above)))
        return self._open[-1][1] if self._open else self._fd

    def _file(self, entry: ArchivedEntry, content: Content, at: int, name: bytes) -> None:
        fd = os.open(name, NEW_FILE, stat.S_IRUSR | stat.S_IWUSR, dir_fd=at)
        try:
            for begin, data in content:
                # Long runs of zeros become holes.
                for start in range(0, len(data), HOLE_BYTES):
                    piece = memoryview(data)[start : start + HOLE_BYTES]
                    if len(piece) < HOLE_BYTES or piece != bytes(HOLE_BYTES):
                        _write(fd, piece, begin + start)
            os.ftruncate(fd, entry.size)
            self._set_attributes(fd, entry)
        except BaseException:
            os.unlink(name, dir_fd=at)
            raise
        finally:
            os.close(fd)

    def _link(self, entry: ArchivedEntry, at: int, name: bytes) -> None:
        check_path(entry.target)
        above, _, first = entry.target.rpartition(b"/")
        at = os.dup(at)
        try:
            os.link(first, name, src_dir_fd=self._directory(above), dst_dir_fd=at, follow_symlinks=False)
        except OSError as error:
            raise DamagedPart(f"it cannot be linked to {shown(entry.target)}: {error.strerror}") from error
        finally:
            os.close(at)

    def _set_attributes(self, place: int | bytes, entry: ArchivedEntry) -> None:
        # The order matters: a change of owner clears setuid bits and capabilities, and every change sets the times.
        follows = isinstance(place, int)
        is_own, mode = entry.uid == b"home" and not self._is_roots, entry.mode
        if self._owner is not None:
            os.chown(place, *self._owner, follow_symlinks=follows)
        for name, value in entry.xattrs.items():
            if name.startswith(b"trusted.") or (name == b"security.capability" and not is_own):
                self._report.warn(f"{shown(entry.path)}: the attribute {os.fsdecode(name)} was left out")
                continue
            try:
                os.setxattr(place, name, value, follow_symlinks=follows)
            except OSError as error:
                self._report.warn(f"{shown(entry.path)}: the attribute {os.fsdecode(name)} was not set: {error.strerror}")
        if mode & 0o6000 and not (is_own and entry.gid == b"home"):
            self._report.warn(f"{shown(entry.path)}: the setuid and setgid bits were left out")
            mode &= ~0o6000
        if entry.kind != b"l":
            os.chmod(place, mode)  # noqa: PTH101 - an open file has no path
        os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=follows)


def _write(fd: int, data: memoryview, begin: int) -> None:
    while data:
        written = os.pwrite(fd, data, begin)
        data, begin = data[written:], begin + written


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────


class ExtractReport:
    """Warnings and damaged parts."""

    def __init__(self, *, keeps_going: bool) -> None:
        self._keeps_going = keeps_going
        self._warnings = 0
        self.damages = 0

    def damaged(self, message: str) -> None:
        if not self._keeps_going:
            raise DamagedPart(message)
        self.damages += 1
        say(message)

    def warn(self, message: str) -> None:
        self._warnings += 1
        if self._warnings <= MOST_WARNINGS:
            say(f"warning: {message}")
        elif self._warnings == MOST_WARNINGS + 1:
            say("warning: more attributes were left out or not set")


def say(message: str) -> None:
    print(f"extract: {message}", file=sys.stderr, flush=True)


def extract(objects: Path, key: str, directory: Path, report: ExtractReport) -> None:
    if directory.is_dir() and any(directory.iterdir()):
        raise ExtractError(f"{directory} is not empty. Name a directory that is empty or does not exist.")
    workspace_id, op_id = key.split("/")
    root = objects / workspace_id / "archives" / f"{op_id}.json.zst"
    if not root.exists():
        if (objects / key / "manifest.json.zst").exists():
            raise ExtractError(explain_format_1(objects / key))
        raise ExtractError(
            f"there is no archive {key}: {root} is missing. Copy all objects below {workspace_id}/ to {objects}."
        )
    archive = ArchiveInPacks(objects, workspace_id, op_id)
    archive.check(report)
    directory.mkdir(mode=0o700, exist_ok=True)
    # The entry of a directory may be in a damaged part.
    target = TargetDirectory(directory, report, makes_parents=report.damages > 0)
    for entry, content in archive.entries():
        try:
            target.put(entry, content)
        except DamagedPart as error:
            report.damaged(f"{shown(entry.path)} was not extracted: {error}")
        except OSError as error:
            raise ExtractError(f"cannot create {shown(entry.path)} in {directory}: {error.strerror}") from error
    target.finish()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="extract",
        description="Extract an archive of Torpor without Torpor. It needs Linux, Python 3.11 and zstd.",
        epilog="The objects of a bucket are copied with any client of that store: all that begin with WORKSPACE_ID/ (below the "
        "prefix of TORPOR_ARCHIVE_URL) into DIRECTORY/WORKSPACE_ID/. As root, all entries get the owner of DIR: create it and "
        "change its owner first. If that is root, setuid and setgid bits and capabilities are left out.",
    )
    parser.add_argument("url", metavar="URL", help="file:///DIRECTORY or DIRECTORY, with a copy of the store's objects")
    parser.add_argument("key", metavar="KEY", help="WORKSPACE_ID/OP_ID, as `torpor archives NAME --json` shows it")
    parser.add_argument("directory", metavar="DIR", type=Path, help="a directory that is empty or does not exist")
    parser.add_argument("--keep-going", action="store_true", help="extract all that is intact, and list what is not")
    given = parser.parse_args(argv)
    address = urlsplit(given.url)
    if address.scheme not in ("", "file") or address.netloc:
        parser.error(f"URL {given.url!r} is not a directory: copy the objects to a directory first, and name it")
    if not re.fullmatch(f"{ID}/{ID}", given.key):
        parser.error(f"KEY {given.key!r} is not WORKSPACE_ID/OP_ID")
    report = ExtractReport(keeps_going=given.keep_going)
    try:
        extract(Path(unquote(address.path) if address.scheme else given.url), given.key, given.directory, report)
    except DamagedPart as error:
        say(f"{error}. Copy that object again, or use --keep-going for all that is intact. {given.directory} is not complete.")
        return 1
    except ExtractError as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"cannot extract to {given.directory}: {error}")
        return 1
    if report.damages:
        say(f"the parts above are damaged ({report.damages}); all others are in {given.directory}")
    return 1 if report.damages else 0


if __name__ == "__main__":
    sys.exit(main())
