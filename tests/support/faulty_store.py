"""A relay before an S3 server that damages, loses and delays answers. It passes everything else on unchanged."""

import contextlib
import http.client
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.s3_server import S3Server

ANSWER_S = 60.0


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """Without the query."""
    is_listing: bool

    @property
    def is_read(self) -> bool:
        """Of an object's bytes."""
        return self.method == "GET" and not self.is_listing


@dataclass(frozen=True)
class StoreAnswer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    sent: int | None = None
    """Only so many bytes of the body are sent, and then the connection ends."""


Fault = Callable[[Request, StoreAnswer], StoreAnswer | None]
"""What becomes of an answer; None: there is no answer."""


def status(code: int) -> Fault:
    return lambda _request, _answer: StoreAnswer(code, (), b"<Error><Code>Injected</Code></Error>")


def cut(_request: Request, answer: StoreAnswer) -> StoreAnswer:
    """The connection ends in the middle of the body."""
    return replace(answer, sent=len(answer.body) // 2)


def shorten(_request: Request, answer: StoreAnswer) -> StoreAnswer:
    """Half of the body, as if it were all."""
    return replace(answer, body=answer.body[: len(answer.body) // 2])


def flip(_request: Request, answer: StoreAnswer) -> StoreAnswer:
    body = bytearray(answer.body)
    if body:
        body[len(body) // 2] ^= 4
    return replace(answer, body=bytes(body))


def silence(_request: Request, _answer: StoreAnswer) -> None:
    return None


def without(*names: str) -> Fault:
    """A listing that does not have these objects yet."""

    def leave_out(_request: Request, answer: StoreAnswer) -> StoreAnswer:
        parts = re.split(rb"(<Contents>.*?</Contents>)", answer.body, flags=re.DOTALL)
        return replace(answer, body=b"".join(part for part in parts if not any(name.encode() in part for name in names)))

    return leave_out


@dataclass
class FaultyStore:
    """Each fault applies to the requests that it is for, until `mend`."""

    server: S3Server
    """With the address of the relay."""
    requests: list[Request] = field(default_factory=list)
    _fault: Fault | None = None
    _concerns: Callable[[Request], bool] = lambda _request: True
    _lock: Lock = field(default_factory=Lock)

    def break_with(self, fault: Fault, concerns: Callable[[Request], bool] = lambda _request: True) -> None:
        """From now on."""
        self._fault, self._concerns = fault, concerns

    def break_first(self, fault: Fault, concerns: Callable[[Request], bool] = lambda _request: True) -> None:
        """Only the first answer to each method about each object."""
        seen: set[tuple[str, str]] = set()

        def is_first(request: Request) -> bool:
            with self._lock:
                key = request.method, request.path
                is_new = key not in seen
                seen.add(key)
            return is_new and concerns(request)

        self.break_with(fault, is_first)

    def break_after(self, count: int, fault: Fault) -> None:
        """All answers after so many others."""
        left = iter(range(count))
        self.break_with(fault, lambda _request: next(left, None) is None)

    def list_as_now(self) -> None:
        """The next answer to each listing is repeated from then on, also if objects are written or removed."""
        recorded: dict[str, StoreAnswer] = {}
        self.break_with(lambda request, answer: recorded.setdefault(request.path, answer), lambda request: request.is_listing)

    def mend(self) -> None:
        self._fault = None

    def answer(self, request: Request, honest: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        with self._lock:
            self.requests.append(request)
        fault = self._fault
        return honest() if fault is None or not self._concerns(request) else fault(request, honest())


@contextlib.contextmanager
def faulty_store(server: S3Server) -> Iterator[FaultyStore]:
    target = urlsplit(server.endpoint)
    ended = Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path)
            listing = "list-type" in parse_qs(parts.query)
            prefix = parse_qs(parts.query).get("prefix", [""])[0]
            request = Request(self.command, f"{parts.path}/{prefix}" if listing else parts.path, listing)
            answer = made.answer(request, lambda: self._honest(sent))
            if answer is None:
                ended.wait(ANSWER_S)
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = next((value for name, value in answer.headers if name.lower() == "content-length"), "0")
            self.send_header("content-length", length if self.command == "HEAD" else str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body if answer.sent is None else answer.body[: answer.sent])
            if answer.sent is not None:
                self.close_connection = True

        def _honest(self, sent: bytes) -> StoreAnswer:
            connection = http.client.HTTPConnection(str(target.hostname), target.port or 80, timeout=ANSWER_S)
            with contextlib.closing(connection):
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(sent)
                answer = connection.getresponse()
                return StoreAnswer(answer.status, tuple(answer.getheaders()), answer.read())

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server's names

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Clients that do not wait any more end their connection."""

    relay = Server(("127.0.0.1", 0), Handler)
    made = FaultyStore(S3Server(f"http://127.0.0.1:{relay.server_port}"))
    serving = Thread(target=relay.serve_forever, args=(0.01,), daemon=True)
    serving.start()
    try:
        yield made
    finally:
        ended.set()
        relay.shutdown()
        serving.join(ANSWER_S)
        relay.server_close()
