"""Generate the Python code of the sort's messages from its .proto file."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src"
PROTO = "torpor/sort/wire/sort.proto"
# Generated code follows the generator's style.
UNTOUCHED = (
    '"""How do the messages of the sort look? Drawn from sort.proto by `make docs`; do not edit."""\n# ruff: noqa\n# fmt: off\n'
)
HEADS = {
    "torpor/sort/wire/sort_pb2.py": UNTOUCHED,
    "torpor/sort/wire/sort_pb2.pyi": UNTOUCHED + '# mypy: disable-error-code="type-arg"\n',
}


def drawn() -> Mapping[str, Callable[[], str]]:
    """Each generated file, by its path in the project, and its generator."""
    return {f"src/{path}": partial(_text, path) for path in HEADS}


def _text(path: str) -> str:
    return _texts()[path]


@cache
def _texts() -> Mapping[str, str]:
    with tempfile.TemporaryDirectory() as name:
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SOURCES}", f"--python_out={name}", f"--pyi_out={name}", PROTO]
        if subprocess.run(protoc).returncode != 0:
            raise SystemExit(f"{PROTO} cannot be read")
        return {path: head + Path(name, path).read_text() for path, head in HEADS.items()}
