"""The libraries of a program are those that the loader would take; a missing one is named."""

import os
import subprocess
from pathlib import Path

import pytest

from torpor.domain.errors import Hopeless
from torpor.kit import elf
from torpor.kit.contents import interpreter
from torpor.kit.libraries import configured, libraries_of, loader_of


def test_the_loader_of_this_machine_finds_the_same() -> None:
    """`ld.so --list` is what ldd calls."""
    program = interpreter()
    found = libraries_of(program, [], {})
    said = subprocess.run([found.loader, "--list", program], capture_output=True, text=True, timeout=30, check=True).stdout
    listed = dict(line.split(" (")[0].strip().split(" => ") for line in said.splitlines() if " => /" in line)
    assert "libc.so.6" in listed
    assert {name: path.resolve() for name, path in found.by_name.items() if name in listed} == {
        name: Path(path).resolve() for name, path in listed.items() if name != found.loader.name
    }


def changed(tmp_path: Path, old: bytes, new: bytes) -> Path:
    program = tmp_path / "program"
    program.write_bytes(interpreter().read_bytes().replace(old, new))
    return program


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    program = changed(tmp_path, b"\0libm.so.6\0", b"\0libX.so.6\0")
    if b"\0libX.so.6\0" not in program.read_bytes():
        program = changed(tmp_path, b"\0libc.so.6\0", b"\0libX.so.6\0")
    with pytest.raises(Hopeless, match=r"the shared library libX\.so\.6, which .*/program needs, was not found"):
        libraries_of(program, [], {})


def test_a_library_of_another_architecture_is_passed_over(tmp_path: Path) -> None:
    environ = {"LD_LIBRARY_PATH": str(tmp_path)}
    right = libraries_of(interpreter(), [], environ).by_name["libc.so.6"]
    content = bytearray(right.read_bytes())
    content[18:20] = (9999).to_bytes(2, "little")
    (tmp_path / "libc.so.6").write_bytes(content)
    assert libraries_of(interpreter(), [], environ).by_name["libc.so.6"] == right
    (tmp_path / "libc.so.6").write_bytes(right.read_bytes())
    assert libraries_of(interpreter(), [], environ).by_name["libc.so.6"] == tmp_path / "libc.so.6"


def test_a_python_for_musl_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "python3"
    program.write_bytes(elf.parse(interpreter().read_bytes()).with_fixed_paths("/lib/ld-musl-x86_64.so.1", "/lib"))
    with pytest.raises(Hopeless, match=r"uses the C library musl \(/lib/ld-musl-x86_64\.so\.1\), and the kit needs .*glibc"):
        loader_of(program)


def test_files_that_are_no_programs_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "python3"
    with pytest.raises(Hopeless, match="cannot be read: No such file"):
        loader_of(script)
    script.write_text("#!/bin/sh\n")
    with pytest.raises(Hopeless, match="cannot be used: it is not a 64-bit little-endian ELF file"):
        loader_of(script)
    with pytest.raises(Hopeless, match="has no shared libraries"):
        loader_of(libraries_of(interpreter(), [], {}).by_name["libm.so.6"])


def test_folders_of_the_administrator(tmp_path: Path) -> None:
    (tmp_path / "more.d").mkdir()
    (tmp_path / "more.d" / "a.conf").write_text("/from/a\n")
    (tmp_path / "more.d" / "b.conf").write_text("# nothing\n/from/b # why\n")
    main = tmp_path / "ld.so.conf"
    main.write_text(f"include more.d/*.conf\n\n/first\ninclude {tmp_path}/absent/*.conf\nhwcap 0 nosegneg\n")
    assert [os.fspath(folder) for folder in configured(main)] == ["/from/a", "/from/b", "/first"]
    assert configured(tmp_path / "absent") == []
