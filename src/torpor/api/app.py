"""Which calls are there?

The route table. Every route under /api/v1 asks who is there first; what may be done is decided in `torpor.wishes`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from torpor import __version__, metrics
from torpor.accounts import SESSION_LIVES_S, Accounts
from torpor.api import wire
from torpor.api.collecting import Collecting, gc_routes
from torpor.api.door import COOKIE, SignedIn, refuse_cross_site, token_of
from torpor.api.events import Events, event_routes
from torpor.api.leases import lease_routes
from torpor.api.reference import reference_page
from torpor.api.refusals import DESCRIBED, PROBLEM_SCHEMA, problem, translate_refusals
from torpor.dashboard.assets import HEADERS, asset
from torpor.domain.errors import Refused
from torpor.domain.states import Phase, Wish
from torpor.ports import Runtime
from torpor.templates.catalogue import templates
from torpor.wishes import Wishes


@dataclass(frozen=True, slots=True)
class Health:
    """What `/health/ready` and `/health/coordinator` ask."""

    ready: Callable[[], Awaitable[dict[str, Any]]]
    coordinator: Callable[[], Awaitable[dict[str, Any]]]


def make_app(
    wishes: Wishes,
    accounts: Accounts,
    runtime: Runtime,
    health: Health,
    *,
    base_url: str,
    events: Events,
    gc: Collecting,
) -> FastAPI:
    app = FastAPI(title="Torpor", version=__version__, openapi_url="/openapi.json", docs_url=None, redoc_url=None)
    app.state.accounts = accounts
    translate_refusals(app)
    app.include_router(_sessions(accounts, secure=base_url.startswith("https:")), prefix="/api/v1", responses=DESCRIBED)
    app.include_router(_workspaces(wishes, runtime, base_url), prefix="/api/v1", responses=DESCRIBED)
    app.include_router(event_routes(events, wishes, base_url=base_url), prefix="/api/v1", responses=DESCRIBED)
    app.include_router(gc_routes(gc), prefix="/api/v1", responses=DESCRIBED)
    app.include_router(lease_routes(wishes), prefix="/api/v1", responses=DESCRIBED)
    app.include_router(_health(health))
    app.include_router(_pages(lambda: _described(app)))
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


def make_health_app(health: Health) -> FastAPI:
    """For a process that serves nothing else."""
    app = FastAPI(title="Torpor", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    translate_refusals(app)
    app.include_router(_health(health))
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """The API's description, with what the framework cannot know: how errors look and how to sign in."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {})["Problem"] = PROBLEM_SCHEMA
        components["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
        }
        schema["security"] = [{"token": []}, {"session": []}]
        app.openapi_schema = schema
    return app.openapi_schema


def _sessions(accounts: Accounts, *, secure: bool) -> APIRouter:
    router = APIRouter(tags=["sessions"])

    @router.post("/login", status_code=204)
    async def login(body: wire.Login, request: Request) -> Response:
        refuse_cross_site(request)
        token = await accounts.sign_in(body.username, body.password)
        response = Response(status_code=204)
        response.set_cookie(COOKIE, token, max_age=SESSION_LIVES_S, httponly=True, samesite="strict", secure=secure, path="/")
        return response

    @router.post("/logout", status_code=204)
    async def logout(request: Request, _user: SignedIn) -> Response:
        await accounts.sign_out(token_of(request))
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, path="/")
        return response

    @router.get("/me")
    async def me(user: SignedIn) -> wire.Me:
        return wire.me_out(user)

    return router


def _workspaces(wishes: Wishes, runtime: Runtime, base_url: str) -> APIRouter:
    router = APIRouter(tags=["workspaces"])

    @router.get("/templates")
    async def list_templates(_user: SignedIn) -> wire.TemplateList:
        return wire.TemplateList(items=[wire.template_out(one) for one in templates().values()])

    @router.get("/latches")
    async def latches(_user: SignedIn) -> wire.LatchList:
        return wire.LatchList(items=[wire.LatchOut(**asdict(latch)) for latch in await wishes.latches()])

    @router.post("/latches/{provider}/release", status_code=204)
    async def release(provider: str, user: SignedIn) -> Response:
        await wishes.release(user, provider)
        return Response(status_code=204)

    @router.post("/workspaces", status_code=201)
    async def create(body: wire.CreateWorkspace, user: SignedIn) -> wire.WorkspaceOut:
        created = await wishes.create(
            user,
            name=body.name,
            template_name=body.template,
            command=tuple(body.command),
            desired_state=Wish(body.desired_state),
            standby_ttl_s=body.standby_ttl,
            archive_ttl_s=body.archive_ttl,
        )
        return wire.workspace_out(created, base_url=base_url)

    @router.get("/workspaces")
    async def list_workspaces(
        user: SignedIn,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: str | None = None,
        phase: Phase | None = None,
    ) -> wire.WorkspacePage:
        page = await wishes.page(user, phase=phase, after=wire.from_cursor(cursor), limit=limit)
        items = [wire.workspace_out(one, base_url=base_url) for one in page.items]
        return wire.WorkspacePage(items=items, next_cursor=wire.to_cursor(page.next_after))

    @router.get("/workspaces/{workspace}")
    async def show(workspace: str, user: SignedIn) -> wire.WorkspaceOut:
        return wire.workspace_out(await wishes.find(user, workspace), base_url=base_url)

    @router.patch("/workspaces/{workspace}")
    async def change(workspace: str, body: wire.ChangeWorkspace, user: SignedIn) -> wire.WorkspaceOut:
        changed = await wishes.change(
            user,
            workspace,
            name=body.name,
            desired_state=Wish(body.desired_state) if body.desired_state else None,
            standby_ttl_s=body.standby_ttl,
            archive_ttl_s=body.archive_ttl,
        )
        return wire.workspace_out(changed, base_url=base_url)

    @router.delete("/workspaces/{workspace}", status_code=202)
    async def delete(workspace: str, user: SignedIn, purge: bool = False) -> wire.WorkspaceOut:
        return wire.workspace_out(await wishes.delete(user, workspace, purge=purge), base_url=base_url)

    @router.post("/workspaces/{workspace}/undelete")
    async def undelete(workspace: str, user: SignedIn) -> wire.WorkspaceOut:
        return wire.workspace_out(await wishes.undelete(user, workspace), base_url=base_url)

    @router.post("/workspaces/{workspace}/recover", status_code=202)
    async def recover(workspace: str, user: SignedIn, body: wire.RecoverWorkspace | None = None) -> wire.WorkspaceOut:
        way = body or wire.RecoverWorkspace()
        recovered = await wishes.recover(user, workspace, archive_key=way.archive_key, empty=way.empty)
        return wire.workspace_out(recovered, base_url=base_url)

    @router.get("/workspaces/{workspace}/operations")
    async def operations(
        workspace: str, user: SignedIn, limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> wire.OperationList:
        history = await wishes.history(user, workspace, limit=limit)
        return wire.OperationList(items=[wire.operation_out(attempt) for attempt in history])

    @router.get("/workspaces/{workspace}/archives")
    async def archives(workspace: str, user: SignedIn) -> wire.ArchiveList:
        return wire.ArchiveList(items=[wire.archive_out(one) for one in await wishes.archives(user, workspace)])

    @router.get("/workspaces/{workspace}/explain")
    async def explain_it(workspace: str, user: SignedIn) -> wire.ExplanationOut:
        return wire.explanation_out(*await wishes.explained(user, workspace))

    @router.post("/workspaces/{workspace}/exec")
    async def execute(workspace: str, body: wire.Exec, user: SignedIn) -> wire.ExecOut:
        found = await wishes.find(user, workspace)
        if not found.container_present:
            raise Refused("not_running", f"{found.name!r} is {found.phase}; start it first")
        async with wishes.using.keeping_awake(found):
            done = await runtime.execute(found.id, body.command, wire.from_base64(body.stdin))
        return wire.ExecOut(exit_code=done.exit_code, stdout=wire.to_base64(done.stdout), stderr=wire.to_base64(done.stderr))

    @router.get("/workspaces/{workspace}/logs", response_class=PlainTextResponse)
    async def logs(workspace: str, user: SignedIn, tail: Annotated[int, Query(ge=1, le=100_000)] = 200) -> Response:
        found = await wishes.find(user, workspace)
        text = b"".join([chunk async for chunk in runtime.logs(found.id, tail=tail)])
        return PlainTextResponse(text)

    return router


def _health(health: Health) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health")
    async def alive() -> dict[str, str]:
        return {"status": "alive"}

    @router.get("/health/ready")
    async def ready() -> JSONResponse:
        answer = await health.ready()
        return JSONResponse(answer, 200 if answer["ready"] else 503)

    @router.get("/health/coordinator")
    async def coordinator() -> dict[str, Any]:
        return await health.coordinator()

    @router.get("/metrics", response_class=PlainTextResponse)
    async def told() -> Response:
        return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return router


def _pages(describe: Callable[[], dict[str, Any]]) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs() -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        return HTMLResponse(reference_page(describe()), headers={**HEADERS, "Content-Security-Policy": policy})

    @router.get("/")
    @router.get("/favicon.ico")
    @router.get("/page/{path:path}")
    async def page(request: Request) -> Response:
        found = asset(request.url.path)
        if found is None:
            return problem(404, "not_found", f"there is no page {request.url.path}")
        headers = {**HEADERS, "ETag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, media_type=found.content_type, headers=headers)

    return router
