"""The running API matches its own OpenAPI description.

Schemathesis generates valid and invalid calls from `/openapi.json` and checks each answer: no server error; no status, content
type, header or shape that is not described; and no invalid call is accepted. (A valid call may be refused: a name can be taken,
and not every rule can be described as a shape.)
"""

import asyncio
import uuid
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.api.test_gc import listening
from tests.support.live_api import LiveApi, live_api

pytestmark = pytest.mark.anyio

# The statuses of invalid calls; 413: the body is longer than any valid one.
REFUSED = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
# A stream has no end; tests/api/test_events.py reads them.
ENDLESS = {"/api/v1/events", "/api/v1/workspaces/{workspace}/events"}
# Path parameters besides generated ones: names of existing objects, in every state that refuses a call.
KNOWN = {
    "workspace": ["calm", "broken", "lost", "gone", "shared"],
    "username": ["bob", "root", "zoe"],
    "user": ["bob"],
    "provider": ["fake"],
}
INSERT = """
INSERT INTO workspaces (id, name, owner_id, template, desired_state, phase, deleted_at, error_info, shares,
                        standby_ttl_s, archive_ttl_s)
SELECT $1, $2, $3, 'terminal', CASE WHEN $4 THEN 'DELETED' ELSE 'STANDBY' END,
       CASE WHEN $4 THEN 'DELETED' WHEN $5::jsonb IS NULL THEN 'STANDBY' ELSE 'ERROR' END,
       CASE WHEN $4 THEN now() END, $5::jsonb, $6::jsonb, 300, 86400
"""
ERROR = """{"reason": "%s", "message": "it broke", "is_terminal": true, "operation": "NONE", "error_count": 1,
            "occurred_at": "2026-03-01T12:00:00+00:00", "wish_version": 1, "context": {}}"""


async def populate(here: LiveApi) -> None:
    for name, is_deleted, error, shares in (
        ("calm", False, None, "{}"),
        ("broken", False, ERROR % "ActionFailed", "{}"),
        ("lost", False, ERROR % "DataLost", "{}"),
        ("gone", True, None, "{}"),
        ("shared", False, None, '{"bob": "use"}'),
    ):
        await here.db.execute(INSERT, uuid.uuid4(), name, here.people["root"].id, is_deleted, error, shares)
    await here.db.execute("INSERT INTO latches (provider, since, expected, missing) VALUES ('fake', now(), 9, 9)")


def fuzz(url: str, token: str, *, examples: int, settings: hypothesis.settings) -> list[str]:
    """The failures, one line each."""
    config = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": REFUSED}}})
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)
    wrong, asked = [], 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if operation.path in ENDLESS:
            continue
        for mode in GenerationMode:

            @hypothesis.settings(settings, max_examples=examples)
            @hypothesis.given(case=cases(operation, mode))
            def ask(case: Any) -> None:
                nonlocal asked
                asked += 1
                case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, excluded_checks=[positive_data_acceptance])

            try:
                ask()
            except hypothesis.errors.Unsatisfiable:
                # A call without parameters and body cannot be invalid.
                assert mode is GenerationMode.NEGATIVE
            except FailureGroup as group:
                wrong.append(f"{mode} {operation.label}: {group}")
    assert asked > 100
    return wrong


def cases(operation: Any, mode: GenerationMode) -> st.SearchStrategy[Any]:
    known = {name: KNOWN[name] for name in KNOWN if f"{{{name}}}" in operation.path}
    anything = operation.as_strategy(generation_mode=mode)
    if not known:
        return anything  # type: ignore[no-any-return]
    chosen = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in known.items()})
    return st.one_of(chosen.flatmap(lambda named: operation.as_strategy(generation_mode=mode, path_parameters=named)), anything)


QUIET = hypothesis.settings(
    print_blob=False,
    suppress_health_check=list(hypothesis.HealthCheck),
    report_multiple_bugs=False,
)


async def test_the_api_matches_its_schema(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here, listening(here.app) as url:
        await populate(here)
        settings = hypothesis.settings(QUIET, phases=[hypothesis.Phase.generate])
        wrong = await asyncio.to_thread(fuzz, url, here.people["root"].token, examples=6, settings=settings)
        assert not wrong, "\n".join(wrong)


@pytest.mark.deep
async def test_the_api_matches_its_schema_in_a_long_run(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here, listening(here.app) as url:
        await populate(here)
        settings = hypothesis.settings(QUIET, derandomize=False)
        wrong = await asyncio.to_thread(fuzz, url, here.people["root"].token, examples=100, settings=settings)
        assert not wrong, "\n".join(wrong)
