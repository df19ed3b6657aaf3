"""Add security headers to every answer of the platform."""

from collections.abc import Mapping
from types import MappingProxyType

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Defaults: a page sets its own Content-Security-Policy with what it loads.
ALWAYS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    }
)
# Answers of the API contain personal data, so they are not cached.
OF_THE_API: Mapping[str, str] = MappingProxyType({"Cache-Control": "no-store"})
# Without includeSubDomains: the operator decides how the workspaces' own domain is served.
WHEN_SECURE: Mapping[str, str] = MappingProxyType({"Strict-Transport-Security": "max-age=31536000"})


STARTS = frozenset({"http.response.start", "websocket.http.response.start"})


class SecurityHeaders:
    """ASGI middleware around everything. Streams pass through unchanged."""

    def __init__(self, app: ASGIApp, *, is_secure: bool) -> None:
        self._app = app
        self._always = {**ALWAYS, **(WHEN_SECURE if is_secure else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        added = {**self._always, **(OF_THE_API if scope["path"].startswith("/api/") else {})}

        async def send_with_headers(message: Message) -> None:
            if message["type"] in STARTS:
                headers = MutableHeaders(scope=message)
                for name, value in added.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)
