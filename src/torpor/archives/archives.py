"""Keep homes as archives in an object store: the implementation of `torpor.ports.Archives`."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from threading import Event
from typing import Any, TypeVar

from torpor.archives.blocking_calls import Threads, run_in_thread
from torpor.archives.copying import copy_archive
from torpor.archives.entries import ArchiveMismatch
from torpor.archives.manifest import FORMAT, MANIFEST_NAME, ManifestHead, fetch_head, object_path
from torpor.archives.pack import PackRequest, is_finished, pack_empty
from torpor.archives.packs.copy import copy_packed
from torpor.archives.packs.layout import pack_path, root_path
from torpor.archives.packs.listing import listed
from torpor.archives.packs.pack_check import check_packs, prove_pack
from torpor.archives.packs.root import fetch_root
from torpor.archives.packs.write import ArchiveRequest, prove_finished, proven_packed, write_empty
from torpor.archives.store import ArchiveStore, ObjectMissing, StoreAddress
from torpor.archives.unpack import looked_twice
from torpor.domain.errors import Code, Failed, Refused, TorporError, Unavailable
from torpor.domain.records import Archive, ArchiveKey, ProvenArchive, ProvenPack
from torpor.loops import report_progress
from torpor.ports import ArchiveBase, Home, HomeJob, ListedArchive, ListedPack, Progress, RootFacts

REACHABLE_TIMEOUT_S = 5.0
LOOK_TIMEOUT = "5s"
"""For one of the client's three tries. A check that hangs must not hide for long that the store answers again."""
REMEMBERED_S = 2.0
"""How long an answer of `reachable` is reused, so that many workspaces share one check."""
CALLS_AT_ONCE = 4
MOST_COPIES = 16
"""More than a controller has slots for copies: the thread of a cancelled copy may still wait for the store, and the next copy
must not wait for that thread, because its deadline has begun."""
COPY_TIMEOUT = "300s"
"""For one request: the store copies a whole object before it answers."""
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
        # A copy takes minutes, and the other calls must not wait for it.
        self._copies = Threads(MOST_COPIES)
        self._world: str | None = None
        self._look: Future[bool] | None = None
        self._looked_s = 0.0

    async def close(self) -> None:
        """Start no further call, and do not wait for calls that hang."""
        self._threads.close()
        self._copies.close()

    def __repr__(self) -> str:
        return f"HomeArchives({self._address.url!r})"

    async def world(self) -> str:
        """The store's identity. It is kept in the store, so it moves with the archives."""

        def identify(place: ArchiveStore) -> str:
            if self._world is None:
                self._world = place.identified()
            return self._world

        return await self._ask(identify)

    def pack_job(
        self,
        key: ArchiveKey,
        home: Home,
        revision: int,
        *,
        format: int = 1,  # noqa: A002
        base: ArchiveBase | None = None,
    ) -> HomeJob:
        _check(key, home)
        if format == FORMAT:
            return self._job("pack", key, writes=False, generation=home.generation, revision=revision)
        given = base and {
            "key": str(base.key),
            "manifest_root": base.manifest_root,
            "trusted": dict(sorted(base.trusted.items())),
            "unusable": sorted(base.unusable),
        }
        return self._job("pack-2", key, writes=False, generation=home.generation, revision=revision, base=given)

    def unpack_job(self, key: ArchiveKey, manifest_root: str | None = None) -> HomeJob:
        return self._job("unpack", key, writes=True, manifest_root=manifest_root)

    def proven(self, key: ArchiveKey, home: Home, revision: int, result: Mapping[str, object]) -> ProvenArchive:
        try:
            said: Mapping[str, Any] = result
            root = said["manifest_root"]
            size_bytes, home_bytes, files = numbers = [said[name] for name in ("size_bytes", "home_bytes", "files")]
            packs = tuple(ProvenPack(*pack) for pack in said.get("packs", ()))
            lost = tuple(map(str, said.get("lost", ())))
        except (KeyError, TypeError) as error:
            raise Failed(Code.INTERNAL, f"the result of a pack job is not complete: {error}") from error
        if not isinstance(root, str) or not all(isinstance(number, int) for number in numbers):
            raise Failed(Code.INTERNAL, "the result of a pack job has a value of the wrong type")
        return ProvenArchive(
            Archive(key, home.generation, revision, root),
            size_bytes,
            home_bytes,
            files,
            format=said.get("format", FORMAT),
            new_bytes=said.get("new_bytes"),
            packs=packs,
            lost=lost,
        )

    async def create_empty(self, key: ArchiveKey, home: Home, revision: int, *, format: int = 1) -> ProvenArchive:  # noqa: A002
        _check(key, home)
        return await self._ask(lambda place: self._empty(place, key, home.generation, revision, is_packed=format != FORMAT))

    def _empty(self, place: ArchiveStore, key: ArchiveKey, generation: int, revision: int, *, is_packed: bool) -> ProvenArchive:
        wanted = ArchiveRequest(key, generation, revision)
        if is_packed and not is_finished(place, key):
            return proven_packed(write_empty(place, wanted, mode=self._empty_home_mode))
        if not is_packed and (finished := prove_finished(place, wanted)) is not None:
            return proven_packed(finished)
        order = PackRequest(key, generation=generation, revision=revision)
        return _proven_whole(pack_empty(place, order, mode=self._empty_home_mode).head)

    async def copy(self, source: ArchiveKey, target: ArchiveKey, progress: Progress) -> ProvenArchive:
        loop, is_cancelled, counted = asyncio.get_running_loop(), Event(), 0

        def done(count: int) -> None:
            nonlocal counted
            if is_cancelled.is_set():
                raise Failed(Code.INTERNAL, f"the copy of {source} was cancelled")
            counted += count
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(progress, counted, None)

        try:
            return await self._ask(lambda place: _copied(place, source, target, done), self._copies, timeout=COPY_TIMEOUT)
        except asyncio.CancelledError:
            is_cancelled.set()  # its thread ends with the next piece
            raise

    async def manifest_root(self, key: ArchiveKey) -> str:
        return await self._ask(lambda place: _standing(place, key))

    async def reachable(self) -> bool:
        """Callers at the same time, or shortly after, share one check."""
        if self._look is None or (self._look.done() and time.monotonic() - self._looked_s > REMEMBERED_S):
            self._look = run_in_thread(self._answers)
        try:
            async with asyncio.timeout(REACHABLE_TIMEOUT_S):
                return await asyncio.wrap_future(self._look)
        except TimeoutError:
            return False

    async def listing(self) -> AsyncIterator[ListedArchive | ListedPack]:
        is_whole: dict[ArchiveKey, bool] = {}
        packs: dict[tuple[str, str], ListedPack] = {}
        try:
            pages = await self._ask(listed)
            # The identity is checked again before each page and before the end, so all pages come from the same store.
            while (page := await self._ask(lambda _place: next(pages, None))) is not None:
                report_progress()
                for found in page:
                    if isinstance(found, ListedPack):
                        if found.is_whole or (found.workspace_id, found.name) not in packs:
                            packs[found.workspace_id, found.name] = found
                    else:
                        is_whole[found.key] = found.is_whole or is_whole.get(found.key, False)
        except (Failed, ArchiveMismatch) as error:
            raise Unavailable(f"the archives cannot be listed: {error.message}", **error.context) from error
        for key, has_manifest in is_whole.items():
            yield ListedArchive(key, has_manifest)
        for pack in packs.values():
            yield pack

    async def remove(self, key: ArchiveKey) -> None:
        def remove(place: ArchiveStore) -> None:
            if place.head(root_path(key)) is not None:
                place.remove_one(root_path(key))
            else:
                place.remove_unfinished(root_path(key))
            place.remove_all(str(key), first=MANIFEST_NAME)

        await self._ask(remove)

    async def remove_pack(self, workspace_id: str, name: str) -> None:
        await self._ask(lambda place: place.remove_one(pack_path(workspace_id, name)))

    async def pack_size(self, workspace_id: str, name: str) -> int | None:
        return await self._ask(lambda place: place.size(pack_path(workspace_id, name)))

    async def root_packs(self, key: ArchiveKey) -> RootFacts:
        def read(place: ArchiveStore) -> RootFacts:
            with _as_failure(archive=str(key)):
                root = fetch_root(place, key)
                if root is None:
                    raise ObjectMissing(f"there is no root of the archive {key}", object=root_path(key))
            return RootFacts(root.manifest_root, root.packs)

        return await self._ask(read)

    async def prove_pack(self, workspace_id: str, name: str, size_bytes: int) -> ProvenPack:
        def prove(place: ArchiveStore) -> ProvenPack:
            with _as_failure(workspace=workspace_id, pack=name):
                return prove_pack(place, workspace_id, name, size_bytes)

        return await self._ask(prove)

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

    def _job(self, action: str, key: ArchiveKey, *, writes: bool, **more: object) -> HomeJob:
        place = {"url": self._address.url, "options": self._options, "store": self._world, "environment": self._job_environment}
        order = {"action": action, "key": str(key), **place, **more}
        return HomeJob((*self._python, "-m", "torpor.archives.job"), json.dumps(order).encode(), writes)

    async def _ask(self, question: Callable[[ArchiveStore], Answer], threads: Threads | None = None, **options: str) -> Answer:
        """In a thread: a store may be slow. Unavailable if the whole store does not answer: the archive may be intact."""
        try:
            place = ArchiveStore(self._address, {**options, **self._options})
            return await asyncio.wrap_future((threads or self._threads).submit(lambda: self._answer(place, question)))
        except (Failed, Unavailable) as error:
            if self._look is not None and self._look.done():
                self._look = None  # its answer is older than this failure
            if isinstance(error, Unavailable):
                raise
            if error.code is Code.S3_ACCESS_ERROR and not await self.reachable():
                raise Unavailable(error.message, **error.context) from error
            raise

    def _answer(self, place: ArchiveStore, question: Callable[[ArchiveStore], Answer]) -> Answer:
        try:
            return question(self._recognised(place))
        except Failed as error:
            if error.code is Code.ARCHIVE_NOT_FOUND:
                self._recognised(place)  # a disk that was unmounted meanwhile has lost no archive
            raise


def _check(key: ArchiveKey, home: Home) -> None:
    if key.workspace_id != home.workspace_id:
        raise Refused("wrong_workspace", f"an archive of {home.workspace_id} cannot be stored under {key}")


@contextlib.contextmanager
def _as_failure(**context: object) -> Iterator[None]:
    try:
        yield
    except ObjectMissing as error:
        raise Failed(Code.ARCHIVE_NOT_FOUND, error.message, **{**error.context, **context}) from error
    except ArchiveMismatch as error:
        raise Failed(Code.CHECKSUM_MISMATCH, error.message, **{**error.context, **context}) from error


def _copied(place: ArchiveStore, source: ArchiveKey, target: ArchiveKey, done: Callable[[int], None]) -> ProvenArchive:
    return looked_twice(lambda: _copied_once(place, source, target, done))


def _copied_once(place: ArchiveStore, source: ArchiveKey, target: ArchiveKey, done: Callable[[int], None]) -> ProvenArchive:
    copied = copy_packed(place, source, target, done)
    if copied is not None:
        return proven_packed(copied)
    return _proven_whole(copy_archive(place, source, target, done).head)


def _proven_whole(head: ManifestHead) -> ProvenArchive:
    """Of format 1."""
    archive = Archive(head.key, head.generation, head.revision, head.manifest_root)
    return ProvenArchive(archive, sum(part.size for part in head.parts), head.home_bytes, head.files)


def _standing(place: ArchiveStore, key: ArchiveKey) -> str:
    """The manifest root of an archive, after a check that all its objects exist and have the right length."""
    with _as_failure(archive=str(key)):
        return place.confirmed(lambda: _standing_once(place, key))


def _standing_once(place: ArchiveStore, key: ArchiveKey) -> str:
    root = fetch_root(place, key)
    if root is not None:
        check_packs(place, root)
        return root.manifest_root
    head = fetch_head(place, key)
    if head is None:
        raise ObjectMissing(f"there is no finished archive {key}")
    for part in head.parts:
        path = object_path(key, part.name)
        size = place.size(path)
        if size is None:
            raise ObjectMissing(f"{path} is missing", object=path)
        if size != part.size:
            raise ArchiveMismatch(f"{path} has {size} bytes, the manifest says {part.size}", object=path)
    return head.manifest_root
