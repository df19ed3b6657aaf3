"""The JSON of users, sessions and API tokens: models, and conversions from records."""

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from torpor.accounts import Caller
from torpor.api.wire import Boolean, Integer, Text, Wire, number
from torpor.domain.access import Scope
from torpor.domain.errors import Refused
from torpor.domain.usernames import LONGEST_PASSWORD, LONGEST_USERNAME, SHORTEST_PASSWORD, USERNAME_RULE
from torpor.store.user_store import Account, Credential

LARGEST_LIMIT = 100_000


class Login(Wire):
    username: Text = Field(max_length=LONGEST_USERNAME)
    password: Text = Field(max_length=LONGEST_PASSWORD)


class OidcOut(Wire):
    name: str = Field(description="The label of the sign-in button, which leads to /oidc/begin.")


class SignInOut(Wire):
    """How users can sign in."""

    password: bool
    oidc: OidcOut | None


class Me(Wire):
    id: str
    username: str
    is_admin: bool
    max_running: int | None = Field(description="null: the default.")
    has_password: bool = Field(description="false: no old password is needed to set one.")
    how: Literal["SESSION", "TOKEN"] = Field(description="How this call is authenticated.")
    credential_id: str = Field(description="The id of the session or API token.")
    scopes: list[Scope]
    expires_at: datetime | None


class ChangePassword(Wire):
    old: Text | None = Field(None, max_length=LONGEST_PASSWORD)
    new: Text = Field(description=f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.")
    end_tokens: Boolean = Field(False, description="Also revoke all API tokens. All other sessions end in any case.")


class SessionOut(Wire):
    id: str
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None
    came_from: str = Field(description="The address from which the user signed in.")
    user_agent: str
    is_current: bool


class SessionList(Wire):
    items: list[SessionOut]


class MakeToken(Wire):
    label: Text = Field(description="What the API token is for, in 1 to 100 characters.")
    scopes: list[Scope] = Field(max_length=20)
    expires_in: Integer | None = Field(
        None, description="Seconds; null: no expiry. An API token that creates another one cannot give it a later expiry."
    )


class TokenOut(Wire):
    id: str
    label: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    came_from: str = Field(description="The address from which the API token was created.")


class TokenMade(TokenOut):
    token: str = Field(description="The API token. It is shown only once: only its digest is stored.")


class TokenList(Wire):
    items: list[TokenOut]


Limit = Annotated[int, Field(ge=0, le=LARGEST_LIMIT), BeforeValidator(number)]


class CreateUser(Wire):
    username: Text = Field(description=USERNAME_RULE)
    password: Text | None = Field(None, description="null: this user cannot sign in with a password.")
    is_admin: Boolean = False
    max_running: Limit | None = Field(None, description="null: the default.")


class ChangeUser(Wire):
    """Fields that are left out keep their values."""

    is_admin: Boolean = False
    is_active: Boolean = True
    max_running: Limit | None = Field(None, description="null: the default.")
    password: Text = Field("", description="A new password. It ends all sessions and API tokens of this user.")


class UserOut(Wire):
    id: str
    username: str
    is_admin: bool
    is_active: bool
    max_running: int | None
    has_password: bool
    is_from_provider: bool = Field(description="Whether this user signs in with an OpenID Connect provider.")
    created_at: datetime


class UserPage(Wire):
    items: list[UserOut]
    next_cursor: str | None


def me_out(caller: Caller, account: Account) -> Me:
    return Me(
        id=caller.user.id,
        username=caller.user.username,
        is_admin=caller.user.is_admin,
        max_running=caller.user.max_running,
        has_password=account.password is not None,
        how="TOKEN" if caller.how == "TOKEN" else "SESSION",
        credential_id=caller.credential_id,
        scopes=sorted(caller.scopes),
        expires_at=caller.expires_at,
    )


def session_out(session: Credential, *, current_id: str) -> SessionOut:
    assert session.expires_at is not None, "the database requires that sessions expire"
    return SessionOut(
        id=session.id,
        created_at=session.created_at,
        expires_at=session.expires_at,
        last_used_at=session.last_used_at,
        came_from=session.made_from,
        user_agent=session.user_agent,
        is_current=session.id == current_id,
    )


def token_out(token: Credential) -> TokenOut:
    return TokenOut(
        id=token.id,
        label=token.label,
        scopes=list(token.scopes),
        created_at=token.created_at,
        expires_at=token.expires_at,
        last_used_at=token.last_used_at,
        came_from=token.made_from,
    )


def token_made(token: Credential, secret: str) -> TokenMade:
    return TokenMade(**token_out(token).model_dump(), token=secret)


def user_out(account: Account) -> UserOut:
    return UserOut(
        id=account.user.id,
        username=account.user.username,
        is_admin=account.user.is_admin,
        is_active=account.user.is_active,
        max_running=account.user.max_running,
        has_password=account.password is not None,
        is_from_provider=account.is_from_provider,
        created_at=account.created_at,
    )


def user_page(accounts: Sequence[Account], *, limit: int) -> UserPage:
    """`accounts` has one more than the page, if there is a next page."""
    items = [user_out(one) for one in accounts[:limit]]
    return UserPage(items=items, next_cursor=to_name_cursor(items[-1].username) if len(accounts) > limit else None)


def to_name_cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def from_name_cursor(cursor: str | None) -> str:
    """The name after which the page begins; empty: from the beginning."""
    if cursor is None:
        return ""
    try:
        name = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True).decode("ascii")
    except (ValueError, binascii.Error) as error:
        raise _bad_cursor(cursor) from error
    if not name or not name.isprintable():
        raise _bad_cursor(cursor)
    return name


def _bad_cursor(cursor: str) -> Refused:
    return Refused("bad_cursor", f"{cursor!r} is not a cursor of this API")
