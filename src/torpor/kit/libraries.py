"""Find the shared libraries that programs of this machine load, without `ldd`, which is not on every machine."""

import functools
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.domain.errors import Hopeless
from torpor.kit import elf

CONFIGURATION = Path("/etc/ld.so.conf")
DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
# The C library opens these itself, so no file names them: to end a thread, and to find hosts and users (before 2.34).
OPENED_LATER = ("libgcc_s.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")


@dataclass(frozen=True, slots=True)
class FoundLibraries:
    loader: Path
    by_name: dict[str, Path]
    """Without the loader."""


def libraries_of(program: Path, modules: Iterable[Path], environ: Mapping[str, str]) -> FoundLibraries:
    """All libraries that the program and these modules need, also indirectly; Hopeless names one that is missing."""
    loader = loader_of(program)
    machine = read(program).machine
    found: dict[str, Path] = {}
    waiting = [program, *modules]
    waiting += [path for name in OPENED_LATER if (path := _in_folders(name, system_folders(), machine)) is not None]
    found.update((path.name, path) for path in waiting if path.name in OPENED_LATER)
    while waiting:
        user = waiting.pop()
        parsed = read(user)
        for name in parsed.needed:
            if name in found or name == loader.name:
                continue
            path = _in_folders(name, folders_for(user, parsed, environ), machine)
            if path is None:
                raise Hopeless(
                    f"the kit cannot be built: the shared library {name}, which {user} needs, was not found;"
                    " install its package, or name its folder in LD_LIBRARY_PATH"
                )
            found[name] = path
            waiting.append(path)
    return FoundLibraries(loader, dict(sorted(found.items())))


def loader_of(program: Path) -> Path:
    """The loader of the program; Hopeless if it is that of musl, whose libraries the packages of the kit cannot use."""
    path = read(program).interpreter
    if path is None:
        raise Hopeless(f"the kit cannot be built: {program} has no shared libraries; run Torpor with another Python")
    if Path(path).name.startswith("ld-musl"):
        raise Hopeless(
            f"the kit cannot be built: {program} uses the C library musl ({path}), and the kit needs the GNU C library (glibc);"
            " run Torpor with a Python for glibc"
        )
    return Path(path)


def read(path: Path) -> elf.ElfFile:
    try:
        return elf.parse(path.read_bytes())
    except OSError as error:
        raise Hopeless(f"the kit cannot be built: {path} cannot be read: {error.strerror}") from error
    except elf.NotSupported as error:
        raise Hopeless(f"the kit cannot be built: {path} cannot be used: {error}") from error


def folders_for(user: Path, parsed: elf.ElfFile, environ: Mapping[str, str]) -> Iterator[Path]:
    """Where the loader looks for the libraries of a file, in its order."""
    origin = str(user.resolve().parent)
    for folder in parsed.search_path:
        yield Path(folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))
    yield from (Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    yield from system_folders()


@functools.cache
def system_folders() -> tuple[Path, ...]:
    multiarch = f"{platform.machine()}-linux-gnu"
    defaults = [f"{folder}/{multiarch}" for folder in ("/lib", "/usr/lib")] + list(DEFAULT_FOLDERS)
    return tuple(dict.fromkeys([*configured(CONFIGURATION), *map(Path, defaults)]))


def configured(file: Path) -> list[Path]:
    """The folders that this machine's administrator has named."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in (line.partition("#")[0].strip() for line in lines):
        if line.startswith("include"):
            for pattern in line.split()[1:]:
                base, relative = (Path("/"), pattern[1:]) if pattern.startswith("/") else (file.parent, pattern)
                folders += [folder for included in sorted(base.glob(relative)) for folder in configured(included)]
        elif line.startswith("/"):
            folders.append(Path(line))
    return folders


def _in_folders(name: str, folders: Iterable[Path], machine: int) -> Path | None:
    """As the loader does, pass over files of another architecture."""
    for folder in folders:
        path = folder / name
        try:
            if elf.parse(path.read_bytes()).machine == machine:
                return path
        except (OSError, elf.NotSupported):
            continue
    return None
