"""Who controls this database, and what happens when it is lost?

Whoever holds the session lock leads, under an epoch of its own. A lost connection gives up leadership at once, and it comes
back by itself.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from torpor.control.controller import Controller, Deposed
from torpor.domain.errors import Refused, Unavailable
from torpor.store.leader import Leadership

log = structlog.get_logger()


class Coordinator:
    def __init__(
        self,
        *,
        url: str,
        lock_id: int,
        retry_s: float,
        node_id: str,
        make_controller: Callable[[int], Controller],
    ) -> None:
        self.node_id = node_id
        self.epoch: int | None = None
        self.controller: Controller | None = None
        self._url = url
        self._lock_id = lock_id
        self._retry_s = retry_s
        self._make_controller = make_controller
        self._led_since = time.monotonic()
        self._leadership: Leadership | None = None

    @property
    def is_leader(self) -> bool:
        return self.controller is not None

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._led_since if self.is_leader else 0.0

    def hint(self, *workspace_ids: str) -> None:
        if self.controller is not None:
            self.controller.hint(*workspace_ids)

    async def claim(self, *, within_s: float) -> None:
        """Lead before anything else is begun; Refused when somebody else goes on leading."""
        until = time.monotonic() + within_s
        while self._leadership is None:
            self._leadership = await Leadership.take(self._url, lock_id=self._lock_id)
            if self._leadership is None and time.monotonic() > until:
                raise Refused("already_controlled", "another Torpor controls this database; stop it first")
            if self._leadership is None:
                await asyncio.sleep(0.2)

    async def run(self) -> None:
        """Until cancelled: lead whenever the lock can be had."""
        while True:
            try:
                leadership = self._leadership or await Leadership.take(self._url, lock_id=self._lock_id)
                self._leadership = None
                if leadership is not None:
                    await self._lead(leadership)
            except (Unavailable, Deposed) as error:
                log.warning("leadership_lost", why=error.message)
            except Exception:
                log.exception("leadership_broke")
            await asyncio.sleep(self._retry_s)

    async def _lead(self, leadership: Leadership) -> None:
        lost = asyncio.create_task(leadership.lost.wait())
        try:
            self.epoch = await leadership.take_epoch(self.node_id)
            self.controller = self._make_controller(self.epoch)
            self._led_since = time.monotonic()
            log.info("leading", node=self.node_id, epoch=self.epoch)
            looping = asyncio.create_task(self.controller.run())
            try:
                await asyncio.wait((lost, looping), return_when=asyncio.FIRST_COMPLETED)
                if looping.done():
                    looping.result()
                raise Unavailable("the connection that holds the lock was lost")
            finally:
                looping.cancel()
                await asyncio.gather(looping, return_exceptions=True)
        finally:
            self.controller = None
            lost.cancel()
            await leadership.give_up()
