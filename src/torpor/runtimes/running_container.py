"""Talk to the agent of a running container."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from torpor.domain.busy import Foreground, Work
from torpor.domain.errors import Code, Failed, Unavailable
from torpor.domain.records import ContainerLocation
from torpor.domain.usage import Usage
from torpor.inside.control_frames import OUTPUT, YES
from torpor.ports import Address
from torpor.runtimes import agent_client
from torpor.runtimes.row_access import agent_address

AGENT_PORT = 7008
ASK_S = 10.0


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A container whose agent can be asked."""

    id: str
    workspace_id: str
    location: ContainerLocation
    template: str
    installation_key: bytes = field(repr=False)

    def address(self, channel_name: str) -> Address:
        return agent_address(self.installation_key, self.location, channel_name)

    @property
    def control(self) -> Address:
        return self.address("control")

    async def has_orders(self, within_s: float = ASK_S) -> bool:
        """OSError if the agent does not answer."""
        kind, _ = await agent_client.ask(self.control, {"do": "state"}, within_s)
        return kind == YES

    async def was_ordered(self) -> bool:
        """Unavailable if the agent does not answer. An agent that does not listen waits for its key, and has no orders."""
        try:
            return await self.has_orders()
        except ConnectionRefusedError:
            return False
        except OSError as error:
            why = str(error) or f"nothing within {ASK_S:g} s"
            raise Unavailable(f"the agent of workspace {self.workspace_id} does not answer: {why}") from error

    async def order(self, orders: Mapping[str, object]) -> None:
        """Send the orders, once."""
        try:
            kind, payload = await agent_client.ask(self.control, orders, ASK_S)
        except OSError as error:
            raise Failed(Code.CONTAINER_START_FAILED, f"the agent took no orders: {error}") from error
        if kind != YES:
            raise Failed(Code.VOLUME_NOT_READY, payload.decode(errors="replace"))

    async def is_ready(self, within_s: float) -> bool:
        return await agent_client.port_answers(self.control, within_s)

    async def becomes_ready(self, within_s: float, waits_s: float) -> bool:
        """Wait until the program's port answers; False if it does not for long."""
        return await agent_client.port_answers(self.control, within_s, waits_s=waits_s)

    async def measure(self, within_s: float) -> tuple[Work, Usage] | None:
        """None if it cannot be measured."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            kind, payload = await agent_client.ask(self.control, {"do": "measure"}, within_s)
            if kind == OUTPUT:
                return _measured(self.template, json.loads(payload))
        return None

    async def log(self, tail: int) -> bytes:
        """OSError if the agent does not answer."""
        return await agent_client.log(self.control, tail, ASK_S)

    async def append_log(self, lines: bytes) -> None:
        text = lines.decode("utf-8", "surrogateescape")
        with contextlib.suppress(OSError):  # the container has just ended
            await agent_client.ask(self.control, {"do": "append_log", "lines": text}, ASK_S)


def _measured(template: str, facts: Mapping[str, object]) -> tuple[Work, Usage]:
    cpu_s, memory_bytes = float(str(facts["cpu_s"])), int(str(facts["memory_bytes"]))
    found = facts["foregrounds"]
    foregrounds = tuple(Foreground(*one) for one in found) if isinstance(found, list) else ()
    return Work(template, cpu_s, foregrounds), Usage(cpu_s, memory_bytes)
