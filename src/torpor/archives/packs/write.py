"""Write and prove an archive of format 2.

The order: list the packs of the base, store new contents and read them back, walk the home again, prove packs of the base that
were not proven lately, store the sections and check them as they were read back, and write the root last.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torpor.archives.blocking_calls import Threads
from torpor.archives.entries import ArchiveMismatch, HomeFacts
from torpor.archives.packs.base import Base, LostPack, repacked
from torpor.archives.packs.content_places import ContentPlaces, place_number
from torpor.archives.packs.content_reader import ContentReader
from torpor.archives.packs.crew import Crew, Handlers, InlineCrew, abandon_calls, finish_calls
from torpor.archives.packs.documents import Documents, checked_trees
from torpor.archives.packs.hashes import zero_block_digest
from torpor.archives.packs.home_pass import HomePass
from torpor.archives.packs.layout import PACKS, pack_path, root_path
from torpor.archives.packs.pack_check import prove_pack
from torpor.archives.packs.pack_numbers import PackNumbers
from torpor.archives.packs.pack_writer import PackWriter, WrittenPack
from torpor.archives.packs.root import FORMAT, PackUse, Root, fetch_root
from torpor.archives.packs.rows import DIRECTORY, HOME, OWN, Row
from torpor.archives.packs.section_builder import SectionBuilder
from torpor.archives.packs.sections import NO_FRAME, contents
from torpor.archives.packs.side_file import side_folders
from torpor.archives.progress_meter import HomeCount, Meter
from torpor.archives.store import ArchiveStore, ObjectMissing, StoredObject, remove_unfinished
from torpor.archives.tree import SkipSummary
from torpor.domain.errors import Code, Failed
from torpor.domain.records import Archive, ArchiveKey, ProvenArchive, ProvenPack

HEADS_AT_ONCE = 8
PASSES = 3
"""How often a home that changes is read."""
Done = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class BaseRequest:
    """The archive whose contents may be taken over (`torpor.ports.ArchiveBase`)."""

    key: ArchiveKey
    manifest_root: str
    trusted: Mapping[str, str]
    unusable: frozenset[str]


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    key: ArchiveKey
    generation: int
    revision: int
    base: BaseRequest | None = None


@dataclass(frozen=True, slots=True)
class WrittenArchive:
    root: Root
    root_size: int
    new_bytes: int
    packs: tuple[ProvenPack, ...]
    lost: tuple[str, ...] = ()
    """Packs of the base that turned out to be missing or damaged."""

    @property
    def size_bytes(self) -> int:
        return self.root_size + sum(pack.size_bytes for pack in self.packs)


def result_of(written: WrittenArchive) -> dict[str, object]:
    """As JSON: the result of a job."""
    root = written.root
    return {
        "format": FORMAT,
        "manifest_root": root.manifest_root,
        "size_bytes": written.size_bytes,
        "new_bytes": written.new_bytes,
        "home_bytes": root.home_bytes,
        "files": root.files,
        "skipped": root.skipped_count,
        "packs": [[pack.name, pack.size_bytes, pack.store_version, pack.is_read_back] for pack in written.packs],
        "lost": list(written.lost),
    }


def proven_packed(written: WrittenArchive) -> ProvenArchive:
    root = written.root
    archive = Archive(root.key, root.generation, root.revision, root.manifest_root)
    return ProvenArchive(
        archive,
        written.size_bytes,
        root.home_bytes,
        root.files,
        format=FORMAT,
        new_bytes=written.new_bytes,
        packs=written.packs,
        lost=written.lost,
    )


def handlers_of(open_store: Callable[[], ArchiveStore], key: ArchiveKey, home: int) -> Callable[[int, int], Handlers]:
    """The part of each process: packs have numbers `member`, `member` + `size` + 1, ..."""

    def make(member: int, size: int) -> Handlers:
        place = open_store()

        def writer(done: Done) -> PackWriter:
            return PackWriter(place, key.workspace_id, key.op_id, first_number=member, stride=size + 1, done=done)

        reader = ContentReader(home, writer)
        return {"read": reader.read, "store": reader.store, "finish": reader.finish, "prove": prover(place, key)}

    return make


def write(place: ArchiveStore, request: ArchiveRequest, home: Path, home_fd: int, crew: Crew, done: Meter) -> WrittenArchive:
    """Write and prove the archive of a home. A finished archive with this key is only proven, never written again."""
    with _judged(request.key):
        root = fetch_root(place, request.key)
        if root is None:
            # No other operation of this workspace is in progress.
            remove_unfinished(place.address, f"{request.key.workspace_id}/{PACKS}")
            written = _Operation(place, request, home, home_fd, crew, done).run()
            if written is not None:
                return written
        return prove_archive(place, request, crew, done)


def prove_finished(place: ArchiveStore, request: ArchiveRequest) -> WrittenArchive | None:
    """Prove an archive that an earlier attempt has finished in this format; None if there is none."""
    with _judged(request.key), closing(InlineCrew(lambda _member, _size: {"prove": prover(place, request.key)})) as crew:
        if fetch_root(place, request.key) is None:
            return None
        return prove_archive(place, request, crew, lambda _count: None)


def write_empty(place: ArchiveStore, request: ArchiveRequest, *, mode: int) -> WrittenArchive:
    """Write and prove the archive of an empty home."""
    with _judged(request.key), closing(InlineCrew(lambda _member, _size: {"prove": prover(place, request.key)})) as crew:
        root = fetch_root(place, request.key)
        if root is None:
            packs = PackNumbers()
            builder = SectionBuilder(packs, PackWriter(place, request.key.workspace_id, request.key.op_id))
            builder.add(Row(HOME, DIRECTORY, b"%o" % mode, OWN, OWN, b"", b"0", b"", b"", b""), (), ())
            builder.finish()
            written = _finish(place, request, HomeFacts(0, 0, 0), SkipSummary(), builder, packs, {}, ContentPlaces(), {})
            if written is not None:
                return written
        return prove_archive(place, request, crew, lambda _count: None)


def prove_archive(place: ArchiveStore, request: ArchiveRequest, crew: Crew, done: Done) -> WrittenArchive:
    """Prove a finished archive: all its packs are read, and all its sections checked."""
    with _judged(request.key):
        return _proven_again(place, request, fetch_root(place, request.key), crew, done)


def prover(place: ArchiveStore, key: ArchiveKey) -> Callable[[str, int], ProvenPack | None]:
    def prove(name: str, size: int) -> ProvenPack | None:
        """None if the pack is missing or differs from its name."""
        try:
            return prove_pack(place, key.workspace_id, name, size)
        except ArchiveMismatch:
            return None

    return prove


class _Operation:
    def __init__(self, place: ArchiveStore, request: ArchiveRequest, home: Path, home_fd: int, crew: Crew, done: Meter) -> None:
        self._place = place
        self._request = request
        self._home = home
        self._crew = crew
        self._done = done
        self._packs = PackNumbers()
        self._places = ContentPlaces(side_folders(home))
        self._missing = frozenset[str]()
        """Packs of the base that are not in the store, or have another size."""
        key = request.key

        def writer(proved: Done) -> PackWriter:
            return PackWriter(place, key.workspace_id, key.op_id, first_number=crew.size, stride=crew.size + 1, done=proved)

        self._own = ContentReader(home_fd, writer)

    def run(self) -> WrittenArchive | None:
        """None if another process has finished this archive meanwhile."""
        known = lost = frozenset[str]() if self._request.base is None else self._request.base.unusable
        while True:
            try:
                written = self._attempt(lost)
                return None if written is None else replace(written, lost=tuple(sorted((lost | self._missing) - known)))
            except LostPack as error:
                # The number of packs is limited, so this ends.
                lost |= error.names | self._abandoned()
                self._places = ContentPlaces(side_folders(self._home))

    def _abandoned(self) -> frozenset[str]:
        """Wait for the answers of all calls; return the packs that turn out to be lost meanwhile."""
        try:
            abandon_calls(self._crew)
        except LostPack as error:
            return error.names
        return frozenset()

    def _attempt(self, lost: frozenset[str]) -> WrittenArchive | None:
        base, listed = self._open_base(lost)
        done = self._pass(base)
        if self._own.has_stored:
            # Refs name the packs of contents, so these must be finished before refs are written.
            self._finished(self._own.finish())
        taken = self._taken_over(done, base, listed)
        return _finish(
            self._place,
            self._request,
            done.walk.home,
            done.walk.skipped,
            done.builder,
            self._packs,
            {} if base is None else base.root.uses,
            self._places,
            taken,
        )

    def _open_base(self, lost: frozenset[str]) -> tuple[Base | None, Mapping[str, StoredObject]]:
        """The packs are listed before the walk: what is missing then is read from the home."""
        wanted = self._request.base
        if wanted is None:
            return None, {}
        try:
            root = fetch_root(self._place, wanted.key)
        except ArchiveMismatch:
            root = None
        if root is None or root.manifest_root != wanted.manifest_root:
            return None, {}
        self._done.expect(HomeCount(root.home_bytes, root.files))
        listed = _listed(self._place, root)
        self._missing = frozenset(name for name, size in root.packs.items() if name not in listed or listed[name].size != size)
        lost |= self._missing
        return Base(self._place, root, self._home, lost, repacked(root), self._packs), listed

    def _pass(self, base: Base | None) -> HomePass:
        """Read the home, again if it changes. Contents that were stored stay known."""
        for attempt in range(1, PASSES + 1):
            one = HomePass(self._home, self._crew, self._own, self._packs, self._places, base, self._done)
            try:
                one.run()
                for member in range(self._crew.size):
                    self._crew.call(member, "finish", then=self._finished)
                # In the meantime the other processes upload and prove.
                one.check_unchanged()
                finish_calls(self._crew)
            except Failed as error:
                if error.code is not Code.HOME_CHANGED or attempt == PASSES:
                    raise
                abandon_calls(self._crew)
            else:
                return one
        raise AssertionError("unreachable")

    def _finished(self, answer: tuple[list[WrittenPack], int]) -> None:
        packs, proved = answer
        for pack in packs:
            self._packs.add(pack)
        self._done(proved)

    def _taken_over(self, done: HomePass, base: Base | None, listed: Mapping[str, StoredObject]) -> dict[str, ProvenPack]:
        """The packs of the base that the archive may need, each proven lately or now."""
        if base is None or self._request.base is None:
            return {}
        proven: dict[str, ProvenPack] = {}
        failed: set[str] = set()
        for name in done.builder.packs_of_base():
            stored = listed[name]
            if stored.version and self._request.base.trusted.get(name) == stored.version:
                proven[name] = ProvenPack(name, stored.size, stored.version, is_read_back=False)
                continue
            member = min(range(self._crew.size), key=self._crew.waiting)

            def answered(found: ProvenPack | None, name: str = name) -> None:
                if found is None:
                    failed.add(name)
                else:
                    proven[name] = found
                    self._done(base.root.uses[name].raw)

            self._crew.call(member, "prove", name, stored.size, then=answered)
        finish_calls(self._crew)
        if failed:
            raise LostPack(failed)
        return proven


def _listed(place: ArchiveStore, root: Root) -> dict[str, StoredObject]:
    """The packs of this root that are in the store. A listing may be late, so a missing one is asked for."""
    prefix = f"{root.workspace_id}/{PACKS}"
    found = {stored.path.rpartition("/")[2]: stored for page in place.sizes(prefix) for stored in page}
    for name, size in root.packs.items():
        if (name not in found or found[name].size != size) and (asked := place.head(pack_path(root.workspace_id, name))):
            found[name] = asked
    return {name: found[name] for name in root.packs if name in found}


def _lost(place: ArchiveStore, root: Root, taken: Sequence[ProvenPack]) -> set[str]:
    """Those of the packs that are not as they were proven. Each is asked for: a listing may still have a removed one, and the
    home is removed after this."""

    def is_lost(pack: ProvenPack) -> bool:
        found = place.head(pack_path(root.workspace_id, pack.name))
        return found is None or found.size != pack.size_bytes or (not pack.is_read_back and found.version != pack.store_version)

    threads = Threads(HEADS_AT_ONCE)
    try:
        asked = [(pack.name, threads.submit(partial(is_lost, pack))) for pack in taken]
        return {name for name, answer in asked if answer.result()}
    finally:
        threads.close()


def _finish(
    place: ArchiveStore,
    request: ArchiveRequest,
    home: HomeFacts,
    skipped: SkipSummary,
    builder: SectionBuilder,
    packs: PackNumbers,
    base_uses: Mapping[str, PackUse],
    places: ContentPlaces,
    taken: Mapping[str, ProvenPack],
) -> WrittenArchive | None:
    """Store the sections, check them, and write the root. None if there is another root with this key."""
    sections = builder.sections()
    proven = {**taken, **{pack.proven.name: pack.proven for pack in packs.written}}
    raw = {pack.proven.name: sum(length for _, _, length in pack.frames) for pack in packs.written}
    live: dict[str, int] = {}
    for section in sections:
        for name, used in section.live.items():
            live[name] = live.get(name, 0) + used
        for stored in (section.tree, section.refs):
            live[stored.frame.pack] = live.get(stored.frame.pack, 0) + stored.frame.raw
    uses = {
        name: PackUse(proven[name].size_bytes, raw[name] if name in raw else base_uses[name].raw, used)
        for name, used in live.items()
    }
    home_root = builder.home_root
    root = Root(
        workspace_id=request.key.workspace_id,
        op_id=request.key.op_id,
        generation=request.generation,
        revision=request.revision,
        manifest_root=home_root.hex(),
        home=home,
        entries=home_root.entries,
        files=home_root.files,
        home_bytes=home_root.home_bytes,
        uses=uses,
        sections=sections,
        skipped=tuple(skipped.first),
        skipped_count=skipped.count,
    )
    _check_new_sections(place, root, packs, places)
    if lost := _lost(place, root, [taken[name] for name in taken.keys() & uses.keys()]):
        raise LostPack(lost)
    document = root.serialise()
    if not place.write_once(root_path(root.key), document):
        return None
    place.confirmed(lambda: _compare_root(place, root.key, document))
    return _written(root, len(document), tuple(proven[name] for name in sorted(uses)))


def _compare_root(place: ArchiveStore, key: ArchiveKey, document: bytes) -> None:
    path = root_path(key)
    if place.content(path) != document:
        raise ArchiveMismatch(f"{path} differs from what was written", object=path)


def _check_new_sections(place: ArchiveStore, root: Root, packs: PackNumbers, places: ContentPlaces) -> None:
    """Read the sections back and check them as a restore does. Contents must be where they were stored.

    An archive that consists of the sections of its base was checked before.
    """
    new = {pack.proven.name: pack.number for pack in packs.written}
    frame_number = {
        (pack.proven.name, start): number for pack in packs.written for number, (start, _, _) in enumerate(pack.frames)
    }
    if all(section.refs.frame.pack not in new for section in root.sections):
        return
    documents = Documents(place, root)
    for section, columns in checked_trees(documents, root):
        if section.refs.frame.pack not in new:
            continue
        refs = documents.refs(section, columns)
        numbers = [
            place_number(new[frame.pack], frame_number[frame.pack, frame.start], 0) if frame.pack in new else None
            for frame in refs.frames
        ]
        for position, (domain, length, digest) in enumerate(contents(columns, refs)):
            frame = refs.frame[position]
            if frame == NO_FRAME:
                if digest != zero_block_digest(length):
                    raise ArchiveMismatch("a section has a block of zeros with another hash")
                continue
            begin = numbers[frame]
            if begin is None:
                continue  # a content of the base, as its own sections say
            found = places.find(domain, length, digest)
            if found != begin + refs.offset[position] and not (found is None and places.is_full):
                raise ArchiveMismatch("a section refers to another content than was stored")


def _written(root: Root, root_size: int, packs: tuple[ProvenPack, ...]) -> WrittenArchive:
    own = sum(pack.size_bytes for pack in packs if pack.name.startswith(root.op_id))
    return WrittenArchive(root, root_size, root_size + own, packs)


def _proven_again(place: ArchiveStore, request: ArchiveRequest, root: Root | None, crew: Crew, done: Done) -> WrittenArchive:
    if root is None:
        raise ObjectMissing(f"the root of {request.key} is missing")
    if (root.generation, root.revision) != (request.generation, request.revision):
        raise ArchiveMismatch(
            f"the archive is of generation {root.generation}, revision {root.revision}; "
            f"expected generation {request.generation}, revision {request.revision}"
        )
    proven: dict[str, ProvenPack] = {}
    for number, (name, size) in enumerate(sorted(root.packs.items())):

        def answered(found: ProvenPack | None, name: str = name) -> None:
            if found is None:
                raise ArchiveMismatch(f"{pack_path(root.workspace_id, name)} is missing or differs from its name")
            proven[name] = found
            done(root.uses[name].raw)

        crew.call(number % crew.size, "prove", name, size, then=answered)
        crew.pump(wait_for_one=False)
    documents = Documents(place, root)
    for section, columns in checked_trees(documents, root):
        documents.refs(section, columns)
    finish_calls(crew)
    size = place.size(root_path(root.key)) or 0
    return _written(root, size, tuple(proven[name] for name in sorted(proven)))


@contextmanager
def _judged(key: ArchiveKey) -> Iterator[None]:
    """A difference is found while the home is intact: a new op_id helps."""
    try:
        yield
    except ArchiveMismatch as error:
        raise Failed(Code.READBACK_MISMATCH, f"read back {key}: {error.message}", **error.context) from error
