"""The HTTP behaviour of a browser: cookies for each host, redirects, and Sec-Fetch headers."""

import http.client
import json
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

GOES_THERE = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Sec-Fetch-Site": "none", "Accept": "text/html"}
FETCHES = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty", "Sec-Fetch-Site": "same-origin", "Accept": "*/*"}


@dataclass(frozen=True)
class BrowserResponse:
    url: str
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for found, value in self.headers if found.lower() == name]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpBrowser:
    """Every host is on this machine, at one port."""

    port: int
    cookies: dict[str, dict[str, str]] = field(default_factory=dict)

    def sign_in(self, username: str, password: str) -> None:
        origin = f"http://localhost:{self.port}"
        body = json.dumps({"username": username, "password": password})
        answer = self.ask(
            "POST", f"{origin}/api/v1/login", body, {"Content-Type": "application/json", "Origin": origin, **FETCHES}
        )
        assert answer.status == 204, answer

    def go(self, url: str) -> BrowserResponse:
        """Open an address and follow redirects."""
        for _ in range(10):
            answer = self.ask("GET", url, None, GOES_THERE)
            if answer.status != 303:
                return answer
            (where,) = answer.all("location")
            url = where if "://" in where else f"{urlsplit(url).scheme}://{urlsplit(url).netloc}{where}"
        raise AssertionError(f"led round in circles at {url}")

    def fetch(self, url: str, method: str = "GET", **headers: str) -> BrowserResponse:
        """Send a request as a page does."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask(method, url, None, {**FETCHES, **named})

    def ask(self, method: str, url: str, body: str | None, headers: dict[str, str]) -> BrowserResponse:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
            known = self.cookie(parts.hostname or "")
            shown = {"Cookie": known} if known else {}
            connection.request(method, target, body, {"Host": parts.netloc, **shown, **headers})
            response = connection.getresponse()
            answer = BrowserResponse(url, response.status, response.getheaders(), response.read())
        finally:
            connection.close()
        for one in answer.all("set-cookie"):
            for name, morsel in SimpleCookie(one).items():
                assert not morsel["domain"], "a cookie is of its own host alone"
                kept = self.cookies.setdefault(parts.hostname or "", {})
                kept[name] = morsel.value
                if morsel["max-age"] == "0":
                    del kept[name]
        return answer

    def cookie(self, host: str) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.get(host, {}).items())
