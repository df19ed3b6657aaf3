"""Draw the parts of ARCHITECTURE.md that repeat the source: the layers from the import contract, the tree from the files."""

import ast
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "torpor"
PAGE = "ARCHITECTURE.md"
WIDTH = 128


def page() -> str:
    """ARCHITECTURE.md with its generated parts as they must be."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    for name, drawn in {"layers": layers(), "tree": tree()}.items():
        begin, end = f"<!-- {name}: drawn by `make docs` -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{PAGE} has no part {name!r} between {begin.strip()!r} and {end!r}")
        text = f"{before}{begin}\n{drawn}\n{end}{after}"
    return text


def layers() -> str:
    rows = ["| layer | module | responsibility |", "|---|---|---|"]
    for number, names in enumerate(contract(), 1):
        rows += [f"| {number} | `{_shown(name)}` | {_responsibility(_path(name))} |" for name in names]
    return "\n".join(rows) + "\n"


def contract() -> list[list[str]]:
    """The layers of the import contract, the highest first, each with its siblings."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers" and "torpor.cli" in one["layers"][0])
    return [[name.strip().removeprefix("torpor.") for name in layer.split("|")] for layer in layers]


def tree() -> str:
    """Every module, below its folder, with what the folder contains."""
    lines = ["```", "src/torpor/"]
    for folder, modules in folders().items():
        depth = len(folder.parts) + 1
        if folder.parts:
            lines.append(f"{'  ' * (depth - 1)}{folder.name}/  {_responsibility(PACKAGE / folder)}")
        names = " ".join(modules)
        lines += textwrap.wrap(
            names, WIDTH, initial_indent="  " * depth, subsequent_indent="  " * depth, break_on_hyphens=False
        )
    return "\n".join([*lines, "```"]) + "\n"


def folders() -> Mapping[Path, list[str]]:
    """The package's folders, each with the names of its modules."""
    return {folder.relative_to(PACKAGE): sorted(_modules(folder)) for folder in _packages(PACKAGE)}


def _packages(folder: Path) -> Iterator[Path]:
    yield folder
    for below in sorted(folder.iterdir()):
        if (below / "__init__.py").exists():
            yield from _packages(below)


def _modules(folder: Path) -> Iterator[str]:
    return (path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _path(name: str) -> Path:
    path = PACKAGE / name.replace(".", "/")
    return path if path.is_dir() else path.with_suffix(".py")


def _shown(name: str) -> str:
    return f"{name}/" if _path(name).is_dir() else f"{name}.py"


def _responsibility(path: Path) -> str:
    """The first line of its docstring."""
    source = (path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]
