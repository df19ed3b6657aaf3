"""Serve the files of the dashboard.

The set-up builds them from `app/` into `built/` (`tools/bootstrap.py`). Each page is the same HTML document, which reads its
own URL. The files that it loads have a digest in their names, so their content never changes.
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

# The same paths as in the app's routes.ts.
PAGES = ("/", "/workspaces", "/workspaces/{path:path}", "/activity", "/system", "/users", "/account")
FILES = ("/favicon.ico", "/page/{path:path}")
_PAGE = re.compile(r"/|/(?:workspaces(?:/[^/]+(?:/shell)?)?|activity|system|users|account)/?")

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# All content comes from this origin, nothing is inline, and no page can frame it.
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
)
# Browsers revalidate these files with the ETag, so that an upgrade is visible at once.
REVALIDATED = "no-cache"
NEVER_CHANGES = "public, max-age=31536000, immutable"

NOT_BUILT = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Torpor</title>
<h1>The dashboard is not built</h1>
<p>Torpor is running, but the set-up could not download the JavaScript of the dashboard. Run <code>make setup</code> and restart
Torpor. You can also use the command line: <code>torpor list</code>.</p>
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
        """The body and headers for a client that accepts these encodings."""
        headers = {**HEADERS, "Cache-Control": self.cache_control, "ETag": self.etag, "Vary": "Accept-Encoding"}
        if "gzip" not in accept_encoding or len(self.gzipped) >= len(self.body):
            return self.body, headers
        return self.gzipped, {**headers, "Content-Encoding": "gzip"}


def asset(path: str) -> Asset | None:
    """The file at this path of the URL, or None."""
    files = _assets()
    return files["/page/index.html"] if _PAGE.fullmatch(path) else files.get(path)


@cache
def _assets() -> Mapping[str, Asset]:
    """All assets by path, read once. Only files in the folder have a path, so no other file can be requested."""
    return read(BUILT)


def read(folder: Path) -> Mapping[str, Asset]:
    found = {
        f"/page/{file.relative_to(folder).as_posix()}": _asset(
            file.read_bytes(),
            CONTENT_TYPES[file.suffix],
            NEVER_CHANGES if file.parent.name == "hashed" else REVALIDATED,
        )
        for file in folder.rglob("*")
        if file.suffix in CONTENT_TYPES
    }
    if "/page/index.html" not in found:
        return MappingProxyType({"/page/index.html": _asset(NOT_BUILT, CONTENT_TYPES[".html"], REVALIDATED)})
    return MappingProxyType({"/favicon.ico": found["/page/logo.svg"], **found})


def _asset(body: bytes, content_type: str, cache_control: str) -> Asset:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(body, content_type, cache_control, etag, gzip.compress(body, mtime=0))
