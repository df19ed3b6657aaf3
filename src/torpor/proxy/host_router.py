"""Route a request by its host: to the platform, to a workspace, or to neither."""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never
from urllib.parse import unquote_to_bytes

from torpor.domain.hostnames import Hosts, PlatformHost, UnknownHost, WorkspaceHost
from torpor.ports import Address
from torpor.proxy import pages
from torpor.proxy.gate import Forward, Reply, Verdict
from torpor.proxy.limit_page import LimitPage
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.request_head import RequestHead
from torpor.proxy.sign_in_cookie import OWN_PATHS
from torpor.proxy.workspace_gate import WorkspaceGate

HOSTS_KNOWN = 4096
# Paths about the process that gets the request, even if another one serves the API.
METRICS = b"/metrics"
OF_THIS_PROCESS = (b"/health", METRICS)


def served_path(target: bytes) -> bytes:
    """The path that the server behind finds: it unquotes it. A proxy in front of that may also merge slashes."""
    return b"/" + unquote_to_bytes(target.partition(b"?")[0]).lstrip(b"/")


@dataclass(frozen=True, slots=True)
class PlatformAddress:
    """The address of the API and the dashboard."""

    here: Address
    elsewhere: Address | None = None
    """The API of another process. Paths about this process are served here."""

    def address(self, target: bytes) -> Address:
        if self.elsewhere is None or served_path(target).startswith(OF_THIS_PROCESS):
            return self.here
        return self.elsewhere


@dataclass(frozen=True, slots=True)
class GateHandlers:
    """The handlers that exist once the product has started."""

    house: WorkspaceGate
    room: LimitPage


class HostRouter:
    """Implements `proxy.gate.Gate`. It responds before the handlers exist."""

    def __init__(self, hosts: Hosts, platform: PlatformAddress, *, has_workspaces: bool = True, has_metrics: bool) -> None:
        """`has_metrics`: false if they are on a port of their own, because users reach this one."""
        self.inside: GateHandlers | None = None
        self._hosts = hosts
        self._platform = platform
        self._has_workspaces = has_workspaces
        self._has_metrics = has_metrics
        self._destination = lru_cache(maxsize=HOSTS_KNOWN)(hosts.destination)
        self._ways: dict[tuple[Address, bool], Forward] = {}

    def judge(self, head: RequestHead, client: str) -> Verdict | Awaitable[Verdict]:
        where = self._destination(head.host)
        match where:
            case WorkspaceHost():
                if self.inside is None:
                    return self._closed(where, head)
                return self.inside.house.judge(where, head, client)
            case PlatformHost():
                return self._to_platform(head, client)
            case UnknownHost(host):
                return pages.reply(pages.misdirected(host, self._hosts), as_html=head.wants_html)
            case _:
                assert_never(where)

    def _closed(self, where: WorkspaceHost, head: RequestHead) -> Reply:
        notice = pages.lookup_unavailable_page(where.name) if self._has_workspaces else pages.not_from_here(where.name)
        return pages.reply(notice, as_html=head.wants_html)

    def _to_platform(self, head: RequestHead, client: str) -> Verdict | Awaitable[Verdict]:
        if head.is_upgrade and head.is_cross_site:
            return pages.reply(pages.cross_site(), as_html=False)
        if self.inside is not None and head.target.startswith(OWN_PATHS):
            return self.inside.room.answer(head, client)
        if not self._has_metrics and served_path(head.target).startswith(METRICS):
            return pages.reply(pages.not_served(), as_html=head.wants_html)
        address = self._platform.address(head.target)
        way = self._ways.get((address, head.wants_html))
        if way is None:
            way = self._ways[address, head.wants_html] = Forward(
                address,
                RequestOutcome.PLATFORM,
                sorry=pages.reply(pages.no_platform(), as_html=head.wants_html),
                too_late=pages.reply(pages.no_platform(504), as_html=head.wants_html),
                to_workspace=False,
            )
        return way
