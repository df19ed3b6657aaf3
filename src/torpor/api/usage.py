"""Report the recent CPU, memory and disk use of a workspace."""

from collections.abc import Sequence
from datetime import UTC, datetime

from fastapi import APIRouter
from pydantic import Field

from torpor.api.authentication import Asking
from torpor.api.wire import Wire
from torpor.domain.records import Workspace
from torpor.domain.usage import UsageSample, usage_points
from torpor.ports import UsageSeries
from torpor.service.wishes import Wishes


class UsagePointOut(Wire):
    at: datetime
    cpu_cores: float = Field(description="The average number of cores in use since the point before.")
    memory_bytes: int = Field(description="The memory of all processes of the workspace, without droppable file pages.")


class DiskPointOut(Wire):
    at: datetime
    disk_bytes: int = Field(description="The disk use of the home.")


class UsageOut(Wire):
    points: list[UsagePointOut] = Field(
        description="CPU and memory while the workspace was running, oldest first: at most 120 points, one every 15 s."
    )
    disk: list[DiskPointOut] = Field(description="The measurements of the disk use, oldest first.")


def usage_routes(wishes: Wishes, series: UsageSeries) -> APIRouter:
    router = APIRouter(tags=["workspaces"])

    @router.get("/workspaces/{workspace}/usage")
    async def usage(workspace: str, caller: Asking) -> UsageOut:
        """The recent CPU, memory and disk use. It is kept for a short time and may be lost."""
        found = await wishes.find(caller, workspace)
        return usage_out(found, await series.samples(found.id), await series.disk_samples(found.id))

    return router


def usage_out(workspace: Workspace, samples: Sequence[UsageSample], disk: Sequence[tuple[float, int]]) -> UsageOut:
    measured = [DiskPointOut(at=_at(at_s), disk_bytes=disk_bytes) for at_s, disk_bytes in disk]
    # The last measurement is also in the database, so that one point is left when the series is lost.
    if not measured and (stored := workspace.disk_use) is not None:
        measured = [DiskPointOut(at=stored.measured_at, disk_bytes=stored.size_bytes)]
    return UsageOut(
        points=[
            UsagePointOut(at=_at(one.at_s), cpu_cores=round(one.cpu_cores, 4), memory_bytes=one.memory_bytes)
            for one in usage_points(samples)
        ],
        disk=measured,
    )


def _at(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
