"""Every loop that catches errors and goes on is a `Loop`, and every task is stopped by `stop` (decision 18)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import torpor

SOURCE = Path(torpor.__file__).parent
# What runs inside a workspace, in a command or in the sort is no part of the control plane; runtimes and archives are called by
# its loops, and hold tasks only for as long as a call lasts.
ELSEWHERE = {"archives", "cli", "dashboard", "inside", "loops.py", "runtimes", "sort", "templates", "testing"}

# Loops that catch an error and go on, and why each of them ends when it is cancelled.
ALLOWED_LOOPS = {
    "accounts/access_watch.py::wait_until_refused": "serves one request; asks the store, which heeds cancellation",
    "api/shell.py::_show": "returns after what it catches",
    "api/shell.py::_warn": "returns after what it catches",
    "assemble/controller_start.py::_start_later": "catches errors of Torpor only, which are no cancellations",
    "control/effect_executor.py::_give_space_back_though_cancelled": "ends at a deadline; its caller raises the cancellation",
    "control/membership.py::join": "ends at a deadline, and asks the store, which heeds cancellation",
    "control/schedule.py::next": "waits for an event only",
    "proxy/upstream_pool.py::_connect_unix": "catches BlockingIOError of a call that does not wait",
    "store/leader_lock.py::wait_until_lost": "catches the TimeoutError of a wait for an event only",
}
# Cancellations that are not `stop`, and why.
ALLOWED_CANCELS = {
    "assemble/process.py::on_signal": "a second signal ends the start or the stop of the whole product",
    "control/effect_executor.py::_give_space_back_though_cancelled": "one removal of a half-made volume, which is fenced",
    "control/running_effects.py::cancel": "one effect, which ends by itself and reports",
    "proxy/client_connection.py::_let_go": "one question of a client that has gone",
    "proxy/server.py::stop": "a timer, not a task",
    "store/leader_lock.py::begin_term": "a statement that nothing waits for any more",
    "service/use.py::keeping_awake": "catches nothing",
}


def functions() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in ELSEWHERE:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{path.relative_to(SOURCE)}::{node.name}", node


def own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from own(node)


def catches(node: ast.AST) -> bool:
    match node:
        case ast.Try(handlers=[_, *_]):
            return not all(isinstance(one.body[-1], ast.Raise) for one in node.handlers)
        case ast.With(items=items):
            return any("suppress" in ast.unparse(item.context_expr) for item in items)
    return False


def waits(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Await | ast.AsyncWith | ast.AsyncFor) for one in ast.walk(node))


def test_only_a_loop_catches_an_error_and_continues() -> None:
    found = {
        place
        for place, function in functions()
        for loop in own(function)
        if isinstance(loop, ast.While) and any(catches(node) and waits(node) for node in own(loop))
    }
    assert found - ALLOWED_LOOPS.keys() == set(), "use torpor.loops.Loop, or add the reason why it cannot lose a cancellation"
    assert ALLOWED_LOOPS.keys() - found == set(), "these are no such loops any more"


def test_only_stop_cancels_tasks() -> None:
    found = {
        place
        for place, function in functions()
        for node in own(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cancel" and not node.args
    }
    assert found - ALLOWED_CANCELS.keys() == set(), "use torpor.loops.stop, or add the reason why one cancellation is enough"
    assert ALLOWED_CANCELS.keys() - found == set(), "these cancel nothing any more"
