"""Know which containers run, and serve the verbs of a runtime that only their agents are needed for."""

import asyncio
from collections.abc import Mapping, Sequence

from torpor.domain.busy import Work
from torpor.domain.errors import Refused
from torpor.domain.usage import Usage
from torpor.ports import Address, ExecResult, RunningCommand, Shell, TerminalSize, WorkspaceFilter
from torpor.runtimes import agent_client
from torpor.runtimes.running_container import RunningContainer


class RunningContainers:
    """By workspace, as they were last observed. The verbs are those of `torpor.ports.Runtime`."""

    def __init__(self, probe_s: float) -> None:
        self._probe_s = probe_s
        self._running: dict[str, RunningContainer] = {}

    def get(self, workspace_id: str) -> RunningContainer | None:
        return self._running.get(workspace_id)

    def add(self, running: RunningContainer) -> None:
        self._running[running.workspace_id] = running

    def remove(self, workspace_id: str) -> None:
        self._running.pop(workspace_id, None)

    def observed(self, found: Mapping[str, RunningContainer | None], only: frozenset[str] | None) -> None:
        """All containers, or those of these workspaces; None: one that does not run."""
        for workspace_id in [one for one in self._running if only is None or one in only]:
            if found.get(workspace_id) is None:
                del self._running[workspace_id]
        self._running.update((name, running) for name, running in found.items() if running is not None)

    def address(self, workspace_id: str, port: int | None) -> Address | None:
        running = self._running.get(workspace_id)
        return running.address("program" if port is None else str(port)) if running is not None else None

    async def execute(self, workspace_id: str, command: Sequence[str], stdin: bytes) -> ExecResult:
        return await agent_client.execute(self._control(workspace_id), command, stdin)

    async def start_command(
        self, workspace_id: str, command: Sequence[str], *, terminal: TerminalSize | None
    ) -> RunningCommand:
        return await agent_client.start_command(self._control(workspace_id), command, terminal=terminal)

    async def shell(self, workspace_id: str, *, columns: int, rows: int) -> Shell:
        return await agent_client.shell(self._control(workspace_id), columns=columns, rows=rows)

    async def append_log(self, workspace_id: str, lines: bytes) -> None:
        if (running := self._running.get(workspace_id)) is not None:
            await running.append_log(lines)

    async def measured(self, concerns: WorkspaceFilter) -> dict[str, tuple[Work, Usage]]:
        running = {workspace_id: one for workspace_id, one in self._running.items() if concerns(workspace_id)}
        found = await asyncio.gather(*(one.measure(self._probe_s) for one in running.values()))
        return {workspace_id: measured for workspace_id, measured in zip(running, found, strict=True) if measured is not None}

    def _control(self, workspace_id: str) -> Address:
        if (running := self._running.get(workspace_id)) is None:
            raise Refused("not_running", f"workspace {workspace_id} has no running container")
        return running.control
