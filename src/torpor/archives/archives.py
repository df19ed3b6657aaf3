"""Keep homes as archives in an object store: the implementation of `torpor.ports.Archives`."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from torpor.archives.blocking_calls import Threads, run_in_thread
from torpor.archives.entries import ArchiveMismatch
from torpor.archives.manifest import MANIFEST_NAME, ManifestHead, fetch_head, object_path
from torpor.archives.pack import PackRequest, pack_empty
from torpor.archives.store import ArchiveStore, ObjectMissing, StoreAddress
from torpor.domain.errors import Code, Failed, Refused, TorporError, Unavailable
from torpor.domain.records import Archive, ArchiveKey, ProvenArchive
from torpor.loops import report_progress
from torpor.ports import Home, HomeJob, ListedArchive

REACHABLE_TIMEOUT_S = 5.0
LOOK_TIMEOUT = "5s"
"""For one of the client's three tries. A check that hangs must not hide for long that the store answers again."""
REMEMBERED_S = 2.0
"""How long an answer of `reachable` is reused, so that many workspaces share one check."""
CALLS_AT_ONCE = 4
# Isolated (-I): a file in the home or in the environment that has a module's name must not be imported.
PYTHON = (sys.executable, "-I", "-X", "utf8")

Answer = TypeVar("Answer")


class HomeArchives:
    """Archives in the store at `url`; implements `torpor.ports.Archives`.

    `options` are obstore's options for that store, including secrets; jobs get them on standard input only. `python` starts an
    interpreter that has Torpor, for jobs. `job_environment`: variables with the store's credentials, for jobs that do not
    inherit them. `empty_home_mode` is the mode of a home that is archived before it exists.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        python: tuple[str, ...] = PYTHON,
        job_environment: Mapping[str, str] | None = None,
        empty_home_mode: int = 0o700,
    ) -> None:
        self._address = StoreAddress.parse(url)
        self._options = dict(options or {})
        self._python = python
        self._job_environment = dict(job_environment or {})
        self._empty_home_mode = empty_home_mode
        # Separate from the event loop's threads: a store that never answers would block all of them, and the rest of Torpor.
        self._threads = Threads(CALLS_AT_ONCE)
        self._world: str | None = None
        self._look: Future[bool] | None = None
        self._looked_s = 0.0

    async def close(self) -> None:
        """Start no further call, and do not wait for calls that hang."""
        self._threads.close()

    def __repr__(self) -> str:
        return f"HomeArchives({self._address.url!r})"

    async def world(self) -> str:
        """The store's identity. It is kept in the store, so it moves with the archives."""

        def identify(place: ArchiveStore) -> str:
            if self._world is None:
                self._world = place.identified()
            return self._world

        return await self._ask(identify)

    def pack_job(self, key: ArchiveKey, home: Home, revision: int) -> HomeJob:
        _check(key, home)
        return self._job("pack", key, writes=False, generation=home.generation, revision=revision)

    def unpack_job(self, key: ArchiveKey) -> HomeJob:
        return self._job("unpack", key, writes=True)

    def proven(self, key: ArchiveKey, home: Home, revision: int, result: Mapping[str, object]) -> ProvenArchive:
        try:
            said: Mapping[str, Any] = result
            root, numbers = said["manifest_root"], [said[name] for name in ("size_bytes", "home_bytes", "files")]
        except KeyError as error:
            raise Failed(Code.INTERNAL, f"the result of a pack job lacks {error}") from error
        if not isinstance(root, str) or not all(isinstance(number, int) for number in numbers):
            raise Failed(Code.INTERNAL, "the result of a pack job has a value of the wrong type")
        return ProvenArchive(Archive(key, home.generation, revision, root), *numbers)

    async def create_empty(self, key: ArchiveKey, home: Home, revision: int) -> ProvenArchive:
        _check(key, home)
        order = PackRequest(key, generation=home.generation, revision=revision)
        head = await self._ask(lambda place: pack_empty(place, order, mode=self._empty_home_mode).head)
        archive = Archive(key, home.generation, revision, head.manifest_root)
        return ProvenArchive(archive, sum(part.size for part in head.parts), head.home_bytes, head.files)

    async def manifest_root(self, key: ArchiveKey) -> str:
        head = await self._ask(lambda place: _standing(place, key))
        return head.manifest_root

    async def reachable(self) -> bool:
        """Callers at the same time, or shortly after, share one check."""
        if self._look is None or (self._look.done() and time.monotonic() - self._looked_s > REMEMBERED_S):
            self._look = run_in_thread(self._answers)
        try:
            async with asyncio.timeout(REACHABLE_TIMEOUT_S):
                return await asyncio.wrap_future(self._look)
        except TimeoutError:
            return False

    async def keys(self) -> AsyncIterator[ListedArchive]:
        is_whole: dict[str, bool] = {}
        try:
            pages = await self._ask(lambda place: place.folders(MANIFEST_NAME))
            # The identity is checked again before each page and before the end, so all pages come from the same store.
            while (page := await self._ask(lambda _place: next(pages, None))) is not None:
                report_progress()
                for folder, has_manifest in page:
                    is_whole[folder] = has_manifest or is_whole.get(folder, False)
        except (Failed, ArchiveMismatch) as error:
            raise Unavailable(f"the archives cannot be listed: {error.message}", **error.context) from error
        for folder, has_manifest in is_whole.items():
            yield ListedArchive(ArchiveKey.parse(folder), has_manifest)

    async def remove(self, key: ArchiveKey) -> None:
        await self._ask(lambda place: place.remove_all(str(key), first=MANIFEST_NAME))

    def _answers(self) -> bool:
        try:
            self._recognised(ArchiveStore(self._address, {"timeout": LOOK_TIMEOUT, **self._options})).answers()
        except (TorporError, ArchiveMismatch):
            return False
        finally:
            self._looked_s = time.monotonic()
        return True

    def _recognised(self, place: ArchiveStore) -> ArchiveStore:
        """Raise Unavailable if the store is not the one of this process's first call."""
        seen = place.identity()
        if self._world is None:
            self._world = seen  # None if the store has no identity yet
        elif seen != self._world:
            what = "its identity is missing" if seen is None else f"it is {seen}, expected {self._world}"
            message = f"{self._address.url} is not the same archive store as before ({what}); is its disk mounted?"
            raise Unavailable(message, endpoint=self._address.url)
        return place

    def _job(self, action: str, key: ArchiveKey, *, writes: bool, **more: int) -> HomeJob:
        place = {"url": self._address.url, "options": self._options, "store": self._world, "environment": self._job_environment}
        order = {"action": action, "key": str(key), **place, **more}
        return HomeJob((*self._python, "-m", "torpor.archives.job"), json.dumps(order).encode(), writes)

    async def _ask(self, question: Callable[[ArchiveStore], Answer]) -> Answer:
        """In a thread: a store may be slow. Unavailable if the whole store does not answer: the archive may be intact."""
        try:
            place = ArchiveStore(self._address, self._options)
            return await asyncio.wrap_future(self._threads.submit(lambda: question(self._recognised(place))))
        except (Failed, Unavailable) as error:
            if self._look is not None and self._look.done():
                self._look = None  # its answer is older than this failure
            if isinstance(error, Unavailable):
                raise
            if error.code is Code.S3_ACCESS_ERROR and not await self.reachable():
                raise Unavailable(error.message, **error.context) from error
            raise


def _check(key: ArchiveKey, home: Home) -> None:
    if key.workspace_id != home.workspace_id:
        raise Refused("wrong_workspace", f"an archive of {home.workspace_id} cannot be stored under {key}")


def _standing(place: ArchiveStore, key: ArchiveKey) -> ManifestHead:
    """The head of an archive, after a check that all its objects exist and have the right length."""
    try:
        head = fetch_head(place, key)
        if head is None:
            raise ObjectMissing(f"there is no finished archive {key}")  # noqa: TRY301
        for part in head.parts:
            size = place.size(object_path(key, part.name))
            if size is None:
                raise ObjectMissing(f"{part.name} is missing")  # noqa: TRY301
            if size != part.size:
                raise ArchiveMismatch(f"{part.name} has {size} bytes, the manifest says {part.size}")  # noqa: TRY301
    except ObjectMissing as error:
        raise Failed(Code.ARCHIVE_NOT_FOUND, error.message, archive=str(key)) from error
    except ArchiveMismatch as error:
        raise Failed(Code.CHECKSUM_MISMATCH, error.message, archive=str(key)) from error
    return head
