"""Number the packs and frames of one archive operation: new ones, and those of the base."""

from torpor.archives.packs.content_places import FRAME_BITS, MOST_PACKS
from torpor.archives.packs.pack_writer import MOST_FRAMES, WrittenPack
from torpor.archives.packs.sections import Frame

FIRST_OF_BASE = MOST_PACKS >> 1


class PackNumbers:
    """The number of a frame includes the number of its pack (`content_places`)."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._frames: dict[int, list[tuple[int, int, int]]] = {}
        self._frame_numbers: dict[tuple[str, int], int] = {}
        self.written: list[WrittenPack] = []

    def add(self, pack: WrittenPack) -> None:
        """A new pack is finished, and has its name."""
        self._numbers[pack.proven.name] = pack.number
        self._names[pack.number] = pack.proven.name
        self._frames[pack.number] = list(pack.frames)
        self.written.append(pack)

    def add_frame_of_base(self, frame: Frame) -> int | None:
        """The number of a frame of the base; None if there are too many."""
        known = self._frame_numbers.get((frame.pack, frame.start))
        if known is not None:
            return known
        number = self._numbers.setdefault(frame.pack, FIRST_OF_BASE + len(self._numbers))
        self._names[number] = frame.pack
        frames = self._frames.setdefault(number, [])
        if len(frames) > MOST_FRAMES:
            return None
        frames.append((frame.start, frame.stored, frame.raw))
        known = number << FRAME_BITS | (len(frames) - 1)
        self._frame_numbers[frame.pack, frame.start] = known
        return known

    def is_of_base(self, number: int) -> bool:
        return number >> FRAME_BITS >= FIRST_OF_BASE

    def frame_at(self, number: int) -> Frame:
        return self.frame_of(number >> FRAME_BITS, number & MOST_FRAMES)

    def frame_of(self, pack: int, frame: int) -> Frame:
        return Frame(self._names[pack], *self._frames[pack][frame])
