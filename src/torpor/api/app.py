"""Assemble the API: routes, middleware and pages.

`route_access` states who may make each call; `torpor.service.wishes` decides which requests are accepted.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from torpor import __version__, metrics
from torpor.accounts import Accounts
from torpor.accounts.provider import Provider
from torpor.api.archive_files import archive_file_routes
from torpor.api.audit import audit_routes
from torpor.api.authentication import Authenticator
from torpor.api.bodies import BodyLimitMiddleware
from torpor.api.events import EventSources, event_routes
from torpor.api.exec_stream import exec_routes
from torpor.api.gc import GcSources, gc_routes
from torpor.api.headers import SecurityHeaders
from torpor.api.installation import installation_routes
from torpor.api.leases import lease_routes
from torpor.api.notices import no_such_page
from torpor.api.oidc import oidc_routes
from torpor.api.openapi import describe_openapi
from torpor.api.reference import reference_page
from torpor.api.refusals import is_for_a_person, problem, translate_refusals
from torpor.api.route_access import V1, RuleCheck
from torpor.api.secrets import secret_routes
from torpor.api.sessions import session_routes, sign_in_link_routes
from torpor.api.shares import share_routes
from torpor.api.shell import shell_routes
from torpor.api.sign_in_grant import sign_in_grant_routes
from torpor.api.tokens import token_routes
from torpor.api.usage import usage_routes
from torpor.api.users import user_routes
from torpor.api.workspaces import workspace_routes
from torpor.dashboard.assets import FILES, HEADERS, PAGES, asset
from torpor.domain.hostnames import Hosts
from torpor.ports import ArchiveReading, UsageSeries, WorkspaceAccess
from torpor.service.wishes import Wishes


@dataclass(frozen=True, slots=True)
class Health:
    """What `/health/ready` and `/health/coordinator` answer with."""

    ready: Callable[[], Awaitable[dict[str, Any]]]
    coordinator: Callable[[], Awaitable[dict[str, Any]]]


class PlatformApp(FastAPI):
    """Adds the security headers to the answers about unexpected errors, too. The framework sends those outside of all
    middleware."""

    def __init__(self, *, hosts: Hosts, **options: Any) -> None:
        super().__init__(**options)
        self._hosts = hosts

    def build_middleware_stack(self) -> ASGIApp:
        return SecurityHeaders(super().build_middleware_stack(), is_secure=self._hosts.is_secure)


def make_app(
    wishes: Wishes,
    accounts: Accounts,
    access: WorkspaceAccess,
    health: Health,
    *,
    hosts: Hosts,
    events: EventSources,
    gc: GcSources,
    usage: UsageSeries,
    reading: ArchiveReading,
    provider: Provider | None = None,
) -> FastAPI:
    """`provider`: an OpenID Connect provider that users may sign in with."""
    ruled = RuleCheck()
    app = PlatformApp(
        hosts=hosts,
        title="Torpor",
        version=__version__,
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(ruled)],
    )
    app.state.authenticator = authenticator = Authenticator(accounts, hosts)
    app.add_middleware(BodyLimitMiddleware, guard=ruled)
    translate_refusals(app)
    for router in (
        session_routes(accounts, oidc_name=provider.options.name if provider is not None else None),
        token_routes(accounts),
        user_routes(accounts),
        workspace_routes(wishes, access, hosts),
        shell_routes(wishes, access, accounts, events.feed),
        exec_routes(wishes, access, accounts, events.feed),
        event_routes(events, wishes, accounts, hosts=hosts),
        archive_file_routes(wishes, reading),
        usage_routes(wishes, usage),
        lease_routes(wishes),
        share_routes(wishes),
        secret_routes(wishes),
        audit_routes(wishes),
        gc_routes(gc, wishes),
        installation_routes(wishes),
    ):
        app.include_router(router, prefix=V1)
    app.include_router(_health(health))
    app.include_router(sign_in_grant_routes(accounts, wishes))
    app.include_router(sign_in_link_routes(accounts))
    if provider is not None:
        app.include_router(oidc_routes(accounts, provider))
    app.include_router(_pages(lambda: app.openapi()))
    ruled.learn(app)
    app.openapi = cache(lambda: describe_openapi(app, cookie=authenticator.cookie))  # type: ignore[method-assign]
    return app


def make_health_app(health: Health) -> FastAPI:
    """For a process that serves only its health and its metrics."""
    app = FastAPI(title="Torpor", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    translate_refusals(app)
    app.include_router(_health(health))
    return app


def _health(health: Health) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health")
    async def alive() -> dict[str, str]:
        return {"status": "alive"}

    @router.get("/health/ready", responses={503: {"description": "Not ready; the response lists what is missing."}})
    async def ready() -> JSONResponse:
        answer = await health.ready()
        return JSONResponse(answer, 200 if answer["ready"] else 503)

    @router.get("/health/coordinator")
    async def coordinator() -> dict[str, Any]:
        return await health.coordinator()

    @router.get("/metrics", response_class=PlainTextResponse)
    async def read_metrics() -> Response:
        return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return router


def _pages(describe: Callable[[], dict[str, Any]]) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs() -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        return HTMLResponse(reference_page(describe()), headers={**HEADERS, "Content-Security-Policy": policy})

    async def page(request: Request) -> Response:
        found = asset(request.url.path)
        if found is None and is_for_a_person(request):
            return no_such_page(request.url.path)
        if found is None:
            return problem(404, "not_found", f"there is no page {request.url.path}")
        body, headers = found.served(accept_encoding=request.headers.get("accept-encoding", ""))
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=found.content_type, headers=headers)

    for path in (*PAGES, *FILES):
        router.add_api_route(path, page, methods=["GET"])
    return router
