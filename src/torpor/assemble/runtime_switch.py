"""Complete a move to the runtime that has just started, and print the result."""

import sys

import structlog

from torpor.ports import Archives, Runtime
from torpor.service.runtime_switch import SwitchService

log = structlog.get_logger()


async def complete_switch(switch: SwitchService, runtime: Runtime, archives: Archives) -> None:
    """Before the controller runs; no effect if no move to this runtime is in progress."""
    world = await runtime.world()
    result = await switch.complete(world, archives)
    if result is None:
        return
    log.info("runtime_switched", world=world, resumed=result.resumed, cannot_run=[one.workspace for one in result.cannot_run])
    print(
        f"torpor: all workspaces were moved to {world}; {result.resumed} of them are started or restored now", file=sys.stderr
    )
    for one in result.cannot_run:
        print(f"torpor: {one.workspace} of {one.owner} stays archived: {one.why}", file=sys.stderr)
