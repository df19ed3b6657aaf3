"""The API reference page shows the fields of all bodies with their descriptions."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from torpor.api.descriptions import CALLS, FIELDS, PARAMETERS, has_description
from torpor.api.reference import reference_page

OPENAPI = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OPENAPI.read_text())
    return found


@pytest.fixture(scope="module")
def page(description: dict[str, Any]) -> str:
    return reference_page(description)


def test_every_call_parameter_and_field_has_a_description(description: dict[str, Any]) -> None:
    missing = [
        f"{method.upper()} {path} {parameter['name']}".strip()
        for path, methods in description["paths"].items()
        for method, call in methods.items()
        for parameter in [{"name": "", "description": call.get("description")}, *call.get("parameters", ())]
        if not has_description(parameter)
    ]
    missing += [
        f"{name}.{field}"
        for name, schema in description["components"]["schemas"].items()
        for field, facts in schema.get("properties", {}).items()
        if not has_description(facts)
    ]
    assert missing == [], "describe it in its schema, or in api/descriptions.py"


def test_every_described_field_parameter_and_call_exists(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    fields = {field for schema in schemas.values() for field in schema.get("properties", {})}
    fields |= {f"{name}.{field}" for name, schema in schemas.items() for field in schema.get("properties", {})}
    calls = {(method.upper(), path): call for path, methods in description["paths"].items() for method, call in methods.items()}
    assert set(FIELDS) <= fields
    assert set(CALLS) <= set(calls)
    assert set(PARAMETERS) <= {one["name"] for call in calls.values() for one in call.get("parameters", ())}


def section_of(page: str, method: str, path: str) -> str:
    for section in page.split("<section")[1:]:
        if f'<span class="method">{method}</span> <code>{path}</code>' in section:
            return unescape(section)
    raise LookupError(f"{method} {path}")


def test_every_call_is_shown(description: dict[str, Any], page: str) -> None:
    for path, methods in description["paths"].items():
        for method in methods:
            assert section_of(page, method.upper(), path)


def test_a_call_shows_the_fields_of_its_request_and_response(page: str) -> None:
    section = section_of(page, "POST", "/api/v1/workspaces")
    request, _, response = section.partition("Response 201")
    assert "Request body" in request
    for field in ("name", "template", "command", "desired_state", "standby_ttl", "archive_ttl"):
        assert f"<th><code>{field}</code>" in request
    assert "1 to 40 of a-z" in request
    assert "required" in request
    assert "default RUNNING" in request
    assert "null: `terminal`, or `image`" in unescape(request)
    for field in ("id", "phase", "url", "disk_bytes", "warnings"):
        assert f"<th><code>{field}</code>" in response
    assert "<code>name_taken</code>" in response


def test_every_field_and_description_of_every_schema_is_shown(description: dict[str, Any], page: str) -> None:
    shown = unescape(page)
    for name, schema in description["components"]["schemas"].items():
        assert f'<section id="{name}">' in page
        for field, facts in schema.get("properties", {}).items():
            assert f"<th><code>{field}</code>" in page
            assert facts.get("description", "") in shown


def test_every_link_has_a_target_and_nothing_is_loaded(page: str) -> None:
    targets = set(re.findall(r' id="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= targets
    assert not re.search(r"<script|src=|https?://|@import", page)
