"""Reach workspaces through a runtime in this process."""

from collections.abc import AsyncIterator, Sequence

from torpor.domain.records import Workspace
from torpor.ports import Address, ExecResult, RunningCommand, Runtime, Shell, TerminalSize


class LocalAccess:
    """Implements `torpor.ports.WorkspaceAccess`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def address(self, workspace: Workspace, port: int | None = None) -> Address | None:
        return self._runtime.address(workspace.id, port)

    async def execute(self, workspace: Workspace, command: Sequence[str], stdin: bytes) -> ExecResult:
        return await self._runtime.execute(workspace.id, command, stdin)

    async def start_command(
        self, workspace: Workspace, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand:
        return await self._runtime.start_command(workspace.id, command, terminal=terminal)

    async def shell(self, workspace: Workspace, *, columns: int, rows: int) -> Shell:
        return await self._runtime.shell(workspace.id, columns=columns, rows=rows)

    def logs(self, workspace: Workspace, *, tail: int) -> AsyncIterator[bytes]:
        return self._runtime.logs(workspace.id, tail=tail)
