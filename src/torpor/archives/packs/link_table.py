"""Find the first path of each file that has several: millions of hard links in little memory."""

from pathlib import Path

from torpor.archives.packs.side_file import SideFile, zeros

FIRST_SLOTS = 1 << 10
LENGTH_BITS = 24
"""Of a path. The rest of a number says where the path is."""


class LinkTable:
    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders
        self._paths = SideFile(folders)
        self._of_device: dict[int, _Inodes] = {}

    def first_path(self, device: int, inode: int, path: bytes) -> bytes:
        """The path with which this inode was asked for first: `path` itself the first time."""
        inodes = self._of_device.get(device)
        if inodes is None:
            inodes = self._of_device[device] = _Inodes(self._folders)
        known = inodes.get(inode)
        if known is None:
            inodes.add(inode, self._paths.add(path) << LENGTH_BITS | len(path))
            return path
        return self._paths.read(known >> LENGTH_BITS, known & ((1 << LENGTH_BITS) - 1))


class _Inodes:
    """Numbers of inodes with a value each: open addressing in two tables."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders
        self._count = 0
        self._reserve(FIRST_SLOTS)

    def get(self, inode: int) -> int | None:
        slot = self._slot(inode)
        return self._values[slot] if self._inodes[slot] else None

    def add(self, inode: int, value: int) -> None:
        if 3 * (self._count + 1) > 2 * len(self._inodes):
            self._grow()
        slot = self._slot(inode)
        self._inodes[slot], self._values[slot] = inode, value
        self._count += 1

    def _slot(self, inode: int) -> int:
        inodes, mask = self._inodes, len(self._inodes) - 1
        # Inodes of neighbours are often multiples of a power of two.
        slot = (inode * 0x9E3779B97F4A7C15 >> 24) & mask
        while (there := inodes[slot]) and there != inode:
            slot = (slot + 1) & mask
        return slot

    def _reserve(self, slots: int) -> None:
        self._inodes = zeros("Q", slots, self._folders)
        """0: an empty slot. No file has this inode."""
        self._values = zeros("Q", slots, self._folders)

    def _grow(self) -> None:
        inodes, values = self._inodes, self._values
        self._reserve(2 * len(inodes))
        for inode, value in zip(inodes, values, strict=True):
            if inode:
                slot = self._slot(inode)
                self._inodes[slot], self._values[slot] = inode, value
