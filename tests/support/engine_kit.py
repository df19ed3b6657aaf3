"""A kit for containers of tests, made of this interpreter, and an image with a shell and a few programs of this machine.

The kit is a stand-in for the one that Torpor builds: its interpreter is started through a shell, so an image needs one.
"""

import hashlib
import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import torpor
from torpor.runtimes.docker.kit_volume import MOUNT, EngineKit

LIBRARIES = "libraries"
PYTHON = f"{MOUNT}/bin/python3"
# The programs that the contract's scripts use.
TOOLS = (
    *("bash", "sh", "cat", "chmod", "cut", "date", "dd", "echo", "env", "false", "head", "id", "kill", "ls", "mkdir", "mv"),
    *("nohup", "printf", "rm", "setsid", "sleep", "stat", "stty", "tail", "test", "touch", "tr", "true", "tty", "wc"),
)
LEFT_OUT = shutil.ignore_patterns("test", "tests", "site-packages", "idlelib", "tkinter", "ensurepip", "lib2to3", "config-*")


def libraries_of(*programs: Path) -> dict[str, Path]:
    """The shared libraries of these programs, and the loader, by name."""
    found: dict[str, Path] = {}
    for program in programs:
        for line in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines():
            path = next((word for word in line.split() if word.startswith("/")), None)
            if path:
                found[Path(path).name] = Path(path)
    return found


def build_kit(folder: Path) -> EngineKit:
    interpreter = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    standard = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(standard, folder / "lib" / standard.name, ignore=LEFT_OUT)
    extensions = sorted((folder / "lib" / standard.name / "lib-dynload").glob("*.so"))
    libraries = libraries_of(interpreter, *extensions)
    (folder / LIBRARIES).mkdir()
    for name, path in libraries.items():
        shutil.copy(path, folder / LIBRARIES / name)
    loader = next(name for name in libraries if name.startswith("ld-linux"))
    (folder / "bin").mkdir()
    shutil.copy(interpreter, folder / "bin" / "interpreter")
    started = f"{MOUNT}/{LIBRARIES}/{loader} --library-path {MOUNT}/{LIBRARIES} --argv0 {PYTHON} {MOUNT}/bin/interpreter"
    (folder / "bin" / "python3").write_text(f'#!/bin/sh\nexec {started} "$@"\n')
    (folder / "bin" / "python3").chmod(0o755)
    package = Path(torpor.__file__).parent
    site = folder / "site" / "torpor"
    shutil.copytree(package / "inside", site / "inside", ignore=shutil.ignore_patterns("assets", "__pycache__"))
    shutil.copy(package / "__init__.py", site / "__init__.py")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    argv = (*started.split(), "-I", "-S", "-X", "utf8")
    return EngineKit(folder, digest.hexdigest(), argv, PYTHON, f"{MOUNT}/site/torpor/inside", f"{MOUNT}/site")


def image_archive() -> bytes:
    """A tar archive of a small Linux system: the programs, and the libraries that they need at their usual places."""
    paths = {name: Path(found).resolve() for name in TOOLS if (found := shutil.which(name))}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, path in paths.items():
            tar.add(path, f"bin/{name}")
        for path in libraries_of(*paths.values()).values():
            tar.add(path.resolve(), str(path).lstrip("/"))
        for folder, mode in (("tmp", 0o1777), ("etc", 0o755), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
    return archive.getvalue()
