"""Call the engine's API, and translate its errors.

The only module that uses aiodocker. Every call raises `Unavailable` if the engine cannot be reached or has an internal error,
and `EngineRefusal` if it refuses this call.
"""

import asyncio
import contextlib
import io
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import aiodocker
import aiohttp

from torpor.domain.errors import Code, TorporError, Unavailable
from torpor.runtimes.docker.engine_dialect import NO_SPACE, EngineDialect, all_filters, dialect_of, matches
from torpor.runtimes.docker.engine_network import EngineNetwork
from torpor.runtimes.docker.listing import ListedContainer, ListedVolume
from torpor.runtimes.object_labels import INSTALLATION, KIND, ObjectKind

T = TypeVar("T")

NOT_FOUND, CONFLICT, NOT_MODIFIED, FORBIDDEN = 404, 409, 304, 403
NOT_CONNECTED = 900
"""The status that aiodocker uses when there is no response."""
STDERR = 2
"""In a log, the number of the standard error stream."""
REMOVAL_LOOK_S = 0.02
CREATION_ATTEMPTS = 50
LISTING_ATTEMPTS = 5
TAR_HEADERS = {"Content-Type": "application/x-tar"}


class EngineRefusal(TorporError):
    """The engine refused one call; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def code(self, otherwise: Code) -> Code:
        """DISK_FULL, or the code of what was refused."""
        return Code.DISK_FULL if NO_SPACE in self.message else otherwise


class DockerClient:
    """One engine. `connect` before the first call, in the event loop that makes the calls; `close` at the end."""

    def __init__(self, url: str, call_s: float) -> None:
        self._url = url
        self._call_s = call_s
        self._docker: aiodocker.Docker | None = None
        self._dialect: EngineDialect | None = None

    def connect(self) -> None:
        if self._docker is None:
            timeout = aiohttp.ClientTimeout(total=self._call_s)
            self._docker = aiodocker.Docker(self._url, timeout=timeout)

    async def close(self) -> None:
        if self._docker is not None:
            await self._docker.close()
            self._docker = self._dialect = None

    async def dialect(self) -> EngineDialect:
        async with self._translated():
            assert self._dialect is not None
            return self._dialect

    # ── the engine ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def version(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = await self._json("version")
        return facts

    async def info(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = await self._json("info")
        return facts

    async def podman_host(self) -> Mapping[str, Any]:
        """What only Podman tells, with its own API."""
        facts: Mapping[str, Any] = (await self._json("libpod/info")).get("host") or {}
        return facts

    async def events(self, on_connect: Callable[[], None]) -> AsyncGenerator[Mapping[str, Any], None]:
        """What happens to containers and volumes from now on, until the engine ends the stream. Without a timeout."""
        filters = json.dumps((await self.dialect()).event_filters)
        given: dict[str, Any] = {"params": {"filters": filters}, "timeout": aiohttp.ClientTimeout(sock_connect=self._call_s)}
        async with self._translated() as docker, docker._query("events", **given) as reply, reply:
            on_connect()
            async for line in _lines(reply.content):
                yield json.loads(line)

    # ── listings ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def containers(self, labels: Iterable[str], names: Iterable[str] = ()) -> list[ListedContainer]:
        """The containers with all these labels and, if names are given, with one of these in their names."""
        filters, dialect = json.dumps(all_filters(labels, names)), await self.dialect()
        found = await self._list("containers/json", {"all": "1", "filters": filters})
        return [_container(facts, dialect) for facts in found]

    async def volumes(self, labels: Iterable[str], names: Iterable[str] = ()) -> list[ListedVolume]:
        """The volumes with all these labels and, if names are given, with one of these in their names."""
        filters = json.dumps((await self.dialect()).volume_filters(labels, names))
        found = await self._list("volumes", {"filters": filters})
        if warnings := found.get("Warnings"):
            raise Unavailable(f"the engine could not list all volumes: {'; '.join(warnings)}")
        listed = [_volume(facts) for facts in found.get("Volumes") or ()]
        return [volume for volume in listed if matches(volume.name, volume.labels, labels, names)]

    async def silent_volumes(self, label: str, name: str) -> list[ListedVolume]:
        """The volumes with this in their names that the engine created for a mount with this label."""
        if (await self.dialect()).labels_silent_volumes:
            return await self.volumes([label], [name])
        return [volume for volume in await self.volumes([], [name]) if not volume.labels]

    async def _list(self, path: str, params: Mapping[str, str]) -> Any:
        """Podman refuses a listing if an object is removed meanwhile."""
        why = ""
        for _ in range(LISTING_ATTEMPTS):
            try:
                return await self._json(path, params=params)
            except EngineRefusal as refusal:
                why = refusal.message
        raise Unavailable(f"the engine at {self._url} returns no listing: {why}")

    # ── volumes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> ListedVolume:
        """The volume with this name. If it existed, it keeps its own labels."""
        body = {"Name": name, "Labels": dict(labels), "DriverOpts": dict((await self.dialect()).volume_options)}
        for _ in range(CREATION_ATTEMPTS):
            try:
                return _volume(await self._json("volumes/create", "POST", body=body))
            except EngineRefusal as refusal:
                if refusal.status != CONFLICT:  # on Podman: another call creates it at the same time
                    raise
                await asyncio.sleep(REMOVAL_LOOK_S)
        raise Unavailable(f"the engine at {self._url} neither creates nor returns the volume {name}")

    async def remove_volume(self, name: str) -> None:
        """There is no volume with this name. CONFLICT if a container refers to it."""
        if (await self.dialect()).removes_by_prefix and name not in {one.name for one in await self.volumes([], [name])}:
            return
        try:
            with unless(NOT_FOUND):
                await self._none(f"volumes/{name}", "DELETE")
        except json.JSONDecodeError as error:  # several names begin with it, and Podman's answer to that is no valid JSON
            raise Unavailable(f"the engine at {self._url} did not remove the volume {name}: {error.doc}") from error

    # ── containers ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_container(self, name: str, config: Mapping[str, object], network: EngineNetwork | None = None) -> str:
        """The id of a new container. CONFLICT if the name is taken, NOT_FOUND if the image is missing.

        Its network is created if it is missing: Podman then refuses the container, and Docker only its start.
        """
        try:
            return await self._create_container(name, config)
        except EngineRefusal as refusal:
            if network is None or not _lacks_network(refusal, network):
                raise
            await self.ensure_network(network)
            return await self._create_container(name, config)

    async def _create_container(self, name: str, config: Mapping[str, object]) -> str:
        created = await self._json("containers/create", "POST", params={"name": name}, body=config)
        return str(created["Id"])

    async def _start(self, container: str) -> None:
        with unless(NOT_MODIFIED):
            await self._none(f"containers/{container}/start", "POST")

    async def remove_container(self, container: str) -> None:
        """There is no container with this id or name. Its processes are killed first."""
        params = (await self.dialect()).removal_parameters
        try:
            async with asyncio.timeout(self._call_s):
                await self._remove_container(container, params)
        except TimeoutError as error:
            raise Unavailable(f"the engine at {self._url} did not remove a container within {self._call_s:g} s") from error

    async def _remove_container(self, container: str, params: Mapping[str, str]) -> None:
        while True:
            try:
                return await self._none(f"containers/{container}", "DELETE", params=params)
            except EngineRefusal as refusal:
                if refusal.status == NOT_FOUND:
                    return None
                if refusal.status != CONFLICT:  # another call is removing it
                    raise
                await asyncio.sleep(REMOVAL_LOOK_S)

    async def inspect_container(self, container: str) -> Mapping[str, Any] | None:
        try:
            facts: Mapping[str, Any] = await self._json(f"containers/{container}/json")
        except EngineRefusal as refusal:
            if refusal.status != NOT_FOUND:
                raise
            return None
        return facts

    async def stop_container(self, container: str, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. Returns when it has ended."""
        with unless(NOT_FOUND, NOT_MODIFIED):
            params = {"t": str(math.ceil(grace_s))}
            await self._none(f"containers/{container}/stop", "POST", params=params, more_s=grace_s)

    async def start_with_input(self, container: str, network: EngineNetwork, given: bytes) -> None:
        """Start it with these bytes on standard input, which ends after them. Its network is created if it is missing."""
        try:
            await self._start_with_input(container, given)
        except EngineRefusal as refusal:
            if not _lacks_network(refusal, network):
                raise
            await self.ensure_network(network)
            await self._start_with_input(container, given)

    async def _start_with_input(self, container: str, given: bytes) -> None:
        async with self._translated() as docker:
            stream = docker.containers.container(container).attach(stdin=True)
            async with stream:
                await self._start(container)
                await stream.write_in(given)

    async def logs(self, container: str, tail: int | str) -> bytes:
        """The last lines of its output, or "all"; empty if there is no such container."""
        raw = b""
        with unless(NOT_FOUND, CONFLICT):
            raw = await self._bytes(f"containers/{container}/logs", params={"stdout": "1", "stderr": "1", "tail": str(tail)})
        return b"".join(_payloads(raw))

    async def follow(self, container: str) -> AsyncIterator[tuple[int, bytes]]:
        """(stream, data) of all its output from the beginning until it ends."""
        params = {"stdout": "1", "stderr": "1", "follow": "1"}
        given: dict[str, Any] = {"params": params, "timeout": aiohttp.ClientTimeout(sock_connect=self._call_s)}
        try:
            # A container that was removed has no more output. The last context closes the connection, which aiodocker does not
            # if the output was not read to its end.
            logs = f"containers/{container}/logs"
            with unless(NOT_FOUND, CONFLICT):
                async with self._translated() as docker, docker._query(logs, **given) as reply, reply:
                    while True:
                        head = await reply.content.readexactly(8)
                        yield head[0], await reply.content.readexactly(int.from_bytes(head[4:], "big"))
        except Unavailable as error:
            if not isinstance(error.__cause__, asyncio.IncompleteReadError):
                raise

    async def inspect_image(self, image: str) -> Mapping[str, Any] | None:
        """The facts about an image; None if the engine does not have it."""
        try:
            facts: Mapping[str, Any] = await self._json(f"images/{image}/json")
        except EngineRefusal as refusal:
            if refusal.status != NOT_FOUND:
                raise
            return None
        return facts

    async def pull_image(self, repository: str, version: str, auth: str | None) -> AsyncGenerator[Mapping[str, Any], None]:
        """Pull a tag or a digest, and return the engine's lines about it. A line can be an error. Without a timeout."""
        given: dict[str, Any] = {"params": {"fromImage": repository, "tag": version}}
        given["headers"] = {"X-Registry-Auth": auth} if auth is not None else None
        given["timeout"] = aiohttp.ClientTimeout(sock_connect=self._call_s)
        try:
            async with self._translated() as docker, docker._query("images/create", "POST", **given) as reply, reply:
                async for line in _lines(reply.content):
                    yield json.loads(line)
        except Unavailable as error:  # an engine answers with status 500 if the registry fails
            cause = error.__cause__
            if isinstance(cause, aiodocker.DockerError) and cause.status != NOT_CONNECTED:
                raise EngineRefusal(cause.status, cause.message) from cause
            raise

    async def has_path(self, container: str, path: str) -> bool:
        try:
            await self._none(f"containers/{container}/archive", "HEAD", params={"path": path})
        except ValueError:  # aiodocker wants JSON in a refusal, and a response to HEAD has no body
            return False
        return True

    async def ensure_network(self, network: EngineNetwork) -> Mapping[str, Any]:
        """What the engine says about this network, which is created if it is missing.

        An engine gives one name to several networks that are created at the same time. All controllers keep the oldest.
        """
        found = await self._networks(network.name)
        if not found:
            try:
                await self._none("networks/create", "POST", body=network.config())
            except EngineRefusal:
                if not await self._networks(network.name):  # another controller was not faster
                    raise
            found = await self._networks(network.name)
        for other in found[1:]:
            with unless(NOT_FOUND, CONFLICT, FORBIDDEN):  # another controller removes it, or uses it for a moment
                await self._none(f"networks/{other['Id']}", "DELETE")
        return found[0] if found else {}

    async def inspect_network(self, name: str) -> Mapping[str, Any] | None:
        return next(iter(await self._networks(name)), None)

    async def installations(self) -> list[str]:
        """All installations with networks on this engine."""
        wanted = all_filters([f"{KIND}={ObjectKind.NETWORK}"], ())
        found = await self._json("networks", params={"filters": json.dumps(wanted)})
        return sorted({name for one in found if (name := (one.get("Labels") or {}).get(INSTALLATION))})

    async def _networks(self, name: str) -> list[Mapping[str, Any]]:
        """All networks with this name, the oldest first."""
        found = await self._json("networks", params={"filters": json.dumps(all_filters((), [name]))})
        return sorted((one for one in found if one["Name"] == name), key=lambda one: (one["Created"], one["Id"]))

    async def put_files(self, container: str, path: str, archive: bytes) -> None:
        """Unpack a tar archive in a folder of a container that need not run, as root."""
        url, params = f"containers/{container}/archive", {"path": path}
        for _ in range(CREATION_ATTEMPTS):
            try:
                return await self._none(url, "PUT", params=params, data=archive, headers=TAR_HEADERS)
            except EngineRefusal as refusal:
                if refusal.status != CONFLICT:  # on Podman: another call writes the same file at the same time
                    raise
                await asyncio.sleep(REMOVAL_LOOK_S)
        raise Unavailable(f"the engine at {self._url} does not write files to {path} of {container}")

    async def import_image(self, name: str, tag: str, archive: bytes) -> None:
        """An image with the files of this tar archive."""
        params = {"fromSrc": "-", "repo": f"{name}:{tag}"}  # Podman ignores the parameter `tag`
        await self._bytes("images/create", "POST", params=params, data=archive, headers=TAR_HEADERS)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _json(self, path: str, method: str = "GET", **given: Any) -> Any:
        return json.loads(await self._bytes(path, method, **given))

    async def _none(self, path: str, method: str, **given: Any) -> None:
        await self._bytes(path, method, **given)

    async def _bytes(
        self,
        path: str,
        method: str = "GET",
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        more_s: float = 0.0,
    ) -> bytes:
        if body is not None:
            data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        given: dict[str, Any] = {"params": params, "headers": headers}
        given["data"] = io.BytesIO(data) if data is not None else None
        given["timeout"] = aiohttp.ClientTimeout(total=self._call_s + more_s)
        async with self._translated() as docker, docker._query(path, method, **given) as reply, reply:
            read: bytes = await reply.read()
            return read

    @contextlib.asynccontextmanager
    async def _translated(self) -> AsyncIterator[aiodocker.Docker]:
        if self._docker is None:
            raise Unavailable("the Docker runtime has not been started")
        dialect = self._dialect or EngineDialect()
        try:
            if self._dialect is None:
                dialect = self._dialect = dialect_of(await self._docker.version())
            yield self._docker
        except aiodocker.DockerError as error:
            status = dialect.status(error.status, error.message)
            if status == NOT_CONNECTED:
                raise Unavailable(f"the engine at {self._url} cannot be reached: {error.message}") from error
            if status >= 500 and not dialect.is_about_the_call(error.message):
                raise Unavailable(f"the engine at {self._url} failed: {error.message}") from error
            raise EngineRefusal(status, dialect.explained(error.message)) from error
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            why = str(error) or f"no response within {self._call_s:g} s"
            raise Unavailable(f"the engine at {self._url} cannot be reached: {why}") from error


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a stream, of any length."""
    left = b""
    async for chunk in content.iter_any():
        *lines, left = (left + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
    if left.strip():
        yield left


@contextlib.contextmanager
def unless(*statuses: int) -> Iterator[None]:
    """Ignore a refusal with one of these statuses."""
    try:
        yield
    except EngineRefusal as refusal:
        if refusal.status not in statuses:
            raise


def _payloads(raw: bytes) -> Iterator[bytes]:
    """The parts of a log: each has a header of eight bytes, of which the last four are its length."""
    at = 0
    while at + 8 <= len(raw):
        size = int.from_bytes(raw[at + 4 : at + 8], "big")
        yield raw[at + 8 : at + 8 + size]
        at += 8 + size


def _lacks_network(refusal: EngineRefusal, network: EngineNetwork) -> bool:
    """It is missing, or there are several with its name."""
    words = (
        f"network {network.name} not found",
        f"network with name or ID {network.name}",
        f"network {network.name} is ambiguous",
    )
    return any(word in refusal.message for word in words)


def _container(facts: Mapping[str, Any], dialect: EngineDialect) -> ListedContainer:
    networks = (facts.get("NetworkSettings") or {}).get("Networks") or {}
    address = next((network["IPAddress"] for network in networks.values() if network.get("IPAddress")), "")
    name = next(iter(facts.get("Names") or ()), "").removeprefix("/")
    state = dialect.state(str(facts.get("State", "")))
    return ListedContainer(str(facts["Id"]), name, facts.get("Labels") or {}, state, address)


def _volume(facts: Mapping[str, Any]) -> ListedVolume:
    return ListedVolume(str(facts["Name"]), facts.get("Labels") or {}, str(facts.get("Mountpoint", "")))
