"""Describe the API as OpenAPI.

Adds what the framework cannot know: who may make each call (`route_access`), how callers authenticate, and which errors a call
may answer with. `tests/api/test_schema.py` compares the running API with the description.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from torpor.api.descriptions import add_descriptions
from torpor.api.refusals import HTTP_CODES, PROBLEM, PROBLEM_SCHEMA, STATUS_OF
from torpor.api.route_access import ONE, RULES, V1, AdminRule, CallPath, PublicRule, Rule, SignedInRule, WorkspaceRule
from torpor.domain.access import NEEDS, Access

# The errors of each call, besides those of its rule and those of its parameters and body.
REFUSES: Mapping[CallPath, tuple[str, ...]] = {
    ("POST", f"{V1}/login"): ("bad_credentials", "cross_site", "too_many_sign_ins"),
    ("POST", f"{V1}/me/password"): ("wrong_password", "bad_password", "too_many_sign_ins"),
    ("DELETE", f"{V1}/sessions/{{session}}"): ("not_found",),
    ("POST", f"{V1}/tokens"): ("bad_token", "too_many_tokens"),
    ("DELETE", f"{V1}/tokens/{{token}}"): ("not_found",),
    ("POST", f"{V1}/users"): ("bad_username", "bad_password", "name_taken", "unconfined"),
    ("GET", f"{V1}/users"): ("bad_cursor",),
    ("GET", f"{V1}/users/{{user}}"): ("not_found",),
    ("PATCH", f"{V1}/users/{{user}}"): ("not_found", "bad_password", "last_administrator", "unconfined"),
    ("POST", f"{V1}/users/{{user}}/sign-out"): ("not_found",),
    ("GET", f"{V1}/workspaces"): ("bad_cursor",),
    ("POST", f"{V1}/workspaces"): (
        "name_taken", "name_reserved", "bad_name", "bad_ttl", "unknown_template", "command_not_taken", "command_required",
        "command_invalid", "bad_before_sleep", "bad_environment", "bad_size", "bad_image", "image_not_allowed",
        "image_required", "images_not_supported", "packages_not_supported", "limit_reached", "disk_low", "key_reused",
        "switching_runtime",
    ),
    ("PATCH", ONE): (
        "is_deleted", "name_taken", "name_reserved", "bad_name", "bad_ttl", "bad_before_sleep", "bad_environment",
        "limit_reached", "disk_low", "switching_runtime",
    ),
    ("POST", f"{ONE}/undelete"): ("not_deleted", "purged", "archive_collected", "name_taken", "name_reserved"),
    ("POST", f"{ONE}/recover"): (
        "not_in_error", "is_deleted", "say_which_way", "archive_collected", "bad_recovery", "no_such_archive",
    ),
    ("POST", f"{ONE}/restore"): (
        "is_deleted", "restore_in_progress", "in_error", "archive_damaged", "archive_collected", "no_such_archive",
    ),
    ("DELETE", f"{ONE}/restore"): ("no_restore",),
    ("GET", f"{ONE}/archives/files"): ("is_deleted", "no_archive", "no_such_archive", "no_such_file", "too_many_streams"),
    ("GET", f"{ONE}/archives/content"): ("is_deleted", "no_archive", "no_such_archive", "no_such_file", "too_many_streams"),
    ("GET", f"{ONE}/archives/export"): ("is_deleted", "no_archive", "no_such_archive", "too_many_streams"),
    ("GET", f"{ONE}/archives/differences"): ("is_deleted", "no_archive", "no_such_archive", "too_many_streams"),
    ("POST", f"{ONE}/fork"): (
        "is_deleted", "no_archive", "archive_damaged", "archive_collected", "no_such_archive", "name_taken", "name_reserved",
        "bad_name",
        "unknown_template", "command_not_taken", "command_required", "command_invalid", "bad_environment", "bad_size",
        "bad_image", "image_not_allowed", "image_required", "images_not_supported", "packages_not_supported", "limit_reached",
        "disk_low", "key_reused", "switching_runtime",
    ),
    ("GET", f"{ONE}/operations"): ("bad_cursor",),
    ("POST", f"{ONE}/exec"): ("not_running", "output_too_large", "took_too_long"),
    ("POST", f"{ONE}/leases"): ("is_deleted", "bad_lease"),
    ("DELETE", f"{ONE}/leases/{{lease_id}}"): ("forbidden",),
    ("PUT", f"{ONE}/shares/{{username}}"): ("is_deleted", "bad_share", "unknown_user"),
    ("PUT", f"{ONE}/secrets/{{name}}"): ("is_deleted", "bad_secret", "bad_environment", "bad_secret_key"),
    ("GET", f"{ONE}/events"): ("bad_event_id", "too_many_streams"),
    ("GET", f"{V1}/events"): ("bad_event_id", "too_many_streams"),
    ("GET", f"{V1}/audit"): ("bad_cursor",),
    ("POST", f"{V1}/latches/{{provider}}/release"): ("not_found",),
    ("GET", f"{V1}/runtime/switch"): ("bad_runtime", "switching_runtime"),
    ("POST", f"{V1}/runtime/switch"): ("bad_runtime", "switching_runtime"),
    ("DELETE", f"{V1}/runtime/switch"): ("not_switching",),
}  # fmt: skip

# These ask a provider, which may fail.
ASKS_A_PROVIDER: frozenset[CallPath] = frozenset(
    {
        ("POST", f"{ONE}/exec"),
        ("GET", f"{ONE}/logs"),
        ("GET", f"{V1}/gc"),
        *(("GET", f"{ONE}/archives/{what}") for what in ("files", "content", "export", "differences")),
    }
)

SIGNED_IN: list[dict[str, list[str]]] = [{"token": []}, {"session": []}]
_CONTENT = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
_HEADERS: Mapping[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}


def describe_openapi(app: FastAPI, *, cookie: str) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    # The framework's own errors; this API answers with `Problem` instead.
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas["Problem"] = deepcopy(PROBLEM_SCHEMA)
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": cookie},
    }
    for path, calls in schema["paths"].items():
        for method, call in calls.items():
            _describe_call((method.upper(), path), call)
    add_descriptions(schema)
    return schema


def _describe_call(path: CallPath, call: dict[str, Any]) -> None:
    rule = RULES[path]
    call["security"] = [] if isinstance(rule, PublicRule) else SIGNED_IN
    for parameter in call.get("parameters", ()):
        parameter["schema"] = _if_there(parameter["schema"])
    answers = call["responses"]
    may_be_invalid = answers.pop("422", None) is not None
    if path[1].startswith(V1):
        codes = {*_of_rule(rule), *REFUSES.get(path, ()), *(("bad_request",) if may_be_invalid else ())}
        answers |= _problems(codes)
        answers["503"] = _problem(HTTPStatus.SERVICE_UNAVAILABLE, ["unavailable"])
    if "requestBody" in call:
        answers["413"] = _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, [HTTP_CODES[413]])
    if path in ASKS_A_PROVIDER:
        answers["502"] = _problem(HTTPStatus.BAD_GATEWAY, ["a provider failed; `code` is the provider's error"])


def _if_there(schema: dict[str, Any]) -> dict[str, Any]:
    """An optional parameter is left out and never null: an address or a header has no way to write null."""
    variants = [variant for variant in schema.get("anyOf", ()) if variant != {"type": "null"}]
    if len(variants) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **variants[0]}


def _of_rule(rule: Rule) -> Iterable[str]:
    match rule:
        case PublicRule():
            return
        case SignedInRule(scope):
            if scope is not None:
                yield "scope_missing"
        case WorkspaceRule(deed):
            yield from ("not_found", "scope_missing")
            if NEEDS[deed][0] > Access.USE:
                yield "forbidden"
        case AdminRule():
            yield from ("forbidden", "scope_missing")
    yield from ("unauthorized", "cross_site")


def _problems(codes: Iterable[str]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes):
        by_status.setdefault(STATUS_OF[code], []).append(code)
    return {str(status): _problem(status, found) for status, found in sorted(by_status.items())}


def _problem(status: int, codes: list[str]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": ", ".join(codes), "content": _CONTENT}
    return answer | ({"headers": _HEADERS[status]} if status in _HEADERS else {})
