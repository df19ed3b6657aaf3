"""login, logout: sign in to a Torpor server, and sign out.

A token is stored instead of the password. `login` creates it, `logout` revokes it.
"""

import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli.exit_codes import CommandError, usage
from torpor.cli.options import Json
from torpor.cli.output.console import say, show_json, show_line
from torpor.cli.prompts import prompt_text, read_secret
from torpor.cli.target import StoredLogin, forget_login, store_login, stored_login

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient

FROM_STDIN = "-"


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as https://torpor.example.com.", show_default=False)],
    username: Annotated[
        str | None,
        typer.Option("--username", "-u", metavar="USER", help="Your username (default: you are asked).", show_default=False),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", metavar="TOKEN", help="An API token that you have; `-` reads it from standard input.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Sign in to a Torpor server, for all later commands."""
    from torpor.cli.client import ApiClient

    if username is not None and token is not None:
        raise usage("--username and --token cannot be used together", "an API token belongs to one user: leave --username out")
    url = url.rstrip("/")
    if token is not None:
        token = read_secret("API token: ") if token == FROM_STDIN else token
        with ApiClient(url, token) as api:
            made = StoredLogin(url, token, api.me()["username"])
    else:
        with ApiClient(url, None) as api:
            made = _with_password(api, url, username)
    former = _former()
    try:
        path = store_login(made, os.environ)
    except CommandError:
        _revoke(made)
        raise
    if former is not None and former.token != made.token:
        # No file would name this token any more.
        _revoke(former)
    if as_json:
        show_json({"url": made.url, "username": made.username, "stored_in": str(path)})
    else:
        show_line(f"signed in to {made.url} as {made.username}; `torpor logout` ends it")
    for name in ("TORPOR_URL", "TORPOR_TOKEN", "TORPOR_DATA"):
        if os.environ.get(name):
            say(f"torpor: {name} is set and takes precedence over this sign-in")


def logout(as_json: Json = False) -> None:
    """Sign out: revoke and remove the stored API token."""
    stored = stored_login(os.environ)
    if stored is None:
        raise usage("you are not signed in", "`torpor login URL` signs in", code="not_signed_in")
    is_revoked = _revoke(stored)
    forget_login(os.environ)
    if as_json:
        show_json({"url": stored.url, "username": stored.username, "revoked": is_revoked})
    else:
        show_line(f"signed out of {stored.url}")


def _with_password(api: "ApiClient", url: str, username: str | None) -> StoredLogin:
    name = username or prompt_text("Username: ")
    if not api.sign_in_ways()["password"]:
        raise usage(
            "this server does not accept passwords", f"create an API token at {url}, then run `torpor login {url} --token -`"
        )
    api.sign_in(name, read_secret(f"Password of {name}: "))
    try:
        me = api.me()
        made = api.make_token({"label": f"torpor login on {socket.gethostname()}"[:100], "scopes": _scopes(me)})
    finally:
        # The session was needed only to create the token.
        try:
            api.sign_out()
        except CommandError as ended:
            say(f"torpor: {ended.what}")
    return StoredLogin(url, made["token"], me["username"], made["id"])


def _scopes(me: "dict[str, object]") -> list[str]:
    return ["read", "use", "manage", "account", *(["admin"] if me["is_admin"] else [])]


def _former() -> StoredLogin | None:
    try:
        return stored_login(os.environ)
    except CommandError:
        return None


def _revoke(stored: StoredLogin) -> bool:
    """Whether the token is invalid now. A token that the user brought is not revoked."""
    from torpor.cli.client import ApiClient

    if stored.token_id is None:
        return False
    try:
        with ApiClient(stored.url, stored.token) as api:
            api.revoke_token(stored.token_id)
    except CommandError as ended:
        if ended.code in ("unauthorized", "not_found"):
            return True
        say(
            f"torpor: the API token could not be revoked: {ended.what}"
            f" (it is removed from this machine; revoke it at {stored.url})"
        )
        return False
    return True
