"""Who is being used just now, and since when has nothing of that been forgotten?

    ws_conn:{id}      sorted set: a connection and the millisecond at which its lease runs out; gone with its last lease
    idle_timer:{id}   there while the timer runs
    ws_busy:{id}      what its processes are busy with, in words; gone when its controller has not said so for a lease
    torpor:memory     since when this run of the server has known everything: the millisecond, the run's id, and how many
                      keys it had thrown out by then for want of memory

Every instant is told by the server's own clock, inside a script, so that the clocks of those who ask need not agree.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from torpor.bus.redis import Bus, Command
from torpor.ports import ClosedConnection, Use

One = TypeVar("One")

MEMORY = "torpor:memory"
AT_ONCE = 1000
"""How many workspaces one script looks at: nobody else is served meanwhile."""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# Every connection has a lease from now on. ARGV: milliseconds, then for each key how many connections, and those.
RENEW = f"""{NOW}
local at = 2
for _, key in ipairs(KEYS) do
    local last = at + ARGV[at]
    for connection = at + 1, last do
        redis.call('ZADD', key, now + ARGV[1], ARGV[connection])
    end
    at = last + 1
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    redis.call('PEXPIREAT', key, redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
end
"""

# Connections have no lease any more; where nobody else has one the timer starts. For each a pair of keys, and in ARGV the
# connection and the milliseconds.
RELEASE = f"""{NOW}
for at = 1, #KEYS, 2 do
    redis.call('ZREM', KEYS[at], ARGV[at])
    redis.call('ZREMRANGEBYSCORE', KEYS[at], '-inf', now)
    if redis.call('EXISTS', KEYS[at]) == 0 then
        redis.call('SET', KEYS[at + 1], '', 'PX', ARGV[at + 1])
    end
end
"""

# For each three keys: how many leases have not run out, how many milliseconds the timer has left (negative: none), and what it
# is busy with.
USES = f"""{NOW}
local uses = {{}}
for at = 1, #KEYS, 3 do
    table.insert(uses, redis.call('ZCOUNT', KEYS[at], string.format('(%d', now), '+inf'))
    table.insert(uses, redis.call('PTTL', KEYS[at + 1]))
    table.insert(uses, redis.call('GET', KEYS[at + 2]) or '')
end
return uses
"""

# For how many milliseconds nothing was forgotten. A server that was restarted, or another that took over, has at least
# not heard the renewals in between, so its leases say nothing about who is connected: the count begins anew. So it does when
# keys were thrown out for want of memory, because nobody can tell which.
REMEMBERS = f"""{NOW}
local function told(section, pattern)
    local about = redis.pcall('INFO', section)
    return type(about) == 'string' and string.match(about, pattern) or ''
end
local run = told('server', 'run_id:(%x+)') .. ' ' .. told('stats', 'evicted_keys:(%d+)')
local since, since_run = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%x* %d*)$')
if since and since_run == run then
    return math.max(0, now - since)
end
redis.call('SET', KEYS[1], string.format('%d %s', now, run))
return 0
"""


def connections_key(workspace_id: str) -> str:
    return f"ws_conn:{workspace_id}"


def timer_key(workspace_id: str) -> str:
    return f"idle_timer:{workspace_id}"


def busy_key(workspace_id: str) -> str:
    return f"ws_busy:{workspace_id}"


def milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def parts(ones: Sequence[One]) -> Iterator[Sequence[One]]:
    return (ones[at : at + AT_ONCE] for at in range(0, len(ones), AT_ONCE))


def script(source: str, keys: Sequence[str], *arguments: str | int) -> Command:
    """With its source each time: it is short, and a server that was restarted has never seen it."""
    return ("EVAL", source, len(keys), *keys, *arguments)


class RedisActivity:
    """Implements ports.Activity."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def renew(self, leases: Mapping[str, frozenset[str]], *, lease_s: float) -> None:
        commands = []
        for part in parts([workspace_id for workspace_id, connections in leases.items() if connections]):
            arguments: list[str | int] = [milliseconds(lease_s)]
            for workspace_id in part:
                arguments += [len(leases[workspace_id]), *leases[workspace_id]]
            commands.append(script(RENEW, [connections_key(workspace_id) for workspace_id in part], *arguments))
        if commands:
            await self._bus.ask(*commands)

    async def release(self, closed: Sequence[ClosedConnection]) -> None:
        commands = [
            script(
                RELEASE,
                [key for one in part for key in (connections_key(one.workspace_id), timer_key(one.workspace_id))],
                *(argument for one in part for argument in (one.connection, milliseconds(one.idle_s))),
            )
            for part in parts(closed)
        ]
        if commands:
            await self._bus.ask(*commands)

    async def touch(self, idle_s: Mapping[str, float]) -> None:
        if idle_s:
            await self._bus.ask(
                *(("SET", timer_key(workspace_id), "", "PX", milliseconds(left_s)) for workspace_id, left_s in idle_s.items())
            )

    async def busy(self, with_what: Mapping[str, str], *, lease_s: float) -> None:
        if with_what:
            await self._bus.ask(
                *(("SET", busy_key(one), words, "PX", milliseconds(lease_s)) for one, words in with_what.items())
            )

    async def uses(self, workspace_ids: Sequence[str]) -> Mapping[str, Use]:
        commands = [
            script(USES, [key for one in part for key in (connections_key(one), timer_key(one), busy_key(one))])
            for part in parts(workspace_ids)
        ]
        answers = await self._bus.ask(*commands) if commands else []
        found = iter([one for answer in answers for one in answer])
        return {
            workspace_id: Use(connections, left_ms / 1000 if left_ms >= 0 else None, busy.decode(errors="replace"))
            for workspace_id, connections, left_ms, busy in zip(workspace_ids, found, found, found, strict=True)
        }

    async def memory_s(self) -> float:
        (milliseconds_known,) = await self._bus.ask(script(REMEMBERS, [MEMORY]))
        return float(milliseconds_known) / 1000
