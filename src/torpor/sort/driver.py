"""Run a state machine: take events, save the new value, then carry out its commands.

One thread takes the events one by one. A command is carried out only after the value that led to it is saved. What a handler
returns is the next event, and what it raises becomes an event. Other threads can `ask`: they learn that their event is in the
journal, or why it was refused.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from torpor.sort.clock import now
from torpor.sort.debug_breakpoints import BreakpointStop, Moment
from torpor.sort.errors import SortError, SortFailed


class HasState(Protocol):
    @property
    def state(self) -> str: ...


Value = TypeVar("Value", bound=HasState)
Event = TypeVar("Event")
Command = TypeVar("Command")

Step = Callable[[Value, Event, float], tuple[Value, tuple[Command, ...]]]


class Driver(Generic[Value, Event, Command]):
    def __init__(
        self,
        value: Value,
        *,
        step: Step[Value, Event, Command],
        save: Callable[[Value], None],
        broke: Callable[[Exception], Event | None],
        log: Callable[[str], None],
        entered: Callable[[], None] = lambda: None,
        holding: BreakpointStop,
    ) -> None:
        self.value = value
        """The machine as it was saved last. It is immutable, so reading it needs no lock."""
        self.handlers: Mapping[type[Any], Callable[[Any], None]] = {}
        """The function that carries out each kind of command. A handler that takes long starts a thread."""
        self.holding = holding
        self.broke = broke
        self._step, self._save, self._log, self._entered = step, save, log, entered
        self._events: queue.SimpleQueue[tuple[Event, Future[Value]] | None] = queue.SimpleQueue()
        self._exit_code: int | None = None
        self._working: set[threading.Thread] = set()

    def tell(self, event: Event) -> None:
        self._events.put((event, Future()))

    def ask(self, event: Event, timeout_s: float) -> Value:
        """Wait until the event is taken and saved. Raises the error with which the machine refuses it."""
        answer: Future[Value] = Future()
        self._events.put((event, answer))
        return answer.result(timeout_s)

    def begin(self, work: Callable[[], Event | None], *, then: Callable[[], None] = lambda: None) -> None:
        """Do the work in a thread of its own, then call `then`, then take the event that the work returned."""

        def whole() -> None:
            try:
                event = work()
                then()
            except Exception as error:
                event = self.broke(error)
            finally:
                self._working.discard(threading.current_thread())
            if event is not None:
                self.tell(event)

        thread = threading.Thread(target=whole, daemon=True)
        self._working.add(thread)
        thread.start()

    def wait_for_handlers(self, timeout_s: float) -> None:
        """Wait until no handler runs, so that none writes a file that is being removed."""
        end = time.monotonic() + timeout_s
        for thread in tuple(self._working):
            thread.join(max(0.0, end - time.monotonic()))

    def finish(self, exit_code: int) -> None:
        if self._exit_code is None:
            self._exit_code = exit_code
        self._events.put(None)

    def save_first(self) -> None:
        """Save the value that the machine begins with."""
        self._keep(self.value, entered=True)

    def record(self, event: Event) -> None:
        """Save the effect of an event that happened while no process could act on it."""
        value, _ = self._step(self.value, event, now())
        self._keep(value, entered=True)

    def run(self) -> int:
        while self._exit_code is None:
            taken = self._events.get()
            if taken is None:
                continue
            event, answer = taken
            try:
                self._take(event)
            except SortError as error:
                self._log(f"{self.value.state}: {error.message}")
                answer.set_exception(error)
            else:
                answer.set_result(self.value)
        return self._exit_code

    def _take(self, event: Event) -> None:
        before = self.value
        value, commands = self._step(before, event, now())
        entered = value.state != before.state
        if value is not before:
            try:
                self._keep(value, entered=entered)
            except SortFailed as error:
                commands = self._cannot_save(before, error)
                entered = True
        if entered:
            self._entered()
        for command in commands:
            self.handlers[type(command)](command)

    def _keep(self, value: Value, *, entered: bool) -> None:
        if entered:
            self._log(f"-> {value.state}")
            self.holding.at(value.state, Moment.BEFORE_SAVE)
        self._save(value)
        self.value = value
        if entered:
            self.holding.at(value.state, Moment.AFTER_SAVE)

    def _cannot_save(self, before: Value, error: SortFailed) -> tuple[Command, ...]:
        """Fail the machine, because a step that is not saved must not be carried out. The failure is saved if possible."""
        event = self.broke(error)
        assert event is not None
        self.value, commands = self._step(before, event, now())
        if not commands:
            # The machine has failed already, and a step that it cannot save must not be carried out.
            self._log(error.message)
            self.finish(1)
            return ()
        try:
            self._save(self.value)
        except SortFailed as again:
            self._log(again.message)
        return commands
