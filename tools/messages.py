"""Collect every text that a user can see: errors, help, command output, pages of the proxy, the dashboard.

Found by shape: a string with at least two words, outside docstrings, logs, assertions and code. `{...}` stands for a value.
"""

import ast
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "torpor"
DASHBOARD = PACKAGE / "dashboard" / "app" / "src"
# Code that no user reads the strings of: SQL is in files, the fakes are for tests.
NOT_SHOWN = ("testing", "sort/wire/sort_pb2.py", "sort/kernels")
# The docstring of a public function that returns nothing is the help of a command here.
COMMANDS = ("cli/commands", "cli/sort/commands.py")
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "bind"}
SPACED = re.compile(r"[A-Za-z]{2,}[,.:;)]?\s+\S*[A-Za-z{]")
TAG = re.compile(r"</?[a-z!][^>]*>")
CODE = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|import |from [\w.]+ import|#!)"  # SQL and Python
    r"|redis\.call|\bexec \"\$@\"|\bset -l "  # Lua, sh and fish
    r"|^-[AI] |^FORWARD |^rule (add|del) |^iptables |^\w+: files\b|ip6-loopback"  # iptables, ip and files in /etc
    r"|charset=utf-8|max-age=|-src |-action |'none'|^openid |^Bearer \{"  # headers
    r"|^torpor: \{[^}]*\}$|%\(message\)s"  # formats without a text
    r"|^bold |^\.[\w-]+[ :]|^\([\w-]+: |\bMono$|Cascadia Code|^xMin|^input, "  # styles and selectors
    r"|[;{}]\s*\n|\\[bdsw]|\(\?[:P<=!]"  # scripts and regular expressions
)
CLASS_NAMES = re.compile(r"""\b(?:className|class|key)=(?:"[^"]*"|\{`[^`]*`\})""")


def page() -> str:
    parts = [
        "<!-- Drawn from the source by `make docs`; do not edit. -->\n",
        "# Messages\n",
        "Every text that a user can see, by the file that has it. `{...}` is a value that is filled in.\n",
    ]
    for path, texts in {**python_messages(), **dashboard_messages(), **page_messages()}.items():
        parts.append(f"## {path}\n")
        parts.append("".join(f"- {text}\n" for text in texts))
    return "\n".join(parts)


def python_messages() -> Mapping[str, list[str]]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if "node_modules" not in name and not name.startswith(NOT_SHOWN):
            texts = _unique(_texts(ast.parse(path.read_text(encoding="utf-8")), is_command=name.startswith(COMMANDS)))
            if texts:
                found[name] = texts
    return found


def _texts(tree: ast.Module, *, is_command: bool) -> Iterator[str]:
    hidden = {id(node) for root in _hidden(tree) for node in ast.walk(root)}
    for node in ast.walk(tree):
        if is_command and isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and _returns_nothing(node):
            yield ast.get_docstring(node) or ""
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in hidden:
            if isinstance(node, ast.JoinedStr):
                hidden |= {id(part) for part in ast.walk(node) if isinstance(part, ast.Constant) and part in node.values}
            yield _shown(node)


def _returns_nothing(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Constant) and function.returns.value is None


def _hidden(tree: ast.Module) -> Iterator[ast.AST]:
    """Docstrings, annotations, assertions, names of tasks and the arguments of log calls."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                yield node
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=attribute)) if attribute in LOGGED:
                yield node
            case ast.Assert(msg=ast.expr() as message):
                yield message
            case ast.Call(func=ast.Name(id="AssertionError")):
                yield node
            case ast.Call(func=ast.Attribute(attr="create_task"), keywords=keywords):
                yield from keywords
            case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.expr() as annotation):
                if not any(isinstance(part, ast.Call) for part in ast.walk(annotation)):
                    yield annotation


def _shown(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{...}" for part in node.values)


def dashboard_messages() -> Mapping[str, list[str]]:
    found = {}
    for path in sorted(DASHBOARD.rglob("*.ts*")):
        source = re.sub(r"/\*.*?\*/|(?<![:\"'])//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        source = CLASS_NAMES.sub("", source)
        quoted = re.findall(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`', source)
        between = re.findall(r">\s*([^<>{}=;()]*[A-Za-z][^<>{}=;()]*?)\s*[<{]", source)
        texts = _unique([*(re.sub(r"\$\{[^}]*\}", "{...}", one or other) for one, other in quoted), *between])
        if texts:
            found[f"dashboard/{path.relative_to(DASHBOARD).as_posix()}"] = texts
    return found


def page_messages() -> Mapping[str, list[str]]:
    """Files of the proxy and the terminal that a browser shows."""
    found = {}
    for path in sorted([*(PACKAGE / "proxy").glob("*.html"), *(PACKAGE / "inside" / "assets").glob("*.html")]):
        source = re.sub(r"<(script|style).*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        if texts := _unique(re.sub(r"<[^>]*>", "\n", source).split("\n")):
            found[path.relative_to(PACKAGE).as_posix()] = texts
    return found


def _unique(texts: Iterable[str]) -> list[str]:
    kept = (" ".join(TAG.sub(" ", text).split()) for text in texts if not CODE.search(text))
    return list(dict.fromkeys(html.unescape(text) for text in kept if SPACED.search(text)))
