"""Create, read, change, delete and recover workspaces; run commands; read logs."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse

from torpor.api import wire
from torpor.api.authentication import Asking
from torpor.domain.audit import AuditAction
from torpor.domain.errors import Refused
from torpor.domain.hostnames import Hosts
from torpor.domain.records import Workspace
from torpor.domain.states import Phase, Wish
from torpor.ports import WorkspaceAccess
from torpor.service.wishes import Wishes

LONGEST_KEY = 200
EXEC_S = 600.0
"""How long a command may take if its output is one answer. A command over a WebSocket has no limit."""
Limit = Annotated[int, Query(ge=1, le=1000)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=LONGEST_KEY,
        pattern=r"^[!-~]+$",
        description="A second request with the same key within a day creates no workspace and returns the first one.",
    ),
]


def workspace_routes(wishes: Wishes, access: WorkspaceAccess, hosts: Hosts) -> APIRouter:
    router = APIRouter(tags=["workspaces"])

    def out(workspace: Workspace) -> wire.WorkspaceOut:
        return wire.workspace_out(workspace, hosts=hosts)

    @router.get("/templates")
    async def list_templates() -> wire.TemplateList:
        """The templates that a workspace can have. `broken` lists the files of `templates_dir` that cannot be used."""
        return wire.template_list(wishes.catalogue, await wishes.confinement.template_warnings())

    @router.get("/limits")
    async def limits(caller: Asking) -> wire.LimitsOut:
        """How many workspaces may run, and which of your own run."""
        return wire.limits_out(await wishes.room(caller))

    @router.post("/workspaces", status_code=201)
    async def create(body: wire.CreateWorkspace, caller: Asking, key: Key = None) -> wire.CreatedWorkspace:
        # Read before the workspace is created: if the database is lost in between, the client must not miss the new workspace.
        size = wire.new_size(body)
        template = wishes.catalogue.default_name(body.image) if body.template is None else body.template
        warnings = [
            *(await wishes.confinement.template_warnings()).get(template, ()),
            *await wishes.confinement.size_warnings(size),
        ]
        made = await wishes.create(
            caller,
            name=body.name,
            template_name=template,
            command=tuple(body.command),
            desired_state=Wish(body.desired_state),
            standby_ttl_s=body.standby_ttl,
            archive_ttl_s=body.archive_ttl,
            before_sleep=None if body.before_sleep is None else tuple(body.before_sleep),
            environment=body.environment,
            size=size,
            image=body.image,
            key=key,
        )
        return wire.created_workspace(made, warnings, hosts=hosts)

    @router.get("/workspaces")
    async def list_workspaces(
        caller: Asking, limit: Limit = 100, cursor: str | None = None, phase: Phase | None = None
    ) -> wire.WorkspacePage:
        """Your own workspaces and those shared with you; for administrators, all."""
        page = await wishes.page(caller, phase=phase, after=wire.workspaces_after(cursor), limit=limit)
        return wire.WorkspacePage(items=[out(one) for one in page.items], next_cursor=wire.to_cursor(page.next_after))

    @router.get("/workspaces/{workspace}")
    async def show(workspace: str, caller: Asking) -> wire.WorkspaceOut:
        return out(await wishes.find(caller, workspace))

    @router.patch("/workspaces/{workspace}")
    async def change(workspace: str, body: wire.ChangeWorkspace, caller: Asking) -> wire.WorkspaceOut:
        return out(
            await wishes.change(
                caller,
                workspace,
                name=body.name,
                desired_state=Wish(body.desired_state) if body.desired_state else None,
                standby_ttl_s=body.standby_ttl,
                archive_ttl_s=body.archive_ttl,
                before_sleep=wire.new_before_sleep(body),
                environment=body.environment,
            )
        )

    @router.get("/workspaces/{workspace}/environment")
    async def environment(workspace: str, caller: Asking) -> wire.EnvironmentOut:
        """The variables of the workspace itself, without those of its template and without its secrets."""
        return wire.EnvironmentOut(environment=dict((await wishes.find(caller, workspace)).environment))

    @router.delete("/workspaces/{workspace}", status_code=202)
    async def delete(workspace: str, caller: Asking, purge: bool = False) -> wire.WorkspaceOut:
        return out(await wishes.delete(caller, workspace, purge=purge))

    @router.post("/workspaces/{workspace}/undelete")
    async def undelete(workspace: str, caller: Asking) -> wire.WorkspaceOut:
        return out(await wishes.undelete(caller, workspace))

    @router.post("/workspaces/{workspace}/recover", status_code=202)
    async def recover(workspace: str, caller: Asking, body: wire.RecoverWorkspace | None = None) -> wire.WorkspaceOut:
        way = body or wire.RecoverWorkspace()
        recovered = await wishes.recover(caller, workspace, archive_key=way.archive_key, empty=way.empty, accept=way.accept)
        return out(recovered)

    @router.get("/workspaces/{workspace}/operations")
    async def operations(workspace: str, caller: Asking, limit: Limit = 100, cursor: str | None = None) -> wire.OperationList:
        """Every attempt of every operation, newest first."""
        history = await wishes.history(caller, workspace, after=wire.operations_after(cursor), limit=limit)
        items = [wire.operation_out(attempt) for attempt in history.items]
        return wire.OperationList(items=items, next_cursor=wire.to_cursor(history.next_after))

    @router.get("/workspaces/{workspace}/archives")
    async def archives(workspace: str, caller: Asking) -> wire.ArchiveList:
        return wire.archive_list(await wishes.time_machine.archives(caller, workspace))

    @router.post("/workspaces/{workspace}/restore", status_code=202)
    async def restore(workspace: str, body: wire.RestoreWorkspace, caller: Asking) -> wire.WorkspaceOut:
        return out(await wishes.time_machine.restore(caller, workspace, body.archive_key))

    @router.delete("/workspaces/{workspace}/restore", status_code=202)
    async def cancel_restore(workspace: str, caller: Asking) -> wire.WorkspaceOut:
        return out(await wishes.time_machine.cancel_restore(caller, workspace))

    @router.post("/workspaces/{workspace}/fork", status_code=201)
    async def fork(workspace: str, body: wire.ForkWorkspace, caller: Asking, key: Key = None) -> wire.CreatedWorkspace:
        forked = await wishes.fork(
            caller,
            workspace,
            name=body.name,
            archive_key=body.archive_key,
            desired_state=Wish(body.desired_state),
            key=key,
        )
        return wire.created_workspace(forked.workspace, forked.warnings, hosts=hosts)

    @router.get("/workspaces/{workspace}/explain")
    async def explain_it(workspace: str, caller: Asking) -> wire.ExplanationOut:
        return wire.explanation_out(*await wishes.explained(caller, workspace))

    @router.post("/workspaces/{workspace}/exec")
    async def execute(workspace: str, body: wire.Exec, caller: Asking) -> wire.ExecOut:
        stdin = wire.from_base64(body.stdin)
        # Only the program's name: an argument may be a password.
        program = body.command[0][: wire.LONGEST_PROGRAM]
        found = await wishes.enter(caller, workspace, AuditAction.WORKSPACE_EXEC, program=program)
        async with wishes.using.keeping_awake(found):
            try:
                async with asyncio.timeout(EXEC_S):
                    done = await access.execute(found, body.command, stdin)
            except TimeoutError:
                raise Refused(
                    "took_too_long",
                    f"the command did not end within {EXEC_S:g} s and was stopped; use `torpor exec` for long commands",
                ) from None
        return wire.ExecOut(exit_code=done.exit_code, stdout=wire.to_base64(done.stdout), stderr=wire.to_base64(done.stderr))

    @router.get("/workspaces/{workspace}/logs", response_class=PlainTextResponse)
    async def logs(workspace: str, caller: Asking, tail: Annotated[int, Query(ge=1, le=100_000)] = 200) -> Response:
        found = await wishes.find(caller, workspace)
        text = b"".join([chunk async for chunk in access.logs(found, tail=tail)])
        return PlainTextResponse(text)

    return router
