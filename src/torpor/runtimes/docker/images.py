"""Find the images of workspaces on the engine, and pull those that it lacks.

An image that is there is not pulled again, also if its tag names another one at the registry by now.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torpor.domain.errors import Code, Failed, Hopeless, Refused
from torpor.domain.image_reference import ImageReference, parse_image
from torpor.kit.manifest import Kit
from torpor.loops import stop
from torpor.ports import Progress
from torpor.runtimes.docker.docker_client import DockerClient, EngineRefusal
from torpor.runtimes.docker.homes import PackedFile, packed
from torpor.runtimes.docker.pull_progress import PullProgress
from torpor.runtimes.docker.registry_credentials import registry_auth
from torpor.runtimes.image_answers import pull_failed

SILENT_S = 900.0
"""A pull that gets nothing for so long fails."""
TICK_S = 5.0
ERROR_IN_STREAM = 200
TMP = "/tmp"  # noqa: S108 - the folder of the workspace


@dataclass(frozen=True, slots=True)
class EngineImage:
    """What Torpor needs to know about an image of the engine."""

    id: str
    reference: str
    environment: Mapping[str, str]
    architecture: str


@dataclass(slots=True)
class Pull:
    """A pull that any number of starts wait for."""

    task: "asyncio.Task[None]"
    listeners: list[Progress] = field(default_factory=list)


class EngineImages:
    def __init__(self, client: DockerClient, kit: Kit, credentials: Path | None) -> None:
        self._client = client
        self._kit = kit
        self._credentials = credentials
        self._pulls: dict[str, Pull] = {}
        self._lacks_tmp: dict[str, bool] = {}

    async def ensure(self, image: str, progress: Progress) -> EngineImage:
        """The image, which is pulled if the engine lacks it. Concurrent calls wait for the same pull."""
        found = await self._find(image)
        if found is None:
            await self._pull_once(image, progress)
            found = await self._find(image)
        if found is None:
            message = f"the engine does not have the image {image!r} after it pulled it"
            raise Failed(Code.IMAGE_PULL_INTERRUPTED, message, image=image)
        try:
            self._kit.refuse_other_architecture(found.architecture)
        except Hopeless as error:
            message = f"the image {image!r} is for the CPU architecture {found.architecture}: {error.message}"
            raise Failed(Code.IMAGE_PULL_FAILED, message, image=image) from error
        return found

    async def _find(self, image: str) -> EngineImage | None:
        facts = await self._client.inspect_image(image)
        if facts is None:
            return None
        pairs = (pair.partition("=") for pair in (facts.get("Config") or {}).get("Env") or ())
        environment = {name: value for name, _, value in pairs}
        return EngineImage(str(facts["Id"]), image, environment, str(facts.get("Architecture", "")))

    async def close(self) -> None:
        await stop(*(pull.task for pull in self._pulls.values()))

    async def _pull_once(self, image: str, progress: Progress) -> None:
        pull = self._pulls.get(image)
        if pull is None:
            pull = self._pulls[image] = Pull(asyncio.ensure_future(self._pull(image)))
            pull.task.add_done_callback(lambda task: self._forget(image, task))
        pull.listeners.append(progress)
        try:
            await asyncio.shield(pull.task)
        finally:
            pull.listeners.remove(progress)
            if not pull.listeners and not pull.task.done():  # every start that waited was cancelled
                self._forget(image, pull.task)
                pull.task.cancel()

    def _forget(self, image: str, task: "asyncio.Task[None]") -> None:
        if (pull := self._pulls.get(image)) is not None and pull.task is task:
            del self._pulls[image]

    async def _pull(self, image: str) -> None:
        try:
            reference = parse_image(image)
        except Refused as refused:
            raise Failed(Code.IMAGE_PULL_FAILED, refused.message, image=image) from refused
        auth = await asyncio.to_thread(registry_auth, self._credentials, reference)
        counted = PullProgress()
        ticking = asyncio.ensure_future(self._tick(image, counted))
        try:
            await self._follow(image, reference, auth, counted)
        except EngineRefusal as refusal:
            raise pull_failed(image, refusal.message) from refusal
        except TimeoutError as error:
            raise pull_failed(image, f"nothing was received for {SILENT_S:g} s") from error
        finally:
            await stop(ticking)

    async def _follow(self, image: str, reference: ImageReference, auth: str | None, counted: PullProgress) -> None:
        loop = asyncio.get_running_loop()
        pulling = self._client.pull_image(reference.repository, reference.version, auth)
        async with asyncio.timeout(SILENT_S) as patience, contextlib.aclosing(pulling) as lines:
            async for line in lines:
                if error := _error_of(line):
                    raise EngineRefusal(ERROR_IN_STREAM, error)
                before = counted.received
                counted.add(line)
                if counted.received > before:
                    patience.reschedule(loop.time() + SILENT_S)
                    self._tell(image, counted)

    async def _tick(self, image: str, counted: PullProgress) -> None:
        """Waiting for an image is progress, too: `_follow` ends a pull that gets nothing."""
        while True:
            await asyncio.sleep(TICK_S)
            counted.wait()
            self._tell(image, counted)

    def _tell(self, image: str, counted: PullProgress) -> None:
        if (pull := self._pulls.get(image)) is not None:
            for progress in pull.listeners:
                progress(counted.done, counted.total)

    async def ensure_tmp(self, container: str, image: EngineImage) -> None:
        """The new container has a folder /tmp, which images without a system often lack. An image is checked once."""
        if image.id not in self._lacks_tmp:
            self._lacks_tmp[image.id] = not await self._client.has_path(container, TMP)
        if self._lacks_tmp[image.id]:
            await self._client.put_files(container, "/", packed([PackedFile(TMP.lstrip("/"), None, 0o1777, 0)]))


def _error_of(line: Mapping[str, Any]) -> str:
    """An engine has already answered with status 200 when a pull fails."""
    detail = line.get("errorDetail")
    return str((detail.get("message") if isinstance(detail, dict) else "") or line.get("error") or "")
