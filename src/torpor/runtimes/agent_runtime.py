"""The verbs of a runtime that agents inside of containers carry out: the same on every engine."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence

from torpor.domain.busy import Work
from torpor.domain.usage import Usage
from torpor.ports import (
    Address,
    ExecResult,
    KeptLogs,
    RunningCommand,
    Shell,
    TerminalSize,
    WorkspaceFilter,
    any_workspace,
)
from torpor.runtimes.running_containers import RunningContainers


class AgentRuntime(ABC):
    """A part of `torpor.ports.Runtime`. A runtime adds how containers are found, started and stopped."""

    def __init__(self, probe_s: float, kept_logs: KeptLogs) -> None:
        self._running = RunningContainers(probe_s)
        self._kept_logs = kept_logs

    @abstractmethod
    async def _container_log(self, workspace_id: str, tail: int) -> bytes | None:
        """The last lines of the workspace's container, which may have ended; None if there is none."""

    def address(self, workspace_id: str, port: int | None = None) -> Address | None:
        return self._running.address(workspace_id, port)

    async def execute(self, workspace_id: str, command: Sequence[str], stdin: bytes) -> ExecResult:
        return await self._running.execute(workspace_id, command, stdin)

    async def start_command(
        self, workspace_id: str, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand:
        return await self._running.start_command(workspace_id, command, terminal=terminal)

    async def shell(self, workspace_id: str, *, columns: int, rows: int) -> Shell:
        return await self._running.shell(workspace_id, columns=columns, rows=rows)

    async def logs(self, workspace_id: str, *, tail: int) -> AsyncIterator[bytes]:
        said = await self._container_log(workspace_id, tail)
        if said is None:
            said = await self._kept_logs.read(workspace_id)
        for line in said.splitlines(keepends=True)[-tail:] if tail > 0 else ():
            yield line

    async def append_log(self, workspace_id: str, lines: bytes) -> None:
        await self._running.append_log(workspace_id, lines)

    async def work(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Work]:
        return {workspace_id: work for workspace_id, (work, _) in (await self._running.measured(concerns)).items()}

    async def usage(self, concerns: WorkspaceFilter = any_workspace) -> Mapping[str, Usage]:
        return {workspace_id: usage for workspace_id, (_, usage) in (await self._running.measured(concerns)).items()}
