"""Decide which runtime has the homes of a database, and when all homes may move to another one.

A move (`torpor switch-runtime`) archives every home where it is. Then a controller of the other runtime joins, and the states
that users requested are requested again.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from torpor.domain.errors import Refused
from torpor.domain.states import Wish

TARGETS = ("process", "docker", "podman", "kubernetes")
"""The runtimes that homes can move to: values of the setting `runtime`."""
NEEDS_HOME = frozenset({Wish.RUNNING, Wish.STANDBY})
"""The states in which a workspace has a home at the runtime."""


@dataclass(frozen=True, slots=True)
class RuntimeSwitch:
    """A move that is in progress."""

    target: str
    """The setting `runtime` after the move."""
    began_at: datetime


@dataclass(frozen=True, slots=True)
class HomeRuntime:
    """The runtime that has the homes of a database."""

    world: str | None
    """Its identity (`torpor.ports.Runtime.world`); None: no controller has joined yet."""
    switch: RuntimeSwitch | None = None


class JoinPermit(StrEnum):
    """How a controller may join."""

    OWNER = "OWNER"
    """Its runtime has the homes."""
    FIRST = "FIRST"
    """Its runtime has the homes from now on."""
    SUCCESSOR = "SUCCESSOR"
    """All homes are archived, to be restored at its runtime. They are not restored before the move is completed."""


def runtime_name(world: str) -> str:
    """The setting `runtime` of a world: the word before the colon."""
    return world.partition(":")[0]


def admit_runtime(known: HomeRuntime, world: str, *, homes_left: int, accepted: str | None) -> JoinPermit:
    """How a controller with this runtime may join; Refused if the homes are elsewhere.

    `homes_left`: the workspaces that are not archived or deleted. `accepted`: the world that the operator accepts although the
    homes at the known one are lost. Without homes, any runtime may have the next ones.
    """
    if known.world == world:
        return JoinPermit.OWNER
    is_free = not homes_left and known.switch is None
    if known.world is None or is_free or accepted == world:
        return JoinPermit.FIRST
    if known.switch is None or known.switch.target != runtime_name(world):
        raise another_runtime(known, world)
    if homes_left:
        raise Refused(
            "homes_not_moved",
            f"{_workspaces(homes_left)} not archived yet, so the homes cannot move from {known.world} to {world}. Start "
            f"Torpor with TORPOR_RUNTIME={runtime_name(known.world)} again; `torpor switch-runtime` shows what is missing, and "
            "`torpor switch-runtime --cancel` ends the move",
        )
    return JoinPermit.SUCCESSOR


def another_runtime(known: HomeRuntime, world: str) -> Refused:
    return Refused(
        "another_runtime",
        f"the homes of this database are at the runtime {known.world}, and this controller uses {world}. Set "
        "TORPOR_RUNTIME (and TORPOR_ENGINE_URL or TORPOR_DATA) as before; or start it as before and move the homes with "
        f"`torpor switch-runtime {runtime_name(world)}`. If the homes that are not archived are lost for good, start once "
        f"with TORPOR_ACCEPT_RUNTIME={world}",
    )


def refuse_while_switching(switch: RuntimeSwitch | None, wish: Wish) -> None:
    """Refused if this state needs a home, and all homes are being archived."""
    if switch is not None and wish in NEEDS_HOME:
        raise Refused(
            "switching_runtime",
            f"all workspaces are being moved to the runtime {switch.target!r}, and none can start until that is done. Your "
            "files are kept; try again later",
            target=switch.target,
        )


def check_target(target: str, known: HomeRuntime) -> None:
    """Refused if a move to this runtime cannot begin. A move to the same runtime is one to another engine."""
    if target not in TARGETS:
        raise Refused("bad_runtime", f"there is no runtime {target!r}; choose one of {', '.join(TARGETS)}", allowed=TARGETS)
    if known.world is None:
        raise Refused("bad_runtime", f"no controller has started yet, so there is nothing to move; set TORPOR_RUNTIME={target}")
    if known.switch is not None and known.switch.target != target:
        raise Refused(
            "switching_runtime",
            f"a move to the runtime {known.switch.target!r} is in progress since {known.switch.began_at:%Y-%m-%d %H:%M} UTC. "
            "Cancel it first with `torpor switch-runtime --cancel`",
            target=known.switch.target,
        )


def _workspaces(count: int) -> str:
    return "1 workspace is" if count == 1 else f"{count} workspaces are"
