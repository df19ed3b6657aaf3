"""Read archives without a start: list a folder, read a file, compare two archives, export one.

The answers are streams of any length (`torpor.api.archive_stream`).
"""

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from torpor.accounts import Caller
from torpor.api.archive_stream import ArchiveStreamResponse
from torpor.api.authentication import Asking
from torpor.api.stream_limit import StreamLimit
from torpor.domain.errors import Unavailable
from torpor.domain.records import ArchiveKey
from torpor.ports import ArchivedFile, ArchiveReading, ChangedFile
from torpor.service.time_machine import READING_LEASE_S
from torpor.service.wishes import Wishes

LONGEST_PATH = 4096
LINES = "application/x-ndjson"
STREAMS_PER_USER = 4
"""Of one user, in this process; all users together have `torpor.archives.reader.MOST_STREAMS`."""
RETRY_AFTER_S = 5
Path = Annotated[str, Query(max_length=LONGEST_PATH, description="A path in the home.")]
Archive = Annotated[str | None, Query(max_length=200, description="The key of the archive; left out: the current one.")]


def archive_file_routes(wishes: Wishes, reading: ArchiveReading) -> APIRouter:
    router = APIRouter(tags=["workspaces"])
    limit = StreamLimit(STREAMS_PER_USER, "archives", retry_after_s=RETRY_AFTER_S)

    def opened(
        caller: Caller,
        workspace: str,
        keys: Sequence[str | None],
        read: Callable[[Sequence[ArchiveKey]], AsyncGenerator[bytes]],
        *,
        audited: bool = False,
    ) -> AsyncGenerator[bytes]:
        async def stream() -> AsyncGenerator[bytes]:
            with limit.of(caller.user):
                async with wishes.time_machine.reading(caller, workspace, *keys, audited=audited) as (found, lease):
                    renewed_s = time.monotonic()
                    async with contextlib.aclosing(read(found)) as pieces:
                        async for piece in pieces:
                            if piece:
                                yield piece
                            if time.monotonic() - renewed_s > READING_LEASE_S / 3:
                                renewed_s = time.monotonic()
                                if not await lease.renew():
                                    raise Unavailable("the archives may have been removed while they were read; try again")

        return stream()

    @router.get("/workspaces/{workspace}/archives/files", response_class=Response)
    async def files(workspace: str, caller: Asking, path: Path = ".", archive: Archive = None) -> Response:
        """What is in a folder of an archive, one JSON object a line: `path`, `kind`, `size`, `mode`, `mtime_ns`, `target`.
        Sockets and devices are not archived; their `is_archived` is false."""
        pieces = opened(caller, workspace, [archive], lambda keys: _lines(reading.files(keys[0], path)))
        return ArchiveStreamResponse(pieces, LINES)

    @router.get("/workspaces/{workspace}/archives/content", response_class=Response)
    async def content(workspace: str, caller: Asking, path: Path = ".", archive: Archive = None) -> Response:
        """The content of a file in an archive."""
        pieces = opened(caller, workspace, [archive], lambda keys: reading.content(keys[0], path.strip("/")), audited=True)
        return ArchiveStreamResponse(pieces, "application/octet-stream")

    @router.get("/workspaces/{workspace}/archives/export", response_class=Response)
    async def export(workspace: str, caller: Asking, archive: Archive = None) -> Response:
        """The home of an archive as a tar stream, compressed with zstd."""
        pieces = opened(caller, workspace, [archive], lambda keys: reading.export(keys[0]), audited=True)
        return ArchiveStreamResponse(pieces, "application/zstd")

    @router.get("/workspaces/{workspace}/archives/differences", response_class=Response)
    async def differences(workspace: str, caller: Asking, before: Archive = None, after: Archive = None) -> Response:
        """The paths that differ between two archives, one JSON object a line: `change` (`added`, `removed` or `changed`) and
        `path`."""
        pieces = opened(caller, workspace, [before, after], lambda keys: _lines(reading.differences(keys[0], keys[1])))
        return ArchiveStreamResponse(pieces, LINES)

    return router


async def _lines(
    batches: AsyncGenerator[Sequence[ArchivedFile]] | AsyncGenerator[Sequence[ChangedFile]],
) -> AsyncGenerator[bytes]:
    async with contextlib.aclosing(batches):
        async for batch in batches:
            yield b"".join(json.dumps(_plain(asdict(one))).encode() + b"\n" for one in batch)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Names that are not UTF-8 are escaped: JSON has no lone surrogates."""
    return {
        name: value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") if isinstance(value, str) else value
        for name, value in fields.items()
    }
