"""How does the command line talk to the API?

With the standard library's HTTP: an asynchronous client would take longer to import than the call takes. One connection is
kept, because waiting asks again and again.
"""

import contextlib
import http.client
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from torpor.cli.ends import Ended, ExitCode, advice_for, usage

BASE = "/api/v1"
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
LONG_ANSWER_TIMEOUT_S = 600.0
STREAM_TIMEOUT_S = 600.0  # of silence: there is a heartbeat at least every 5 minutes
PAGE = 200
# What a proxy says, ours or another before it, while nobody is behind it.
AWAY = frozenset({502, 503, 504})

Record = dict[str, Any]


class NotFound(Ended):
    """There is no such thing, or it is not ours to see."""


class Api:
    def __init__(self, url: str, token: str) -> None:
        self.url = url
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise usage(f"{url!r} is not the address of a Torpor", "TORPOR_URL looks like http://localhost:8080")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        try:
            self._connection = kind(parts.hostname, parts.port, timeout=CONNECT_TIMEOUT_S)
        except ValueError as error:
            raise usage(f"{url!r} is not the address of a Torpor: {error}") from None
        if not (token.isascii() and token.isprintable()):
            raise usage("the token holds characters that no token has", "look at TORPOR_TOKEN and credentials.json")
        self._prefix = parts.path.rstrip("/") + BASE
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    # ── what the commands ask ─────────────────────────────────────────────────────────────────────────────────────────

    def workspaces(self, phase: str | None) -> list[Record]:
        """Every workspace, all pages of them."""
        items: list[Record] = []
        cursor: str | None = None
        while True:
            page = self._ask("GET", "/workspaces", query={"limit": PAGE, "cursor": cursor, "phase": phase})
            items += page["items"]
            if not page.get("next_cursor") or page["next_cursor"] == cursor:
                return items
            cursor = page["next_cursor"]

    def workspace(self, name: str) -> Record:
        return self._about("GET", name)

    def create(self, wanted: Record) -> Record:
        return self._record("POST", "/workspaces", body=wanted, workspace=str(wanted["name"]))

    def wish(self, name: str, desired_state: str) -> Record:
        return self._about("PATCH", name, body={"desired_state": desired_state})

    def delete(self, name: str, *, purge: bool) -> Record:
        return self._about("DELETE", name, query={"purge": "true" if purge else "false"})

    def undelete(self, name: str) -> Record:
        return self._about("POST", name, "/undelete")

    def recover(self, name: str, way: Record) -> Record:
        return self._about("POST", name, "/recover", body=way)

    def operations(self, name: str) -> list[Record]:
        return self._items(name, "/operations")

    def archives(self, name: str) -> list[Record]:
        return self._items(name, "/archives")

    def hold(self, name: str, reason: str, seconds: float) -> Record:
        return self._about("POST", name, "/leases", body={"reason": reason, "seconds": seconds})

    def holds(self, name: str) -> list[Record]:
        return self._items(name, "/leases")

    def end_holds(self, name: str, lease_id: str | None) -> None:
        one = "" if lease_id is None else f"/{quote(lease_id, safe='')}"
        self._call("DELETE", _path(name, f"/leases{one}"), workspace=name)

    def explain(self, name: str) -> Record:
        return self._about("GET", name, "/explain")

    def execute(self, name: str, command: list[str], stdin_base64: str) -> Record:
        # A command takes as long as it takes.
        return self._about("POST", name, "/exec", body={"command": command, "stdin": stdin_base64}, timeout_s=None)

    def logs(self, name: str, tail: int) -> bytes:
        return self._call("GET", _path(name, "/logs"), query={"tail": tail}, workspace=name)

    def events(self, name: str | None, since: str | None) -> Iterator[Record]:
        """What changes, as it does, until the connection ends; of everything when there is no name."""
        path = _path(name, "/events") if name is not None else "/events"
        asked = f"?{urlencode({'last_event_id': since})}" if since is not None else ""
        with self._reaching():
            response = self._send("GET", f"{self._prefix}{path}{asked}", None, STREAM_TIMEOUT_S)
            if response.status != 200:
                answer = response.read()
                if response.status in AWAY and _problem(answer) is None:
                    raise self._unreachable(f"{self.url} answered {response.status} {response.reason}", "try again in a moment")
                raise self._refusal(response, answer, name or "NAME")
            if response.headers.get_content_type() != "text/event-stream":
                raise self._stranger(f"GET {path} was not answered with events")
            try:
                yield from _events(response)
            finally:
                self._connection.close()

    def release(self, provider: str) -> None:
        self._call("POST", f"/latches/{quote(provider, safe='')}/release")

    def gc_preview(self) -> Record:
        # The whole archive store is listed for it.
        return self._record("GET", "/gc", timeout_s=LONG_ANSWER_TIMEOUT_S)

    def gc_request(self) -> Record:
        return self._record("POST", "/gc")

    def gc_report(self) -> Record:
        return self._record("GET", "/gc/report")

    def templates(self) -> list[Record]:
        items: list[Record] = self._ask("GET", "/templates")["items"]
        return items

    # ── how it is asked ───────────────────────────────────────────────────────────────────────────────────────────────

    def _items(self, name: str, below: str) -> list[Record]:
        items: list[Record] = self._about("GET", name, below)["items"]
        return items

    def _about(
        self,
        method: str,
        name: str,
        below: str = "",
        *,
        query: Record | None = None,
        body: Record | None = None,
        timeout_s: float | None = ANSWER_TIMEOUT_S,
    ) -> Record:
        return self._record(method, _path(name, below), query=query, body=body, workspace=name, timeout_s=timeout_s)

    def _record(self, method: str, path: str, **call: Any) -> Record:
        answer = self._ask(method, path, **call)
        if not isinstance(answer, dict):
            raise self._stranger(f"{method} {path} was answered with something else than an object")
        return answer

    def _ask(self, method: str, path: str, **call: Any) -> Any:
        answer = self._call(method, path, **call)
        try:
            return json.loads(answer)
        except ValueError:
            raise self._stranger(f"{method} {path} was not answered in JSON") from None

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Record | None = None,
        body: Record | None = None,
        workspace: str = "NAME",
        timeout_s: float | None = ANSWER_TIMEOUT_S,
    ) -> bytes:
        asked = urlencode({name: value for name, value in (query or {}).items() if value is not None})
        target = f"{self._prefix}{path}{'?' if asked else ''}{asked}"
        payload = None if body is None else json.dumps(body).encode()
        with self._reaching():
            response = self._send(method, target, payload, timeout_s)
            answer = response.read()
        if 200 <= response.status < 300:
            return answer
        raise self._refusal(response, answer, workspace)

    def _send(self, method: str, target: str, payload: bytes | None, timeout_s: float | None) -> http.client.HTTPResponse:
        headers = {**self._headers, **({} if payload is None else {"Content-Type": "application/json"})}
        is_kept = self._connection.sock is not None
        for is_last in (not is_kept, True):
            if self._connection.sock is None:
                self._connection.connect()
            self._connection.sock.settimeout(timeout_s)
            try:
                self._connection.request(method, target, payload, headers)
                return self._connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                # A server may close a kept connection at any time. What reads is asked again; what acts is never said twice.
                self._connection.close()
                if is_last or method != "GET":
                    raise
        raise AssertionError("the last attempt returns or raises")

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """A network that fails is translated where it enters."""
        try:
            yield
        except TimeoutError:
            raise self._unreachable(
                f"{self.url} did not answer in time", "its log says more; is the machine overloaded?"
            ) from None
        except ConnectionRefusedError:
            advice = "is it running? start it with `torpor up`"
            raise self._unreachable(f"nothing answers at {self.url}", advice) from None
        except (OSError, http.client.HTTPException) as error:
            advice = "is it running? start it with `torpor up`"
            raise self._unreachable(f"{self.url} cannot be reached: {error or type(error).__name__}", advice) from None

    def _unreachable(self, what: str, advice: str) -> Ended:
        self._connection.close()
        return Ended(ExitCode.UNREACHABLE, what, code="unreachable", advice=advice)

    def _stranger(self, what: str) -> Ended:
        return Ended(ExitCode.REFUSED, what, code="not_torpor", advice=f"is {self.url} really a Torpor of this version?")

    def _refusal(self, response: http.client.HTTPResponse, answer: bytes, workspace: str) -> Ended:
        problem = _problem(answer)
        if problem is None:
            return self._stranger(f"{self.url} answered {response.status} {response.reason}")
        what = str(problem.get("detail") or problem.get("title") or f"status {response.status}")
        kind = NotFound if response.status == 404 else Ended
        return kind(
            ExitCode.REFUSED,
            what,
            code=str(problem.get("code", "refused")),
            advice=advice_for(problem, response.status, workspace),
            problem=problem,
        )


def _problem(answer: bytes) -> Mapping[str, Any] | None:
    try:
        problem = json.loads(answer)
    except ValueError:
        return None
    return problem if isinstance(problem, dict) else None


def _events(lines: Iterable[bytes]) -> Iterator[Record]:
    """The data of each event; what is cut off in the middle is none."""
    data = b""
    for line in lines:
        if line.startswith(b"data:"):
            data += line[5:].strip()
        elif not line.strip() and data:
            event = json.loads(data)
            data = b""
            yield event


def _path(name: str, below: str = "") -> str:
    if not name or name in (".", ".."):
        raise usage(f"{name!r} is not the name of a workspace", "`torpor list` shows what there is")
    return f"/workspaces/{quote(name, safe='')}{below}"
