"""Count literary words per 1,000 words in comments and docstrings of Python files.

python -m tools.literary_words [PATH ...]           a line for each folder, then the total
python -m tools.literary_words --where [PATH ...]   each literary word with its file and line
python -m tools.literary_words --limit 3            exit code 1 above this rate
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUR_PATHS = ("src/torpor", "tests", "tools", "bench")
NOT_OURS = re.compile(r"_pb2\.py$|/node_modules/|/built/|/vendor/")

# Words that technical documentation avoids. The phrases are typical of older prose in this repository.
LITERARY = re.compile(
    r"\b("
    r"nobody|somebody|anybody|everybody|whoever|whomever|whom|whatever|whichever|wherever|"
    r"nothing|of it|by what|what was|what became|"
    r"that which|those who|he who|hence|thence|whence|thereof|therein|herein|lest|albeit|alas|amidst|upon|nor|"
    r"under way|at hand|amounts? to|for ever|many a|in vain|of its own accord|"
    r"is told|are told|was told|is said|are said|is meant|are meant|it lives|is wished|was wished|comes? to be|"
    r"the others'|of theirs|of ours|round about|turned? round|one's own|away with"
    r")\b",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


def prose(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each comment and each docstring (also those below attributes)."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string and "type:" not in token.string:
            yield token.start[0], token.string.lstrip("#")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def python_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (one for one in sorted(path.rglob("*.py")) if not NOT_OURS.search(str(one)))


def count(path: Path) -> tuple[int, list[tuple[int, str]]]:
    """The number of words, and each literary one with its line."""
    words, found = 0, []
    for line, text in prose(path.read_text(encoding="utf-8")):
        words += len(WORD.findall(text))
        found += [(line + text.count("\n", 0, match.start()), match[0]) for match in LITERARY.finditer(text)]
    return words, found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Count literary words per 1,000 in comments and docstrings.")
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / path for path in OUR_PATHS])
    parser.add_argument("--where", action="store_true", help="print each literary word with its file and line")
    parser.add_argument("--limit", type=float, help="exit with 1 if the total rate is above this")
    chosen = parser.parse_args(arguments)
    words, literary, total = Counter[str](), Counter[str](), Counter[str]()
    for root in chosen.paths:
        if not root.exists():
            parser.error(f"there is no {root}")
        for path in python_files(root):
            counted, found = count(path)
            folder = str(path.parent.relative_to(ROOT) if path.is_relative_to(ROOT) else path.parent)
            words[folder] += counted
            literary[folder] += len(found)
            total.update(word.lower() for _, word in found)
            if chosen.where:
                for line, word in found:
                    print(f"{path}:{line}: {word}")
    if not chosen.where:
        for folder in sorted(words):
            print(f"{rate(literary[folder], words[folder]):6.1f}  {words[folder]:6} words  {folder}")
    overall = rate(literary.total(), words.total())
    often = ", ".join(word for word, _ in total.most_common(5)) or "none"
    print(f"{overall:6.1f}  {words.total():6} words  in total; most often {often}")
    return int(chosen.limit is not None and overall > chosen.limit)


def rate(found: int, words: int) -> float:
    return 1000 * found / words if words else 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
