"""Limit failed sign-in attempts.

They are counted by name and address together, and by address; never by name alone, because then anyone could lock out other
users with wrong passwords. A user with the right password can sign in from every address that is below its limit.

    torpor:sign_in:both:{digest}      failed attempts for one name from one address; expires with its window
    torpor:sign_in:address:{digest}   the same for one address and any name
"""

import hashlib
import ipaddress
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torpor.bus.redis import Bus
from torpor.domain.errors import Refused, Unavailable

OF_ONE_NAME = 10
OF_ONE_ADDRESS = 100
WINDOW_S = 900
REMEMBERED = 10_000
"""How many counts this process keeps while the bus is unreachable."""

# Counts an attempt before its result is known, so that a thousand at the same time are not a thousand guesses. ARGV: the limit
# of each key, then the window in milliseconds. Returns how many milliseconds to wait (0: none), and whether this is the first
# attempt beyond a limit, which is counted as well so that the next one is not the first.
ADMIT = """
local wait = 0
local news = 0
for at, key in ipairs(KEYS) do
    local attempts = tonumber(redis.call('GET', key) or 0)
    if attempts >= tonumber(ARGV[at]) then
        wait = math.max(wait, redis.call('PTTL', key))
        if attempts == tonumber(ARGV[at]) then
            redis.call('INCR', key)
            news = 1
        end
    end
end
if wait > 0 then
    return {wait, news}
end
for at, key in ipairs(KEYS) do
    if redis.call('INCR', key) == 1 then
        redis.call('PEXPIRE', key, ARGV[#KEYS + 1])
    end
end
return {0, 0}
"""

# The password was right: the count of the name is removed, and the count of the address is reduced by one.
FORGIVE = """
redis.call('DEL', KEYS[1])
if tonumber(redis.call('GET', KEYS[2]) or 0) > 0 then
    redis.call('DECR', KEYS[2])
end
"""


class TooManySignIns(Refused):
    def __init__(self, wait_s: float, *, is_news: bool) -> None:
        super().__init__(
            "too_many_sign_ins",
            "too many sign-in attempts from this address failed. Wait, or sign in from another address",
            retry_after_s=math.ceil(wait_s),
        )
        self.is_news = is_news
        """Whether this is the first attempt beyond a limit."""


@dataclass(slots=True)
class _AttemptCount:
    until: float
    attempts: int = 0


@dataclass(slots=True)
class _LocalThrottle:
    """The same rule for this process only, while the bus is unreachable."""

    clock: Callable[[], float]
    counts: dict[str, _AttemptCount] = field(default_factory=dict)

    def admit(self, limits: Mapping[str, int]) -> tuple[float, bool]:
        """How long to wait, and whether this is the first attempt beyond a limit."""
        now = self.clock()
        full = [(count, limit) for key, limit in limits.items() if (count := self._now(key, now)).attempts >= limit]
        fresh = [count for count, limit in full if count.attempts == limit]
        for count in fresh if full else [self._now(key, now) for key in limits]:
            count.attempts += 1
        return max((count.until - now for count, _ in full), default=0.0), bool(fresh)

    def forgive(self, both: str, address: str) -> None:
        self.counts.pop(both, None)
        if address in self.counts:
            self.counts[address].attempts = max(0, self.counts[address].attempts - 1)

    def _now(self, key: str, now: float) -> _AttemptCount:
        count = self.counts.get(key)
        if count is None or count.until <= now:
            self.counts.pop(key, None)
            while len(self.counts) >= REMEMBERED:
                del self.counts[next(iter(self.counts))]
            count = self.counts[key] = _AttemptCount(now + WINDOW_S)
        return count


class Throttle:
    def __init__(self, bus: Bus, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._here = _LocalThrottle(clock)

    async def admit(self, username: str, address: str) -> None:
        """Count one attempt; TooManySignIns when there were too many."""
        both, alone = _keys(username, address)
        limits = {both: OF_ONE_NAME, alone: OF_ONE_ADDRESS}
        try:
            ((wait_ms, is_news),) = await self._bus.ask(
                ("EVAL", ADMIT, len(limits), *limits, *limits.values(), WINDOW_S * 1000),
            )
            wait_s = wait_ms / 1000
        except Unavailable:
            wait_s, is_news = self._here.admit(limits)
        if wait_s > 0:
            raise TooManySignIns(wait_s, is_news=bool(is_news))

    async def forgive(self, username: str, address: str) -> None:
        """The attempt has succeeded."""
        both, alone = _keys(username, address)
        self._here.forgive(both, alone)
        try:
            await self._bus.ask(("EVAL", FORGIVE, 2, both, alone))
        except Unavailable:
            return


def _keys(username: str, address: str) -> tuple[str, str]:
    here = address_group(address)
    return f"torpor:sign_in:both:{_short(username, here)}", f"torpor:sign_in:address:{_short(here)}"


def _short(*parts: str) -> str:
    """A digest, because users sometimes type their password as the name, and other clients can read the bus."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def address_group(address: str) -> str:
    """One IPv6 client usually has a whole /64, so its addresses count together."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
