"""A store on the network: the part of S3 that one upload needs, or a server that never answers."""

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

BEGUN = b"<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>%s</UploadId></InitiateMultipartUploadResult>"
ENDED = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"


def options_for(port: int) -> dict[str, str]:
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "allow_http": "true",
        "access_key_id": "a",
        "secret_access_key": "b",
        "region": "x",
    }


class S3:
    """Unfinished uploads by their id, the paths of objects, and small objects that were uploaded in one request."""

    def __init__(self) -> None:
        self.uploads: set[str] = set()
        self.objects: set[str] = set()
        self.contents: dict[str, bytes] = {}
        self.received = b""
        self.is_create = False
        s3 = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                s3.received = self.rfile.read(int(self.headers.get("content-length") or 0))
                parts = urlsplit(self.path)
                s3.is_create = self.headers.get("if-none-match") == "*"
                status, body = s3.answer(self.command, parts.path, parse_qs(parts.query, keep_blank_values=True))
                self.send_response(status)
                self.send_header("etag", "e")
                self.send_header("last-modified", "Sun, 01 Mar 2026 12:00:00 GMT")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server's names

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """These tests end clients during requests, so errors of the connection are expected."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.options = options_for(self._server.server_port)

    def answer(self, method: str, path: str, query: dict[str, list[str]]) -> tuple[int, bytes]:
        match method, query:
            case "POST", {"uploads": _}:
                upload = f"upload-{len(self.uploads)}"
                self.uploads.add(upload)
                return 200, BEGUN % upload.encode()
            case "POST", {"uploadId": [upload]}:
                self.uploads.discard(upload)
                self.objects.add(path)
                return 200, ENDED
            case "DELETE", {"uploadId": [upload]}:
                self.uploads.discard(upload)
                return 204, b""
            case "PUT", {"uploadId": _}:
                return 200, b""
            case "PUT", _ if self.is_create and path in self.contents:
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>"
            case "PUT", _ if self.is_create:
                self.contents[path] = self.received
                return 200, b""
            case "GET", _ if path in self.contents:
                return 200, self.contents[path]
        return 404, b""

    def __enter__(self) -> "S3":
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Silence:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.options = options_for(self._socket.getsockname()[1])
        self.visitors: list[socket.socket] = []

    def __enter__(self) -> "Silence":
        Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self) -> None:
        while True:
            try:
                self.visitors.append(self._socket.accept()[0])
            except OSError:
                return

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for visitor in self.visitors:
            visitor.close()
