"""A kit is small, always the same, readable by every user, and has no path of this machine in it."""

import marshal
import os
import shutil
import stat
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import torpor
from torpor.domain.errors import Hopeless
from torpor.kit import build as building
from torpor.kit import layout
from torpor.kit.build import build
from torpor.kit.contents import contents_here, interpreter, private_paths
from torpor.kit.manifest import Kit, files_of, is_intact

LARGEST_BYTES = 60_000_000
WHEEL_OF_OTHERS = "site/obstore/_obstore.abi3.so"
"""Its compiler wrote paths of the machine that made the wheel, which may be the same as here."""


def test_it_is_small(kit: Kit) -> None:
    on_disk = sum(path.stat().st_size for path in kit.path.rglob("*") if path.is_file())
    assert kit.manifest.size_bytes < on_disk < LARGEST_BYTES
    assert kit.manifest.size_bytes == sum(kit.manifest.parts.values())


def test_what_is_not_needed_is_left_out(kit: Kit) -> None:
    names = {path.name for path in kit.path.rglob("*")}
    assert not names & {"test", "tests", "tkinter", "idlelib", "ensurepip", "site-packages", "lib2to3"}
    assert not [name for name in names if name.startswith(("_tkinter", "libX11", "libtk", "libtcl", "_test"))]


def test_a_second_build_in_another_place_has_the_same_hash(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "a longer name than that of the first"
    root.mkdir()
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o077)
    try:
        again = build(contents_here(os.environ), root, lambda done, total: None)
    finally:
        os.umask(before)
    assert again == kit.manifest
    assert {path.relative_to(root) for path in root.rglob("*")} == {path.relative_to(kit.path) for path in kit.path.rglob("*")}


def test_every_user_can_read_it_and_no_file_can_be_written(kit: Kit) -> None:
    for path in (kit.path, *kit.path.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert not path.is_symlink()
        assert mode in ((0o755,) if path.is_dir() else (0o444, 0o555)), path
        assert path.stat().st_mtime == building.TIME_S, path
    assert stat.S_IMODE((kit.path / layout.PYTHON).stat().st_mode) == 0o555


def own_paths(kit: Kit) -> set[bytes]:
    """Of the interpreter and its build, this checkout, the data directory, and the user."""
    source = Path(torpor.__file__).resolve().parents[2]
    folders = {
        source,
        kit.path.parent,
        interpreter().parent.parent,
        Path.home(),
        Path.cwd(),
        Path(sysconfig.get_path("purelib")),
    }
    named = {os.fsencode(folder) for folder in folders} | set(private_paths())
    return {path for path in named if path not in (b"/", b"/usr", b"/usr/local", b"/opt")}


def test_no_file_contains_a_path_of_this_machine(kit: Kit) -> None:
    found = [
        (path.relative_to(kit.path).as_posix(), word.decode())
        for path in (*files_of(kit.path), kit.path / layout.MANIFEST)
        for content in [path.read_bytes()]
        for word in own_paths(kit)
        if word in content
    ]
    home = str(Path.home())
    assert [one for one in found if one != (WHEEL_OF_OTHERS, home)] == []


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def test_bytecode_names_its_source_in_a_container(kit: Kit) -> None:
    files = [path for path in files_of(kit.path) if path.suffix == ".pyc"]
    assert len(files) > 300
    for path in files:
        content = path.read_bytes()
        assert int.from_bytes(content[4:8], "little") == 0b01, f"{path}: not an unchecked hash"
        name = path.relative_to(kit.path).as_posix().replace("__pycache__/", "").partition(".cpython-")[0].removesuffix(".pyc")
        assert {code.co_filename for code in codes(marshal.loads(content[16:]))} == {f"{layout.MOUNT}/{name}.py"}


def test_a_change_of_any_file_is_noticed(kit: Kit, tmp_path: Path) -> None:
    copy = Kit(Path(shutil.copytree(kit.path, tmp_path / kit.path.name)), kit.manifest)
    assert is_intact(copy)
    library = copy.path / layout.LIBRARIES / "libc.so.6"
    library.chmod(0o644)
    assert not is_intact(copy)
    library.chmod(0o555)
    assert is_intact(copy)
    (copy.path / "site" / "more.py").write_text("")
    assert not is_intact(copy)


def test_another_architecture_is_refused(kit: Kit) -> None:
    kit.refuse_other_architecture(os.uname().machine)
    kit.refuse_other_architecture({"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine])
    with pytest.raises(Hopeless, match=f"this kit is for {os.uname().machine}, not for riscv64"):
        kit.refuse_other_architecture("riscv64")


def test_an_interpreter_that_does_not_run_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = contents_here(os.environ)
    kept = tuple(file for file in here.files if not file.target.endswith(("lib/libc.so.6", "encodings/utf_8.py")))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/absent")
    with pytest.raises(Hopeless, match="the kit cannot be built: its interpreter ended with exit code"):
        build(type(here)(kept, here.loader, here.facts), tmp_path, lambda done, total: None)
    assert not (tmp_path / layout.MANIFEST).exists()
