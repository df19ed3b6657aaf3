"""The end of a fake command or shell: by itself, when it is closed, or with its container."""

import asyncio
import contextlib
from collections.abc import Callable

from torpor.domain.errors import Refused

CHECK_S = 0.02
"""How often the container is checked: a container of the fake runtime ends without an event."""


class FakeProcess:
    """The base of `FakeCommand` and `FakeShell`."""

    kind = "process"

    def __init__(self, is_running: Callable[[], bool]) -> None:
        self._is_running = is_running
        self._is_closed = False
        self._exit_code: int | None = None
        self._changed = asyncio.Event()

    @property
    def _is_over(self) -> bool:
        return self._exit_code is not None or self._is_closed or not self._is_running()

    async def exit_code(self) -> int:
        while not self._is_over:
            await self._change()
        if self._exit_code is None:
            raise Refused("not_running", f"the {self.kind} ended because the workspace's container ended, or was closed")
        return self._exit_code

    async def close(self) -> None:
        self._is_closed = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                await self._changed.wait()
