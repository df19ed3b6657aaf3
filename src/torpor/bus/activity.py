"""Store which workspaces are in use, and since when this record is complete.

    ws_conn:{id}      sorted set: each connection and the millisecond at which its lease expires; removed with its last lease
    idle_timer:{id}   exists while the timer runs
    ws_busy:{id}      what its processes are busy with, as text; expires when its controller has not renewed it for a lease
    torpor:memory     since when this run of the server has complete data: the millisecond, the run's id, and how many
                      keys it had evicted by then because memory was short

All times come from the server's clock, inside a script, so that the clocks of the clients need not agree.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from torpor.bus.redis import Bus, Command
from torpor.ports import ClosedConnection, Use

One = TypeVar("One")

MEMORY = "torpor:memory"
AT_ONCE = 1000
"""How many workspaces one script handles: Redis serves no other client meanwhile."""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# Renew the leases. ARGV: milliseconds, then for each key the number of connections, followed by the connections.
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

# End leases; the timer of a workspace starts when its last lease has ended. For each connection two keys, and in ARGV the
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

# For each workspace three keys. Returns how many leases are valid, how many milliseconds the timer has left (negative: none),
# and what the workspace is busy with.
USES = f"""{NOW}
local uses = {{}}
for at = 1, #KEYS, 3 do
    table.insert(uses, redis.call('ZCOUNT', KEYS[at], string.format('(%d', now), '+inf'))
    table.insert(uses, redis.call('PTTL', KEYS[at + 1]))
    table.insert(uses, redis.call('GET', KEYS[at + 2]) or '')
end
return uses
"""

# For how many milliseconds the data is complete. A server that was restarted, or another that took over, has missed the
# renewals in between, so its leases do not show who is connected: the count starts again. It also starts again when keys were
# evicted because memory was short, since it is unknown which ones.
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
    """Sends the source each time: it is short, and a restarted server does not have it."""
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
