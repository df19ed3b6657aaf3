"""Each caller may make exactly the calls that the rules allow, and a refused call changes no data.

Every call of the app is made over HTTP by every kind of caller. The rule of a call gives the expected result; a call without a
rule fails here, and the app cannot be made.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

import httpx2
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import unix_connect
from websockets.exceptions import InvalidStatus

from tests.support.live_api import LiveApi, calling, live_api
from tests.support.users import token_for
from torpor.api.route_access import (
    ANYBODY,
    ONE,
    RULES,
    V1,
    WEBSOCKET,
    AdminRule,
    PublicRule,
    Rule,
    RuleCheck,
    SignedInRule,
    WorkspaceRule,
    api_calls,
)
from torpor.api.route_access import (
    CallPath as CallPath,
)
from torpor.domain.access import EVERY_SCOPE, NEEDS, Access, Scope
from torpor.store.user_store import User

pytestmark = pytest.mark.anyio

REFUSALS = {"unauthorized", "scope_missing", "forbidden"}
NOBODY, EXPIRED, REVOKED = "nobody", "expired", "revoked"
OF_OWNER_WITHOUT, OF_ADMIN_WITHOUT = "owner's token without the scope", "admin's token without the scope"
NOT_AS_ADMIN = "admin's token that was not made for administration"
# The access of each caller to each workspace.
PEOPLE: Mapping[str, Access] = {
    "eve": Access.NONE,
    "bob": Access.USE,
    "mia": Access.MANAGE,
    "ada": Access.OWN,
    "root": Access.OWN,
    NOT_AS_ADMIN: Access.NONE,
}
ADMINS = {"root", OF_ADMIN_WITHOUT, NOT_AS_ADMIN}
EVERYBODY = (NOBODY, EXPIRED, REVOKED, OF_OWNER_WITHOUT, OF_ADMIN_WITHOUT, *PEOPLE)

# The values of the other path parameters.
NAMED = {
    "session": str(uuid.uuid4()),
    "token": str(uuid.uuid4()),
    "user": "zoe",
    "provider": "fake",
    "username": "zoe",
    "path": "x",
    "name": "API_KEY",
}
BODIES: Mapping[CallPath, Any] = {
    ("POST", f"{V1}/login"): {"username": "ada", "password": "not hers"},
    ("POST", f"{V1}/me/password"): {"new": "correct horse"},
    ("POST", f"{V1}/tokens"): {"label": "one more", "scopes": ["read"]},
    ("POST", f"{V1}/users"): {"username": "new"},
    ("PATCH", f"{V1}/users/{{user}}"): {"max_running": 3},
    ("POST", f"{V1}/workspaces"): {"name": "new", "desired_state": "STANDBY"},
    ("PATCH", ONE): {"desired_state": "ARCHIVED", "standby_ttl": 60},
    ("POST", f"{ONE}/restore"): {"archive_key": "x/y"},
    ("POST", f"{ONE}/fork"): {"name": "new"},
    ("POST", f"{ONE}/exec"): {"command": ["true"]},
    ("POST", f"{ONE}/leases"): {"reason": "a build", "seconds": 60},
    ("PUT", f"{ONE}/shares/{{username}}"): {"role": "manage"},
    ("PUT", f"{ONE}/secrets/{{name}}"): {"value": "a secret"},
    ("POST", f"{V1}/runtime/switch"): {"target": "docker"},
}
# Allowed calls that fail here for another reason: no workspace is running, lost, deleted or latched.
OTHERWISE: Mapping[CallPath, int] = {
    # All callers use API tokens here.
    ("POST", f"{V1}/me/password"): 403,
    ("DELETE", f"{V1}/sessions/{{session}}"): 404,
    ("DELETE", f"{V1}/tokens/{{token}}"): 404,
    ("POST", f"{V1}/latches/{{provider}}/release"): 404,
    # No target is given, no controller has started, and no move is in progress.
    ("GET", f"{V1}/runtime/switch"): 422,
    ("POST", f"{V1}/runtime/switch"): 422,
    ("DELETE", f"{V1}/runtime/switch"): 409,
    ("POST", f"{ONE}/undelete"): 409,
    ("POST", f"{ONE}/recover"): 409,
    # There is no archive.
    ("GET", f"{ONE}/archives/files"): 409,
    ("GET", f"{ONE}/archives/content"): 409,
    ("GET", f"{ONE}/archives/export"): 409,
    ("GET", f"{ONE}/archives/differences"): 409,
    ("POST", f"{ONE}/restore"): 422,
    ("DELETE", f"{ONE}/restore"): 409,
    ("POST", f"{ONE}/fork"): 409,
    ("POST", f"{ONE}/exec"): 409,
    (WEBSOCKET, f"{ONE}/exec"): 409,
    (WEBSOCKET, f"{ONE}/shell"): 409,
    ("DELETE", f"{ONE}/secrets/{{name}}"): 404,
}
INSERT = """
INSERT INTO workspaces (id, name, owner_id, template, desired_state, standby_ttl_s, archive_ttl_s, shares)
VALUES ($1, $2, $3, 'terminal', 'STANDBY', 300, 86400, '{"bob": "use", "mia": "manage", "zoe": "use"}')
"""
HOLD = """
INSERT INTO work_leases (id, workspace_id, reason, created_by, expires_at)
VALUES ($1, $2, 'a build', $3, now() + interval '1 hour')
"""
KNOWN = """
SELECT to_jsonb(workspaces) - 'last_access_at'
       || jsonb_build_object('holds', (SELECT count(*) FROM work_leases WHERE workspace_id = $1),
                             'audit', (SELECT count(*) FROM audit), 'users', (SELECT count(*) FROM users),
                             'tokens', (SELECT count(*) FROM tokens), 'all', (SELECT count(*) FROM workspaces))
FROM workspaces WHERE id = $1
"""


@dataclass(frozen=True)
class Answer:
    status: int
    code: str | None
    """The code of a problem."""


def expected(rule: Rule, who: str) -> str | None:
    """The expected code of the refusal; None: the caller may make the call."""
    if rule == ANYBODY:
        return None
    if who in (NOBODY, EXPIRED, REVOKED):
        return "unauthorized"
    has_scope = who not in (OF_OWNER_WITHOUT, OF_ADMIN_WITHOUT)
    match rule:
        case SignedInRule(scope):
            return None if has_scope or scope is None else "scope_missing"
        case AdminRule():
            if who not in ADMINS:
                return "forbidden"
            return None if has_scope and who != NOT_AS_ADMIN else "scope_missing"
        case WorkspaceRule(deed):
            if not has_scope:
                return "scope_missing"
            if PEOPLE[who] is Access.NONE:
                return "not_found"
            return None if PEOPLE[who] >= NEEDS[deed][0] else "forbidden"
        case PublicRule():
            raise AssertionError("said above")
        case _:
            assert_never(rule)


def scope_of(rule: Rule) -> Scope | None:
    match rule:
        case SignedInRule(scope):
            return scope
        case WorkspaceRule(deed):
            return NEEDS[deed][1]
        case AdminRule():
            return Scope.ADMIN
        case _:
            return None


class Crowd:
    """Each caller, with the API token."""

    def __init__(self, here: LiveApi) -> None:
        self._here = here
        self._without: dict[tuple[str, Scope | None], str] = {}
        self._tokens: dict[str, str] = {}

    async def gather(self) -> None:
        here = self._here
        for name in ("eve", "mia", "zoe"):
            await here.sign_up(name)
        ada = self._user("ada")
        self._tokens = {name: here.people[name].token for name in PEOPLE if name != NOT_AS_ADMIN}
        self._tokens[NOT_AS_ADMIN] = await token_for(here.service, self._user("root"), scopes=EVERY_SCOPE - {Scope.ADMIN})
        self._tokens[EXPIRED] = await token_for(here.service, ada, lives_s=0)
        self._tokens[REVOKED] = await token_for(here.service, ada)
        caller = await here.accounts.recognise(self._tokens[REVOKED])
        await here.accounts.revoke(caller, caller.credential_id)
        for scope in (None, *Scope):
            scopes = EVERY_SCOPE - {scope} if scope is not None else EVERY_SCOPE
            for who, name in ((OF_OWNER_WITHOUT, "ada"), (OF_ADMIN_WITHOUT, "root")):
                self._without[who, scope] = await token_for(here.service, self._user(name), scopes=frozenset(scopes))

    def shows(self, who: str, rule: Rule) -> dict[str, str]:
        if who == NOBODY:
            return {}
        token = self._without.get((who, scope_of(rule))) or self._tokens[who]
        return {"Authorization": f"Bearer {token}"}

    def _user(self, name: str) -> User:
        return self._here.people[name].caller.user


async def ask(client: httpx2.AsyncClient, here: LiveApi, call: CallPath, url: str, headers: dict[str, str]) -> Answer:
    method = call[0]
    if method == WEBSOCKET:
        try:
            async with unix_connect(str(here.path), f"ws://localhost:8080{url}", additional_headers=headers):
                return Answer(101, None)
        except InvalidStatus as refused:
            return Answer(refused.response.status_code, json.loads(refused.response.body or b"{}").get("code"))
    async with client.stream(method, url, headers=headers, json=BODIES.get(call)) as response:
        is_problem = response.headers.get("content-type") == "application/problem+json"
        return Answer(response.status_code, json.loads(await response.aread())["code"] if is_problem else None)


async def test_every_caller_may_do_exactly_what_the_rules_say(database_url: str, redis_url: str) -> None:
    wrong = []
    async with live_api(database_url, redis_url) as here, calling(here.path) as client:
        crowd = Crowd(here)
        await crowd.gather()
        made = 0
        for call, _, _ in api_calls(here.app):
            rule = RULES[call]
            success = _success(here, call)
            for who in EVERYBODY:
                made += 1
                workspace, lease = uuid.uuid4(), uuid.uuid4()
                await here.db.execute(INSERT, workspace, f"w-{made}", here.people["ada"].id)
                # Created by the caller: only users with the role `manage` may end another user's hold.
                await here.db.execute(HOLD, lease, workspace, who if who in PEOPLE else "ada")
                before = await here.db.fetchval(KNOWN, workspace)
                named = {**NAMED, "workspace": f"w-{made}" if made % 2 else str(workspace), "lease_id": str(lease)}
                url = call[1].replace(":path}", "}").format(**named)
                answer = await ask(client, here, call, url, crowd.shows(who, rule))
                refusal = expected(rule, who)
                is_in = answer.status == OTHERWISE.get(call, success) or (rule == ANYBODY and answer.code not in REFUSALS)
                if refusal is None and is_in:
                    await _forget_new(here)
                    continue
                if refusal is not None and answer.code == refusal and await here.db.fetchval(KNOWN, workspace) == before:
                    continue
                wrong.append((" ".join(call), who, refusal or "may", answer))
        assert wrong == []
        assert made == len(EVERYBODY) * len(list(api_calls(here.app)))


def _success(here: LiveApi, call: CallPath) -> int:
    """As the OpenAPI description defines it."""
    method, path = call
    described = here.described["paths"].get(path, {}).get(method.lower(), {"responses": {"200": {}}})
    return min(int(status) for status in described["responses"] if status.startswith("2"))


async def _forget_new(here: LiveApi) -> None:
    """Remove what the call created, because the next caller creates it under the same name."""
    await here.db.execute("DELETE FROM workspaces WHERE name = 'new'")
    await here.db.execute("DELETE FROM users WHERE username = 'new'")


async def test_a_call_without_a_rule_is_not_served(database_url: str, redis_url: str) -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/api/v1/surprise")
    async def surprise() -> None: ...

    @app.websocket("/api/v1/surprise")
    async def socket() -> None: ...

    with pytest.raises(LookupError, match="GET /api/v1/surprise, WEBSOCKET /api/v1/surprise"):
        RuleCheck().learn(app)
    RuleCheck().learn(app, {("GET", "/api/v1/surprise"): ANYBODY, (WEBSOCKET, "/api/v1/surprise"): ANYBODY})


async def test_a_route_without_a_check_must_be_public() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    async def plain(_request: Any) -> Any: ...

    app.add_route("/plain", plain)
    RuleCheck().learn(app, {("GET", "/plain"): ANYBODY})
    with pytest.raises(LookupError, match="/plain"):
        RuleCheck().learn(app, {("GET", "/plain"): AdminRule()})


async def test_every_rule_belongs_to_an_existing_call(database_url: str, redis_url: str) -> None:
    # These calls exist only in an installation with a provider.
    of_provider = {("GET", "/oidc/begin"), ("GET", "/oidc/back")}
    async with live_api(database_url, redis_url) as here:
        assert {call for call, _, _ in api_calls(here.app)} == RULES.keys() - of_provider


async def test_a_token_without_the_admin_scope_sees_only_own_workspaces(database_url: str, redis_url: str) -> None:
    async with live_api(database_url, redis_url) as here:
        await here.call("POST", "/workspaces", {"name": "of-ada", "desired_state": "STANDBY"})
        await here.call("POST", "/workspaces", {"name": "of-root", "desired_state": "STANDBY"}, by="root")
        root = here.people["root"]
        narrow = await token_for(here.service, root.caller.user, scopes=EVERY_SCOPE - {Scope.ADMIN})
        for token, seen in ((narrow, {"of-root"}), (root.token, {"of-ada", "of-root"})):
            here.people["root"] = replace(root, token=token)
            listed = (await here.call("GET", "/workspaces", by="root")).json()["items"]
            audited = (await here.call("GET", "/audit", by="root")).json()["items"]
            stream = await here.follow("/events", by="root", since=await here.until_handed_out())
            await here.change("of-ada")
            await here.change("of-root")
            heard = await stream.some(len(seen))
            assert {one["name"] for one in listed} == seen
            assert {one["workspace"] for one in audited} - {"", None} == seen
            assert {one.body["workspace"]["name"] for one in heard} == seen
