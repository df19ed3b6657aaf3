"""The product image on a private engine, built as docs/how-to/run-with-compose.md says, and that document's commands.

Both are made once for each process of pytest-xdist. These tests are the first of `make test-engines`, so one process runs
all of them.
"""

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools.tour import Command, matches, tour_of

from tests.support.docker_engine import DockerEngine, docker_engine
from tests.support.engine_image import image_archive
from tests.support.public_images import MIRROR, make_python_image, make_service_images
from tests.support.requirements import must_have

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "run-with-compose.md"
BEGIN = "<!-- tour:begin -->"
PROGRAMS = ("dockerd", "docker", "docker-compose", "mmdebstrap", "busybox")
COPIED = (".dockerignore", "LICENSE", "README.md", "pyproject.toml", "deploy", "pins", "src", "tools")
# What a fresh clone lacks.
NOT_COPIED = ("__pycache__", "node_modules", "built", "vendor", ".env", "secrets")
COMMAND_S = 500.0
# As `docker` with its plugin compose. A build uses the network of this machine.
DOCKER = """#!/bin/sh
case "$1" in
compose) shift; exec docker-compose "$@" ;;
build) shift; exec {docker} build --network host "$@" ;;
esac
exec {docker} "$@"
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = getattr(item, "fixturenames", ())
        if item.path.is_relative_to(Path(__file__).parent) and "engine" in used:
            item.add_marker("kubernetes" if "kubernetes" in used else "engine")


@dataclass
class HowTo:
    """The document in a clone of the project: its parts, and a machine that can run their commands."""

    parts: list[list[Command]]
    clone: Path
    environment: dict[str, str]

    @property
    def folder(self) -> Path:
        """Where the document's second part goes to."""
        return self.clone / "deploy" / "compose"

    def follow(self, part: Sequence[Command], folder: Path) -> str:
        """Run commands of the document, and check what they print."""
        printed = ""
        for command in part:
            said = self.run("bash", "-c", command.text, folder=folder)
            assert all(matches(expected, said) for expected in command.prints), f"{command}\n{said}"
            printed += said
            if command.text.startswith("cd "):
                folder /= command.text.removeprefix("cd ")
        return printed

    def run(self, *words: str, folder: Path | None = None) -> str:
        done = subprocess.run(
            words,
            cwd=folder or self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    must_have(all(map(shutil.which, PROGRAMS)), f"the programs {', '.join(PROGRAMS)}")
    must_have(can_download(), f"a connection to {MIRROR}")
    with docker_engine() as engine:
        yield engine


def can_download() -> bool:
    try:
        with urllib.request.urlopen(f"{MIRROR}/dists/bookworm/Release", timeout=20) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def how_to(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> HowTo:
    """After its first part: the image is built."""
    folder = tmp_path_factory.mktemp("deploy")
    clone, programs, made = folder / "clone", folder / "programs", folder / "made"
    for path in (clone, programs, made):
        path.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns(*NOT_COPIED))
        else:
            shutil.copy(ROOT / name, clone)
    (programs / "docker").write_text(DOCKER.format(docker=shutil.which("docker")))
    (programs / "docker").chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "DOCKER_HOST": engine.url,
        "DOCKER_SOCKET": str(engine.socket),
        "DOCKER_BUILDKIT": "0",
        "COMPOSE_HTTP_TIMEOUT": "300",
    }
    here = HowTo([tour_of(BEGIN + part) for part in HOW_TO.read_text().split(BEGIN)[1:]], clone, environment)
    engine.stop()
    engine.start_in_this_network()
    began = time.monotonic()
    make_python_image(engine, made)
    based = time.monotonic()
    here.follow(here.parts[0], clone)
    print(f"\n  a base image after {based - began:.0f} s, the product image after {time.monotonic() - based:.0f} s more")
    make_service_images(engine, made)
    engine.stop()
    engine.start()
    engine.docker("import", "-", "debian:bookworm-slim", stdin=image_archive())
    return here
