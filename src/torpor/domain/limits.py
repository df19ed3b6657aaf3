"""Decide whether one more workspace may run.

A workspace counts if its requested state is RUNNING or if its container is present. The transaction that accepts the wish
counts.
"""

from dataclasses import dataclass

from torpor.domain.errors import Refused


@dataclass(frozen=True, slots=True)
class RunningLimits:
    per_user: int
    overall: int

    def of_user(self, said: int | None) -> int:
        """The limit of one user: `said` if the user has an own limit, else the default."""
        return self.per_user if said is None else said


@dataclass(frozen=True, slots=True)
class RunningCounts:
    """Running workspaces, without the one that is to start."""

    of_user: int
    """Of the workspace's owner, also if another user starts it."""
    overall: int
    allowed_of_user: int | None = None
    """The own limit of this owner; None: the default."""


RETRY_AFTER_S = 30


def admit(running: RunningCounts, limits: RunningLimits) -> None:
    """Return if one more may run; else raise Refused `limit_reached`."""
    per_user = limits.of_user(running.allowed_of_user)
    if running.of_user >= per_user:
        raise Refused(
            "limit_reached",
            f"{running.of_user} workspaces of this owner are running or starting, and the limit is {per_user}; stop one first",
            limit="max_running_per_user",
            allowed=per_user,
            retry_after_s=RETRY_AFTER_S,
        )
    if running.overall >= limits.overall:
        raise Refused(
            "limit_reached",
            f"{running.overall} workspaces are running, and the limit of the installation is {limits.overall}; try again later",
            limit="max_running_global",
            allowed=limits.overall,
            retry_after_s=RETRY_AFTER_S,
        )
