"""ELF files are read and changed as the kernel and the loader expect; other files are refused."""

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.kit import elf
from torpor.kit.contents import interpreter
from torpor.kit.libraries import loader_of

PYTHON = interpreter().read_bytes()
SMALL = elf.parse(PYTHON).with_fixed_paths("/a/loader", "/a/lib")[:16384]


def test_an_interpreter_names_its_loader_and_libraries() -> None:
    parsed = elf.parse(PYTHON)
    assert parsed.interpreter is not None
    assert Path(parsed.interpreter).exists()
    assert "libc.so.6" in parsed.needed


def test_fixed_paths_replace_the_loader_and_every_search_path() -> None:
    changed = elf.parse(elf.parse(PYTHON).with_fixed_paths("/a/very/long/path/of/another/loader.so.2", "/a/lib"))
    assert changed.interpreter == "/a/very/long/path/of/another/loader.so.2"
    assert changed.search_path == ("/a/lib",)
    assert changed.needed == elf.parse(PYTHON).needed
    with pytest.raises(elf.NotSupported, match="the path of its loader was changed"):
        changed.with_fixed_paths("/b/loader", "/b/lib")


def test_a_changed_program_runs(tmp_path: Path) -> None:
    loader = tmp_path / "a folder with a long name" / "loader"
    loader.parent.mkdir()
    loader.symlink_to(loader_of(interpreter()))
    parsed = elf.parse(PYTHON)
    (tmp_path / "l").symlink_to(next((Path(folder) for folder in parsed.search_path), tmp_path))
    program = tmp_path / "python"
    program.write_bytes(parsed.with_fixed_paths(str(loader), "/proc/self/cwd/l"))
    program.chmod(0o755)
    argv = [str(program), "-I", "-S", "-c", "print(6 * 7, open('/proc/self/maps').read().count('libc.so.6') > 0)"]
    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=30, check=False)
    assert (ended.stdout, ended.stderr) == (b"42 True\n", b"")


def test_a_library_loses_its_search_path_and_what_is_not_loaded() -> None:
    with_path = elf.parse(elf.parse(PYTHON).with_fixed_paths("/a/loader", "/a/lib") + b"debug information" * 1000)
    without = elf.parse(with_path.without_search_path())
    assert without.search_path == ()
    assert without.needed == with_path.needed
    assert b"debug information" not in without.content
    assert struct.unpack_from("<Q", without.content, 40) == (0,)


def test_a_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(elf.NotSupported, match="no room for the path"):
        elf.parse(PYTHON).with_fixed_paths("/a/loader", "/a" * 100)


@pytest.mark.parametrize(
    "content",
    [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), b"\x7fELF\x02\x02" + bytes(100), elf.MAGIC + bytes(100)],
)
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(elf.NotSupported):
        elf.parse(content)


@given(st.integers(0, len(SMALL)), st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=8))
def test_a_damaged_file_is_refused_or_read(length: int, changes: list[tuple[int, int]]) -> None:
    """No other exception, for any cut and any changed bytes in its headers."""
    content = bytearray(SMALL[:length])
    for place, value in changes:
        if place < len(content):
            content[place] = value
    try:
        parsed = elf.parse(bytes(content))
        _ = parsed.interpreter, parsed.needed, parsed.search_path
        parsed.without_search_path()
        parsed.with_fixed_paths("/a/loader", "/a/lib")
    except elf.NotSupported:
        pass
