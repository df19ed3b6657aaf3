"""Who may make each call.

One table for the whole app: the app cannot be made while a call is missing in it. One dependency checks it before the call
itself runs. `torpor.service.wishes` finds the workspace that a path names and checks the caller's access to it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, assert_never

from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts
from starlette.requests import HTTPConnection

from torpor.accounts import Caller
from torpor.api.authentication import current_caller
from torpor.dashboard.assets import FILES, PAGES
from torpor.domain.access import NEEDS, Permission, Scope, check_scope
from torpor.domain.errors import Refused

CallPath: TypeAlias = tuple[str, str]
"""A method (or WEBSOCKET), and the path of the route."""

WEBSOCKET = "WEBSOCKET"


@dataclass(frozen=True, slots=True)
class PublicRule:
    """Every client, also without signing in."""


@dataclass(frozen=True, slots=True)
class SignedInRule:
    """Every signed-in caller. An API token needs the scope."""

    scope: Scope | None
    """None: a token with any scope."""


@dataclass(frozen=True, slots=True)
class WorkspaceRule:
    """Callers with this permission for the workspace that the path names."""

    deed: Permission


@dataclass(frozen=True, slots=True)
class AdminRule:
    """Administrators."""


Rule: TypeAlias = PublicRule | SignedInRule | WorkspaceRule | AdminRule

ANYBODY = PublicRule()
ADMINISTRATOR = AdminRule()
READS = SignedInRule(Scope.READ)
KEEPS_ACCOUNT = SignedInRule(Scope.ACCOUNT)

V1 = "/api/v1"
ONE = f"{V1}/workspaces/{{workspace}}"

RULES: Mapping[CallPath, Rule] = MappingProxyType(
    {
        # users
        ("GET", f"{V1}/sign-in"): ANYBODY,
        ("POST", f"{V1}/login"): ANYBODY,
        ("POST", f"{V1}/logout"): SignedInRule(None),
        ("GET", f"{V1}/me"): SignedInRule(None),
        ("POST", f"{V1}/me/password"): KEEPS_ACCOUNT,
        ("GET", f"{V1}/sessions"): KEEPS_ACCOUNT,
        ("DELETE", f"{V1}/sessions/{{session}}"): KEEPS_ACCOUNT,
        ("POST", f"{V1}/tokens"): KEEPS_ACCOUNT,
        ("GET", f"{V1}/tokens"): KEEPS_ACCOUNT,
        ("DELETE", f"{V1}/tokens/{{token}}"): KEEPS_ACCOUNT,
        ("POST", f"{V1}/users"): ADMINISTRATOR,
        ("GET", f"{V1}/users"): ADMINISTRATOR,
        ("GET", f"{V1}/users/{{user}}"): ADMINISTRATOR,
        ("PATCH", f"{V1}/users/{{user}}"): ADMINISTRATOR,
        ("POST", f"{V1}/users/{{user}}/sign-out"): ADMINISTRATOR,
        # workspaces
        ("GET", f"{V1}/templates"): READS,
        ("GET", f"{V1}/limits"): READS,
        ("GET", f"{V1}/workspaces"): READS,
        ("POST", f"{V1}/workspaces"): SignedInRule(Scope.MANAGE),
        ("GET", ONE): WorkspaceRule(Permission.SEE),
        ("PATCH", ONE): WorkspaceRule(Permission.CHANGE),
        ("DELETE", ONE): WorkspaceRule(Permission.DELETE),
        ("POST", f"{ONE}/undelete"): WorkspaceRule(Permission.DELETE),
        ("POST", f"{ONE}/recover"): WorkspaceRule(Permission.RECOVER),
        ("POST", f"{ONE}/restore"): WorkspaceRule(Permission.RESTORE),
        ("DELETE", f"{ONE}/restore"): WorkspaceRule(Permission.RESTORE),
        ("POST", f"{ONE}/fork"): WorkspaceRule(Permission.FORK),
        ("GET", f"{ONE}/environment"): WorkspaceRule(Permission.SEE),
        ("GET", f"{ONE}/operations"): WorkspaceRule(Permission.SEE),
        ("GET", f"{ONE}/archives"): WorkspaceRule(Permission.SEE),
        ("GET", f"{ONE}/archives/files"): WorkspaceRule(Permission.READ_ARCHIVES),
        ("GET", f"{ONE}/archives/content"): WorkspaceRule(Permission.READ_ARCHIVES),
        ("GET", f"{ONE}/archives/export"): WorkspaceRule(Permission.READ_ARCHIVES),
        ("GET", f"{ONE}/archives/differences"): WorkspaceRule(Permission.READ_ARCHIVES),
        ("GET", f"{ONE}/explain"): WorkspaceRule(Permission.SEE),
        ("GET", f"{ONE}/logs"): WorkspaceRule(Permission.SEE),
        ("GET", f"{ONE}/usage"): WorkspaceRule(Permission.SEE),
        ("POST", f"{ONE}/exec"): WorkspaceRule(Permission.RUN),
        (WEBSOCKET, f"{ONE}/exec"): WorkspaceRule(Permission.RUN),
        (WEBSOCKET, f"{ONE}/shell"): WorkspaceRule(Permission.RUN),
        ("POST", f"{ONE}/leases"): WorkspaceRule(Permission.HOLD),
        ("GET", f"{ONE}/leases"): WorkspaceRule(Permission.SEE),
        ("DELETE", f"{ONE}/leases"): WorkspaceRule(Permission.HOLD),
        ("DELETE", f"{ONE}/leases/{{lease_id}}"): WorkspaceRule(Permission.HOLD),
        ("GET", f"{ONE}/shares"): WorkspaceRule(Permission.SEE),
        ("PUT", f"{ONE}/shares/{{username}}"): WorkspaceRule(Permission.SHARE),
        ("DELETE", f"{ONE}/shares/{{username}}"): WorkspaceRule(Permission.SHARE),
        ("GET", f"{ONE}/secrets"): WorkspaceRule(Permission.SECRETS),
        ("PUT", f"{ONE}/secrets/{{name}}"): WorkspaceRule(Permission.SECRETS),
        ("DELETE", f"{ONE}/secrets/{{name}}"): WorkspaceRule(Permission.SECRETS),
        ("GET", f"{ONE}/events"): WorkspaceRule(Permission.SEE),
        ("GET", f"{V1}/events"): READS,
        ("GET", f"{V1}/audit"): READS,
        # the installation
        ("GET", f"{V1}/confinement"): ADMINISTRATOR,
        ("GET", f"{V1}/latches"): READS,
        ("POST", f"{V1}/latches/{{provider}}/release"): ADMINISTRATOR,
        ("GET", f"{V1}/runtime"): READS,
        ("GET", f"{V1}/runtime/switch"): ADMINISTRATOR,
        ("POST", f"{V1}/runtime/switch"): ADMINISTRATOR,
        ("DELETE", f"{V1}/runtime/switch"): ADMINISTRATOR,
        ("GET", f"{V1}/gc"): ADMINISTRATOR,
        ("POST", f"{V1}/gc"): ADMINISTRATOR,
        ("GET", f"{V1}/gc/report"): ADMINISTRATOR,
        ("GET", "/health"): ANYBODY,
        ("GET", "/health/ready"): ANYBODY,
        ("GET", "/health/coordinator"): ANYBODY,
        ("GET", "/metrics"): ANYBODY,
        # pages, and sign-in
        ("GET", "/openapi.json"): ANYBODY,
        ("GET", "/docs"): ANYBODY,
        **{("GET", path): ANYBODY for path in (*PAGES, *FILES)},
        # These check the session themselves: a browser without one is sent to sign in.
        ("GET", "/door"): ANYBODY,
        ("GET", "/sign-in/link"): ANYBODY,
        ("GET", "/oidc/begin"): ANYBODY,
        ("GET", "/oidc/back"): ANYBODY,
    }
)


def check_rule(rule: Rule, caller: Caller) -> None:
    """Check the parts of a rule that do not depend on a workspace; Refused if the call may not be made."""
    match rule:
        case PublicRule():
            pass
        case SignedInRule(scope):
            if scope is not None:
                check_scope(caller.scopes, scope)
        case WorkspaceRule(deed):
            check_scope(caller.scopes, NEEDS[deed][1])
        case AdminRule():
            if not caller.user.is_admin:
                raise Refused("forbidden", "only an administrator may do this")
            check_scope(caller.scopes, Scope.ADMIN)
        case _:
            assert_never(rule)


class RuleCheck:
    """A dependency of every call of an app. It refuses callers who may not make the call."""

    def __init__(self) -> None:
        self._rules: dict[Callable[..., Any], Rule] = {}

    def learn(self, app: FastAPI, rules: Mapping[CallPath, Rule] = RULES) -> None:
        """Read the rules of all routes, once the app has them; LookupError names the calls without a rule."""
        unruled = []
        for path, endpoint, is_guarded in api_calls(app):
            rule = rules.get(path)
            # A route without dependencies is not checked, so it must be public.
            if rule is None or not (is_guarded or rule == ANYBODY) or self._rules.setdefault(endpoint, rule) != rule:
                unruled.append(path)
        if unruled:
            raise LookupError(f"calls without a rule: {', '.join(' '.join(path) for path in unruled)}")

    async def __call__(self, connection: HTTPConnection) -> None:
        rule = self._rules[connection.scope["endpoint"]]
        if rule != ANYBODY:
            check_rule(rule, await current_caller(connection))


def api_calls(app: FastAPI) -> Iterator[tuple[CallPath, Callable[..., Any], bool]]:
    """Every call of an app, its endpoint, and whether the app's dependencies run before it."""
    for context in iter_route_contexts(app.routes):
        is_guarded = isinstance(context.original_route, APIRoute | APIWebSocketRoute)
        for method in _methods(context.methods):
            assert context.path is not None, context
            assert context.endpoint is not None, context
            yield (method, context.path), context.endpoint, is_guarded


def _methods(methods: Iterable[str] | None) -> list[str]:
    # HEAD comes with GET and has the same rule.
    return sorted(set(methods) - {"HEAD"}) if methods is not None else [WEBSOCKET]
