"""What becomes of a request for a workspace?

Whoever asks is known or is asked for, then the table in `proxy.knock` says what is done. Once both the visitor and the
workspace are known, nothing is awaited and nothing is asked of the database.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeAlias, assert_never
from urllib.parse import urlencode

import structlog

from torpor.accounts import Accounts, Caller, How
from torpor.domain.errors import Refused, Unavailable
from torpor.domain.hostnames import Hosts, ToWorkspace
from torpor.domain.idle import is_about_to_sleep
from torpor.domain.records import Workspace
from torpor.ports import Address
from torpor.proxy import pages
from torpor.proxy.caller_cache import Visitor, Visitors
from torpor.proxy.gate import Pass, Reply, Verdict
from torpor.proxy.knock import KNOCK, Answer, What, Who, cookies, is_cross_site, read, what, who
from torpor.proxy.outcomes import Outcome
from torpor.proxy.pages import Notice
from torpor.proxy.readiness import Standing
from torpor.proxy.request_head import Head, Shown
from torpor.proxy.route_cache import Routes
from torpor.proxy.sign_in_cookie import ENTER, LOGO, OWN_PATHS, ROOM, STANDING, enter, read_query, sign_in
from torpor.proxy.usage import Usage
from torpor.proxy.wake import Stand, Waking
from torpor.proxy.wake_progress import follow

log = structlog.get_logger()

# A page that follows asks again after so long at the latest.
FOLLOW_S = 20.0
WAYS_KNOWN = 10_000
# A page is several kilobytes.
SORRIES_KNOWN = 2_000


P = ParamSpec("P")
AddressOf: TypeAlias = Callable[[str, int | None], Address | None]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, read."""

    to: ToWorkspace
    head: Head
    client: str
    kind: What
    wants_html: bool


@dataclass(frozen=True, slots=True)
class Made:
    """A way that was worked out before, good for as long as nothing is different."""

    visitor: Visitor
    workspace: Workspace
    address: Address
    way: Pass


class House:
    def __init__(
        self,
        hosts: Hosts,
        accounts: Accounts,
        *,
        routes: Routes,
        visitors: Visitors,
        waking: Waking,
        usage: Usage,
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
        self._ways: dict[Shown, Made] = {}
        self._sorries: dict[tuple[ToWorkspace, bool], tuple[Reply, Reply]] = {}
        """What each way to the same place has in common: all that is said when nobody answers there."""

    def judge(self, to: ToWorkspace, head: Head, client: str) -> Verdict | Awaitable[Verdict]:
        made = self._ways.get(head.shown)
        if made is not None and not head.target.startswith(OWN_PATHS):
            known = self._routes.known(to.name)
            if known is not None and known.workspace is made.workspace and self._now() < made.visitor.good_until:
                address = self._address_of(made.workspace.id, to.port)
                if address is made.address or address == made.address:
                    return made.way
        asks = read(head)
        kind = what(asks, head.method, is_upgrade=head.is_upgrade)
        tokens = (asks.token,) if asks.token is not None else cookies(head, self._door_cookie)
        asked = Asked(to, head, client, kind, asks.accepts_html)
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

    async def _ask_and_judge(self, asked: Asked, tokens: Sequence[str]) -> Verdict:
        visitor, workspace = await self._ask(asked, tokens)
        if visitor is None:
            return self._nobody(asked)
        decided = self._decide(asked, visitor, workspace)
        return decided if isinstance(decided, Pass | Reply) else await decided

    async def _ask(self, asked: Asked, tokens: Sequence[str]) -> tuple[Visitor | None, Workspace | None]:
        """Who shows these, by the first that is good here, and what bears the name."""
        visitor = workspace = None
        for token in tokens:
            visitor = self._visitors.known(token) or await self._visitors.ask(token)
            # Whoever is nobody learns nothing by how long it takes, and costs no look.
            if self._caller(visitor, asked) is not None:
                workspace = await self._routes.find(asked.to.name)
                if self._who(visitor, asked, workspace) is not Who.NOBODY:
                    break
        return visitor, workspace

    def _decide(self, asked: Asked, visitor: Visitor, workspace: Workspace | None) -> Verdict | Awaitable[Verdict]:
        caller = None if visitor.is_gone else self._caller(visitor, asked)
        is_who = who(caller, workspace)
        if caller is None or workspace is None or is_who is not Who.MAY_USE:
            return self._answer(asked, KNOCK[is_who][asked.kind][Standing.UNKNOWN], None, Standing.UNKNOWN)
        stands = self._waking.standing(workspace)
        if stands is Standing.READY and is_about_to_sleep(workspace):
            return self._safely(asked, self._stay, asked, visitor, workspace)
        answer = KNOCK[is_who][asked.kind][stands]
        match answer:
            case Answer.FORWARD:
                return self._forward(asked, visitor, workspace)
            case Answer.WAKE_AND_SHOW | Answer.WAKE_AND_HOLD | Answer.HOLD:
                return self._safely(asked, self._wake, asked, visitor, workspace, answer)
            case _:
                return self._answer(asked, answer, workspace, stands)

    def _answer(self, asked: Asked, answer: Answer, workspace: Workspace | None, stands: Standing) -> Reply:
        """What can be said at once."""
        name = asked.to.name
        match answer:
            case Answer.SIGN_IN | Answer.REFUSE_401:
                return self._nobody(asked)
            case Answer.REFUSE_403:
                return self._say(
                    asked, pages.forbidden("this token was not made for opening workspaces; it needs the scope 'use'")
                )
            case Answer.NOT_THERE:
                return self._say(asked, pages.not_there(name))
            case Answer.SHOW | Answer.REFUSE_503 | Answer.WAKE_AND_SHOW | Answer.WAKE_AND_HOLD | Answer.HOLD:
                notice = pages.stands(self._hosts, follow(name, workspace, stands), stands)
                if answer is Answer.REFUSE_503 and notice.status != 503:
                    notice = dataclasses.replace(notice, status=503)
                return self._say(asked, notice)
            case Answer.FORWARD:
                raise AssertionError("what is ready has a way")
            case _:
                assert_never(answer)

    def _forward(self, asked: Asked, visitor: Visitor, workspace: Workspace) -> Verdict:
        to = asked.to
        address = self._address_of(workspace.id, to.port)
        if address is None:
            return self._answer(asked, Answer.SHOW, workspace, Standing.WAKING)
        use = self._visitors.use(visitor, workspace.id, self._usage.of(workspace.id, standby_ttl_s=workspace.standby_ttl_s))
        sorry, too_late = self._sorry(asked)
        way = Pass(address, Outcome.WORKSPACE, sorry=sorry, too_late=too_late, use=use, bearer=use.bearer)
        # Where a page of somebody else may send people, it may not ask for anything, and not every page tells which it is: such
        # a way is not for the next request.
        if not is_cross_site(dataclasses.replace(read(asked.head), referer=None), What.SUBREQUEST, to, self._hosts):
            if len(self._ways) >= WAYS_KNOWN:
                self._ways.clear()
            self._ways[asked.head.shown] = Made(visitor, workspace, address, way)
        return way

    def _sorry(self, asked: Asked) -> tuple[Reply, Reply]:
        """What is said when nobody answers there, and when that takes too long."""
        said = self._sorries.get((asked.to, asked.wants_html))
        if said is None:
            if len(self._sorries) >= SORRIES_KNOWN:
                # The ways hold them as well.
                self._sorries.clear()
                self._ways.clear()
            said = self._sorries[asked.to, asked.wants_html] = (
                self._say(asked, pages.no_answer(self._hosts, asked.to.name, asked.to.port)),
                self._say(asked, pages.too_late(self._hosts, asked.to.name)),
            )
        return said

    async def _stay(self, asked: Asked, visitor: Visitor, workspace: Workspace) -> Verdict:
        now = await self._waking.stay(workspace)
        if is_about_to_sleep(now):
            return self._answer(asked, Answer.REFUSE_503, now, Standing.ASLEEP)
        decided = self._decide(asked, visitor, now)
        return decided if isinstance(decided, Pass | Reply) else await decided

    # ── waking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wake(self, asked: Asked, visitor: Visitor, workspace: Workspace, answer: Answer) -> Verdict:
        caller = self._caller(visitor, asked)
        assert caller is not None, "nobody wakes nothing"
        if answer is not Answer.HOLD:
            refused = await self._waking.wake(caller, workspace)
            if refused is not None:
                return await self._not_woken(asked, visitor, refused)
        patience_s = 0.0 if answer is Answer.WAKE_AND_SHOW else self._patience_s
        stand = await self._waking.until(asked.to.name, _does_not_wake, within_s=patience_s)
        return self._after_waking(asked, visitor, stand)

    def _after_waking(self, asked: Asked, visitor: Visitor, stand: Stand) -> Verdict:
        """Who may come in is judged again: minutes may have passed."""
        caller = None if visitor.is_gone else self._caller(visitor, asked)
        is_who = who(caller, stand.workspace)
        if is_who is not Who.MAY_USE or stand.workspace is None:
            return self._answer(asked, KNOCK[is_who][asked.kind][Standing.UNKNOWN], None, Standing.UNKNOWN)
        if stand.standing is Standing.READY:
            return self._forward(asked, visitor, stand.workspace)
        return self._answer(asked, Answer.SHOW, stand.workspace, stand.standing)

    async def _not_woken(self, asked: Asked, visitor: Visitor, refused: Refused) -> Verdict:
        if refused.code == "limit_reached":
            room = f"{self._hosts.base_url}{ROOM}?{urlencode(_way_back(asked))}"
            return self._say(asked, pages.over_limit(self._hosts, asked.to.name, refused.message, room))
        if refused.code == "disk_low":
            return self._say(asked, pages.disk_low(self._hosts, asked.to.name, refused.message))
        # It is not as it was a moment ago: in an error, deleted, or not theirs any more.
        workspace = await self._routes.find(asked.to.name, at_most_s_old=0)
        return self._after_waking(asked, visitor, Stand(workspace, self._waking.standing(workspace)))

    # ── what is asked of the gate itself ──────────────────────────────────────────────────────────────────────────────

    async def _answer_ourselves(self, asked: Asked, tokens: Sequence[str]) -> Verdict:
        path, _, query = asked.head.target.decode("latin-1").partition("?")
        said = read_query(query)
        if said is None:
            return self._say(asked, pages.nothing_here())
        if path == ENTER and asked.kind is What.NAVIGATION:
            code, back = said.get("code", ""), said.get("back", "/")
            return await enter(
                self._hosts, self._accounts, self._routes, asked.to, asked.head, code=code, back=back, client=asked.client
            )
        if path == STANDING:
            return await self._tell_standing(asked, tokens, after=said.get("after", ""))
        if path == LOGO:
            return pages.logo()
        return self._say(asked, pages.nothing_here())

    async def _tell_standing(self, asked: Asked, tokens: Sequence[str], *, after: str) -> Verdict:
        name = asked.to.name
        visitor, workspace = await self._ask(asked, tokens)
        match self._who(visitor, asked, workspace):
            case Who.NOBODY:
                return pages.as_json(401, {"error": "unauthorized"}, outcome=Outcome.UNAUTHORIZED)
            case Who.NOT_FOR_THIS | Who.STRANGER:
                return pages.as_json(404, {"error": "not_found"}, outcome=Outcome.UNKNOWN)
            case Who.MAY_USE:
                pass
        stand = await self._waking.until(
            name, lambda now: follow(name, now.workspace, now.standing).tag != after, within_s=FOLLOW_S
        )
        if self._who(visitor, asked, stand.workspace) is not Who.MAY_USE:
            return pages.as_json(404, {"error": "not_found"}, outcome=Outcome.UNKNOWN)
        return pages.as_json(200, follow(name, stand.workspace, stand.standing).body())

    # ── ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _who(self, visitor: Visitor | None, asked: Asked, workspace: Workspace | None) -> Who:
        return who(None if visitor is None or visitor.is_gone else self._caller(visitor, asked), workspace)

    def _caller(self, visitor: Visitor, asked: Asked) -> Caller | None:
        """Who it is, if they showed it in the way it is meant for: a session opens no workspace, and a cookie is no token."""
        caller = visitor.caller
        if caller is None or caller.how is not (How.TOKEN if asked.kind is What.PROGRAM else How.DOOR):
            return None
        return caller if caller.came_from == asked.client else dataclasses.replace(caller, came_from=asked.client)

    def _nobody(self, asked: Asked) -> Reply:
        if KNOCK[Who.NOBODY][asked.kind][Standing.UNKNOWN] is Answer.SIGN_IN:
            return sign_in(self._hosts, asked.to, asked.head)
        return self._say(asked, pages.unauthorized(self._hosts))

    def _say(self, asked: Asked, notice: Notice) -> Reply:
        # A page's own requests want no page, whatever they say they accept.
        return pages.reply(notice, as_html=asked.wants_html)

    async def _safely(self, asked: Asked, judge: Callable[P, Awaitable[Verdict]], *args: P.args, **more: P.kwargs) -> Verdict:
        """Whatever happens is answered."""
        try:
            return await judge(*args, **more)
        except Unavailable as out:
            log.warning("cannot_tell", workspace=asked.to.name, why=out.message)
        except Refused as refused:
            return self._say(asked, pages.refused(403, "That is not possible", refused.message))
        except Exception:
            log.exception("cannot_tell", workspace=asked.to.name)
        return self._say(asked, pages.cannot_tell(asked.to.name))


def _does_not_wake(stand: Stand) -> bool:
    return stand.standing is not Standing.WAKING


def _way_back(asked: Asked) -> dict[str, str]:
    back = asked.head.target.decode("latin-1")
    port = {} if asked.to.port is None else {"port": str(asked.to.port)}
    return {"workspace": asked.to.name, **port, "back": back}
