"""Pack or unpack a home where its files are: `python -m torpor.archives.job HOME`, with one JSON object on standard input.

The request comes on standard input only, since it contains the store's secrets. `torpor.ports.HomeJob` describes the output.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torpor.archives.pack import PackRequest, pack
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.archives.tree import rough_size
from torpor.archives.unpack import find, unpack
from torpor.domain.errors import Code, Failed, TorporError
from torpor.domain.records import ArchiveKey

PROGRESS_EVERY_S = 0.2


class ProgressMeter:
    """Report progress at most every PROGRESS_EVERY_S seconds."""

    def __init__(self, total: int | None, say: Callable[[Mapping[str, object]], None]) -> None:
        self._done = 0
        self._total = total
        self._say = say
        self._next_s = 0.0

    def __call__(self, count: int) -> None:
        self._done += count
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + PROGRESS_EVERY_S
            # The total of a pack is an estimate, and a retry counts again: progress never exceeds the total.
            total = None if self._total is None else max(self._total, self._done)
            self._say({"progress": [self._done, total]})


def do_pack(place: ArchiveStore, key: ArchiveKey, order: Mapping[str, Any], home: Path) -> Mapping[str, object]:
    meter = ProgressMeter(2 * rough_size(home), write_json_line)
    wanted = PackRequest(key, generation=order["generation"], revision=order["revision"])
    head = pack(place, wanted, home, meter).head
    return {
        "manifest_root": head.manifest_root,
        "size_bytes": sum(part.size for part in head.parts),
        "home_bytes": head.home_bytes,
        "files": head.files,
        "skipped": head.skipped_count,
    }


def do_unpack(place: ArchiveStore, key: ArchiveKey, order: Mapping[str, Any], home: Path) -> Mapping[str, object]:
    manifest = find(place, key)
    unpack(place, manifest, home, ProgressMeter(manifest.head.home_bytes, write_json_line))
    return {
        "manifest_root": manifest.head.manifest_root,
        "bytes": manifest.head.home_bytes,
        "files": manifest.head.files,
    }


ACTIONS = {"pack": do_pack, "unpack": do_unpack}


def open_store(order: Mapping[str, Any]) -> ArchiveStore:
    """The store that the controller uses. The same URL can name another one here: a folder that is not mounted, for example."""
    place = ArchiveStore(StoreAddress.parse(order["url"]), order["options"])
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
    # Archives contain private data. A deep tree needs one open directory for each level.
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        order: Mapping[str, Any] = json.load(sys.stdin)
        os.environ.update(order["environment"])
        place = open_store(order)
        key = ArchiveKey.parse(order["key"])
        result = ACTIONS[order["action"]](place, key, order, Path(argv[-1]))
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
