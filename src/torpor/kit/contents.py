"""Decide what is in the kit: a list of files, and where each comes from on this machine."""

import ast
import importlib.util
import os
import platform
import re
import ssl
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torpor
from torpor import __version__
from torpor.domain.errors import Hopeless
from torpor.kit import layout
from torpor.kit.libraries import libraries_of

# Modules of the standard library that no program of the kit needs: tests, installers, graphics, databases, documentation.
LEFT_OUT = frozenset(
    {
        *("test", "tests", "idlelib", "ensurepip", "venv", "distutils", "lib2to3", "site-packages", "dist-packages"),
        *("tkinter", "turtle", "turtledemo", "curses", "_pyrepl", "readline", "dbm", "sqlite3", "pydoc", "pydoc_data"),
        *("unittest", "doctest", "xmlrpc", "wsgiref", "antigravity", "this", "__phello__", "__hello__", "__pycache__"),
        *("_tkinter", "_curses", "_curses_panel", "_dbm", "_gdbm", "_sqlite3", "_lsprof", "_ctypes_test", "_crypt"),
        *("nis", "ossaudiodev", "audioop", "spwd", "crypt", "EXTERNALLY-MANAGED"),
    }
)
LEFT_OUT_PREFIXES = ("_test", "xx", "_xx", "config-", "_sysconfigdata", "_codecs_")
# Files of packages that only a type checker, a compiler or a debugger reads.
NOT_RUN = frozenset({".pyi", ".typed", ".c", ".h", ".a", ".pyc"})
# Every path in these values is of the machine that built the interpreter, except that of the time zones.
TIME_ZONES = "TZPATH"

PACKAGES = ("obstore", "websockets", *(() if sys.version_info >= (3, 14) else ("backports.zstd",)))
ENTRY_POINTS = ("torpor.archives.job",)
"""The other programs of the kit are all files of `torpor.inside`."""

CERTIFICATE_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# A file of certificates may contain private keys as well: only certificates are copied.
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class KitFile:
    target: str
    """Its path in the kit."""
    source: Path | bytes

    @property
    def state(self) -> str:
        """Differs when the file on this machine has changed."""
        if isinstance(self.source, bytes):
            return f"{self.target} {self.source.hex()}"
        status = self.source.stat()
        return f"{self.target} {self.source} {status.st_size} {status.st_mtime_ns} {status.st_ino}"

    def read(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()


@dataclass(frozen=True, slots=True)
class KitContents:
    files: tuple[KitFile, ...]
    loader: str
    """Its name in `lib`."""
    facts: Mapping[str, str]
    """For the manifest: what the kit is for."""


def contents_here(environ: Mapping[str, str]) -> KitContents:
    """Everything that a kit of this interpreter contains; Hopeless if a part is missing on this machine."""
    try:
        return _contents_here(environ)
    except OSError as error:
        raise Hopeless(f"the kit cannot be built: {error.filename} cannot be read: {error.strerror}") from error


def _contents_here(environ: Mapping[str, str]) -> KitContents:
    program = interpreter()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = f"{layout.LIBRARIES}/{version}"
    files = [
        KitFile(layout.PYTHON, program),
        KitFile(layout.SEARCH_PATH, f"../{library}\n../{library}/lib-dynload\n../{layout.SITE}\n".encode()),
        KitFile(layout.CERTIFICATES, certificates(environ)),
        *standard_library(library),
        *(file for name in PACKAGES for file in package(name)),
        *own_modules(),
    ]
    modules = [file.source for file in files if file.target.endswith(".so") and isinstance(file.source, Path)]
    found = libraries_of(program, modules, environ)
    files += [KitFile(f"{layout.LIBRARIES}/{name}", path) for name, path in found.by_name.items()]
    files += [KitFile(f"{layout.LIBRARIES}/{found.loader.name}", found.loader)]
    facts = {
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torpor": __version__,
        "c_library": os.confstr("CS_GNU_LIBC_VERSION") or "unknown",
    }
    return KitContents(tuple(sorted(files, key=lambda file: file.target)), found.loader.name, facts)


def interpreter() -> Path:
    """That of the base installation: that of a virtual environment is only a link to it."""
    base: str = getattr(sys, "_base_executable", None) or sys.executable
    return Path(base).resolve()


# ── the standard library ──────────────────────────────────────────────────────────────────────────────────────────────


def standard_library(target: str) -> Iterator[KitFile]:
    folder = Path(sysconfig.get_path("stdlib"))
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    for path in _files_below(folder):
        if path.suffix != ".so" or path.name.endswith((suffix, ".abi3.so")):
            yield KitFile(f"{target}/{path.relative_to(folder)}", path)
    for path in folder.glob("_sysconfigdata*.py"):
        yield KitFile(f"{target}/{path.name}", _configuration())


def _configuration() -> bytes:
    """What `sysconfig` reads: only the values without paths."""
    values = sysconfig.get_config_vars()
    kept = {name: value for name, value in values.items() if name == TIME_ZONES or "/" not in str(value)}
    # These follow from where the interpreter runs, or from the machine and its user.
    for name in (
        "userbase",
        "projectbase",
        "py_version_nodot_plat",
        "installed_base",
        "installed_platbase",
        "base",
        "platbase",
    ):
        kept.pop(name, None)
    lines = "".join(f"    {name!r}: {value!r},\n" for name, value in sorted(kept.items()))
    return f"build_time_vars = {{\n{lines}}}\n".encode()


# ── packages and Torpor's own modules ─────────────────────────────────────────────────────────────────────────────────


def package(name: str) -> Iterator[KitFile]:
    folder = _folder_of(name)
    for path in _files_below(folder):
        yield KitFile(f"{layout.SITE}/{name.replace('.', '/')}/{path.relative_to(folder)}", path)


def _folder_of(name: str) -> Path:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise Hopeless(f"the kit cannot be built: the Python package {name} is not installed; install Torpor again")
    return Path(next(iter(spec.submodule_search_locations)))


def own_modules() -> Iterator[KitFile]:
    """The agent's folder, and each module of Torpor that the archive job imports, directly or indirectly."""
    root = Path(torpor.__file__).parent
    inside = set(_files_below(root / "inside"))
    modules = {path for path in inside if path.suffix == ".py"}
    for path in sorted(inside | imported(root, [_module_file(root, name) for name in ENTRY_POINTS] + sorted(modules))):
        yield KitFile(f"{layout.SITE}/torpor/{path.relative_to(root)}", path)


def imported(root: Path, files: Iterable[Path]) -> set[Path]:
    """These files of the package `torpor`, all others that they import, and the packages above them."""
    found: set[Path] = set()
    waiting = list(files)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        above = [parent / "__init__.py" for parent in path.parents if parent == root or parent.is_relative_to(root)]
        waiting += [*above, *(_module_file(root, name) for name in _names_imported(path))]
    return found


def _names_imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "torpor":
            yield node.module
            # `from torpor.archives import tree` may name a module or a value.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "torpor")


def _module_file(root: Path, name: str) -> Path:
    """The file of a module. A name that is not a module is a value of the package or module above it."""
    while True:
        path = root.joinpath(*name.split(".")[1:])
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
        name = name.rpartition(".")[0]


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_kept(name))
        for name in sorted(names):
            if _is_kept(name.partition(".")[0]) and Path(name).suffix not in NOT_RUN:
                yield Path(parent, name)


def _is_kept(name: str) -> bool:
    return name not in LEFT_OUT and not name.startswith(LEFT_OUT_PREFIXES)


# ── certificates ──────────────────────────────────────────────────────────────────────────────────────────────────────


def certificates(environ: Mapping[str, str]) -> bytes:
    """The CA certificates that this machine trusts, also those of its administrator."""
    chosen = environ.get("SSL_CERT_FILE")
    candidates = [chosen] if chosen else [ssl.get_default_verify_paths().cafile, *CERTIFICATE_FILES]
    for path in filter(None, candidates):
        if Path(path).is_file():
            found = CERTIFICATE.findall(Path(path).read_bytes())
            if found:
                return b"\n".join(found) + b"\n"
    if chosen:
        raise Hopeless(f"the kit cannot be built: SSL_CERT_FILE names {chosen!r}, which contains no certificate")
    raise Hopeless(
        "the kit cannot be built: this machine has no CA certificates; install the package ca-certificates, or name a file"
        " in SSL_CERT_FILE"
    )


# ── paths of this machine ─────────────────────────────────────────────────────────────────────────────────────────────

SYSTEM_PREFIXES = frozenset({"/", "/usr", "/usr/local"})
PATH_VALUES = ("prefix", "exec_prefix", "abs_srcdir", "abs_builddir", "srcdir", "LIBDIR", "userbase")


def private_paths() -> list[bytes]:
    """Folders of this machine that a compiled file of the interpreter may contain; the longest first."""
    values = {sys.prefix, sys.base_prefix, *(str(sysconfig.get_config_var(name)) for name in PATH_VALUES)}
    # An interpreter that was moved still contains the place that it was built for.
    values.add(str(Path(str(sysconfig.get_config_var("LIBDIR"))).parent))
    system = tuple(f"{prefix}/" for prefix in ("/usr/lib", "/usr/share", "/lib"))
    paths = {str(Path(value)) for value in values if value.startswith("/")} - SYSTEM_PREFIXES
    private = {path for path in paths if not f"{path}/".startswith(system)}
    return sorted((path.encode() for path in private), key=len, reverse=True)


def without_private_paths(content: bytes, paths: Iterable[bytes]) -> bytes:
    """The folders above each of them become slashes. Every other byte stays where it is.

    A compiled file refers to positions. The last name stays as well, because a linker stores a text that is the end of
    another only once: `3.12.1` is also the end of `/home/ann/.pyenv/versions/3.12.1`.
    """
    for path in paths:
        above, _, name = path.rpartition(b"/")
        content = content.replace(path, b"/" * (len(above) + 1) + name)
    return content
