"""Prepare the Python environment of notebooks in the home, then run the notebook server.

The template's packages are shared and read-only. Notebooks run in a virtual environment in the home, which also sees those
packages, so that `%pip install` works and what it installs is archived and restored with the home. Run by file path, on every
start: Python, or the place of the shared packages, may have changed. Standard library only.
"""

import contextlib
import json
import os
import shlex
import sys
from pathlib import Path

ENVIRONMENT = ".local/share/torpor/notebook"
"""In the home."""
KERNEL = "python3"
"""The name of Jupyter's default kernel."""


def prepare(home: Path, shared: Path, interpreter: Path) -> Path:
    """Create or correct the environment, and keep what is installed in it; return it. OSError if that is not possible."""
    environment = home / ENVIRONMENT
    packages = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    for folder in (environment / packages, environment / "bin", kernel_folder(environment)):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        link(environment / "bin" / name, interpreter)
    version = ".".join(map(str, sys.version_info[:3]))
    write(
        environment / "pyvenv.cfg",
        f"home = {interpreter.parent}\ninclude-system-site-packages = false\nversion = {version}\n",
    )
    # After the environment's own packages, so that those replace the shared ones.
    write(environment / packages / "torpor_shared.pth", f"{shared / packages}\n")
    python = environment / "bin" / "python"
    for name in ("pip", "pip3"):
        write(environment / "bin" / name, f'#!/bin/sh\nexec {shlex.quote(str(python))} -m pip "$@"\n', mode=0o755)
    kernel = {
        "argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
        "metadata": {"debugger": True},
        "env": {"PATH": f"{environment / 'bin'}:${{PATH}}", "VIRTUAL_ENV": str(environment)},
    }
    write(kernel_folder(environment) / "kernel.json", json.dumps(kernel, indent=1) + "\n")
    return environment


def jupyter_folder(environment: Path) -> Path:
    return environment / "share" / "jupyter"


def kernel_folder(environment: Path) -> Path:
    return jupyter_folder(environment) / "kernels" / KERNEL


def link(path: Path, target: Path) -> None:
    with contextlib.suppress(OSError):
        if path.readlink() == target:
            return
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Unchanged files are not written: a home that did not change is archived faster."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text and path.stat().st_mode & 0o777 == mode:
            return
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def main(arguments: list[str]) -> None:
    shared, *command = arguments
    try:
        environment = prepare(Path.home(), Path(shared), Path(sys.executable))
    except OSError as error:
        # The server is more useful than its environment: its terminal is where the user can make space.
        print(f"torpor: %pip install does not work: the environment in ~/{ENVIRONMENT} cannot be prepared: {error}", flush=True)
    else:
        paths = [str(jupyter_folder(environment)), *os.environ.get("JUPYTER_PATH", "").split(os.pathsep)]
        os.environ["JUPYTER_PATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
        os.environ["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.execv(command[0], command)  # noqa: S606 - the command of the template


if __name__ == "__main__":
    main(sys.argv[1:])
