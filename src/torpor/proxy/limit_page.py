"""Serve the limit page: stop one of your running workspaces to start another.

The page is on the platform's own host, because the programs of a workspace can read the pages on that workspace's host and
press their buttons.
"""

import dataclasses
import re
from collections.abc import Sequence
from urllib.parse import quote, urlencode

import structlog

from torpor.accounts import AuthMethod, Caller
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.hostnames import Hosts, is_own_path
from torpor.domain.names import is_name
from torpor.domain.records import Workspace
from torpor.domain.states import Operation, Wish
from torpor.proxy import pages
from torpor.proxy.caller_cache import CallerCache
from torpor.proxy.gate import Reply
from torpor.proxy.knock import CallerAccess, caller_access, cookies
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.pages import Line, Notice, PageButton, PageLink
from torpor.proxy.readiness import Readiness
from torpor.proxy.request_head import RequestHead
from torpor.proxy.route_cache import Routes
from torpor.proxy.sign_in_cookie import LOGO, ROOM, read_query, see_other
from torpor.proxy.wake import WakeService, WorkspaceReadiness
from torpor.service.wishes import Wishes

log = structlog.get_logger()

STOP = f"{ROOM}/stop"
# How long the page waits for the stop; after that the workspace's own page shows the status.
STOPS_WITHIN_S = 20.0
_PORT = re.compile(r"[1-9][0-9]{0,4}")


@dataclasses.dataclass(frozen=True, slots=True)
class LimitPageTarget:
    """The workspace to open when the limit allows it."""

    name: str
    port: int | None
    back: str

    def url(self, hosts: Hosts) -> str:
        return f"{hosts.url(self.name, self.port)}{self.back}"

    def query(self, **more: str) -> str:
        port = {} if self.port is None else {"port": str(self.port)}
        return urlencode({"workspace": self.name, **port, "back": self.back, **more})


class LimitPage:
    def __init__(self, hosts: Hosts, wishes: Wishes, *, routes: Routes, visitors: CallerCache, waking: WakeService) -> None:
        self._hosts = hosts
        self._wishes = wishes
        self._routes = routes
        self._visitors = visitors
        self._waking = waking
        self._cookie = hosts.session_cookie.encode()

    async def answer(self, head: RequestHead, client: str) -> Reply:
        try:
            return await self._answer(head, client)
        except Refused as refused:
            notice = pages.refused(403, "The request was refused", refused.message)
        except Unavailable as out:
            log.warning("room_not_told", why=out.message)
            notice = pages.no_platform(503)
        except Exception:
            log.exception("room_not_told")
            notice = pages.no_platform(503)
        return pages.reply(notice, as_html=head.wants_html)

    async def _answer(self, head: RequestHead, client: str) -> Reply:
        path, _, query = head.target.decode("latin-1").partition("?")
        said = read_query(query) or {}
        if path == LOGO:
            return pages.logo()
        wanted = _wanted(said)
        if wanted is None or (head.method, path) not in ((b"GET", ROOM), (b"POST", STOP)):
            return pages.reply(pages.no_page(), as_html=head.wants_html)
        caller = await self._caller(head, client)
        if caller is None:
            again = f"{ROOM}?{wanted.query()}"
            return see_other(f"{self._hosts.base_url}/?next={quote(again, safe='')}", outcome=RequestOutcome.SIGN_IN)
        workspace = await self._routes.find(wanted.name)
        if workspace is None or caller_access(caller, workspace) is not CallerAccess.MAY_USE:
            return pages.reply(pages.workspace_not_found_page(wanted.name), as_html=head.wants_html)
        if path == STOP:
            if not self._is_from_here(head):
                return pages.reply(pages.cross_site(), as_html=head.wants_html)
            await self._stop(caller, said.get("stop", ""))
            return see_other(wanted.url(self._hosts), outcome=RequestOutcome.GATE)
        if self._waking.standing(workspace) is not Readiness.ASLEEP:
            return see_other(wanted.url(self._hosts), outcome=RequestOutcome.GATE)
        return pages.reply(await self._notice(caller, workspace, wanted), as_html=head.wants_html)

    async def _notice(self, caller: Caller, workspace: Workspace, wanted: LimitPageTarget) -> Notice:
        room = await self._wishes.room(caller)
        others = [name for name in room.running if name != workspace.name]
        lines = self._lines(caller, workspace, others, per_user=room.per_user)
        lines += [
            PageButton(name, "Stop", f"{STOP}?{wanted.query(stop=name)}") for name in others if self._counts(caller, workspace)
        ]
        return Notice(
            200,
            f"Stop a workspace to start {workspace.name}",
            tuple(lines),
            links=(
                PageLink(f"Open {workspace.name}", wanted.url(self._hosts)),
                PageLink("Open the dashboard", self._hosts.base_url),
            ),
            outcome=RequestOutcome.OVER_LIMIT,
        )

    def _lines(self, caller: Caller, workspace: Workspace, others: Sequence[str], *, per_user: int) -> list[Line]:
        if not self._counts(caller, workspace):
            owner = workspace.owner
            return [f"It belongs to {owner}, whose limit of running workspaces is reached. Ask {owner} to stop one."]
        if not others:
            return ["The limit of the whole installation is reached, and none of your workspaces is running. Try again later."]
        running = "One of your workspaces is running" if len(others) == 1 else f"{len(others)} of your workspaces are running"
        return [f"{running}; your limit is {per_user}. Stop one to open {workspace.name}. The home is kept."]

    def _counts(self, caller: Caller, workspace: Workspace) -> bool:
        """Whether the caller's own limit applies to this workspace."""
        return workspace.owner == caller.user.username

    async def _stop(self, caller: Caller, name: str) -> None:
        """Stop it, and wait until it no longer counts: it counts as long as its container exists."""
        found = await self._wishes.wish(caller, name, Wish.STANDBY)
        await self._waking.until(found.name, _has_made_room, within_s=STOPS_WITHIN_S)
        self._waking.ask_anew()

    async def _caller(self, head: RequestHead, client: str) -> Caller | None:
        for token in cookies(head, self._cookie):
            visitor = self._visitors.known(token) or await self._visitors.ask(token)
            if visitor.caller is not None and visitor.caller.how is AuthMethod.SESSION:
                return dataclasses.replace(visitor.caller, came_from=client)
        return None

    def _is_from_here(self, head: RequestHead) -> bool:
        """Whether the form of this page sent the request: other pages must not press its buttons."""
        if any(site != b"same-origin" for site in head.values(b"sec-fetch-site")):
            return False
        return bool(head.values(b"origin")) and not head.is_cross_site


def _has_made_room(stand: WorkspaceReadiness) -> bool:
    found = stand.workspace
    return found is None or not (
        found.desired_state is Wish.RUNNING or found.container_present or found.operation is Operation.STARTING
    )


def _wanted(said: dict[str, str]) -> LimitPageTarget | None:
    name, port, back = said.get("workspace", ""), said.get("port"), said.get("back", "/")
    if not is_name(name) or (port is not None and not (_PORT.fullmatch(port) and int(port) < 65536)):
        return None
    return LimitPageTarget(name, None if port is None else int(port), back if is_own_path(back) else "/")
