"""Names are unique, and ARCHITECTURE.md names every module."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torpor

SOURCE = Path(torpor.__file__).parent
ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"


def sources() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if "node_modules" not in path.parts]


def test_a_class_name_is_defined_once() -> None:
    defined = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in defined.items() if len(paths) > 1} == {}


def modules_in_the_tree() -> Iterator[str]:
    """The modules that the tree of ARCHITECTURE.md names, as paths below src/torpor."""
    tree = ARCHITECTURE.read_text(encoding="utf-8").split("```\nsrc/torpor/\n")[1].split("```")[0]
    folders: list[str] = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        if folder := re.match(r" *(\w+)/ ", line):
            folders = [*folders[:depth], folder[1]]
        else:
            yield from ("/".join([*folders[:depth], f"{name}.py"]) for name in line.split())


def test_every_module_is_in_the_tree_and_nothing_else() -> None:
    modules = {str(path.relative_to(SOURCE)) for path in sources() if path.name != "__init__.py"}
    assert set(modules_in_the_tree()) == modules
