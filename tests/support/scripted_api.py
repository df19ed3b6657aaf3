"""A stand-in for the API: it sends the responses that a test scripted, and records the requests.

It has no workspaces. The end-to-end tests run the same commands against the real server.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "a-token"
BASE = "/api/v1"


@dataclass(frozen=True)
class ScriptedResponse:
    status: int
    body: Any
    kind: str = "application/json"
    stays_open: bool = False
    """The response has no end: the connection is silent until the stand-in stops."""


@dataclass(frozen=True)
class RecordedRequest:
    method: str
    target: str
    body: Any
    token: str


@dataclass
class ScriptedApi:
    url: str
    script: dict[str, list[ScriptedResponse]] = field(default_factory=dict)
    asked: list[RecordedRequest] = field(default_factory=list)

    def answer(self, call: str, *bodies: Any, status: int = 200) -> None:
        """`call` is `GET /workspaces/demo`; each body is sent once, in this order, the last one to all further requests."""
        self.script[call] = [body if isinstance(body, ScriptedResponse) else ScriptedResponse(status, body) for body in bodies]

    def refuse(self, call: str, status: int, code: str, detail: str, **context: Any) -> dict[str, Any]:
        problem = {**context, "type": f"about:blank#{code}", "title": code, "status": status, "detail": detail, "code": code}
        self.script[call] = [ScriptedResponse(status, problem, "application/problem+json")]
        return problem

    def next_answer(self, asked: RecordedRequest) -> ScriptedResponse:
        self.asked.append(asked)
        for call in (f"{asked.method} {asked.target}", f"{asked.method} {asked.target.partition('?')[0]}"):
            if call in self.script:
                answers = self.script[call]
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return ScriptedResponse(
            404, {"code": "not_found", "detail": f"the test has no response for {asked.method} {asked.target}"}
        )


def stream(*events: dict[str, Any], tail: bytes = b"", stays_open: bool = False) -> ScriptedResponse:
    """An event stream; `tail` is sent after the events, such as a part of one more."""
    frames = [f"id: {one['id']}\nevent: {one['event']}\ndata: {json.dumps(one)}\n\n".encode() for one in events]
    return ScriptedResponse(200, b"".join(frames) + tail, "text/event-stream", stays_open=stays_open)


@contextmanager
def scripted_api() -> Iterator[ScriptedApi]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _any(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            target = self.path.removeprefix(BASE) if self.path.startswith(BASE) else f"outside {self.path}"
            answer = scripted.next_answer(RecordedRequest(self.command, target, json.loads(sent) if sent else None, token))
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header(*(("Connection", "close") if answer.stays_open else ("Content-Length", str(len(body)))))
            self.end_headers()
            self.wfile.write(body)
            if answer.stays_open:
                stopping.wait()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 (http.server calls them so)

        def log_message(self, *_: Any) -> None:
            pass

    stopping = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scripted = ScriptedApi(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield scripted
    finally:
        stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
