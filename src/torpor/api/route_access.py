"""What does each call ask of whoever makes it?

One table for the whole app, which is not made while a call is missing in it, and one place that sees to it before anything of
the call itself happens. Which workspace a path names, and how near somebody is to it, is looked up in `torpor.service.wishes`.
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

Path: TypeAlias = tuple[str, str]
"""A method (or WEBSOCKET), and a path as the route has it."""

WEBSOCKET = "WEBSOCKET"


@dataclass(frozen=True, slots=True)
class PublicRule:
    """Also nobody."""


@dataclass(frozen=True, slots=True)
class SignedInRule:
    """Whoever is signed in; a token must have been made for it."""

    scope: Scope | None
    """None: whatever it was made for."""


@dataclass(frozen=True, slots=True)
class WorkspaceRule:
    """Whoever may do this with the workspace that the path names."""

    deed: Permission


@dataclass(frozen=True, slots=True)
class AdminRule:
    """Whoever runs the installation."""


Rule: TypeAlias = PublicRule | SignedInRule | WorkspaceRule | AdminRule

ANYBODY = PublicRule()
ADMINISTRATOR = AdminRule()
READS = SignedInRule(Scope.READ)
KEEPS_ACCOUNT = SignedInRule(Scope.ACCOUNT)

V1 = "/api/v1"
ONE = f"{V1}/workspaces/{{workspace}}"

RULES: Mapping[Path, Rule] = MappingProxyType(
    {
        # people
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
        ("GET", f"{ONE}/operations"): WorkspaceRule(Permission.SEE),
        ("GET", f"{ONE}/archives"): WorkspaceRule(Permission.SEE),
        ("GET", f"{ONE}/explain"): WorkspaceRule(Permission.SEE),
        ("GET", f"{ONE}/logs"): WorkspaceRule(Permission.SEE),
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
        ("GET", f"{ONE}/events"): WorkspaceRule(Permission.SEE),
        ("GET", f"{V1}/events"): READS,
        ("GET", f"{V1}/audit"): READS,
        # the installation
        ("GET", f"{V1}/confinement"): ADMINISTRATOR,
        ("GET", f"{V1}/latches"): READS,
        ("POST", f"{V1}/latches/{{provider}}/release"): ADMINISTRATOR,
        ("GET", f"{V1}/gc"): ADMINISTRATOR,
        ("POST", f"{V1}/gc"): ADMINISTRATOR,
        ("GET", f"{V1}/gc/report"): ADMINISTRATOR,
        ("GET", "/health"): ANYBODY,
        ("GET", "/health/ready"): ANYBODY,
        ("GET", "/health/coordinator"): ANYBODY,
        ("GET", "/metrics"): ANYBODY,
        # pages, and ways to them
        ("GET", "/openapi.json"): ANYBODY,
        ("GET", "/docs"): ANYBODY,
        **{("GET", path): ANYBODY for path in (*PAGES, *FILES)},
        # These look for themselves whether a session comes along: a browser without one is sent to sign in.
        ("GET", "/door"): ANYBODY,
        ("GET", "/sign-in/link"): ANYBODY,
        ("GET", "/oidc/begin"): ANYBODY,
        ("GET", "/oidc/back"): ANYBODY,
    }
)


def check_rule(rule: Rule, caller: Caller) -> None:
    """Returns when the call may be made, as far as that does not depend on a workspace; Refused when not."""
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
                raise Refused("forbidden", "only an administrator may do that")
            check_scope(caller.scopes, Scope.ADMIN)
        case _:
            assert_never(rule)


class RuleCheck:
    """A dependency of every call of an app: nobody gets past it who may not make the call."""

    def __init__(self) -> None:
        self._rules: dict[Callable[..., Any], Rule] = {}

    def learn(self, app: FastAPI, rules: Mapping[Path, Rule] = RULES) -> None:
        """Once all calls are there; LookupError names those of which nobody has said who may make them."""
        unruled = []
        for path, endpoint, is_guarded in api_calls(app):
            rule = rules.get(path)
            # What has no dependencies is guarded by nobody, so it must be for anybody.
            if rule is None or not (is_guarded or rule == ANYBODY) or self._rules.setdefault(endpoint, rule) != rule:
                unruled.append(path)
        if unruled:
            raise LookupError(f"calls without a rule: {', '.join(' '.join(path) for path in unruled)}")

    async def __call__(self, connection: HTTPConnection) -> None:
        rule = self._rules[connection.scope["endpoint"]]
        if rule != ANYBODY:
            check_rule(rule, await current_caller(connection))


def api_calls(app: FastAPI) -> Iterator[tuple[Path, Callable[..., Any], bool]]:
    """Every call of an app, what answers it, and whether the app's dependencies are asked before."""
    for context in iter_route_contexts(app.routes):
        is_guarded = isinstance(context.original_route, APIRoute | APIWebSocketRoute)
        for method in _methods(context.methods):
            assert context.path is not None, context
            assert context.endpoint is not None, context
            yield (method, context.path), context.endpoint, is_guarded


def _methods(said: Iterable[str] | None) -> list[str]:
    # HEAD comes with GET, and asks for the same.
    return sorted(set(said) - {"HEAD"}) if said is not None else [WEBSOCKET]
