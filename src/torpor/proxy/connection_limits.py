"""Limit the connections of one client address, and of all clients together.

A connection costs up to three file descriptors of this process: its own, the upstream's, and the other end of that if it leads
to our own API. Without a limit one client could use them all, and neither the database nor a workspace could be reached.

IPv6 addresses count by their /64, because one client has all addresses in it. A trusted proxy carries the requests of many
clients on its connections, so these count for the forwarded address, one for each request in progress.
"""

import ipaddress
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

import structlog

from torpor import metrics
from torpor.proxy.gate import Reply
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.replies import text_reply

log = structlog.get_logger()

_MOST_BACKLOG = 1024
_MOST_ANSWERED = 64
_DESCRIPTORS_OF_UNLIMITED = 2**20
_LOGGED_EVERY_S = 60.0
_LOGGED_ADDRESSES = 10_000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    per_address: int
    total: int

    @property
    def backlog(self) -> int:
        """As many connections are accepted before the first of them is counted, so they must fit beside the total."""
        return min(_MOST_BACKLOG, max(1, self.total // 4))

    @property
    def answered(self) -> int:
        """How many refused connections get a response at a time; the others are closed without one."""
        return min(_MOST_ANSWERED, max(1, self.total // 8))


UNLIMITED = ConnectionLimits(per_address=2**20, total=2**20)


def total_connections(descriptors: int) -> int:
    """Three descriptors for each connection, and a fourth share for the database, the bus and workspaces."""
    return max(1, (_DESCRIPTORS_OF_UNLIMITED if descriptors == resource.RLIM_INFINITY else descriptors) // 4)


def descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class SlotHolder(Protocol):
    """A connection that counts for an address."""

    @property
    def is_newcomer(self) -> bool:
        """Whether it has not sent a whole head yet."""
        ...

    def give_way(self) -> bool:
        """Close at once if no request is in progress; returns whether it did."""
        ...


class ConnectionSlot:
    """The slot of one connection, or of one request of a trusted proxy."""

    __slots__ = ("_among", "address", "holder")

    def __init__(self, among: "ConnectionLimiter", address: str, holder: SlotHolder) -> None:
        self._among: ConnectionLimiter | None = among
        self.address = address
        self.holder = holder

    def leave(self) -> None:
        among, self._among = self._among, None
        if among is not None:
            among.left(self)


class ConnectionLimiter:
    """The connections of each address, oldest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._taken: dict[str, dict[ConnectionSlot, None]] = {}
        self._logged_at: dict[str, float] = {}
        self.answering = 0
        """How many refused connections are getting a response."""

    def __len__(self) -> int:
        return sum(map(len, self._taken.values()))

    def take(self, address: str, holder: SlotHolder, now: float) -> ConnectionSlot | None:
        """A slot for one more connection of this address; None if it has too many, and all have a request in progress."""
        group = address_group(address)
        taken = self._taken.get(group)
        if taken is not None and len(taken) >= self.limits.per_address:
            self._report("address", group, now)
            if not self._make_room(taken):
                return None
        place = ConnectionSlot(self, group, holder)
        # Looked up again: the only connection of the group may have been closed.
        self._taken.setdefault(group, {})[place] = None
        return place

    def left(self, place: ConnectionSlot) -> None:
        taken = self._taken[place.address]
        del taken[place]
        if not taken:
            del self._taken[place.address]

    def has_total(self, count: int, newcomers: Iterator[SlotHolder], now: float) -> bool:
        """Whether one more connection fits beside `count` others. If needed, the oldest newcomer is closed, else a connection
        without a request of the address that has the most."""
        if count < self.limits.total:
            return True
        self._report("total", "all", now)
        oldest = next(newcomers, None)
        if oldest is not None:
            return oldest.give_way()
        return self._make_room(max(self._taken.values(), key=len, default={}))

    def _make_room(self, taken: dict[ConnectionSlot, None]) -> bool:
        holders = [place.holder for place in taken]
        newcomers = (holder for holder in holders if holder.is_newcomer)
        others = (holder for holder in holders if not holder.is_newcomer)
        return any(holder.give_way() for among in (newcomers, others) for holder in among)

    def too_many(self) -> Reply:
        return text_reply(
            HTTPStatus.TOO_MANY_REQUESTS,
            RequestOutcome.TOO_MANY,
            f"Your address has {self.limits.per_address} connections open, which is the limit. "
            "Close some, or try again later. The setting connections_per_address changes it.",
            (b"Retry-After", b"5"),
        )

    def _report(self, limit: str, address: str, now: float) -> None:
        metrics.proxy_connections_limited_total.labels(limit=limit).inc()
        if now - self._logged_at.get(address, -_LOGGED_EVERY_S) < _LOGGED_EVERY_S:
            return
        if len(self._logged_at) >= _LOGGED_ADDRESSES:
            self._logged_at.clear()
        self._logged_at[address] = now
        most = self.limits.total if limit == "total" else self.limits.per_address
        log.warning("too_many_connections", address=address, limit=most)


@lru_cache(maxsize=4096)
def address_group(address: str) -> str:
    """The addresses that count as one client."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed.packed, 64), strict=False))
