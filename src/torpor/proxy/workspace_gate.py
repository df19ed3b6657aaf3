"""Decide what happens with a request for a workspace.

The caller is found in the cache or in the database, then the table in `proxy.knock` decides. If both the caller and the
workspace are cached, the decision awaits nothing and does not use the database.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeAlias, assert_never
from urllib.parse import urlencode

import structlog

from torpor.accounts import Accounts, AuthMethod, Caller
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.hostnames import ENTER_PATH, Hosts, WorkspaceHost
from torpor.domain.idle import is_about_to_sleep
from torpor.domain.records import Workspace
from torpor.ports import Address
from torpor.proxy import pages
from torpor.proxy.caller_cache import CachedCaller, CallerCache
from torpor.proxy.gate import Forward, Reply, Verdict
from torpor.proxy.knock import (
    KNOCK,
    CallerAccess,
    KnockAnswer,
    RequestKind,
    caller_access,
    cookies,
    is_cross_site,
    read_knock_headers,
    request_kind,
)
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.pages import Notice
from torpor.proxy.readiness import Readiness
from torpor.proxy.request_head import HeadCacheKey, RequestHead
from torpor.proxy.route_cache import Routes
from torpor.proxy.sign_in_cookie import LOGO, OWN_PATHS, ROOM, STANDING, read_query, set_workspace_cookie, sign_in
from torpor.proxy.usage import UsageTracker
from torpor.proxy.wake import WakeService, WorkspaceReadiness
from torpor.proxy.wake_progress import wake_progress

log = structlog.get_logger()

# A page that shows the status asks again after this time at the latest.
FOLLOW_S = 20.0
WAYS_KNOWN = 10_000
# A page has several kilobytes.
SORRIES_KNOWN = 2_000


P = ParamSpec("P")
AddressOf: TypeAlias = Callable[[Workspace, int | None], Address | None]


@dataclass(frozen=True, slots=True)
class WorkspaceRequest:
    """One parsed request."""

    to: WorkspaceHost
    head: RequestHead
    client: str
    kind: RequestKind
    wants_html: bool


@dataclass(frozen=True, slots=True)
class CachedRoute:
    """A decision that is reused until one of its inputs changes."""

    visitor: CachedCaller
    workspace: Workspace
    address: Address
    way: Forward


class WorkspaceGate:
    def __init__(
        self,
        hosts: Hosts,
        accounts: Accounts,
        *,
        routes: Routes,
        visitors: CallerCache,
        waking: WakeService,
        usage: UsageTracker,
        address_of: AddressOf,
        patience_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hosts = hosts
        self._accounts = accounts
        self._routes = routes
        self._visitors = visitors
        self._waking = waking
        self._usage = usage
        self._address_of = address_of
        self._patience_s = patience_s
        self._now = now
        self._door_cookie = hosts.door_cookie.encode()
        self._ways: dict[HeadCacheKey, CachedRoute] = {}
        self._sorries: dict[tuple[WorkspaceHost, bool], tuple[Reply, Reply]] = {}
        """The error pages that all routes to the same host share."""

    def judge(self, to: WorkspaceHost, head: RequestHead, client: str) -> Verdict | Awaitable[Verdict]:
        made = self._ways.get(head.shown)
        if made is not None and not head.target.startswith(OWN_PATHS):
            known = self._routes.known(to.name)
            if known is not None and known.workspace is made.workspace and self._now() < made.visitor.good_until:
                address = self._address_of(made.workspace, to.port)
                if address is made.address or address == made.address:
                    return made.way
        asks = read_knock_headers(head)
        kind = request_kind(asks, head.method, is_upgrade=head.is_upgrade)
        tokens = (asks.token,) if asks.token is not None else cookies(head, self._door_cookie)
        asked = WorkspaceRequest(to, head, client, kind, asks.accepts_html)
        if asks.token is None and tokens and is_cross_site(asks, kind, to, self._hosts):
            return self._say(asked, pages.cross_site())
        if head.target.startswith(OWN_PATHS):
            return self._safely(asked, self._answer_ourselves, asked, tokens)
        if not tokens:
            return self._nobody(asked)
        visitor, known = self._visitors.known(tokens[0]), self._routes.known(to.name)
        if visitor is None or known is None or len(tokens) > 1:
            return self._safely(asked, self._ask_and_judge, asked, tokens)
        return self._decide(asked, visitor, known.workspace)

    # ── deciding ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _ask_and_judge(self, asked: WorkspaceRequest, tokens: Sequence[str]) -> Verdict:
        visitor, workspace = await self._ask(asked, tokens)
        if visitor is None:
            return self._nobody(asked)
        decided = self._decide(asked, visitor, workspace)
        return decided if isinstance(decided, Forward | Reply) else await decided

    async def _ask(self, asked: WorkspaceRequest, tokens: Sequence[str]) -> tuple[CachedCaller | None, Workspace | None]:
        """The caller by the first valid credential, and the workspace with this name."""
        visitor = workspace = None
        for token in tokens:
            visitor = self._visitors.known(token) or await self._visitors.ask(token)
            # For an unknown caller the workspace is not read: that saves the query and hides in the response time whether it
            # exists.
            if self._caller(visitor, asked) is not None:
                workspace = await self._routes.find(asked.to.name)
                if self._who(visitor, asked, workspace) is not CallerAccess.NOBODY:
                    break
        return visitor, workspace

    def _decide(
        self, asked: WorkspaceRequest, visitor: CachedCaller, workspace: Workspace | None
    ) -> Verdict | Awaitable[Verdict]:
        caller = None if visitor.is_gone else self._caller(visitor, asked)
        is_who = caller_access(caller, workspace)
        if caller is None or workspace is None or is_who is not CallerAccess.MAY_USE:
            return self._answer(asked, KNOCK[is_who][asked.kind][Readiness.UNKNOWN], None, Readiness.UNKNOWN)
        stands = self._waking.standing(workspace)
        if stands is Readiness.READY and is_about_to_sleep(workspace):
            return self._safely(asked, self._stay, asked, visitor, workspace)
        answer = KNOCK[is_who][asked.kind][stands]
        match answer:
            case KnockAnswer.FORWARD:
                return self._forward(asked, visitor, workspace)
            case KnockAnswer.WAKE_AND_SHOW | KnockAnswer.WAKE_AND_HOLD | KnockAnswer.HOLD:
                return self._safely(asked, self._wake, asked, visitor, workspace, answer)
            case _:
                return self._answer(asked, answer, workspace, stands)

    def _answer(self, asked: WorkspaceRequest, answer: KnockAnswer, workspace: Workspace | None, stands: Readiness) -> Reply:
        """The response for a decision that needs no waiting."""
        name = asked.to.name
        match answer:
            case KnockAnswer.SIGN_IN | KnockAnswer.REFUSE_401:
                return self._nobody(asked)
            case KnockAnswer.REFUSE_403:
                return self._say(
                    asked, pages.forbidden("this API token cannot open workspaces; create one with the scope 'use'")
                )
            case KnockAnswer.NOT_THERE:
                return self._say(asked, pages.workspace_not_found_page(name))
            case (
                KnockAnswer.SHOW
                | KnockAnswer.REFUSE_503
                | KnockAnswer.WAKE_AND_SHOW
                | KnockAnswer.WAKE_AND_HOLD
                | KnockAnswer.HOLD
            ):
                notice = pages.readiness_page(self._hosts, wake_progress(name, workspace, stands), stands)
                if answer is KnockAnswer.REFUSE_503 and notice.status != 503:
                    notice = dataclasses.replace(notice, status=503)
                return self._say(asked, notice)
            case KnockAnswer.FORWARD:
                raise AssertionError("a ready workspace has a route")
            case _:
                assert_never(answer)

    def _forward(self, asked: WorkspaceRequest, visitor: CachedCaller, workspace: Workspace) -> Verdict:
        to = asked.to
        address = self._address_of(workspace, to.port)
        if address is None:
            return self._answer(asked, KnockAnswer.SHOW, workspace, Readiness.WAKING)
        use = self._visitors.use(visitor, workspace.id, self._usage.of(workspace.id, standby_ttl_s=workspace.standby_ttl_s))
        sorry, too_late = self._sorry(asked)
        way = Forward(address, RequestOutcome.WORKSPACE, sorry=sorry, too_late=too_late, use=use, bearer=use.bearer)
        # A page of another site may link here but must not send other requests, and not every request names its page. Such a
        # decision is not cached for the next request.
        if not is_cross_site(
            dataclasses.replace(read_knock_headers(asked.head), referer=None), RequestKind.SUBREQUEST, to, self._hosts
        ):
            if len(self._ways) >= WAYS_KNOWN:
                self._ways.clear()
            self._ways[asked.head.shown] = CachedRoute(visitor, workspace, address, way)
        return way

    def _sorry(self, asked: WorkspaceRequest) -> tuple[Reply, Reply]:
        """The pages for an upstream that does not respond, and for one that takes too long."""
        said = self._sorries.get((asked.to, asked.wants_html))
        if said is None:
            if len(self._sorries) >= SORRIES_KNOWN:
                # The cached routes hold them as well.
                self._sorries.clear()
                self._ways.clear()
            said = self._sorries[asked.to, asked.wants_html] = (
                self._say(asked, pages.no_answer(self._hosts, asked.to.name, asked.to.port)),
                self._say(asked, pages.too_late(self._hosts, asked.to.name)),
            )
        return said

    async def _stay(self, asked: WorkspaceRequest, visitor: CachedCaller, workspace: Workspace) -> Verdict:
        now = await self._waking.stay(workspace)
        if is_about_to_sleep(now):
            return self._answer(asked, KnockAnswer.REFUSE_503, now, Readiness.ASLEEP)
        decided = self._decide(asked, visitor, now)
        return decided if isinstance(decided, Forward | Reply) else await decided

    # ── waking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wake(self, asked: WorkspaceRequest, visitor: CachedCaller, workspace: Workspace, answer: KnockAnswer) -> Verdict:
        caller = self._caller(visitor, asked)
        assert caller is not None, "only a known caller wakes a workspace"
        if answer is not KnockAnswer.HOLD:
            refused = await self._waking.wake(caller, workspace)
            if refused is not None:
                return await self._not_woken(asked, visitor, refused)
        patience_s = 0.0 if answer is KnockAnswer.WAKE_AND_SHOW else self._patience_s
        stand = await self._waking.until(asked.to.name, _does_not_wake, within_s=patience_s)
        return self._after_waking(asked, visitor, stand)

    def _after_waking(self, asked: WorkspaceRequest, visitor: CachedCaller, stand: WorkspaceReadiness) -> Verdict:
        """Check the access again, because minutes may have passed."""
        caller = None if visitor.is_gone else self._caller(visitor, asked)
        is_who = caller_access(caller, stand.workspace)
        if is_who is not CallerAccess.MAY_USE or stand.workspace is None:
            return self._answer(asked, KNOCK[is_who][asked.kind][Readiness.UNKNOWN], None, Readiness.UNKNOWN)
        if stand.standing is Readiness.READY:
            return self._forward(asked, visitor, stand.workspace)
        return self._answer(asked, KnockAnswer.SHOW, stand.workspace, stand.standing)

    async def _not_woken(self, asked: WorkspaceRequest, visitor: CachedCaller, refused: Refused) -> Verdict:
        if refused.code == "limit_reached":
            room = f"{self._hosts.base_url}{ROOM}?{urlencode(_way_back(asked))}"
            return self._say(asked, pages.over_limit(self._hosts, asked.to.name, refused.message, room))
        if refused.code == "disk_low":
            return self._say(asked, pages.disk_low(self._hosts, asked.to.name, refused.message))
        if refused.code == "switching_runtime":
            return self._say(asked, pages.switching_runtime(self._hosts, asked.to.name, refused.message))
        # The workspace has changed since: it has an error, is deleted, or is no longer shared with the caller.
        workspace = await self._routes.find(asked.to.name, at_most_s_old=0)
        return self._after_waking(asked, visitor, WorkspaceReadiness(workspace, self._waking.standing(workspace)))

    # ── requests for the gate itself ──────────────────────────────────────────────────────────────────────────────────

    async def _answer_ourselves(self, asked: WorkspaceRequest, tokens: Sequence[str]) -> Verdict:
        path, _, query = asked.head.target.decode("latin-1").partition("?")
        said = read_query(query)
        if said is None:
            return self._say(asked, pages.no_page())
        if path == ENTER_PATH and asked.kind is RequestKind.NAVIGATION:
            code, back = said.get("code", ""), said.get("back", "/")
            return await set_workspace_cookie(
                self._hosts, self._accounts, self._routes, asked.to, asked.head, code=code, back=back, client=asked.client
            )
        if path == STANDING:
            return await self._tell_standing(asked, tokens, after=said.get("after", ""))
        if path == LOGO:
            return pages.logo()
        return self._say(asked, pages.no_page())

    async def _tell_standing(self, asked: WorkspaceRequest, tokens: Sequence[str], *, after: str) -> Verdict:
        name = asked.to.name
        visitor, workspace = await self._ask(asked, tokens)
        match self._who(visitor, asked, workspace):
            case CallerAccess.NOBODY:
                return pages.as_json(401, {"error": "unauthorized"}, outcome=RequestOutcome.UNAUTHORIZED)
            case CallerAccess.NOT_FOR_THIS | CallerAccess.STRANGER:
                return pages.as_json(404, {"error": "not_found"}, outcome=RequestOutcome.UNKNOWN)
            case CallerAccess.MAY_USE:
                pass
        stand = await self._waking.until(
            name, lambda now: wake_progress(name, now.workspace, now.standing).tag != after, within_s=FOLLOW_S
        )
        if self._who(visitor, asked, stand.workspace) is not CallerAccess.MAY_USE:
            return pages.as_json(404, {"error": "not_found"}, outcome=RequestOutcome.UNKNOWN)
        return pages.as_json(200, wake_progress(name, stand.workspace, stand.standing).body())

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _who(self, visitor: CachedCaller | None, asked: WorkspaceRequest, workspace: Workspace | None) -> CallerAccess:
        return caller_access(None if visitor is None or visitor.is_gone else self._caller(visitor, asked), workspace)

    def _caller(self, visitor: CachedCaller, asked: WorkspaceRequest) -> Caller | None:
        """The caller, if the credential fits the kind of request: a session opens no workspace, and a cookie is not an API
        token."""
        caller = visitor.caller
        if caller is None or caller.how is not (AuthMethod.TOKEN if asked.kind is RequestKind.PROGRAM else AuthMethod.DOOR):
            return None
        return caller if caller.came_from == asked.client else dataclasses.replace(caller, came_from=asked.client)

    def _nobody(self, asked: WorkspaceRequest) -> Reply:
        if KNOCK[CallerAccess.NOBODY][asked.kind][Readiness.UNKNOWN] is KnockAnswer.SIGN_IN:
            return sign_in(self._hosts, asked.to, asked.head)
        return self._say(asked, pages.unauthorized(self._hosts))

    def _say(self, asked: WorkspaceRequest, notice: Notice) -> Reply:
        # Requests of a page's scripts get text, regardless of their Accept header.
        return pages.reply(notice, as_html=asked.wants_html)

    async def _safely(
        self, asked: WorkspaceRequest, judge: Callable[P, Awaitable[Verdict]], *args: P.args, **more: P.kwargs
    ) -> Verdict:
        """Turn every exception into a response."""
        try:
            return await judge(*args, **more)
        except Unavailable as out:
            log.warning("cannot_tell", workspace=asked.to.name, why=out.message)
        except Refused as refused:
            return self._say(asked, pages.refused(403, "The request was refused", refused.message))
        except Exception:
            log.exception("cannot_tell", workspace=asked.to.name)
        return self._say(asked, pages.lookup_unavailable_page(asked.to.name))


def _does_not_wake(stand: WorkspaceReadiness) -> bool:
    return stand.standing is not Readiness.WAKING


def _way_back(asked: WorkspaceRequest) -> dict[str, str]:
    back = asked.head.target.decode("latin-1")
    port = {} if asked.to.port is None else {"port": str(asked.to.port)}
    return {"workspace": asked.to.name, **port, "back": back}
