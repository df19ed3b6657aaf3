"""Read the living controllers, and which one leads."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from torpor.domain.unconfined import CONFINED, ControllerConfinement, MissingProtection
from torpor.store.queries import CONTROLLER_STORE


@dataclass(frozen=True, slots=True)
class Member:
    node_id: str
    epoch: int
    """Of this life."""
    started_at: datetime
    expires_at: datetime
    is_leader: bool
    confinement: ControllerConfinement = CONFINED
    sees_runtime: bool = False
    """The runtime answers it."""


async def members(database: Any) -> Sequence[Member]:
    """`database`: any connection or database, in either role."""
    return [_to_member(row) for row in await database.fetch(CONTROLLER_STORE["members"])]


def from_confinement(confinement: ControllerConfinement) -> tuple[list[dict[str, str]], bool, str, str, str]:
    """The columns from `missing` to `disk_warning`."""
    warnings = (confinement.port_warning, confinement.cpu_warning, confinement.disk_warning)
    return [asdict(one) for one in confinement.missing], confinement.is_accepted, *warnings


def _to_member(row: Mapping[str, Any]) -> Member:
    missing = tuple(MissingProtection(one["what"], one["why"], one["remedy"]) for one in row["missing"])
    return Member(
        node_id=row["node_id"],
        epoch=row["epoch"],
        started_at=row["started_at"],
        expires_at=row["expires_at"],
        is_leader=row["is_leader"],
        confinement=ControllerConfinement(
            missing, row["is_accepted"], row["port_warning"], row["cpu_warning"], row["disk_warning"]
        ),
        sees_runtime=row["sees_runtime"],
    )
