"""The sample configurations of nginx and Caddy in deploy/ carry all traffic of a browser over TLS."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.support.product import Product, free_port, product
from tests.support.requirements import must_have
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]

DEPLOY = Path(__file__).parents[2] / "deploy"
PLATFORM, DOMAIN = "torpor.example.com", "workspaces.example.org"
UPSTREAM, CERTIFICATES = "127.0.0.1:8080", "/etc/ssl/torpor"
# A client may claim any address; Torpor must not believe it.
CLAIMED = "203.0.113.9"


@dataclass(frozen=True)
class Site:
    """A reverse proxy on this machine, as its clients see it."""

    port: int
    plain_port: int
    trust: ssl.SSLContext

    def ask(
        self, method: str, host: str, path: str = "/", body: object = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPSConnection(host, timeout=60, context=self.trust)
        connection.sock = self.trust.wrap_socket(self.connected(), server_hostname=host)
        with contextlib.closing(connection):
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer, answer.read()

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


def make_certificate(folder: Path) -> None:
    """One for both names, as the samples expect it."""
    folder.mkdir()
    names = ["-subj", f"/CN={PLATFORM}", "-addext", f"subjectAltName=DNS:{PLATFORM},DNS:*.{DOMAIN}"]
    files = ["-keyout", str(folder / "privkey.pem"), "-out", str(folder / "fullchain.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr


@contextlib.contextmanager
def running(command: list[str], folder: Path, port: int, **environment: str) -> Iterator[None]:
    log = folder / "proxy.log"
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **environment})

    def listens() -> bool:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
        return False

    try:
        wait_until(listens, otherwise=lambda: log.read_text(encoding="utf-8"))
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            # Caddy waits for open connections.
            process.kill()
            process.wait()


def replaced(sample: Path, **texts: str) -> str:
    """The sample with the addresses of this test; each text to replace must be in it."""
    written = sample.read_text(encoding="utf-8")
    for old, new in texts.items():
        assert old in written, old
        written = written.replace(old, new)
    return written


@contextlib.contextmanager
def nginx(folder: Path, upstream: int) -> Iterator[Site]:
    must_have(program := shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"), "nginx")
    port, plain_port = free_port(), free_port()
    sample = replaced(
        DEPLOY / "nginx" / "torpor.conf",
        **{UPSTREAM: f"127.0.0.1:{upstream}", CERTIFICATES: str(folder / "certificates")},
        **{"listen 443 ": f"listen 127.0.0.1:{port} ", "listen [::]:443 ": f"listen [::1]:{port} "},
        **{"listen 80;": f"listen 127.0.0.1:{plain_port};", "listen [::]:80;": f"listen [::1]:{plain_port};"},
    )
    (folder / "torpor.conf").write_text(sample, encoding="utf-8")
    places = "".join(f"{kind}_temp_path {folder}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {places} include {folder}/torpor.conf; }}\n",
        encoding="utf-8",
    )
    command = [str(program), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, "warn" in checked.stderr) == (0, False), checked.stderr
    with running(command, folder, port):
        yield Site(port, plain_port, ssl.create_default_context(cafile=folder / "certificates" / "fullchain.pem"))


@contextlib.contextmanager
def caddy(folder: Path, upstream: int) -> Iterator[Site]:
    must_have(program := shutil.which("caddy"), "caddy")
    port, plain_port = free_port(), free_port()
    sample = replaced(
        DEPLOY / "caddy" / "Caddyfile",
        **{UPSTREAM: f"127.0.0.1:{upstream}", CERTIFICATES: str(folder / "certificates")},
    )
    # The certificate that it gets by itself is from its own authority here.
    here = f"{{\nadmin off\nlocal_certs\nskip_install_trust\nhttp_port {plain_port}\nhttps_port {port}\n}}\n"
    (folder / "Caddyfile").write_text(here + sample, encoding="utf-8")
    own = {"XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config"), "HOME": str(folder)}
    command = [str(program), "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    with running(command, folder, port, **own):
        trust = ssl.create_default_context(cafile=folder / "certificates" / "fullchain.pem")
        authority = folder / "data" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        wait_until(authority.exists)
        trust.load_verify_locations(cafile=authority)
        yield Site(port, plain_port, trust)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    settings = {
        "TORPOR_PUBLIC_URL": f"https://{PLATFORM}",
        "TORPOR_DOMAIN": DOMAIN,
        "TORPOR_TRUSTED_PROXIES": "127.0.0.1,::1",
    }
    with product(tmp_path_factory.mktemp("proxied"), **settings) as running_product:
        call(running_product, "POST", "", {"name": "demo"})
        wait_until(lambda: call(running_product, "GET", "/demo")["phase"] == "RUNNING", otherwise=running_product.log)
        yield running_product


def call(here: Product, method: str, path: str, body: object = None) -> Any:
    """The API of workspaces, without the proxy. The command line would use the public address, which does not exist here."""
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=60)
    with contextlib.closing(connection):
        headers = {"Host": PLATFORM, "Authorization": f"Bearer {here.token}", "Content-Type": "application/json"}
        connection.request(method, f"/api/v1/workspaces{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status < 300, said
        return json.loads(said)


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def site(request: pytest.FixtureRequest, tmp_path: Path, here: Product) -> Iterator[Site]:
    must_have(shutil.which("openssl"), "openssl")
    make_certificate(tmp_path / "certificates")
    start: Callable[[Path, int], Any] = request.param
    with start(tmp_path, here.port) as started:
        yield started


def test_a_browser_uses_platform_and_workspaces_over_tls(site: Site, here: Product) -> None:
    page, _ = site.ask("GET", PLATFORM)
    assert page.status == 200
    assert page.getheader("strict-transport-security")

    # Signing in: the cookie is for this host alone, and the recorded address is not the claimed one.
    credentials = json.loads((here.data / "credentials.json").read_text(encoding="utf-8"))
    who = {name: credentials[name] for name in ("username", "password")}
    signed_in, said = site.ask(
        "POST",
        PLATFORM,
        "/api/v1/login",
        who,
        Origin=f"https://{PLATFORM}",
        Content_Type="application/json",
        X_Forwarded_For=CLAIMED,
    )
    assert signed_in.status == 204, said
    cookie = str(signed_in.getheader("set-cookie"))
    assert cookie.startswith("__Host-torpor_session=")
    assert "Secure" in cookie
    sessions, said = site.ask("GET", PLATFORM, "/api/v1/sessions", Cookie=cookie.partition(";")[0])
    assert (sessions.status, CLAIMED.encode() in said, b"127.0.0.1" in said) == (200, False, True), said

    # Metrics are not public; the same path of a workspace belongs to its program.
    assert site.ask("GET", PLATFORM, "/metrics")[0].status == 403
    assert site.ask("GET", PLATFORM, "/health")[0].status == 200
    assert site.ask("GET", f"demo.{DOMAIN}", "/metrics", X_Torpor_Token=here.token)[0].status == 404

    # A workspace under the wildcard.
    terminal, said = site.ask("GET", f"demo.{DOMAIN}", X_Torpor_Token=here.token)
    assert (terminal.status, b"<title>demo</title>" in said) == (200, True), said
    elsewhere, _ = site.ask("GET", f"unknown.{DOMAIN}", X_Torpor_Token=here.token)
    assert elsewhere.status == 404


def test_websockets_and_live_updates_pass_through(site: Site, here: Product) -> None:
    bearer = {"Authorization": f"Bearer {here.token}"}
    path = f"/api/v1/workspaces/{call(here, 'GET', '/demo')['id']}/exec"
    with connect(
        f"wss://{PLATFORM}{path}", sock=site.connected(), ssl=site.trust, additional_headers=bearer, open_timeout=60
    ) as channel:
        channel.send(json.dumps({"command": ["echo", "through"]}))
        seen: list[str | bytes] = []
        while not seen or not isinstance(seen[-1], str) or "exit" not in seen[-1]:
            seen.append(channel.recv(timeout=60))
    assert b"\x01through\n" in seen
    assert json.loads(seen[-1]) == {"exit": 0}

    connection = http.client.HTTPSConnection(PLATFORM, timeout=20, context=site.trust)
    connection.sock = site.trust.wrap_socket(site.connected(), server_hostname=PLATFORM)
    with contextlib.closing(connection):
        connection.request("GET", "/api/v1/events?since=0", headers=bearer)
        with connection.getresponse() as stream:
            assert stream.status == 200
            # It arrives while the response continues.
            assert stream.readline()


def test_http_is_redirected_to_https(site: Site) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", site.plain_port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/path?a=1", headers={"Host": f"demo.{DOMAIN}"})
        answer = connection.getresponse()
        assert answer.status == 308
        assert answer.getheader("location") == f"https://demo.{DOMAIN}/path?a=1"
