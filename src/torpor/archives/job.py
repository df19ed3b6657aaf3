"""Pack or unpack a home where its files are: `python -m torpor.archives.job HOME`, with one JSON object on standard input.

The request comes on standard input only, since it contains the store's secrets. `torpor.ports.HomeJob` describes the output.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from torpor.archives.manifest import fetch_head
from torpor.archives.pack import PackRequest, is_finished, pack
from torpor.archives.packs import restore as packs_restore
from torpor.archives.packs import write as packs_write
from torpor.archives.packs.crew import crew_of
from torpor.archives.packs.layout import PACKS, root_path
from torpor.archives.progress_meter import HomeCount, ProgressMeter
from torpor.archives.store import PAUSES_S, ArchiveStore, StoreAddress, remove_unfinished
from torpor.archives.tree import rough_size
from torpor.archives.unpack import find, unpack
from torpor.domain.errors import Code, Failed, TorporError
from torpor.domain.records import ArchiveKey


def do_pack(order: Mapping[str, Any], key: ArchiveKey, home: Path) -> Mapping[str, object]:
    """In format 1, unless an earlier attempt has finished this archive in format 2: one key never has two archives."""
    place = open_store(order)
    finished = packs_write.prove_finished(place, packs_write.ArchiveRequest(key, order["generation"], order["revision"]))
    return whole_archive(place, order, key, home) if finished is None else packs_write.result_of(finished)


def whole_archive(place: ArchiveStore, order: Mapping[str, Any], key: ArchiveKey, home: Path) -> Mapping[str, object]:
    meter = ProgressMeter(rough_size(home), write_json_line, passes=2)
    wanted = PackRequest(key, generation=order["generation"], revision=order["revision"])
    head = pack(place, wanted, home, meter).head
    return {
        "manifest_root": head.manifest_root,
        "size_bytes": sum(part.size for part in head.parts),
        "home_bytes": head.home_bytes,
        "files": head.files,
        "skipped": head.skipped_count,
    }


def do_pack_2(order: Mapping[str, Any], key: ArchiveKey, home: Path) -> Mapping[str, object]:
    """In format 2, unless an earlier attempt has finished this archive in format 1."""
    base = order["base"]
    wanted = packs_write.ArchiveRequest(
        key,
        generation=order["generation"],
        revision=order["revision"],
        base=None
        if base is None
        else packs_write.BaseRequest(
            ArchiveKey.parse(base["key"]), base["manifest_root"], base["trusted"], frozenset(base["unusable"])
        ),
    )
    with (
        opened_home(home, Code.VOLUME_NOT_READY) as fd,
        leaving_no_remains(order, key),
        closing(crew_of(packs_write.handlers_of(lambda: store_of(order), key, fd))) as crew,
    ):
        place = open_store(order)
        if is_finished(place, key):
            return whole_archive(place, order, key, home)
        meter = ProgressMeter(None, write_json_line, passes=2)
        if base is None:
            meter.expect(rough_size(home, refuses_holes=False))
        written = packs_write.write(place, wanted, home, fd, crew, meter)
    return packs_write.result_of(written)


def do_unpack(order: Mapping[str, Any], key: ArchiveKey, home: Path) -> Mapping[str, object]:
    try:
        return _unpack(order, key, home)
    except Failed as error:
        if error.code is Code.ARCHIVE_NOT_FOUND:
            open_store(order)  # a disk that was unmounted meanwhile has lost no archive
        raise


def _unpack(order: Mapping[str, Any], key: ArchiveKey, home: Path) -> Mapping[str, object]:
    if may_have_root(order, key) and (result := do_unpack_2(order, key, home)) is not None:
        return result
    place = open_store(order)
    manifest = find(place, key)
    head = manifest.head
    unpack(place, manifest, home, ProgressMeter(HomeCount(head.home_bytes, head.files), write_json_line, passes=1))
    return {"manifest_root": head.manifest_root, "bytes": head.home_bytes, "files": head.files}


def do_unpack_2(order: Mapping[str, Any], key: ArchiveKey, home: Path) -> Mapping[str, object] | None:
    """In format 2; None if the archive does not have it."""
    # The processes are forked before the store is opened, which starts threads.
    with (
        opened_home(home, Code.TAR_EXTRACT_FAILED) as fd,
        closing(crew_of(packs_restore.handlers_of(lambda: store_of(order), key, fd))) as crew,
    ):
        place = open_store(order)
        root = packs_restore.find_root(place, key, order.get("manifest_root"))
        if root is None and fetch_head(place, key) is None:
            # There is no archive at all. Asked again here: later, no processes can be forked.
            time.sleep(sum(PAUSES_S))
            root = packs_restore.find_root(place, key, order.get("manifest_root"))
        if root is None:
            return None
        meter = ProgressMeter(HomeCount(root.home_bytes, root.files), write_json_line, passes=1)
        packs_restore.restore(place, root, home, fd, crew, meter)
        return {"manifest_root": root.manifest_root, "bytes": root.home_bytes, "files": root.files}


def may_have_root(order: Mapping[str, Any], key: ArchiveKey) -> bool:
    """Only a directory can tell without a request: processes for a restore of format 1 would be forked for nothing."""
    directory = StoreAddress.parse(order["url"]).directory
    return directory is None or (directory / root_path(key)).exists()


ACTIONS = {"pack": do_pack, "pack-2": do_pack_2, "unpack": do_unpack}


@contextlib.contextmanager
def opened_home(home: Path, otherwise: Code) -> Iterator[int]:
    """The directory; an error with this code if there is none."""
    try:
        fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Failed(otherwise, f"there is no home at {os.fspath(home)!r}: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def leaving_no_remains(order: Mapping[str, Any], key: ArchiveKey) -> Iterator[None]:
    """The processes of a job that ends early are killed, perhaps while they write a pack."""
    try:
        yield
    finally:
        remove_unfinished(StoreAddress.parse(order["url"]), f"{key.workspace_id}/{PACKS}", key.op_id)


def store_of(order: Mapping[str, Any]) -> ArchiveStore:
    return ArchiveStore(StoreAddress.parse(order["url"]), order["options"])


def open_store(order: Mapping[str, Any]) -> ArchiveStore:
    """The store that the controller uses. The same URL can name another one here: a folder that is not mounted, for example."""
    place = store_of(order)
    if order["store"] is not None and (seen := place.identity()) != order["store"]:
        what = "has no identity" if seen is None else f"is the archive store {seen}"
        raise Failed(
            Code.S3_ACCESS_ERROR,
            f"the job does not see the archive store {order['store']} of the controller: {order['url']} {what} there",
        )
    return place


def write_json_line(line: Mapping[str, object]) -> None:
    """Write one line to the parent process. If it has closed the pipe, exit silently: no one reads a message."""
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def plain(value: object) -> object:
    """Text that any database accepts: bytes that are not UTF-8 are escaped."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def error_line(error: TorporError) -> Mapping[str, object]:
    code = error.code if isinstance(error, Failed) else Code.INTERNAL
    context = {key: plain(value) for key, value in error.context.items()}
    return {"error": {"code": code.value, "message": plain(error.message), "context": context}}


def stop(number: int, frame: object) -> None:
    """Unwind the stack, which aborts uploads and restores changed permissions. A second signal is ignored."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would make children vanish
    # Archives contain private data. A deep tree needs one open directory for each level.
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        order: Mapping[str, Any] = json.load(sys.stdin)
        os.environ.update(order["environment"])
        result = ACTIONS[order["action"]](order, ArchiveKey.parse(order["key"]), Path(argv[-1]))
    except TorporError as error:
        write_json_line(error_line(error))
        return 1
    except (MemoryError, RecursionError, AssertionError, LookupError, TypeError, ValueError, OSError) as error:
        # A bug, or a machine without resources: the traceback belongs in the log as well.
        write_json_line(
            {"error": {"code": Code.INTERNAL.value, "message": f"{type(error).__name__}: {plain(str(error))}", "context": {}}}
        )
        raise
    write_json_line({"result": result})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
