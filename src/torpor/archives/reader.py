"""Stream archives from the store to the API: the implementation of `torpor.ports.ArchiveReading`.

It has threads of its own: an archive that is large or hard to read does not delay the other calls to the store.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TypeVar

from torpor.archives.blocking_calls import Threads
from torpor.archives.reading import below, differences, open_archive, skipped_below
from torpor.archives.store import ArchiveStore, StoreAddress
from torpor.domain.errors import Refused
from torpor.domain.records import ArchiveKey
from torpor.ports import ArchivedFile, ChangedFile

READS_AT_ONCE = 4
MOST_STREAMS = 16
ENTRIES_AT_ONCE = 1000
"""After so many entries, a batch is returned, also an empty one: there a read that was cancelled ends."""

Piece = TypeVar("Piece")


class ArchiveReader:
    """Reads the store at `url`. Each piece is read when the client has taken the one before, so a client that ends or waits
    holds no thread."""

    def __init__(self, url: str) -> None:
        self._address = StoreAddress.parse(url)
        self._threads = Threads(READS_AT_ONCE)
        self._streams = 0

    async def close(self) -> None:
        self._threads.close()

    def files(self, key: ArchiveKey, folder: str) -> AsyncGenerator[Sequence[ArchivedFile]]:
        def read(place: ArchiveStore) -> Iterator[Sequence[ArchivedFile]]:
            archive = open_archive(place, key)
            files = (
                None if one is None else ArchivedFile(one.path, one.kind.value, one.size, one.mode, one.mtime_ns, one.target)
                for one in below(archive.entries(), folder)
            )
            skipped = (
                ArchivedFile(one.path, one.kind, 0, 0, None, "", is_archived=False)
                for one in skipped_below(archive.skipped, folder)
            )
            return _in_batches(itertools.chain(files, skipped))

        return self._stream(read)

    def content(self, key: ArchiveKey, path: str) -> AsyncGenerator[bytes]:
        return self._stream(lambda place: open_archive(place, key).content(path))

    def export(self, key: ArchiveKey) -> AsyncGenerator[bytes]:
        return self._stream(lambda place: open_archive(place, key).export())

    def differences(self, before: ArchiveKey, after: ArchiveKey) -> AsyncGenerator[Sequence[ChangedFile]]:
        def read(place: ArchiveStore) -> Iterator[Sequence[ChangedFile]]:
            old, new = open_archive(place, before), open_archive(place, after)
            return _in_batches(
                None if one is None else ChangedFile(one.change.value, one.path) for one in differences(old, new)
            )

        return self._stream(read)

    async def _stream(self, read: Callable[[ArchiveStore], Iterator[Piece]]) -> AsyncGenerator[Piece]:
        if self._streams >= MOST_STREAMS:
            raise Refused("too_many_streams", f"{MOST_STREAMS} archives are being read; try again in a moment", retry_after_s=5)
        self._streams += 1
        try:
            place = ArchiveStore(self._address)
            pieces = await self._ask(lambda: read(place))
            while (piece := await self._ask(lambda: next(pieces, None))) is not None:
                yield piece
        finally:
            self._streams -= 1

    async def _ask(self, question: Callable[[], Piece]) -> Piece:
        return await asyncio.wrap_future(self._threads.submit(question))


def _in_batches(items: Iterator[Piece | None]) -> Iterator[Sequence[Piece]]:
    while some := list(itertools.islice(items, ENTRIES_AT_ONCE)):
        yield [one for one in some if one is not None]
