"""Sign-in providers: a real one in a process of its own, and one that signs what a test chooses."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from tests.support.waiting import wait_until
from torpor.accounts.openid import OpenIdProvider
from torpor.accounts.provider import ProviderOptions

CLIENT, SECRET = "torpor", "a secret between us, long enough to sign with"
BACK = "http://localhost:8080/oidc/back"
PATIENCE_S = 30


def provider_at(issuer: str, **more: Any) -> OpenIdProvider:
    options = ProviderOptions(issuer, CLIENT, SECRET, redirect_uri=BACK, name="the office", **more)
    return OpenIdProvider(options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def real_provider(*people: Mapping[str, Any]) -> Iterator[str]:
    """The issuer. The provider knows these users by their claims."""
    port = free_port()
    known = [part for person in people for part in ("--user-claims", json.dumps(person))]
    process = subprocess.Popen(
        [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), *known], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: process.poll() is not None or _answers(f"http://127.0.0.1:{port}/jwks"))
        assert process.poll() is None, "it ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except OSError:
        return False


@dataclass
class Forger:
    """A provider whose answers a test chooses."""

    issuer: str = ""
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))
    published: list[RSAKey] = field(default_factory=list)
    key_set: Any = None
    """Replaces the published keys."""
    keys_read: int = 0
    header: dict[str, Any] = field(default_factory=lambda: {"alg": "RS256", "kid": "one"})
    claims: dict[str, Any] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    described: dict[str, Any] = field(default_factory=dict)
    token_status: int = 200
    token: Any = None
    """Replaces the whole answer."""
    id_token: str | None = None
    """Replaces the ID token that is made from the other values."""
    asked: list[dict[str, str]] = field(default_factory=list)

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, Any]:
        match path:
            case "/.well-known/openid-configuration":
                places = {name: f"{self.issuer}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
                return 200, {"issuer": self.issuer, **places, **self.described}
            case "/jwks_uri":
                self.keys_read += 1
                keys = self.published or [self.key]
                return 200, self.key_set or {"keys": [one.as_dict(private=False) for one in keys]}
            case "/token_endpoint":
                self.asked.append(form)
                made = {"access_token": "x", "token_type": "Bearer", "id_token": self._id_token()}
                return self.token_status, made if self.token is None else self.token
            case _:
                return 404, {}

    def _id_token(self) -> str:
        if self.id_token is not None:
            return self.id_token
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": CLIENT, "sub": "1", "nonce": "nonce", "iat": now, "exp": now + 60}
        claims = {name: value for name, value in {**usual, **self.claims}.items() if name not in self.without}
        key: Any = OctKey.import_key(SECRET) if str(self.header["alg"]).startswith("HS") else self.key
        return jwt.encode(self.header, claims, key, algorithms=[self.header["alg"]])


@contextlib.contextmanager
def forging_provider() -> Iterator[Forger]:
    forger = Forger()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length", 0))
            form = dict(urllib.parse.parse_qsl(self.rfile.read(length).decode()))
            status, body = forger.answer(self.path, form)
            sent = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_POST = do_GET  # noqa: N815 - the name is the method's

        def log_message(self, *_: Any) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        forger.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield forger
        finally:
            server.shutdown()
            thread.join()
