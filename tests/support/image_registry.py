"""A small registry of images (the HTTP API v2 of registries) on the loopback of an engine's network."""

import base64
import contextlib
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.docker_engine import DockerEngine

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def files(**contents: bytes) -> bytes:
    """A layer with these files; `__` in a name is a slash."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


@dataclass
class ImageRegistry:
    address: str
    """HOST:PORT."""
    password: str = ""
    """If set, the user `ann` must sign in with it."""
    refuses: Mapping[str, int] = field(default_factory=dict)
    """The status for each repository that cannot be pulled."""
    truncates: frozenset[str] = frozenset()
    """The repositories whose layers end early."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """The path of each request that was answered with data."""

    def add(self, name: str, *layers: bytes, architecture: str = "amd64", **config: Any) -> str:
        """An image of these layers; returns its reference."""
        packed = [gzip.compress(layer, 1, mtime=0) for layer in layers]
        facts = {"architecture": architecture, "os": "linux", "config": config}
        facts["rootfs"] = {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]}
        described = json.dumps(facts).encode()
        self.blobs |= {digest_of(blob): blob for blob in (described, *packed)}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": self._part(CONFIG, described)}
        manifest["layers"] = [self._part(LAYER, blob) for blob in packed]
        written = json.dumps(manifest).encode()
        self.manifests[name, "latest"] = self.manifests[name, digest_of(written)] = written
        return f"{self.address}/{name}"

    @staticmethod
    def _part(kind: str, blob: bytes) -> dict[str, object]:
        return {"mediaType": kind, "size": len(blob), "digest": digest_of(blob)}

    @property
    def credentials(self) -> str:
        """The file of a user who may pull."""
        auth = base64.b64encode(f"ann:{self.password}".encode()).decode()
        return json.dumps({"auths": {self.address: {"auth": auth}}})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: ImageRegistry

    def log_message(self, *_words: object) -> None:
        """Silent."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        registry = self.registry
        given = self.headers.get("Authorization", "")
        if registry.password and given != "Basic " + base64.b64encode(f"ann:{registry.password}".encode()).decode():
            self._answer(401, self._error("UNAUTHORIZED"), **{"WWW-Authenticate": 'Basic realm="the tests"'})
            return
        match self.path.split("/")[2:]:
            case [""]:
                self._answer(200, b"{}")
            case [*name, "manifests", wanted]:
                self._manifest("/".join(name), wanted)
            case [*name, "blobs", digest]:
                self._blob("/".join(name), digest)
            case _:
                self._answer(404, self._error("NAME_UNKNOWN"))

    def _manifest(self, name: str, wanted: str) -> None:
        found = self.registry.manifests.get((name, wanted))
        if (status := self.registry.refuses.get(name)) is not None:
            self._answer(status, self._error("DENIED" if status == 403 else "UNKNOWN"))
        elif found is None:
            self._answer(404, self._error("MANIFEST_UNKNOWN"))
        else:
            self.registry.requests.append(self.path)
            self._answer(200, found, **{"Content-Type": MANIFEST, "Docker-Content-Digest": digest_of(found)})

    def _blob(self, name: str, digest: str) -> None:
        found = self.registry.blobs.get(digest)
        if found is None:
            self._answer(404, self._error("BLOB_UNKNOWN"))
        elif name in self.registry.truncates and not found.startswith(b"{"):
            self._answer(200, found[: len(found) // 2], **{"Content-Length": str(len(found))})
            self.close_connection = True
        else:
            self.registry.requests.append(self.path)
            self._answer(200, found)

    @staticmethod
    def _error(code: str) -> bytes:
        return json.dumps({"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}).encode()

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        given = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
        for name, value in {**given, "Docker-Distribution-API-Version": "registry/2.0"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):  # the engine has hung up
                self.wfile.write(body)


@contextlib.contextmanager
def image_registry(engine: DockerEngine) -> Iterator[ImageRegistry]:
    """A registry that this engine can reach. An engine accepts HTTP from its loopback."""
    with engine.network():
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry = ImageRegistry(f"127.0.0.1:{server.server_address[1]}")
    server.RequestHandlerClass = type("RegistryHandler", (Handler,), {"registry": registry})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
