"""Render the OpenAPI description of the API as one HTML page.

The page loads nothing else, and all its text comes from `/openapi.json`: parameters, fields of the request and response bodies,
their types and descriptions, and the error codes of each call.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#262a3a, #e2e4ee); --quiet: light-dark(#5d6072, #a0a5b9) }
:root { --line: light-dark(#ddd7ca, #2c3044); --ground: light-dark(#f4f1ea, #12141d); --raised: light-dark(#fdfcf9, #1a1d2a) }
:root { --accent: light-dark(#8c5a12, #f0c987) }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }
body { color: var(--ink); background: var(--ground) }
h1 { font: 500 1.9rem/1.2 ui-serif, Georgia, serif } h2 { margin: 2.5rem 0 .5rem; font-size: 1.2rem }
h3 { margin: 0; font-size: 1rem; overflow-wrap: anywhere } h4 { margin: .9rem 0 .2rem; font-size: .9rem }
code { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere } p { margin: .4rem 0 } a { color: inherit }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem } .method { color: var(--accent); font-weight: 700 }
section { margin: 0 0 .8rem; padding: .9rem 1.1rem; background: var(--raised) }
section { border: 1px solid var(--line); border-radius: 10px }
table { width: 100%; border-collapse: collapse } th { text-align: left; font-weight: 400; white-space: nowrap }
th, td { padding: .25rem 1rem .25rem 0; border-top: 1px solid var(--line); vertical-align: top }
td { color: var(--quiet) } td:last-child { width: 55% } .quiet { color: var(--quiet) } summary { cursor: pointer }
@media (max-width: 700px) { tr { display: block; padding: .3rem 0; border-top: 1px solid var(--line) } }
@media (max-width: 700px) { th, td { display: block; border: 0; padding: 0 } td:last-child { width: auto } }
"""
SCHEMAS = "#/components/schemas/"
JSON = "application/json"
REQUEST = "Request body"


def reference_page(description: Mapping[str, Any]) -> str:
    schemas = description["components"]["schemas"]
    title = escape(f"{description['info']['title']} {description['info']['version']}: API reference")
    groups: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        for method, call in methods.items():
            groups.setdefault(call.get("tags", ["other"])[0], []).append(_call(method, path, call, schemas))
    links = "".join(f'<a href="#{escape(name)}">{escape(name.capitalize())}</a>' for name in [*groups, "schemas"])
    calls = "".join(f'<h2 id="{escape(name)}">{escape(name.capitalize())}</h2>{"".join(of)}' for name, of in groups.items())
    models = "".join(_schema(name, schema) for name, schema in sorted(schemas.items()))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        "<p>Requests and responses are JSON. Authenticate with <code>Authorization: Bearer TOKEN</code> (an API token) or with "
        "the session cookie. Errors are <code>application/problem+json</code> with a stable <code>code</code>. "
        f'For programs: <a href="/openapi.json">openapi.json</a>.</p><nav>{links}</nav>'
        f'{calls}<h2 id="schemas">Schemas</h2>{models}</html>'
    )


def _call(method: str, path: str, call: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    text = call.get("description") or call.get("summary", "")
    parameters = "".join(_row(one["name"], one["schema"], one, place=one["in"]) for one in call.get("parameters", []))
    return (
        f'<section><h3><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h3><p>{escape(text)}</p>'
        f"{_table('Parameters', parameters)}{_body(REQUEST, call.get('requestBody', {}), schemas)}"
        f"{''.join(_responses(call['responses'], schemas))}</section>"
    )


def _responses(responses: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    """The successful responses with their fields, then all errors in one table."""
    errors = ""
    for status, response in sorted(responses.items()):
        if status < "400":
            yield _body(f"Response {status}", response, schemas) or f"<h4>Response {status}</h4>"
        else:
            codes = "".join(f"<code>{escape(code)}</code> " for code in response.get("description", "").split(", "))
            errors += f"<tr><th>{status}<td>{codes}"
    if errors:
        problem = f'<p class="quiet">The body is a {_link("Problem")}.</p>'
        yield f"<details><summary>Errors</summary>{problem}<table>{errors}</table></details>"


def _body(title: str, body: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """The fields of a JSON body; of any other body, its content type."""
    content = body.get("content", {})
    if JSON not in content:
        types = ", ".join(escape(kind) for kind in content)
        return f"<h4>{title}</h4><p>{types}</p>" if types else ""
    schema = content[JSON].get("schema", {})
    shown = _resolved(schema, schemas)
    if "properties" not in shown:
        return f"<h4>{title}</h4><p>{_type(schema)}</p>" if schema else ""
    return _table(f"{title}: {_type(schema)}", _fields(shown, shows_required=title == REQUEST))


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that a body is; a body that may be left out is an object or null."""
    variants = [one for one in schema.get("anyOf", [schema]) if one != {"type": "null"}]
    reference = variants[0].get("$ref", "") if len(variants) == 1 else ""
    found: Mapping[str, Any] = schemas[reference.removeprefix(SCHEMAS)] if reference else schema
    return found


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    text = f"<p>{escape(schema['description'])}</p>" if schema.get("description") else ""
    content = f"<table>{_fields(schema, shows_required=False)}</table>" if "properties" in schema else f"<p>{_type(schema)}</p>"
    return f'<section id="{escape(name)}"><h3><code>{escape(name)}</code></h3>{text}{content}</section>'


def _fields(schema: Mapping[str, Any], *, shows_required: bool) -> str:
    required = schema.get("required", []) if shows_required else ()
    return "".join(_row(name, field, {"required": name in required}) for name, field in schema["properties"].items())


def _row(name: str, schema: Mapping[str, Any], facts: Mapping[str, Any], place: str = "") -> str:
    notes = [place, "required" if facts.get("required") else "", _default(schema)]
    note = ", ".join(escape(one) for one in notes if one)
    text = facts.get("description") or _description(schema)
    return (
        f"<tr><th><code>{escape(name)}</code><td>{_type(schema)}{f' <small>{note}</small>' if note else ''}<td>{escape(text)}"
    )


def _description(schema: Mapping[str, Any]) -> str:
    """Of a field and of its variants: a field that may be null has its description in one of them."""
    texts = [schema.get("description"), *(one.get("description") for one in schema.get("anyOf", ()))]
    return " ".join(dict.fromkeys(one for one in texts if one))


def _default(schema: Mapping[str, Any]) -> str:
    return f"default {schema['default']}" if schema.get("default") not in (None, [], "") else ""


def _type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": str(reference)}:
            return _link(reference.removeprefix(SCHEMAS))
        case {"anyOf": list(variants)} | {"oneOf": list(variants)}:
            return " or ".join(_type(one) for one in variants)
        case {"enum": list(values)}:
            return " | ".join(f"<code>{escape(str(value))}</code>" for value in values)
        case {"const": value}:
            return f"<code>{escape(str(value))}</code>"
        case {"type": "array", "items": dict(items)}:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"map of string to {_type(values)}"
        case {"type": str(kind), "format": str(form)}:
            return f"{escape(kind)} ({escape(form)})"
        case {"type": str(kind)}:
            return escape(kind)
    return "any"


def _link(name: str) -> str:
    return f'<a href="#{escape(name)}"><code>{escape(name)}</code></a>'


def _table(title: str, rows: str) -> str:
    return f"<h4>{title}</h4><table>{rows}</table>" if rows else ""
