"""The product image is small, does not run as root, and contains what its roles need and nothing that builds."""

import json
import subprocess
from typing import Any

import pytest

from tests.deploy.conftest import HowTo
from tests.support.docker_engine import DockerEngine
from tests.support.public_images import PYTHON

MB = 1_000_000
LARGEST_MB = 250
PYTHON_MB = 128
"""The public image, of which the tests have a copy from Debian's packages, has a little less."""
NOT_IN_IT = ("gcc", "cc", "ld", "strip", "node", "npm", "pip", "pip3", "uv")


@pytest.fixture
def image(how_to: HowTo) -> str:
    assert how_to.parts[0][0].text.endswith("--tag torpor .")
    return "torpor"


def facts(engine: DockerEngine, image: str) -> Any:
    (found,) = json.loads(engine.docker("image", "inspect", image))
    return found


def in_image(engine: DockerEngine, image: str, *words: str, entrypoint: str = "sh") -> str:
    return engine.docker("run", "--rm", "--read-only", "--tmpfs", "/tmp", "--entrypoint", entrypoint, image, *words)


def test_it_has_less_than_250_mb(engine: DockerEngine, image: str) -> None:
    size, base = (facts(engine, name)["Size"] for name in (image, PYTHON))
    print(f"\n  the image has {size / MB:.0f} MB, of which {(size - base) / MB:.0f} MB are not its base image")
    assert size < LARGEST_MB * MB
    assert size - base < (LARGEST_MB - PYTHON_MB) * MB


def test_it_does_not_run_as_root_and_its_user_can_change_no_file_of_it(engine: DockerEngine, image: str) -> None:
    assert facts(engine, image)["Config"]["User"] == "65532:65532"
    assert in_image(engine, image, "-c", "id -u") == "65532"
    writable = engine.docker(
        "run", "--rm", "--entrypoint", "sh", image, "-c", "find /opt /usr /etc /var/lib -writable ! -type l 2>/dev/null; true"
    )
    assert writable == ""


def test_it_contains_no_compiler_and_no_installer(engine: DockerEngine, image: str) -> None:
    script = "import shutil, sys; print([name for name in sys.argv[1:] if shutil.which(name)])"
    assert in_image(engine, image, "-c", script, *NOT_IN_IT, entrypoint="python3") == "[]"
    assert in_image(engine, image, "-c", script, "iptables", "ip", "torpor", entrypoint="python3") == str(
        ["iptables", "ip", "torpor"]
    )


def test_it_contains_the_dashboard_and_the_terminal(engine: DockerEngine, image: str) -> None:
    script = (
        "import pathlib, torpor; here = pathlib.Path(torpor.__file__).parent;"
        "print((here / 'dashboard/built/index.html').is_file(), (here / 'inside/assets/vendor/xterm.js').is_file())"
    )
    assert in_image(engine, image, "-c", script, entrypoint="python3") == "True True"


def test_it_builds_the_kit_from_its_own_files(engine: DockerEngine, image: str) -> None:
    words = ("run", "--rm", "--user", "0", "--cap-drop", "ALL", "--read-only", "--tmpfs", "/tmp")
    said = engine.docker(*words, "--volume", "/var/lib/torpor", image, "kit", "build", "--json")
    assert json.loads(said)["architecture"]


def test_the_sort_says_what_to_do(engine: DockerEngine, image: str) -> None:
    words = ["docker", "--host", engine.url, "run", "--rm", image, "sort", "run", "/tmp", "--output", "/tmp/sorted"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 2, said
    assert "torpor sort needs the packages grpcio, numpy and protobuf" in said.stderr
    assert "Traceback" not in said.stderr
