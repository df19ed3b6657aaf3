"""Who is being used just now, and since when has nothing of that been forgotten?

    ws_conn:{id}      sorted set: a connection and the millisecond at which its lease runs out; gone with its last lease
    idle_timer:{id}   there while the timer runs
    torpor:memory     since when this run of the server has known everything: the millisecond, and the run's id

Every instant is told by the server's own clock, inside a script, so that the clocks of those who ask need not agree.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from torpor.bus.redis import Bus, Command
from torpor.ports import Use

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

# The connection has no lease any more; when nobody else has one the timer starts. ARGV: connection, milliseconds.
RELEASE = f"""{NOW}
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('SET', KEYS[2], '', 'PX', ARGV[2])
end
"""

# For each pair of keys: how many leases have not run out, and how many milliseconds the timer has left (negative: none).
USES = f"""{NOW}
local uses = {{}}
for at = 1, #KEYS, 2 do
    table.insert(uses, redis.call('ZCOUNT', KEYS[at], string.format('(%d', now), '+inf'))
    table.insert(uses, redis.call('PTTL', KEYS[at + 1]))
end
return uses
"""

# For how many milliseconds nothing was forgotten. A server that was restarted, or another that took over, has at least
# not heard the renewals in between, so its leases say nothing about who is connected: the count begins anew.
REMEMBERS = f"""{NOW}
local about = redis.pcall('INFO', 'server')
local run = type(about) == 'string' and string.match(about, 'run_id:(%x+)') or ''
local since, since_run = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%x*)$')
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


def milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[at : at + AT_ONCE] for at in range(0, len(ids), AT_ONCE))


def script(source: str, keys: Sequence[str], *arguments: str | int) -> Command:
    """With its source each time: it is short, and a server that was restarted has never seen it."""
    return ("EVAL", source, len(keys), *keys, *arguments)


class Activity:
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

    async def release(self, workspace_id: str, connection: str, *, idle_s: float) -> None:
        keys = [connections_key(workspace_id), timer_key(workspace_id)]
        await self._bus.ask(script(RELEASE, keys, connection, milliseconds(idle_s)))

    async def touch(self, idle_s: Mapping[str, float]) -> None:
        if idle_s:
            await self._bus.ask(
                *(("SET", timer_key(workspace_id), "", "PX", milliseconds(left_s)) for workspace_id, left_s in idle_s.items())
            )

    async def uses(self, workspace_ids: Sequence[str]) -> Mapping[str, Use]:
        commands = [
            script(USES, [key for workspace_id in part for key in (connections_key(workspace_id), timer_key(workspace_id))])
            for part in parts(workspace_ids)
        ]
        answers = await self._bus.ask(*commands) if commands else []
        numbers = iter([number for answer in answers for number in answer])
        return {
            workspace_id: Use(connections, left_ms / 1000 if left_ms >= 0 else None)
            for workspace_id, connections, left_ms in zip(workspace_ids, numbers, numbers, strict=True)
        }

    async def memory_s(self) -> float:
        (milliseconds_known,) = await self._bus.ask(script(REMEMBERS, [MEMORY]))
        return float(milliseconds_known) / 1000
