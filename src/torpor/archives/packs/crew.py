"""Run calls in several child processes of a job: reading and creating small files keeps one interpreter busy.

Children are forked before the job opens the store, which starts threads. A child answers its calls in order, and ends when the
job ends.
"""

import contextlib
import ctypes
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any, NoReturn, Protocol

from torpor.archives.entries import ArchiveMismatch
from torpor.archives.store import ObjectMissing, TransientFailure
from torpor.domain.errors import Code, Failed, TorporError

MOST_PROCESSES = 4
PR_SET_PDEATHSIG = 1

Handlers = Mapping[str, Callable[..., Any]]
Then = Callable[[Any], None]
ERRORS: Mapping[str, type[Failed] | type[ArchiveMismatch]] = {
    kind.__name__: kind for kind in (Failed, TransientFailure, ArchiveMismatch, ObjectMissing)
}


class Crew(Protocol):
    """Members are numbered from 0. `call` never waits; `pump` passes on answers, and raises the error of a call."""

    size: int

    def call(self, member: int, verb: str, *arguments: Any, then: Then | None = None) -> None: ...

    def waiting(self, member: int) -> int:
        """How many calls of this member are not answered yet."""
        ...

    def pump(self, *, wait_for_one: bool) -> None: ...

    def close(self) -> None: ...


def finish_calls(crew: Crew) -> None:
    while any(crew.waiting(member) for member in range(crew.size)):
        crew.pump(wait_for_one=True)


def abandon_calls(crew: Crew) -> None:
    """Wait for the answers of all calls. That the home changes is known already; another error is raised at the end."""
    failed: Exception | None = None
    while any(crew.waiting(member) for member in range(crew.size)):
        try:
            crew.pump(wait_for_one=True)
        except (Failed, ArchiveMismatch) as error:
            if not (isinstance(error, Failed) and error.code is Code.HOME_CHANGED):
                failed = failed or error
    if failed is not None:
        raise failed


class InlineCrew:
    """One member, in this process: for small archives, and where no process can be forked."""

    size = 1

    def __init__(self, make_handlers: Callable[[int, int], Handlers]) -> None:
        self._handlers = make_handlers(0, 1)
        self._answers: deque[tuple[Then | None, Any]] = deque()

    def call(self, member: int, verb: str, *arguments: Any, then: Then | None = None) -> None:
        self._answers.append((then, self._handlers[verb](*arguments)))

    def waiting(self, member: int) -> int:
        return len(self._answers)

    def pump(self, *, wait_for_one: bool) -> None:
        while self._answers:
            then, answer = self._answers.popleft()
            if then is not None:
                then(answer)

    def close(self) -> None:
        self._answers.clear()


class ProcessCrew:
    """Forked children. `make_handlers(member, size)` runs in each child."""

    def __init__(self, make_handlers: Callable[[int, int], Handlers], size: int | None = None) -> None:
        self.size = size or min(MOST_PROCESSES, max(2, len(os.sched_getaffinity(0))))
        self._members: list[_Member] = []
        try:
            for number in range(self.size):
                self._members.append(
                    _Member.fork(make_handlers, number, self.size, [member.connection for member in self._members])
                )
            for member in self._members:
                member.start_sending()
        except (OSError, RuntimeError):  # RuntimeError: no thread can be started
            self.close()
            raise
        self._by_connection = {member.connection: member for member in self._members}

    def call(self, member: int, verb: str, *arguments: Any, then: Then | None = None) -> None:
        self._members[member].call(verb, arguments, then)

    def waiting(self, member: int) -> int:
        return len(self._members[member].callbacks)

    def pump(self, *, wait_for_one: bool) -> None:
        busy = [member.connection for member in self._members if member.callbacks]
        if not busy:
            return
        for ready in wait(busy, timeout=None if wait_for_one else 0):
            assert isinstance(ready, Connection)
            self._by_connection[ready].receive()

    def close(self) -> None:
        for member in self._members:
            member.kill()
        self._members.clear()


def crew_of(make_handlers: Callable[[int, int], Handlers]) -> Crew:
    """Processes; if a limit of the machine or the container forbids them, this process alone does the work."""
    try:
        return ProcessCrew(make_handlers)
    except (OSError, RuntimeError):
        return InlineCrew(make_handlers)


class _Member:
    def __init__(self, pid: int, connection: "Connection[Any, Any]") -> None:
        self.pid = pid
        self.connection = connection
        self.callbacks: deque[Then | None] = deque()
        self._queue: SimpleQueue[bytes] = SimpleQueue()

    @classmethod
    def fork(
        cls, make_handlers: Callable[[int, int], Handlers], number: int, size: int, others: Sequence["Connection[Any, Any]"]
    ) -> "_Member":
        ours, theirs = Pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for other in others:
                other.close()
            _serve(parent, theirs, make_handlers, number, size)
        theirs.close()
        return cls(pid, ours)

    def start_sending(self) -> None:
        """In a thread: the child may be writing a long answer while it does not read."""
        Thread(target=self._send, name="archives-crew", daemon=True).start()

    def call(self, verb: str, arguments: tuple[Any, ...], then: Then | None) -> None:
        self.callbacks.append(then)
        self._queue.put(pickle.dumps((verb, arguments), pickle.HIGHEST_PROTOCOL))

    def receive(self) -> None:
        try:
            error, answer = self.connection.recv()
        except (EOFError, OSError) as ended:
            self.callbacks.clear()  # they are never answered
            raise Failed(
                Code.INTERNAL, "a process of the archive job ended unexpectedly; was it killed for its memory?"
            ) from ended
        then = self.callbacks.popleft()
        if error is not None:
            raise _raised(error)
        if then is not None:
            then(answer)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.connection.close()

    def _send(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the child has ended; `receive` finds that out
            while True:
                self.connection.send_bytes(self._queue.get())


def _serve(
    parent: int, connection: "Connection[Any, Any]", make_handlers: Callable[[int, int], Handlers], number: int, size: int
) -> NoReturn:
    """The life of a child. It never returns to the caller's code."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            handlers = make_handlers(number, size)
            while True:
                try:
                    verb, arguments = connection.recv()
                except EOFError:
                    break
                connection.send(_answer(handlers[verb], arguments))
        code = 0
    except (OSError, KeyboardInterrupt):
        pass  # the parent has closed its end
    finally:
        os._exit(code)


def _answer(handler: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[object, object]:
    try:
        return None, handler(*arguments)
    except (Failed, ArchiveMismatch) as error:
        code = error.code.value if isinstance(error, Failed) else None
        return (
            type(error).__name__,
            code,
            error.message,
            {key: repr(value) if isinstance(value, bytes) else value for key, value in error.context.items()},
        ), None
    except TorporError as error:
        return (Failed.__name__, Code.INTERNAL.value, error.message, {}), None
    except (Exception, SystemExit) as error:
        return (Failed.__name__, Code.INTERNAL.value, f"{type(error).__name__}: {error}", {}), None


def _raised(error: tuple[str, str | None, str, Mapping[str, object]]) -> Exception:
    kind, code, message, context = error
    wanted = ERRORS[kind]
    if issubclass(wanted, Failed):
        assert code is not None
        return wanted(Code(code), message, **context)
    return wanted(message, **context)
