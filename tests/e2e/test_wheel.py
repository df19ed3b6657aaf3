"""A wheel from a fresh clone contains dashboard and terminal, and works where it is installed."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tools import bootstrap
from tools.wheel import BUILT

from tests.support.http_browser import GOES_THERE, HttpBrowser
from tests.support.product import Product

pytestmark = [pytest.mark.e2e, pytest.mark.long]

UV = Path(sys.executable).with_name("uv")
UNREACHABLE = ("Failed to fetch", "error sending request", "Network connectivity is disabled", "dns error", "tcp connect error")


def run(*words: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )


def done(*words: object, **environment: str) -> str:
    ended = run(*words, **environment)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    if not (bootstrap.ROOT / ".git").exists():
        pytest.skip("this tree is not a Git repository, so there is nothing to clone")
    folder = tmp_path / "clone"
    done("git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks", bootstrap.ROOT, folder)
    return folder


def build(clone: Path, into: Path) -> "subprocess.CompletedProcess[str]":
    return run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", into, clone)


def copy_what_set_up_builds(clone: Path) -> None:
    for stamp in BUILT.values():
        folder = Path(stamp).parent
        if not (bootstrap.ROOT / stamp).is_file():
            pytest.skip(f"set-up has not built {folder} here")
        shutil.copytree(bootstrap.ROOT / folder, clone / folder)


def install(wheel: Path, venv: Path) -> None:
    """The wheel and the pinned packages, from uv's cache or from the package index of this machine."""
    done(UV, "venv", "--quiet", "--python", sys.executable, venv)
    environment = {**bootstrap.uv_settings(dict(os.environ)), "VIRTUAL_ENV": str(venv), "UV_NO_CONFIG": "1"}
    pinned = (UV, "pip", "install", "--quiet", "--require-hashes", "-r", bootstrap.PINS[False])
    if run(*pinned, "--offline", **environment).returncode != 0:
        online = run(*pinned, **environment)
        if any(words in online.stdout for words in UNREACHABLE):
            pytest.skip(f"the package index cannot be reached: {online.stdout.strip().splitlines()[-1]}")
        assert online.returncode == 0, online.stdout
    done(UV, "pip", "install", "--quiet", "--offline", "--no-deps", wheel, **environment)


def test_without_dashboard_and_terminal_no_wheel_is_built(clone: Path, tmp_path: Path) -> None:
    built = build(clone, tmp_path / "dist")
    assert built.returncode != 0
    assert "Cannot build a wheel: the dashboard and the terminal are not built. Run `make setup`" in built.stdout
    assert not list((tmp_path / "dist").glob("*.whl"))


def test_a_wheel_that_is_installed_elsewhere_starts_and_opens_a_workspace(clone: Path, tmp_path: Path) -> None:
    copy_what_set_up_builds(clone)
    built = build(clone, tmp_path / "dist")
    assert built.returncode == 0, built.stdout
    (wheel,) = (tmp_path / "dist").glob("torpor-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"torpor/dashboard/built/index.html", "torpor/inside/assets/vendor/xterm.js"} <= set(names)
    assert not [name for name in names if name.startswith("torpor/dashboard/app/")]
    install(wheel, tmp_path / "venv")
    shutil.rmtree(clone)
    installed, home = tmp_path / "installed", tmp_path / "home"
    installed.mkdir()
    home.mkdir()
    command = str(tmp_path / "venv" / "bin" / "torpor")
    here = Product(installed / "data", environment={"HOME": str(home), "PYTHONPATH": ""}, command=command)
    with here.running():
        page = HttpBrowser(here.port).ask("GET", f"http://localhost:{here.port}/", None, GOES_THERE)
        assert (page.status, b"<script" in page.body) == (200, True), page
        here.ok("create", "demo", "--wait")
        status, _, terminal = here.get("demo")
        assert (status, b"vendor/xterm.js" in terminal) == (200, True), terminal
        status, _, script = here.get("demo", "/assets/vendor/xterm.js")
        assert (status, script) == (200, (bootstrap.VENDOR / "xterm.js").read_bytes())
        assert here.ok("exec", "demo", "--", "echo", "hello").strip() == "hello"
        assert here.stop() == 0
