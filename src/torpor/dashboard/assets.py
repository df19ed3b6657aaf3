"""Which files make up the dashboard, at which addresses, and what are they?

They are built at set-up from `app/` into `built/` (`tools/bootstrap.py`). Each page of it is the same document, which looks at
its own address; what that document loads has a digest in its name, and so never changes.
"""

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

BUILT = Path(__file__).parent / "built"

# As the app's routes have them.
PAGES = ("/", "/workspaces", "/workspaces/{path:path}", "/activity", "/system", "/users", "/account")
FILES = ("/favicon.ico", "/page/{path:path}")
_PAGE = re.compile(r"/|/(?:workspaces(?:/[^/]+(?:/shell)?)?|activity|system|users|account)/?")

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Everything comes from here, nothing stands inline, and nobody may frame it.
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
)
# Asked for again each time, answered 304 while the ETag holds: an upgrade is seen at once.
ASKED_AGAIN = "no-cache"
NEVER_CHANGES = "public, max-age=31536000, immutable"

NOT_BUILT = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Torpor</title>
<h1>Torpor is running; its dashboard was not built</h1>
<p>Its JavaScript was not to be had at set-up. The set-up tries again when it is run again: <code>make setup</code>, then start
Torpor anew. Meanwhile the command line does the same: <code>torpor list</code>.</p>
</html>
"""


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    content_type: str
    cache_control: str
    etag: str
    gzipped: bytes

    def served(self, *, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        """What is sent to somebody who can read these encodings, and with which headers."""
        headers = {**HEADERS, "Cache-Control": self.cache_control, "ETag": self.etag, "Vary": "Accept-Encoding"}
        if "gzip" not in accept_encoding or len(self.gzipped) >= len(self.body):
            return self.body, headers
        return self.gzipped, {**headers, "Content-Encoding": "gzip"}


def asset(path: str) -> Asset | None:
    """What is served at this path of the URL; None for what is not part of the dashboard."""
    files = _assets()
    return files["/page/index.html"] if _PAGE.fullmatch(path) else files.get(path)


@cache
def _assets() -> Mapping[str, Asset]:
    """Every asset by its path, read once. Nothing outside the folder has a path, so nothing outside can be asked for."""
    return read(BUILT)


def read(folder: Path) -> Mapping[str, Asset]:
    found = {
        f"/page/{file.relative_to(folder).as_posix()}": _asset(
            file.read_bytes(),
            CONTENT_TYPES[file.suffix],
            NEVER_CHANGES if file.parent.name == "hashed" else ASKED_AGAIN,
        )
        for file in folder.rglob("*")
        if file.suffix in CONTENT_TYPES
    }
    if "/page/index.html" not in found:
        return MappingProxyType({"/page/index.html": _asset(NOT_BUILT, CONTENT_TYPES[".html"], ASKED_AGAIN)})
    return MappingProxyType({"/favicon.ico": found["/page/logo.svg"], **found})


def _asset(body: bytes, content_type: str, cache_control: str) -> Asset:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(body, content_type, cache_control, etag, gzip.compress(body, mtime=0))
