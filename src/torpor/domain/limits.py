"""May one more workspace run?

Counted is every workspace with the wish RUNNING or a container present, in the transaction that accepts the wish.
"""

from dataclasses import dataclass

from torpor.domain.errors import Refused


@dataclass(frozen=True, slots=True)
class RunningLimits:
    per_user: int = 2
    overall: int = 100

    def of_user(self, said: int | None) -> int:
        """How many one user may have running, where that much was said for them in particular, or nothing."""
        return self.per_user if said is None else said


@dataclass(frozen=True, slots=True)
class RunningCounts:
    """Others than the one that asks."""

    of_user: int
    """Of the workspace's owner, whoever asks."""
    overall: int
    allowed_of_user: int | None = None
    """What was said for this owner in particular; None: as the limits say for everybody."""


RETRY_AFTER_S = 30


def admit(running: RunningCounts, limits: RunningLimits) -> None:
    """Returns when there is room; Refused `limit_reached` when there is none."""
    per_user = limits.of_user(running.allowed_of_user)
    if running.of_user >= per_user:
        raise Refused(
            "limit_reached",
            f"{running.of_user} workspaces of the same owner are running or about to, and {per_user} are allowed;"
            " stop one first",
            limit="max_running_per_user",
            allowed=per_user,
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
