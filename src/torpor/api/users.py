"""Manage users. For administrators."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from torpor.accounts import Accounts, UserChange
from torpor.api import wire_users as wire
from torpor.api.authentication import Asking


def user_routes(accounts: Accounts) -> APIRouter:
    """`torpor.api.route_access` refuses callers who are not administrators."""
    router = APIRouter(tags=["users"])

    @router.post("/users", status_code=201)
    async def create(body: wire.CreateUser, caller: Asking) -> wire.UserOut:
        made = await accounts.create_user(
            caller, body.username, password=body.password, is_admin=body.is_admin, max_running=body.max_running
        )
        return wire.user_out(made)

    @router.get("/users")
    async def users(
        _caller: Asking, limit: Annotated[int, Query(ge=1, le=1000)] = 100, cursor: str | None = None
    ) -> wire.UserPage:
        found = await accounts.users(after=wire.from_name_cursor(cursor), limit=limit + 1)
        return wire.user_page(found, limit=limit)

    @router.get("/users/{user}")
    async def show(user: str, _caller: Asking) -> wire.UserOut:
        return wire.user_out(await accounts.user(user))

    @router.patch("/users/{user}")
    async def change(user: str, body: wire.ChangeUser, caller: Asking) -> wire.UserOut:
        return wire.user_out(await accounts.change_user(caller, user, UserChange(**body.model_dump(exclude_unset=True))))

    @router.post("/users/{user}/sign-out", status_code=204)
    async def sign_out(user: str, caller: Asking) -> Response:
        """End all sessions and API tokens of this user at once, except the one that makes this call."""
        await accounts.end_all(caller, user)
        return Response(status_code=204)

    return router
