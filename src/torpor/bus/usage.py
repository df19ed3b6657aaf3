"""Keep the CPU, memory and disk use of workspaces for a short time.

    ws_usage:{id}   list: "millisecond cpu_ms memory_bytes" for each sample, oldest first
    ws_disk:{id}    list: "millisecond disk_bytes" for each measurement, oldest first

The lists have a maximum length and expire. They are for plots only, so a lost list is no error. The server's clock gives the
time, as in `activity`.
"""

from collections.abc import Mapping

from torpor.bus.activity import NOW, parts, script
from torpor.bus.redis import Bus
from torpor.domain.usage import Usage, UsageSample

MOST_SAMPLES = 120
USAGE_S = 3600
MOST_DISK_SAMPLES = 100
DISK_S = 7 * 86_400

# ARGV: the maximum length, the seconds until the lists expire, then one value for each key.
APPEND = f"""{NOW}
for at, key in ipairs(KEYS) do
    redis.call('RPUSH', key, string.format('%d ', now) .. ARGV[at + 2])
    redis.call('LTRIM', key, -ARGV[1], -1)
    redis.call('EXPIRE', key, ARGV[2])
end
"""


def usage_key(workspace_id: str) -> str:
    return f"ws_usage:{workspace_id}"


def disk_key(workspace_id: str) -> str:
    return f"ws_disk:{workspace_id}"


class RedisUsageSeries:
    """Implements ports.UsageSeries."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def append(self, usages: Mapping[str, Usage]) -> None:
        commands = [
            script(
                APPEND,
                [usage_key(one) for one in part],
                *(MOST_SAMPLES, USAGE_S),
                *(f"{round(usages[one].cpu_s * 1000)} {usages[one].memory_bytes}" for one in part),
            )
            for part in parts(list(usages))
        ]
        if commands:
            await self._bus.ask(*commands)

    async def append_disk(self, workspace_id: str, disk_bytes: int) -> None:
        await self._bus.ask(script(APPEND, [disk_key(workspace_id)], MOST_DISK_SAMPLES, DISK_S, disk_bytes))

    async def samples(self, workspace_id: str) -> tuple[UsageSample, ...]:
        return tuple(
            UsageSample(at_ms / 1000, Usage(cpu_ms / 1000, memory_bytes))
            for at_ms, cpu_ms, memory_bytes in await self._read(usage_key(workspace_id))
        )

    async def disk_samples(self, workspace_id: str) -> tuple[tuple[float, int], ...]:
        return tuple((at_ms / 1000, disk_bytes) for at_ms, disk_bytes in await self._read(disk_key(workspace_id)))

    async def _read(self, key: str) -> list[list[int]]:
        (lines,) = await self._bus.ask(("LRANGE", key, 0, -1))
        return [[int(number) for number in line.split()] for line in lines]
