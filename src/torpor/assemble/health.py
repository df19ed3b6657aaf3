"""Report whether this process is ready, and which controllers there are."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from torpor.api.app import Health
from torpor.bus.redis import Bus
from torpor.control.coordinator import Coordinator
from torpor.domain.disk import Disk, shortage
from torpor.domain.errors import TorporError
from torpor.loops import loop_statuses
from torpor.ports import Archives, Runtime
from torpor.settings import Settings
from torpor.store.controller_members import Member, members
from torpor.store.database import Database
from torpor.store.service_store import ServiceStore

Answer = TypeVar("Answer")

# A full resync that is older than this many intervals is stale.
STALE_RESYNC_FACTOR = 3
ANSWERS_WITHIN_S = 3.0


def health(
    settings: Settings,
    database: Database,
    runtime: Runtime | None,
    archives: Archives,
    bus: Bus,
    coordinator_of: Callable[[], Coordinator | None],
) -> Health:
    """`coordinator_of`: of this process, if it has the role controller and its engine has answered."""
    service, began = ServiceStore(database), time.monotonic()

    async def ready() -> dict[str, Any]:
        held_back, living, has_bus, has_archives, has_runtime, disk = await asyncio.gather(
            _answer(_held_back(service)),
            _answer(members(database)),
            _answer(bus.reachable()),
            _answer(archives.reachable()),
            _answer(_has_runtime(runtime)),
            _answer(_disk(runtime)),
        )
        leader = next((one.node_id for one in living or () if one.is_leader), None)
        report: dict[str, Any] = {
            "database": held_back is not None,
            "bus": bool(has_bus),
            "archive_store": bool(has_archives),
            # A process without a controller uses no runtime, and lacks none.
            "runtime": bool(has_runtime),
            "leader": leader,
            "held_back": held_back or [],
            # It affects no running workspace, so it is reported but does not make this process unready.
            "disk_low": shortage(disk, settings.disk_reserve_bytes),
            "stalled_loops": sorted(name for name, loop in loop_statuses().items() if loop.is_stalled),
            "loops": _loops_out(),
        }
        is_fresh, is_led, coordinator = True, leader is not None, coordinator_of()
        if coordinator is not None:
            # The row may still name this process after its duties have ended.
            is_led = is_led and (leader != coordinator.node_id or coordinator.is_leader)
            age_s = coordinator.last_look_age_s
            is_fresh = age_s is not None and age_s < STALE_RESYNC_FACTOR * settings.reconciler_interval
            report["last_look_age_seconds"] = round(age_s, 3) if age_s is not None else None
        has_services = held_back == [] and report["bus"] and report["archive_store"] and report["runtime"]
        return {"ready": has_services and is_led and is_fresh and not report["stalled_loops"], **report}

    async def lead() -> dict[str, Any]:
        living, coordinator = await members(database), coordinator_of()
        return {
            "is_leader": coordinator.is_leader if coordinator else False,
            "node_id": coordinator.node_id if coordinator else None,
            "uptime_seconds": round(coordinator.uptime_s if coordinator else time.monotonic() - began, 1),
            "epoch": coordinator.life if coordinator else None,
            "term": coordinator.term if coordinator else None,
            "members": [_member_out(one) for one in living],
            "loops": _loops_out(),
        }

    return Health(ready=ready, coordinator=lead)


async def until_ready(checks: Health, within_s: float) -> None:
    """Wait until everything is ready, at most `within_s`; then print what is not. The checks keep reporting it."""
    until = time.monotonic() + within_s
    while not (report := await checks.ready())["ready"]:
        if time.monotonic() >= until:
            print(f"torpor: started, but not ready yet: {json.dumps(report)}", file=sys.stderr, flush=True)
            return
        await asyncio.sleep(0.05)


async def _held_back(service: ServiceStore) -> list[str]:
    return [latch.provider for latch in await service.latches() if latch.released_at is None]


async def _has_runtime(runtime: Runtime | None) -> bool:
    return runtime is None or bool(await runtime.world())


async def _disk(runtime: Runtime | None) -> Disk | None:
    return await runtime.disk() if runtime is not None else None


def _loops_out() -> dict[str, Any]:
    return {
        name: {
            "last_turn_age_seconds": round(loop.last_turn_age_s, 1),
            "restarts": loop.restarts,
            "failures_in_a_row": loop.failures,
        }
        for name, loop in sorted(loop_statuses().items())
    }


def _member_out(member: Member) -> dict[str, Any]:
    return {
        "node_id": member.node_id,
        "epoch": member.epoch,
        "is_leader": member.is_leader,
        "started_at": member.started_at.isoformat(),
        "expires_at": member.expires_at.isoformat(),
    }


async def _answer(question: Awaitable[Answer]) -> Answer | None:
    """The answer, or None when it fails or takes too long."""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            return await question
    except (TorporError, TimeoutError):
        return None
