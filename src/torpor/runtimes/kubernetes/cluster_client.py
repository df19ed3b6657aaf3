"""Call the API of a Kubernetes cluster, and translate its errors.

The connection (addresses, certificates, tokens that are renewed) is that of lightkube. Objects are the JSON of the API.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import httpx2
import msgspec
import yaml
from lightkube import KubeConfig
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError

from torpor.domain.errors import Code, Failed, Refused, TorporError, Unavailable
from torpor.runtimes.kubernetes.options import KubernetesOptions

NOT_FOUND, CONFLICT, GONE, INVALID = 404, 409, 410, 422
UNAUTHORIZED, FORBIDDEN, TOO_MANY = 401, 403, 429
SERVER_ERRORS = 500
BOOKMARKS_S = 150.0
"""A watch without a message for so long is lost: the cluster sends a bookmark about once a minute."""
MERGE_PATCH = "application/merge-patch+json"
NETWORK_POLICIES = "networkpolicies"
GROUPS = {NETWORK_POLICIES: "apis/networking.k8s.io/v1"}
PODS, CLAIMS, SECRETS, EVENTS = "pods", "persistentvolumeclaims", "secrets", "events"
JsonObject = dict[str, Any]


class _ListedMetadata(msgspec.Struct, rename="camel", omit_defaults=True):
    """Without managedFields, which are half of each object and are not needed."""

    name: str
    uid: str
    resource_version: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    deletion_timestamp: str | None = None


class _ListedObject(msgspec.Struct, omit_defaults=True):
    metadata: _ListedMetadata
    spec: JsonObject | None = None
    status: JsonObject | None = None


class _PageMetadata(msgspec.Struct):
    next_page: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _PageMetadata
    items: list[_ListedObject] | None = None


_PAGES = msgspec.json.Decoder(_Page)


class ClusterRefusal(TorporError):
    """The cluster refused this call; the caller decides what that means."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClusterClient:
    """Call `connect` first and `close` last."""

    def __init__(self, options: KubernetesOptions) -> None:
        self._options = options
        self._http: httpx2.AsyncClient | None = None
        self.namespace = ""
        self.server = ""

    def connect(self) -> None:
        """Read the configuration; Refused if there is none, or if it is wrong. May be called again."""
        if self._http is not None:
            return
        try:
            config = _config(self._options)
            self.namespace = self._options.namespace or config.namespace
            self.server = config.cluster.server
            parameters = ConnectionParams(timeout=httpx2.Timeout(self._options.call_s), trust_env=False)
            self._http = AsyncClient(config, parameters)
            self._http.event_hooks = {"request": [_close_if_cancelled], "response": []}
        except (ConfigError, OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise Refused("bad_setting", f"the Kubernetes configuration cannot be used: {error}") from error

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    # ── objects ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def listed(self, kind: str, selector: str) -> list[JsonObject]:
        """All objects with these labels, as they are now: a list without a version is consistent, and so are its pages."""
        found: list[JsonObject] = []
        wanted = {"labelSelector": selector, "limit": str(self._options.page)}
        while True:
            answer = await self._send("GET", self._path(kind), params=wanted)
            try:
                page = _PAGES.decode(answer.content)
            except msgspec.DecodeError as error:
                raise self._not_a_cluster(answer) from error
            found += (msgspec.to_builtins(item) for item in page.items or ())
            if not page.metadata.next_page:
                return found
            wanted["continue"] = page.metadata.next_page

    async def get(self, kind: str, name: str) -> JsonObject | None:
        try:
            return await self._call("GET", self._path(kind, name))
        except ClusterRefusal as refusal:
            if refusal.status == NOT_FOUND:
                return None
            raise

    async def create(self, kind: str, wanted: Mapping[str, Any]) -> JsonObject:
        return await self._call("POST", self._path(kind), body=wanted)

    async def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> JsonObject:
        """Change fields. With `metadata.resourceVersion` in it, the change is refused (CONFLICT) for any other version."""
        return await self._call("PATCH", self._path(kind, name), body=change, content_type=MERGE_PATCH)

    async def delete(self, kind: str, name: str, *, uid: str = "", version: str = "") -> None:
        """Ask for its deletion, never by force. No effect if it is gone, or if there is another one of its name."""
        given = {"uid": uid, "resourceVersion": version}
        wanted = {"preconditions": {field: value for field, value in given.items() if value}}
        try:
            await self._call("DELETE", self._path(kind, name), body=wanted)
        except ClusterRefusal as refusal:
            if refusal.status == NOT_FOUND or (refusal.status == CONFLICT and not version):
                return
            raise

    async def namespace_uid(self) -> str:
        try:
            found = await self._call("GET", f"/api/v1/namespaces/{self.namespace}")
        except ClusterRefusal as refusal:
            message = f"the namespace {self.namespace!r} cannot be read: {refusal.message}"
            raise Unavailable(f"{message}; create it, or set TORPOR_KUBERNETES_NAMESPACE") from refusal
        return str(found["metadata"]["uid"])

    async def events_of(self, **about: str) -> list[JsonObject]:
        """The events about an object with this uid, or this name."""
        selector = ",".join(f"involvedObject.{field}={value}" for field, value in about.items())
        found = await self._call("GET", self._path(EVENTS), params={"fieldSelector": selector})
        return list(found.get("items") or ())

    # ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def log(self, pod: str, tail: int) -> bytes:
        """The last lines of a pod; empty if it is gone, or if its node does not answer."""
        try:
            answer = await self._send("GET", f"{self._path(PODS, pod)}/log", params={"tailLines": str(tail)})
        except (ClusterRefusal, Unavailable):
            return b""
        return answer.content

    async def follow_log(self, pod: str) -> AsyncGenerator[bytes, None]:
        """The lines of a pod, from the first one, until it ends or the connection is lost. Unavailable without this right."""
        http = self._connected()
        url = f"{self._path(PODS, pod)}/log"
        timeout = httpx2.Timeout(self._options.call_s, read=None)
        with contextlib.suppress(httpx2.HTTPError):
            async with http.stream("GET", url, params={"follow": "true"}, timeout=timeout) as answer:
                if answer.status_code == FORBIDDEN:
                    await answer.aread()
                    raise translated(answer.status_code, _message(answer), "GET", url, self.server)
                if answer.status_code != httpx2.codes.OK:
                    return
                async with contextlib.aclosing(_lines(answer)) as lines:
                    async for line in lines:
                        yield line

    # ── changes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def watched(self, kind: str, selector: str, has_connected: Callable[[], None]) -> AsyncGenerator[bytes, None]:
        """Every change of objects with these labels from now on, one line of JSON each, until the cluster ends the watch."""
        newest = await self._call("GET", self._path(kind), params={"labelSelector": selector, "limit": "1"})
        wanted = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": str((newest.get("metadata") or {}).get("resourceVersion", "")),
            "allowWatchBookmarks": "true",
        }
        timeout, path = httpx2.Timeout(self._options.call_s, read=BOOKMARKS_S), self._path(kind)
        try:
            async with self._connected().stream("GET", path, params=wanted, timeout=timeout) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise translated(answer.status_code, _message(answer), "GET", path, self.server)
                has_connected()
                async with contextlib.aclosing(_lines(answer)) as lines:
                    async for line in lines:
                        yield line
        except httpx2.HTTPError as error:
            raise Unavailable(f"the watch of {kind} was lost: {str(error) or type(error).__name__}") from error

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _path(self, kind: str, name: str = "") -> str:
        return f"/{GROUPS.get(kind, 'api/v1')}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def _connected(self) -> httpx2.AsyncClient:
        assert self._http is not None, "call `connect` first"
        return self._http

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        answer = await self._send(method, path, params=params, body=body, content_type=content_type)
        try:
            found = answer.json()
        except ValueError as error:
            raise self._not_a_cluster(answer) from error
        return found if isinstance(found, dict) else {}

    def _not_a_cluster(self, answer: httpx2.Response) -> Unavailable:
        return Unavailable(f"{self.server} does not answer like a Kubernetes cluster: {answer.text[:200]!r}")

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> httpx2.Response:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if content is not None else {}
        try:
            answer = await self._connected().request(method, path, params=params, content=content, headers=headers)
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            message = f"the cluster at {self.server} does not answer: {why}"
            raise Unavailable(f"{message}; check its address, and whether it runs") from error
        except (ConfigError, OSError) as error:  # a token or certificate is read when it is needed
            raise Unavailable(f"the credentials for {self.server} cannot be used: {error}") from error
        if answer.is_error:
            raise translated(answer.status_code, _message(answer), method, path, self.server)
        return answer


def translated(status: int, message: str, method: str, path: str, server: str) -> TorporError:
    """The error that an answer of the cluster means."""
    match status:
        case code if code == UNAUTHORIZED:
            return Unavailable(
                f"the cluster at {server} does not accept Torpor's credentials ({message}): they have expired or were revoked; "
                "renew the kubeconfig or the service account's token"
            )
        # The cluster answers 403 also if a rule of the namespace refuses an object: a quota, or pod security.
        case code if code == FORBIDDEN and 'User "' in message and " cannot " in message:
            text = f"Torpor's role in the cluster lacks a right: {message}; add it to the role (deploy/kubernetes/role.yaml)"
            return Unavailable(text) if method == "GET" else Failed(Code.K8S_API_ERROR, text, verb=method, path=path)
        case code if code in (TOO_MANY, GONE) or code >= SERVER_ERRORS:
            return Unavailable(f"the cluster at {server} cannot answer now (status {status}): {message}")
        case _:
            return ClusterRefusal(status, message)


async def _close_if_cancelled(request: httpx2.Request) -> None:
    """The HTTP client does not close a connection if its call is cancelled during the TLS handshake."""
    connected: Any = None

    async def trace(event: str, about: Mapping[str, Any]) -> None:
        nonlocal connected
        match event:
            case "connection.connect_tcp.complete":
                connected = about["return_value"]
            case "connection.start_tls.failed":
                await connected.aclose()  # no effect on a connection that is already closed

    request.extensions["trace"] = trace


async def _lines(answer: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """Without a last one that is cut off by a lost connection: the caller reads it again."""
    rest = b""
    async for data in answer.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _message(answer: httpx2.Response) -> str:
    with contextlib.suppress(ValueError):
        found = answer.json()
        if isinstance(found, dict) and found.get("message"):
            return str(found["message"])
    return answer.text[:500] or f"status {answer.status_code}"


def _config(options: KubernetesOptions) -> SingleConfig:
    found = KubeConfig.from_file(str(options.kubeconfig)) if options.kubeconfig is not None else KubeConfig.from_env()
    chosen = found.get(context_name=options.context) if options.context else found.get()
    if chosen is None:
        raise ConfigError(f"there is no context {options.context!r}" if options.context else "it has no current context")
    return chosen


async def until_gone(client: ClusterClient, kind: str, name: str, uid: str, within_s: float) -> JsonObject | None:
    """Wait until this object is gone; it, if it is still there."""
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + within_s, 0.02
    while True:
        found = await client.get(kind, name)
        if found is None or found["metadata"]["uid"] != uid:
            return None
        if loop.time() > deadline:
            return found
        await asyncio.sleep(pause_s)
        pause_s = min(0.5, pause_s * 1.5)
