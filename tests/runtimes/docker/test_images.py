"""Images from a registry on a real Docker engine: pulled once, with progress, and refused with a reason."""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contracts.runtime_contract import FENCE, LIMITS, a_home, marker_of, program, unheard
from tests.runtimes.docker.conftest import MakeRuntime
from tests.support.docker_engine import DockerEngine
from tests.support.image_registry import ImageRegistry, files, image_registry
from tests.support.waiting import until
from torpor.domain.errors import Code, Failed
from torpor.domain.image_policy import ANY_IMAGE
from torpor.domain.image_reference import parse_image
from torpor.inside.proven_connection import connect_with_proof
from torpor.ports import Container, Home
from torpor.runtimes.docker.runtime import DockerRuntime
from torpor.runtimes.object_labels import container_name
from torpor.templates.catalogue import load_catalogue

pytestmark = pytest.mark.anyio

SLEEPING = ("sleep", "600")
RANDOM = random.Random(7)


@pytest.fixture(scope="module")
def registry(engine: DockerEngine) -> Iterator[ImageRegistry]:
    with image_registry(engine) as registry:
        yield registry


@pytest.fixture(autouse=True)
def open_registry(registry: ImageRegistry) -> None:
    registry.password, registry.refuses, registry.truncates = "", {}, frozenset()
    registry.requests.clear()


def layer() -> bytes:
    """Unlike every other, so that the engine has to pull it."""
    return files(data=RANDOM.randbytes(1 << 20))


def within(image: str, home: Home, *command: str) -> Container:
    return Container(home, 1, replace(program(*(command or SLEEPING)), image=str(parse_image(image))), LIMITS)


async def ready(runtime: DockerRuntime) -> Home:
    home = a_home()
    await runtime.ensure_volume(home, FENCE)
    await runtime.mark_volume(home, marker_of(home), FENCE)
    return home


async def failure(runtime: DockerRuntime, image: str) -> Failed:
    with pytest.raises(Failed) as failed:
        await runtime.ensure_running(within(image, a_home()), FENCE, unheard)
    return failed.value


async def output(runtime: DockerRuntime, home: Home, *command: str) -> str:
    return (await runtime.execute(home.workspace_id, command, b"")).stdout.decode().strip()


async def test_two_starts_pull_an_image_once_with_progress(
    registry: ImageRegistry, runtime: DockerRuntime, packed_image: bytes
) -> None:
    image = registry.add("team/tools", packed_image, layer(), Env=["COLOUR=blue"])
    told: dict[str, list[tuple[int, int | None]]] = {"one": [], "two": []}
    images = runtime._images
    await asyncio.gather(
        *(images.ensure(image, lambda done, total, to=to: to.append((done, total))) for to in told.values())  # type: ignore[misc]
    )
    blobs = [path for path in registry.requests if "/blobs/" in path]
    assert sorted(blobs) == sorted(set(blobs)), "each was pulled once"
    for counts in told.values():
        assert counts == sorted(counts)
        done, total = counts[-1]
        assert done == total
        assert done > 2 << 20, "downloaded and unpacked"
    # An image that is there is not pulled again, also if the registry has another one by now.
    registry.requests.clear()
    registry.add("team/tools", packed_image, layer(), Env=["COLOUR=red"])
    home = await ready(runtime)
    await runtime.ensure_running(within(image, home), FENCE, unheard)
    assert await output(runtime, home, "sh", "-c", "echo $COLOUR") == "blue"
    assert registry.requests == []


async def test_an_image_is_found_by_its_digest(registry: ImageRegistry, runtime: DockerRuntime, packed_image: bytes) -> None:
    image = registry.add("team/pinned", packed_image, Env=["PINNED=yes"])
    digest = next(version for name, version in registry.manifests if name == "team/pinned" and version != "latest")
    home = await ready(runtime)
    await runtime.ensure_running(within(f"{image}:old@{digest}", home), FENCE, unheard)
    assert await output(runtime, home, "sh", "-c", "echo $PINNED") == "yes"


@pytest.mark.parametrize(
    ("refuses", "code", "answer"),
    [
        (None, Code.IMAGE_PULL_FAILED, "manifest unknown"),
        (403, Code.IMAGE_PULL_FAILED, "denied"),
        (500, Code.IMAGE_PULL_INTERRUPTED, "500"),
    ],
)
async def test_the_answer_of_the_registry_is_told(
    registry: ImageRegistry, runtime: DockerRuntime, refuses: int | None, code: Code, answer: str
) -> None:
    image = registry.add("team/some", layer()) if refuses else f"{registry.address}/team/none:7"
    registry.refuses = {"team/some": refuses} if refuses else {}
    failed = await failure(runtime, image)
    assert (failed.code, failed.context["image"]) == (code, str(parse_image(image)))
    assert str(parse_image(image)) in failed.message
    assert answer in failed.message


async def test_a_download_that_breaks_off_fails_and_the_next_attempt_works(
    registry: ImageRegistry, runtime: DockerRuntime, packed_image: bytes
) -> None:
    """The engine has answered with status 200 by then."""
    image = registry.add("team/broken", packed_image, layer())
    registry.truncates = frozenset({"team/broken"})
    failed = await failure(runtime, image)
    assert failed.code is Code.IMAGE_PULL_INTERRUPTED
    assert "team/broken" in failed.message
    registry.truncates = frozenset()
    await runtime.ensure_running(within(image, home := await ready(runtime)), FENCE, unheard)
    assert await output(runtime, home, "echo", "here") == "here"


async def test_a_pull_that_no_start_waits_for_is_ended(registry: ImageRegistry, runtime: DockerRuntime) -> None:
    image = registry.add("team/cancelled", layer())
    start = asyncio.ensure_future(runtime.ensure_running(within(image, a_home()), FENCE, unheard))
    pulls = runtime._images._pulls
    pull = await until(lambda: next(iter(pulls.values()), None))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await until(pull.task.done)
    assert pulls == {}


async def test_credentials_are_read_at_each_pull(registry: ImageRegistry, make_runtime: MakeRuntime, tmp_path: Path) -> None:
    image, file = registry.add("team/private", layer()), tmp_path / "config.json"
    registry.password = "open sesame"
    runtime = make_runtime(registry_credentials=file)
    await runtime.start()
    missing = await failure(runtime, image)
    assert missing.code is Code.IMAGE_PULL_FAILED
    assert str(file) in missing.message
    file.write_text('{"auths": {}}')
    refused = await failure(runtime, image)
    assert refused.code is Code.IMAGE_PULL_FAILED
    assert "no basic auth credentials" in refused.message
    file.write_text(registry.credentials.replace(registry.address, f"http://{registry.address}/v1/"))
    assert (await runtime._images.ensure(image, unheard)).architecture == "amd64"


async def test_an_image_of_another_architecture_is_refused(registry: ImageRegistry, runtime: DockerRuntime) -> None:
    failed = await failure(runtime, registry.add("team/other", layer(), architecture="s390x"))
    assert failed.code is Code.IMAGE_PULL_FAILED
    assert "s390x" in failed.message
    assert "choose an image for x86_64" in failed.message


@pytest.mark.parametrize("user", ["root", "1000:100"])
async def test_the_user_of_the_image_does_not_matter(
    registry: ImageRegistry, runtime: DockerRuntime, packed_image: bytes, user: str
) -> None:
    people = files(etc__passwd=b"root:x:0:0::/root:/bin/sh\njovyan:x:1000:100::/home/jovyan:/bin/sh\n")
    image = registry.add(f"team/user-{user.partition(':')[0]}", packed_image, people, User=user, WorkingDir="/nowhere")
    home = await ready(runtime)
    await runtime.ensure_running(within(image, home), FENCE, unheard)
    script = "echo $(id -u):$(id -g) $USER $HOME $PWD; touch ~/file /tmp/file && stat -c %u:%g ~/file"
    assert await output(runtime, home, "sh", "-c", script) == "1000:1000 workspace /home/workspace /home/workspace\n1000:1000"


async def test_variables_of_the_image_are_for_its_programs_and_not_for_the_agent(
    engine: DockerEngine, registry: ImageRegistry, runtime: DockerRuntime, packed_image: bytes
) -> None:
    """A library to preload is often built for another libc than the kit's."""
    image = registry.add("team/preload", packed_image, Env=["LD_PRELOAD=/none.so", "PATH=/opt/own:/bin"])
    home = await ready(runtime)
    await runtime.ensure_running(within(image, home), FENCE, unheard)
    given = json.loads(engine.docker("inspect", "--format", "{{json .Config.Env}}", container_name(home.workspace_id)))
    assert "LD_PRELOAD=" in given
    shown = await output(runtime, home, "sh", "-c", "echo $LD_PRELOAD $PATH")
    assert shown.startswith("/none.so ")
    assert ":/opt/own:/bin:" in shown


async def test_the_terminal_runs_in_an_image_with_almost_nothing(registry: ImageRegistry, runtime: DockerRuntime) -> None:
    """No shell, no libc, no passwd, no /tmp."""
    image = registry.add("team/nothing", files(README=b"nothing else"), User="nobody", Entrypoint=["/none"])
    catalogue = load_catalogue(None, ANY_IMAGE)
    terminal = catalogue.program(catalogue.template("image"), None, image)
    home = await ready(runtime)
    await runtime.ensure_running(Container(home, 1, terminal, LIMITS), FENCE, unheard)

    async def answers() -> bool:
        seen = (await runtime.observe(frozenset({home.workspace_id}))).of(home.workspace_id).container
        assert seen is not None
        assert seen.ended is None, seen.ended
        return seen.ready

    await until(answers)
    address = runtime.address(home.workspace_id)
    assert address is not None
    assert address.host is not None
    assert address.port is not None
    connection = await connect_with_proof(address.host, address.port, address.key)
    connection.close()
    made = await runtime.execute(home.workspace_id, ["/opt/torpor/bin/python3", "-c", "open('/tmp/x', 'w')"], b"")
    assert made.exit_code == 0, made.stderr
