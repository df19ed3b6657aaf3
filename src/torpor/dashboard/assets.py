"""Which files make up the page, and what are they?"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

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
        # Asked for again each time, answered 304 while the ETag holds: an upgrade is seen at once.
        "Cache-Control": "no-cache",
    }
)


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    content_type: str
    etag: str


def asset(path: str) -> Asset | None:
    """What is served at this path of the URL, `/` or `/page/...`; None for what is not part of the page."""
    return _assets().get(path)


@cache
def _assets() -> Mapping[str, Asset]:
    """Every asset by its path, read once. Nothing outside the folder has a path, so nothing outside can be asked for."""
    files = {f"/page/{file.name}": _read(file) for file in (Path(__file__).parent / "page").iterdir()}
    return MappingProxyType({"/": files["/page/index.html"], "/favicon.ico": files["/page/logo.svg"], **files})


def _read(file: Path) -> Asset:
    body = file.read_bytes()
    return Asset(body, CONTENT_TYPES[file.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
