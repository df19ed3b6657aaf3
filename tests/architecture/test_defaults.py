"""Check that the default of a setting is written only in settings.py.

The code that gets a setting's value takes it as a required argument. A second default would be what tests run with, while
users run with the first.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torpor
from torpor.settings import Settings

SOURCE = Path(torpor.__file__).parent
# Settings, and the values that Settings derives from them.
NAMES = Settings.model_fields.keys() | {name for name, value in vars(Settings).items() if isinstance(value, property)}
READERS = [*(SOURCE / "assemble").glob("*.py"), SOURCE / "settings.py"]
# The sort has no settings.
SORT = {SOURCE / "sort", SOURCE / "cli" / "sort"}
# These switch something off that the product always switches on.
OFF = {"None", "False", "0", "()", "frozenset()", "UNLIMITED", "skip_disk_check"}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of one class or function."""

    names: tuple[str, ...]
    with_default: frozenset[str]


def trees(paths: Iterator[Path]) -> Iterator[tuple[Path, ast.Module]]:
    for path in paths:
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def of_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Parameters:
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = zip(reversed(positional), reversed(function.args.defaults), strict=False)
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    given = [one.arg for one, value in [*defaults, *keywords] if is_default(value)]
    names = tuple(one.arg for one in [*positional, *function.args.kwonlyargs] if one.arg != "self")
    return Parameters(names, frozenset(given))


def of_class(made: ast.ClassDef) -> Parameters:
    for statement in made.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return of_function(statement)
    fields = [
        (one.target.id, one.value) for one in made.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    ]
    return Parameters(
        tuple(name for name, _ in fields),
        frozenset(name for name, value in fields if is_default(value)),
    )


def is_default(value: ast.expr | None) -> bool:
    """Whether it is a value that the product could run with, not one that switches something off."""
    if value is None or ast.unparse(value) in OFF:
        return False
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "Field"):
        return bool(value.args) or any(one.arg in ("default", "default_factory") for one in value.keywords)
    return True


@cache
def defined() -> dict[str, list[tuple[Path, Parameters]]]:
    found: dict[str, list[tuple[Path, Parameters]]] = {}
    for path, tree in trees(SOURCE.rglob("*.py")):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name != "Settings":
                found.setdefault(node.name, []).append((path, of_class(node)))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, []).append((path, of_function(node)))
    return found


def reads_a_setting(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in NAMES
        and ast.unparse(node.value) in ("settings", "self._settings", "self")
        for node in ast.walk(value)
    )


def given_a_setting() -> Iterator[tuple[str, str | int]]:
    """Each class or function that gets a setting's value, and the parameter that gets it."""
    for _, tree in trees(iter(READERS)):
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                yield from ((name, at) for at, value in enumerate(call.args) if reads_a_setting(value))
                yield from ((name, one.arg) for one in call.keywords if one.arg is not None and reads_a_setting(one.value))


def test_code_that_gets_a_setting_has_no_default_of_its_own() -> None:
    places = defined()
    seconds = set()
    for called, parameter in given_a_setting():
        for path, parameters in places.get(called, []):
            if isinstance(parameter, int) and parameter >= len(parameters.names):
                continue
            name = parameters.names[parameter] if isinstance(parameter, int) else parameter
            if name in parameters.with_default:
                seconds.add(f"{path.relative_to(SOURCE)}: {called}({name}=...)")
    assert sorted(seconds) == []


def test_no_parameter_named_after_a_setting_has_a_default() -> None:
    names = Settings.model_fields.keys() | {f"{name}_s" for name in Settings.model_fields}
    seconds = sorted(
        f"{path.relative_to(SOURCE)}: {called}({name}=...)"
        for called, definitions in defined().items()
        for path, parameters in definitions
        for name in parameters.with_default & names
        if not SORT & set(path.parents)
    )
    assert seconds == []


def test_the_check_finds_parameters_that_get_a_setting() -> None:
    """It would pass as well if it found no call at all."""
    assert {("Tuning", "max_retries"), ("TouchQueue", "lease_s"), ("Ttls", "standby_s")} <= set(given_a_setting())
