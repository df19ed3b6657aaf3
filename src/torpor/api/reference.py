"""How does the API's description look to a person?

A page drawn from `/openapi.json`: nothing is loaded from elsewhere, and nothing is said twice.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
body { color: #222; background: #fff }
h2 { margin: 2rem 0 .2rem; font-size: 1rem } code, pre { font: 13px/1.5 ui-monospace, monospace }
pre { background: #f5f5f2; padding: .6rem; border-radius: 6px; overflow-x: auto } .method { color: #8a5a0a; font-weight: 700 }
table { border-collapse: collapse } td { padding: .1rem 1rem .1rem 0; vertical-align: top; color: #555 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #17181b } pre { background: #222428 } td { color: #aaa } }
"""


def reference_page(schema: Mapping[str, Any]) -> str:
    calls = [_call(method, path, call) for path, methods in schema["paths"].items() for method, call in methods.items()]
    title = escape(f"{schema['info']['title']} {schema['info']['version']}: the API")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        "<p>JSON; <code>Authorization: Bearer TOKEN</code> (see credentials.json) or the session cookie. Errors are "
        '<code>application/problem+json</code> with a stable <code>code</code>. For programs: <a href="/openapi.json">'
        f"openapi.json</a>.</p>{''.join(calls)}</html>"
    )


def _call(method: str, path: str, call: Mapping[str, Any]) -> str:
    parameters = "".join(
        f"<tr><td><code>{escape(one['name'])}</code><td>{escape(one['in'])}<td>{'required' if one.get('required') else ''}"
        for one in call.get("parameters", [])
    )
    takes = _model(call.get("requestBody", {}).get("content", {}))
    answers = "".join(
        f"<tr><td><code>{status}</code><td>{escape(answer.get('description', ''))} {_model(answer.get('content', {}))}"
        for status, answer in call["responses"].items()
    )
    body = f"<p>Takes {takes}</p>" if takes else ""
    return (
        f'<h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>'
        f"<p>{escape(call.get('summary', ''))}</p><table>{parameters}</table>{body}<table>{answers}</table>"
    )


def _model(content: Mapping[str, Any]) -> str:
    names = [str(kind.get("schema", {}).get("$ref", "")).rpartition("/")[2] for kind in content.values()]
    return " ".join(f"<code>{escape(name)}</code>" for name in names if name)
