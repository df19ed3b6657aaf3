"""Read and change ELF files: which libraries a file needs, and where it looks for them.

Only 64-bit little-endian files, which are those of x86-64 and ARM64.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MAGIC = b"\x7fELF\x02\x01"  # ELF, 64 bit, little-endian
HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
ENTRY = struct.Struct("<qQ")

LOAD, DYNAMIC, INTERPRETER = 1, 2, 3
END, NEEDED, STRING_TABLE, RPATH, DEBUG, RUNPATH = 0, 1, 5, 15, 21, 29


class NotSupported(Exception):
    """The file is not an ELF file of the supported kind, or it is damaged."""


class ProgramHeader(NamedTuple):
    """Describes a part of the file that the kernel or the loader reads."""

    kind: int
    flags: int
    offset: int
    address: int
    physical_address: int
    file_size: int
    memory_size: int
    alignment: int


class DynamicEntry(NamedTuple):
    tag: int
    value: int


@dataclass(frozen=True, slots=True)
class ElfFile:
    """The parts of a file that the kernel and the loader read."""

    content: bytes
    machine: int
    table_offset: int
    """Of the program headers."""
    headers: tuple[ProgramHeader, ...]
    dynamic: tuple[DynamicEntry, ...]

    @property
    def interpreter(self) -> str | None:
        """The path of the loader; None for a library or a static program."""
        found = self._first(INTERPRETER)
        return None if found is None else _text(self.content, found.offset)

    @property
    def needed(self) -> tuple[str, ...]:
        return tuple(self._strings(NEEDED))

    @property
    def search_path(self) -> tuple[str, ...]:
        """The folders in the file itself; RUNPATH replaces RPATH."""
        paths = list(self._strings(RUNPATH)) or list(self._strings(RPATH))
        return tuple(folder for path in paths for folder in path.split(":") if folder)

    def _first(self, kind: int) -> ProgramHeader | None:
        return next((one for one in self.headers if one.kind == kind), None)

    def _strings(self, tag: int) -> Iterator[str]:
        table = next((one.value for one in self.dynamic if one.tag == STRING_TABLE), None)
        for entry in self.dynamic:
            if entry.tag == tag:
                if table is None:
                    raise NotSupported("it has no table of names")
                # Modulo: `with_fixed_paths` names a string that is before the table.
                yield _text(self.content, self._offset_of((table + entry.value) % (1 << 64)))

    def _offset_of(self, address: int) -> int:
        for one in self.headers:
            if one.kind == LOAD and one.address <= address < one.address + one.file_size:
                return one.offset + address - one.address
        raise NotSupported(f"address {address:#x} is not in the file")

    def without_search_path(self) -> bytes:
        """Only what is loaded, so without debug information, and without the file's own search path."""
        return self._rewritten([one for one in self.dynamic if one.tag not in (RPATH, RUNPATH)])

    def with_fixed_paths(self, loader: str, libraries: str) -> bytes:
        """A program that uses this loader and looks for libraries in this folder first. Otherwise as `without_search_path`.

        The loader's new path is appended, because only the kernel reads it, from the file. The room of its old path is in
        memory, and gets the name of the folder. RPATH, unlike RUNPATH, also holds for the libraries of libraries.
        """
        interpreter, table = self._first(INTERPRETER), next((one for one in self.dynamic if one.tag == STRING_TABLE), None)
        folder = libraries.encode() + b"\0"
        if interpreter is None or table is None:
            raise NotSupported("it is not a program with shared libraries")
        if self._offset_of(interpreter.address) != interpreter.offset:
            raise NotSupported("the path of its loader was changed")
        if len(folder) > interpreter.file_size:
            raise NotSupported(f"it has no room for the path {libraries}")
        kept = [one for one in self.dynamic if one.tag not in (RPATH, RUNPATH)]
        if len(kept) == len(self.dynamic):
            kept = [one for one in kept if one.tag != DEBUG]  # only a debugger reads this entry, and it makes room
        kept.insert(0, DynamicEntry(RPATH, (interpreter.address - table.value) % (1 << 64)))
        content = bytearray(self._rewritten(kept))
        content[interpreter.offset : interpreter.offset + interpreter.file_size] = folder.ljust(interpreter.file_size, b"\0")
        path = loader.encode() + b"\0"
        moved = interpreter._replace(offset=len(content), file_size=len(path), memory_size=len(path))
        PROGRAM_HEADER.pack_into(content, self.table_offset + self.headers.index(interpreter) * PROGRAM_HEADER.size, *moved)
        return bytes(content) + path

    def _rewritten(self, entries: list[DynamicEntry]) -> bytes:
        """This file with other dynamic entries, up to the last loaded byte."""
        content = bytearray(self.content[: max(one.offset + one.file_size for one in self.headers if one.kind == LOAD)])
        dynamic = self._first(DYNAMIC)
        if dynamic is not None:
            room = dynamic.file_size // ENTRY.size
            if len(entries) >= room:
                raise NotSupported("its dynamic section is full")
            for number in range(room):
                entry = entries[number] if number < len(entries) else DynamicEntry(END, 0)
                ENTRY.pack_into(content, dynamic.offset + number * ENTRY.size, *entry)
        # The section headers were after the loaded part. Neither the kernel nor the loader reads them.
        struct.pack_into("<Q", content, 40, 0)
        struct.pack_into("<HH", content, 60, 0, 0)
        return bytes(content)


def parse(content: bytes) -> ElfFile:
    """NotSupported if it is another kind of file."""
    if not content.startswith(MAGIC):
        raise NotSupported("it is not a 64-bit little-endian ELF file")
    try:
        _, machine, _, _, table, _, _, _, size, count, _, _, _ = HEADER.unpack_from(content)
        if size != PROGRAM_HEADER.size:
            raise NotSupported(f"its program headers have {size} bytes")
        headers = tuple(ProgramHeader(*PROGRAM_HEADER.unpack_from(content, table + number * size)) for number in range(count))
        if not any(one.kind == LOAD for one in headers):
            raise NotSupported("no part of it is loaded")
        return ElfFile(content, machine, table, headers, tuple(_entries(content, headers)))
    except struct.error as error:
        raise NotSupported("it is incomplete") from error


def is_elf(content: bytes) -> bool:
    return content.startswith(b"\x7fELF")


def _entries(content: bytes, headers: tuple[ProgramHeader, ...]) -> Iterator[DynamicEntry]:
    dynamic = next((one for one in headers if one.kind == DYNAMIC), None)
    if dynamic is None:
        return
    for offset in range(dynamic.offset, dynamic.offset + dynamic.file_size, ENTRY.size):
        entry = DynamicEntry(*ENTRY.unpack_from(content, offset))
        if entry.tag == END:
            return
        yield entry


def _text(content: bytes, offset: int) -> str:
    end = content.find(b"\0", offset)
    if end < 0:
        raise NotSupported("it is incomplete")
    return content[offset:end].decode(errors="surrogateescape")
