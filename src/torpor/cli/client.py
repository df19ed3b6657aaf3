"""Call the API.

Uses the standard library's HTTP: importing another client takes longer than a call. One connection is kept for all calls.
"""

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode, urlsplit

from torpor.cli.exit_codes import CommandError, ExitCode, advice_for, usage

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

BASE = "/api/v1"
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
LONG_ANSWER_TIMEOUT_S = 600.0
SHORTEST_TIMEOUT_S = 0.01
STREAM_TIMEOUT_S = 600.0  # without data: the server sends a heartbeat at least every 5 minutes
PAGE = 200
# Pings detect a lost connection while a terminal is idle: it counts as lost if the network does not confirm them for a minute.
PING_S = 20.0
UNANSWERED_MS = 60_000
CLOSE_TIMEOUT_S = 2.0
# The status that a proxy sends, ours or another before it, while the server does not run.
AWAY = frozenset({502, 503, 504})

Record = dict[str, Any]


class NotFound(CommandError):
    """The item does not exist, or this user may not see it."""


class ApiClient:
    def __init__(self, url: str, token: str | None, *, timeout_s: float | None = None) -> None:
        """Without a token, calls are anonymous until `sign_in`. `timeout_s` limits the time to each response."""
        self.url = url
        self._timeout_s = timeout_s
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise usage(f"{url!r} is not the address of a Torpor server", "use a URL such as http://localhost:8080")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        try:
            self._connection = kind(parts.hostname, parts.port, timeout=timeout_s or CONNECT_TIMEOUT_S)
        except ValueError as error:
            raise usage(f"{url!r} is not the address of a Torpor server: {error}") from None
        self._prefix = parts.path.rstrip("/") + BASE
        self._headers = {"Accept": "application/json"}
        if token is not None:
            if not (token.isascii() and token.isprintable()):
                raise usage("the API token contains invalid characters", "check TORPOR_TOKEN and credentials.json")
            self._headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    # ── workspaces ────────────────────────────────────────────────────────────────────────────────────────────────────

    def workspaces(self, phase: str | None) -> list[Record]:
        return self._pages("/workspaces", {"phase": phase})

    def some_workspaces(self) -> list[Record]:
        """The first page."""
        return self._pages("/workspaces", at_most=PAGE)

    def workspace(self, name: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Record:
        return self._about("GET", name, timeout_s=timeout_s)

    def create(self, wanted: Record) -> Record:
        # With a key, the request can be sent again if the connection breaks before the response.
        key = {"Idempotency-Key": os.urandom(16).hex()}
        return self._record("POST", "/workspaces", body=wanted, workspace=str(wanted["name"]), headers=key)

    def wish(self, name: str, desired_state: str) -> Record:
        return self._about("PATCH", name, body={"desired_state": desired_state})

    def change(self, name: str, what: Record) -> Record:
        return self._about("PATCH", name, body=what)

    def delete(self, name: str, *, purge: bool) -> Record:
        return self._about("DELETE", name, query={"purge": "true" if purge else "false"})

    def undelete(self, name: str) -> Record:
        return self._about("POST", name, "/undelete")

    def recover(self, name: str, way: Record) -> Record:
        return self._about("POST", name, "/recover", body=way)

    def restore(self, name: str, archive_key: str) -> Record:
        return self._about("POST", name, "/restore", body={"archive_key": archive_key})

    def cancel_restore(self, name: str) -> Record:
        return self._about("DELETE", name, "/restore")

    def fork(self, name: str, wanted: Record) -> Record:
        key = {"Idempotency-Key": os.urandom(16).hex()}
        return self._record("POST", _path(name, "/fork"), body=wanted, workspace=name, headers=key)

    def operations(self, name: str) -> list[Record]:
        return self._items(name, "/operations")

    def archives(self, name: str) -> list[Record]:
        return self._items(name, "/archives")

    def archived_files(self, name: str, archive_key: str | None, folder: str) -> Iterator[bytes]:
        return self._download(name, "/archives/files", {"archive": archive_key, "path": folder})

    def archived_content(self, name: str, archive_key: str | None, path: str) -> Iterator[bytes]:
        return self._download(name, "/archives/content", {"archive": archive_key, "path": path})

    def archive_export(self, name: str, archive_key: str | None) -> Iterator[bytes]:
        return self._download(name, "/archives/export", {"archive": archive_key})

    def archive_differences(self, name: str, before: str, after: str) -> Iterator[bytes]:
        return self._download(name, "/archives/differences", {"before": before, "after": after})

    def _download(self, name: str, below: str, query: Record) -> Iterator[bytes]:
        """The pieces of a long answer. An answer that ends too early is an error."""
        asked = urlencode({key: value for key, value in query.items() if value is not None})
        with self._reaching():
            # The server may have to read a large archive before it answers.
            response = self._send("GET", f"{self._prefix}{_path(name, below)}?{asked}", None, LONG_ANSWER_TIMEOUT_S, {})
            if response.status != 200:
                raise self._refusal(response.status, response.reason, response.read(), name)
            try:
                while piece := response.read1(1 << 20):
                    yield piece
            finally:
                response.close()
                self._connection.close()

    def hold(self, name: str, reason: str, seconds: float) -> Record:
        return self._about("POST", name, "/leases", body={"reason": reason, "seconds": seconds})

    def holds(self, name: str) -> list[Record]:
        return self._items(name, "/leases")

    def end_holds(self, name: str, lease_id: str | None) -> None:
        one = "" if lease_id is None else f"/{quote(lease_id, safe='')}"
        self._call("DELETE", _path(name, f"/leases{one}"), workspace=name)

    def explain(self, name: str) -> Record:
        return self._about("GET", name, "/explain")

    def logs(self, name: str, tail: int) -> bytes:
        return self._call("GET", _path(name, "/logs"), query={"tail": tail}, workspace=name)

    def events(self, name: str | None, since: str | None, *, left_s: Callable[[], float] | None = None) -> Iterator[Record]:
        """The events of a workspace, or of all, until the connection ends. No read waits longer than `left_s` then says."""
        path = _path(name, "/events") if name is not None else "/events"
        asked = f"?{urlencode({'last_event_id': since})}" if since is not None else ""

        def timeout_s() -> float:
            # Not 0, which would mean a socket that does not wait at all.
            return STREAM_TIMEOUT_S if left_s is None else max(SHORTEST_TIMEOUT_S, min(STREAM_TIMEOUT_S, left_s()))

        with self._reaching():
            response = self._send("GET", f"{self._prefix}{path}{asked}", None, timeout_s(), {})
            # `http.client` forgets the socket of a connection that the server closes after this response.
            stream = self._stream
            if response.status != 200:
                answer = response.read()
                if response.status in AWAY and _problem(answer) is None:
                    raise self._unreachable(
                        f"{self.url} responded with {response.status} {response.reason}", "try again in a moment"
                    )
                raise self._refusal(response.status, response.reason, answer, name or "NAME")
            if response.headers.get_content_type() != "text/event-stream":
                raise self._stranger(f"the response to GET {path} is not an event stream")
            try:
                yield from _events(_lines(response, lambda: stream.settimeout(timeout_s())))
            finally:
                response.close()
                self._connection.close()

    def shell(self, name: str, columns: int, rows: int, *, wake: bool) -> "ClientConnection":
        """A terminal in the workspace."""
        return self._socket(name, "/shell", {"columns": columns, "rows": rows, **_wake(wake)})

    def exec_stream(self, name: str, *, wake: bool) -> "ClientConnection":
        """A command in the workspace; the first frame names it."""
        return self._socket(name, "/exec", _wake(wake))

    def _socket(self, name: str, below: str, query: Record) -> "ClientConnection":
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        parts = urlsplit(self.url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        target = f"{scheme}://{parts.netloc}{self._prefix}{_path(name, below)}?{urlencode(query)}"
        with self._reaching():
            port = parts.port or (443 if parts.scheme == "https" else 80)
            stream = socket.create_connection((parts.hostname, port), timeout=CONNECT_TIMEOUT_S)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)
            stream.settimeout(None)
            try:
                return connect(
                    target,
                    sock=stream,
                    additional_headers=self._headers,
                    open_timeout=ANSWER_TIMEOUT_S,
                    close_timeout=CLOSE_TIMEOUT_S,
                    compression=None,
                    ping_interval=PING_S,
                    # A client that does not read does not see the pongs either; TCP_USER_TIMEOUT detects a lost connection.
                    ping_timeout=None,
                    max_size=None,
                )
            except InvalidStatus as refused:
                response = refused.response
                raise self._refusal(response.status_code, response.reason_phrase, bytes(response.body or b""), name) from None
            except WebSocketException as error:
                raise self._stranger(f"{self.url} does not open a WebSocket: {error}") from None

    # ── users ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def me(self) -> Record:
        return self._record("GET", "/me")

    def limits(self) -> Record:
        return self._record("GET", "/limits")

    def sign_in(self, username: str, password: str) -> None:
        """All later calls are made as this user, until `sign_out`."""
        # As a browser does for a request that no page started.
        self._headers["Sec-Fetch-Site"] = "none"
        response, _ = self._exchange("POST", "/login", body={"username": username, "password": password})
        cookies = [value.partition(";")[0] for value in response.headers.get_all("Set-Cookie") or []]
        if not cookies:
            raise self._stranger("the response to the sign-in has no session")
        self._headers["Cookie"] = "; ".join(cookies)

    def sign_out(self) -> None:
        self._call("POST", "/logout")

    def sign_in_ways(self) -> Record:
        return self._record("GET", "/sign-in")

    def environment(self, name: str) -> Record:
        return self._record("GET", _path(name, "/environment"), workspace=name)

    def secrets(self, name: str) -> list[Record]:
        return self._items(name, "/secrets")

    def set_secret(self, name: str, key: str, value: str) -> Record:
        return self._record("PUT", _path(name, f"/secrets/{quote(key, safe='')}"), body={"value": value}, workspace=name)

    def remove_secret(self, name: str, key: str) -> None:
        self._call("DELETE", _path(name, f"/secrets/{quote(key, safe='')}"), workspace=name)

    def shares(self, name: str) -> list[Record]:
        return self._items(name, "/shares")

    def share(self, name: str, username: str, role: str) -> None:
        self._call("PUT", _path(name, f"/shares/{quote(username, safe='')}"), body={"role": role}, workspace=name)

    def unshare(self, name: str, username: str) -> None:
        self._call("DELETE", _path(name, f"/shares/{quote(username, safe='')}"), workspace=name)

    def tokens(self) -> list[Record]:
        items: list[Record] = self._record("GET", "/tokens")["items"]
        return items

    def make_token(self, wanted: Record) -> Record:
        return self._record("POST", "/tokens", body=wanted)

    def revoke_token(self, token_id: str) -> None:
        self._call("DELETE", f"/tokens/{quote(token_id, safe='')}")

    def sessions(self) -> list[Record]:
        items: list[Record] = self._record("GET", "/sessions")["items"]
        return items

    def end_session(self, session_id: str) -> None:
        self._call("DELETE", f"/sessions/{quote(session_id, safe='')}")

    def users(self) -> list[Record]:
        return self._pages("/users")

    def create_user(self, wanted: Record) -> Record:
        return self._record("POST", "/users", body=wanted)

    def change_user(self, user: str, change: Record) -> Record:
        return self._record("PATCH", f"/users/{quote(user, safe='')}", body=change)

    def sign_out_user(self, user: str) -> None:
        self._call("POST", f"/users/{quote(user, safe='')}/sign-out")

    def audit(self, *, username: str | None, workspace: str | None, at_most: int) -> list[Record]:
        return self._pages("/audit", {"username": username, "workspace": workspace}, at_most=at_most)

    # ── the installation ──────────────────────────────────────────────────────────────────────────────────────────────

    def release(self, provider: str) -> None:
        self._call("POST", f"/latches/{quote(provider, safe='')}/release")

    def runtime(self) -> Record:
        return self._record("GET", "/runtime")

    def switch_preview(self, target: str) -> Record:
        return self._record("GET", f"/runtime/switch?target={quote(target, safe='')}", timeout_s=LONG_ANSWER_TIMEOUT_S)

    def switch_runtime(self, target: str) -> Record:
        return self._record("POST", "/runtime/switch", body={"target": target}, timeout_s=LONG_ANSWER_TIMEOUT_S)

    def cancel_switch(self) -> Record:
        return self._record("DELETE", "/runtime/switch", timeout_s=LONG_ANSWER_TIMEOUT_S)

    def gc_preview(self) -> Record:
        # The server lists the whole archive store for this.
        return self._record("GET", "/gc", timeout_s=LONG_ANSWER_TIMEOUT_S)

    def gc_request(self) -> Record:
        return self._record("POST", "/gc")

    def gc_report(self) -> Record:
        return self._record("GET", "/gc/report")

    def templates(self) -> Record:
        return self._record("GET", "/templates")

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pages(self, path: str, query: Record | None = None, *, at_most: int | None = None) -> list[Record]:
        """The items of all pages, or the first `at_most`."""
        items: list[Record] = []
        cursor: str | None = None
        while True:
            limit = PAGE if at_most is None else min(PAGE, at_most - len(items))
            page = self._record("GET", path, query={"limit": limit, "cursor": cursor, **(query or {})})
            items += page["items"]
            if not page.get("next_cursor") or page["next_cursor"] == cursor or (at_most and len(items) >= at_most):
                return items
            cursor = page["next_cursor"]

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
            raise self._stranger(f"{method} {path} returned JSON that is not an object")
        return answer

    def _ask(self, method: str, path: str, **call: Any) -> Any:
        answer = self._call(method, path, **call)
        try:
            return json.loads(answer)
        except ValueError:
            raise self._stranger(f"the response to {method} {path} is not JSON") from None

    def _call(self, method: str, path: str, **call: Any) -> bytes:
        return self._exchange(method, path, **call)[1]

    def _exchange(
        self,
        method: str,
        path: str,
        *,
        query: Record | None = None,
        body: Record | None = None,
        workspace: str = "NAME",
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = ANSWER_TIMEOUT_S,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        asked = urlencode({name: value for name, value in (query or {}).items() if value is not None})
        target = f"{self._prefix}{path}{'?' if asked else ''}{asked}"
        payload = None if body is None else json.dumps(body).encode()
        with self._reaching():
            response = self._send(method, target, payload, self._timeout_s or timeout_s, headers or {})
            answer = response.read()
        if 200 <= response.status < 300:
            return response, answer
        raise self._refusal(response.status, response.reason, answer, workspace)

    def _send(
        self, method: str, target: str, payload: bytes | None, timeout_s: float | None, more: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        headers = {**self._headers, **more, **({} if payload is None else {"Content-Type": "application/json"})}
        has_key = "Idempotency-Key" in more
        is_kept = self._connection.sock is not None
        for is_last in (not (is_kept or has_key), True):
            if self._connection.sock is None:
                self._connection.timeout = min(CONNECT_TIMEOUT_S, self._timeout_s or timeout_s or CONNECT_TIMEOUT_S)
                self._connection.connect()
            self._stream = self._connection.sock
            self._stream.settimeout(timeout_s)
            try:
                self._connection.request(method, target, payload, headers)
                return self._connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                # A server may close a kept connection at any time. Reads are sent again. Changes are sent again only with
                # a key, by which the server recognises them.
                self._connection.close()
                if is_last or not (method == "GET" or has_key):
                    raise
        raise AssertionError("the last attempt returns or raises")

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn network errors into CommandError."""
        try:
            yield
        except TimeoutError:
            raise self._unreachable(
                f"{self.url} did not respond in time", "see the log of the server; its machine may be overloaded"
            ) from None
        except ConnectionRefusedError:
            advice = "start it with `torpor up`, or check the address"
            raise self._unreachable(f"no server responds at {self.url}", advice) from None
        except (OSError, http.client.HTTPException) as error:
            advice = "start it with `torpor up`, or check the address"
            raise self._unreachable(f"{self.url} cannot be reached: {error or type(error).__name__}", advice) from None

    def _unreachable(self, what: str, advice: str) -> CommandError:
        self._connection.close()
        return CommandError(ExitCode.UNREACHABLE, what, code="unreachable", advice=advice)

    def _stranger(self, what: str) -> CommandError:
        return CommandError(
            ExitCode.REFUSED, what, code="not_torpor", advice=f"check that {self.url} is a Torpor server of this version"
        )

    def _refusal(self, status: int, reason: str, answer: bytes, workspace: str) -> CommandError:
        problem = _problem(answer)
        if problem is None:
            return self._stranger(f"{self.url} responded with {status} {reason}")
        what = str(problem.get("detail") or problem.get("title") or f"status {status}")
        kind = NotFound if status == 404 else CommandError
        return kind(
            ExitCode.REFUSED,
            what,
            code=str(problem.get("code", "refused")),
            advice=advice_for(problem, status, workspace),
            problem=problem,
        )


def _wake(wake: bool) -> Record:
    return {"wake": "true"} if wake else {}


def _problem(answer: bytes) -> Mapping[str, Any] | None:
    try:
        problem = json.loads(answer)
    except ValueError:
        return None
    return problem if isinstance(problem, dict) else None


def _lines(response: http.client.HTTPResponse, before_each: Callable[[], None]) -> Iterator[bytes]:
    while True:
        before_each()
        line = response.readline()
        if not line:
            return
        yield line


def _events(lines: Iterable[bytes]) -> Iterator[Record]:
    """The data of each complete event; an event that is cut off is dropped."""
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
        raise usage(f"{name!r} is not the name of a workspace", "`torpor list` shows your workspaces")
    return f"/workspaces/{quote(name, safe='')}{below}"
