"""End each test that takes too long, with a stack of what it waits for.

Set-up, call and teardown of a test have the limit each, so that fixtures of every scope are covered. At the limit SIGALRM
raises `TimedOut` in the main thread; the test fails, and the worker continues. The signal repeats, because an exception in a
callback of the event loop can get lost. If Python does not react to signals any more, the process ends.
"""

import asyncio
import faulthandler
import gc
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from types import AsyncGeneratorType, FrameType
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from anyio import pytest_plugin
from anyio._backends._asyncio import TestRunner

ORDINARY_S = 180.0
LIMIT_S = {"e2e": 300.0, "browser": 300.0, "kubernetes": 900.0, "engine": 900.0, "long": 1800.0, "deep": 4 * 3600.0}
"""By marker; the largest counts."""

REPEAT_S = 15.0
"""From one signal to the next: time for a test to stop what it started."""
DEAF_S = 60.0
"""After the limit: the process ends, because no signal helped."""
EXIT_S = 60.0
"""After the last test: no thread that a test left behind keeps the process alive for longer."""

FRAMES = ("cr_frame", "ag_frame", "gi_frame")
NEXT = ("cr_await", "ag_await", "gi_yieldfrom")


class TimedOut(BaseException):
    """Not an Exception: a test that retries on errors must not catch it."""


def limit_of(item: pytest.Item) -> float:
    return max([ORDINARY_S, *(LIMIT_S[mark.name] for mark in item.iter_markers() if mark.name in LIMIT_S)])


@contextmanager
def limited(item: pytest.Item, phase: str) -> Iterator[None]:
    limit_s = limit_of(item)
    stacks: list[str] = []

    def ring(_number: int, frame: FrameType | None) -> None:
        if not stacks:
            stacks.append(where(frame))
        raise TimedOut

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s, REPEAT_S)
    faulthandler.dump_traceback_later(limit_s + DEAF_S, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    try:
        try:
            yield
        except TimedOut:
            abandon_runner()
            raise
        finally:
            disarm()
            signal.signal(signal.SIGALRM, before)
    except BaseException as error:
        if not stacks:
            raise
        words = (
            f"timeout: the {phase} of this test took longer than {limit_s:g} s (limits: tests/support/timeouts.py)\n{stacks[0]}"
        )
        # Errors of the test's own clean-up are rarely helpful, but are shown too.
        ended_by = "" if isinstance(error, TimedOut) else f"\nit ended with {error!r}"
        raise pytest.fail.Exception(words + ended_by, pytrace=False) from None


def disarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


def abandon_runner() -> None:
    """Cancel the present task of anyio's runner; otherwise every later asynchronous test waits for it, too."""
    runner = pytest_plugin._current_runner
    if isinstance(runner, TestRunner) and (task := runner._runner_task) and not runner.get_loop().is_running():
        task.cancel()
        runner._send_stream.close()
        with suppress(asyncio.CancelledError):
            runner.get_loop().run_until_complete(task)
        runner._runner_task = None


def where(frame: FrameType | None) -> str:
    """The stacks of the main thread, the other threads and the tasks of the event loop."""
    parts = [("main thread", traceback.format_stack(frame))]
    frames = sys._current_frames()
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and one.ident in frames]
    parts += [(f"thread {one.name}", traceback.format_stack(frames[one.ident])) for one in others if one.ident]
    with suppress(RuntimeError):
        parts += [(f"task {task.get_name()}", awaited(task.get_coro())) for task in asyncio.all_tasks()]
    return "\n".join(f"{name}:\n{''.join(without_pytest(lines))}" for name, lines in parts)


def awaited(coroutine: Any) -> list[str]:
    """The chain of coroutines from a task's own to the one that waits."""
    lines: list[str] = []
    while coroutine is not None:
        # A step of an asynchronous generator (a fixture) names neither its frame nor its generator.
        steps = gc.get_referents(coroutine) if type(coroutine).__name__.startswith("async_generator_") else ()
        coroutine = next((one for one in steps if isinstance(one, AsyncGeneratorType)), coroutine)
        lines += traceback.format_stack(frame, limit=1) if (frame := first_of(coroutine, FRAMES)) else []
        coroutine = first_of(coroutine, NEXT)
    return lines


def first_of(thing: object, names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := getattr(thing, name, None)) is not None), None)


def without_pytest(lines: list[str]) -> list[str]:
    """Only the frames after the last one of pytest, if there are any."""
    own = max((number for number, line in enumerate(lines) if "/_pytest/" in line or "/pluggy/" in line), default=-1)
    return lines[own + 1 :] or lines


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    with limited(item, "set-up"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    with limited(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    with limited(item, "teardown"):
        return (yield)


def pytest_enter_pdb() -> None:
    disarm()


def pytest_unconfigure(config: pytest.Config) -> None:
    # A worker that has run its tests waits for the others; the process that started it ends it.
    if hasattr(config, "workerinput"):
        return
    faulthandler.dump_traceback_later(EXIT_S, exit=True, file=2)
