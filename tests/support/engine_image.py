"""An image with a shell and a few programs of this machine, made without a registry."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

# The programs that the contract's scripts use.
TOOLS = (
    *("bash", "sh", "cat", "chmod", "cut", "date", "dd", "echo", "env", "false", "head", "id", "kill", "ls", "mkdir", "mv"),
    *("nohup", "printf", "rm", "setsid", "sleep", "stat", "stty", "tail", "test", "touch", "tr", "true", "tty", "wc"),
)


def libraries_of(*programs: Path) -> dict[str, Path]:
    """The shared libraries of these programs, and the loader, by name."""
    found: dict[str, Path] = {}
    for program in programs:
        for line in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines():
            path = next((word for word in line.split() if word.startswith("/")), None)
            if path:
                found[Path(path).name] = Path(path)
    return found


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
