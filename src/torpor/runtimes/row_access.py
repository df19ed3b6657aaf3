"""Reach the agents of workspaces by the rows that the controllers write, without access to the engine."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache

import structlog

from torpor.domain.errors import Refused
from torpor.domain.records import ContainerLocation, Workspace
from torpor.inside.proof import channel, container_key, key_id
from torpor.ports import Address, ExecResult, KeptLogs, RunningCommand, Shell, TerminalSize
from torpor.runtimes import agent_client

log = structlog.get_logger()

ADDRESSES_KNOWN = 20_000
LOG_S = 10.0


def agent_address(installation_key: bytes, location: ContainerLocation, channel_name: str) -> Address:
    key = container_key(installation_key, location.nonce)
    return Address(host=location.host, port=location.port, preamble=channel(channel_name), key=key)


class RowAccess:
    """Implements `torpor.ports.WorkspaceAccess`. The installation's key must be the one of the controllers."""

    def __init__(self, installation_key: bytes, kept_logs: KeptLogs) -> None:
        self._key = installation_key
        self._key_id = key_id(installation_key)
        self._kept_logs = kept_logs
        self._address_at = lru_cache(ADDRESSES_KNOWN)(self._make_address)

    def address(self, workspace: Workspace, port: int | None = None) -> Address | None:
        return self._address(workspace, "program" if port is None else str(port))

    async def execute(self, workspace: Workspace, command: Sequence[str], stdin: bytes) -> ExecResult:
        return await agent_client.execute(self._control(workspace), command, stdin)

    async def start_command(
        self, workspace: Workspace, command: Sequence[str], *, terminal: TerminalSize | None = None
    ) -> RunningCommand:
        return await agent_client.start_command(self._control(workspace), command, terminal=terminal)

    async def shell(self, workspace: Workspace, *, columns: int, rows: int) -> Shell:
        return await agent_client.shell(self._control(workspace), columns=columns, rows=rows)

    async def logs(self, workspace: Workspace, *, tail: int) -> AsyncIterator[bytes]:
        for line in (await self._log(workspace, tail)).splitlines(keepends=True)[-tail:] if tail > 0 else ():
            yield line

    async def _log(self, workspace: Workspace, tail: int) -> bytes:
        if (control := self._address(workspace, "control")) is not None:
            try:
                return await agent_client.log(control, tail, LOG_S)
            except (OSError, asyncio.IncompleteReadError):
                log.info("agent_out", workspace=workspace.id)  # the container has just ended
        return await self._kept_logs.read(workspace.id)

    def _control(self, workspace: Workspace) -> Address:
        if (address := self._address(workspace, "control")) is None:
            raise Refused("not_running", f"workspace {workspace.name} has no running container")
        return address

    def _address(self, workspace: Workspace, channel_name: str) -> Address | None:
        return self._address_at(workspace.location, channel_name) if workspace.location is not None else None

    def _make_address(self, location: ContainerLocation, channel_name: str) -> Address | None:
        if location.key_id != self._key_id:
            log.error("another_secret_key", ours=self._key_id, of_the_controllers=location.key_id, setting="secret_key_file")
            return None
        return agent_address(self._key, location, channel_name)
