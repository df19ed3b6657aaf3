"""Keep logs in memory, for tests of runtimes without a database."""


class LogsInMemory:
    def __init__(self) -> None:
        self._lines: dict[str, bytes] = {}

    async def keep(self, workspace_id: str, lines: bytes) -> None:
        self._lines[workspace_id] = lines

    async def read(self, workspace_id: str) -> bytes:
        return self._lines.get(workspace_id, b"")
