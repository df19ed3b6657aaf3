"""May one more workspace run?

Counted is every workspace with the wish RUNNING or a container present, in the transaction that accepts the wish.
"""

from dataclasses import dataclass

from torpor.domain.errors import Refused


@dataclass(frozen=True, slots=True)
class RunningLimits:
    per_user: int = 2
    overall: int = 100


@dataclass(frozen=True, slots=True)
class RunningNow:
    """Others than the one that asks."""

    of_user: int
    overall: int


RETRY_AFTER_S = 30


def admit(running: RunningNow, limits: RunningLimits) -> None:
    """Returns when there is room; Refused `limit_reached` when there is none."""
    if running.of_user >= limits.per_user:
        raise Refused(
            "limit_reached",
            f"{running.of_user} of your workspaces are running or about to, and {limits.per_user} are allowed; stop one first",
            limit="max_running_per_user",
            allowed=limits.per_user,
            retry_after_s=RETRY_AFTER_S,
        )
    if running.overall >= limits.overall:
        raise Refused(
            "limit_reached",
            f"{running.overall} workspaces are running here, and {limits.overall} are allowed; try again later",
            limit="max_running_global",
            allowed=limits.overall,
            retry_after_s=RETRY_AFTER_S,
        )
