"""API tokens: they give access with their scopes, until they expire or are revoked."""

import pytest

from tests.accounts.test_sessions import another_process, ended, refusal, watched
from tests.support.accounts_stage import HOME, AccountsStage
from torpor.accounts import AuthMethod, Caller, digest
from torpor.accounts.accounts import TOKENS_AT_MOST, ProviderIdentity
from torpor.domain.access import EVERY_SCOPE, TOKEN_PREFIX, Scope

pytestmark = pytest.mark.anyio


async def test_a_token_authenticates_its_user_with_its_scopes(here: AccountsStage) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    made, secret = await here.accounts.make_token(session, " robot ", {Scope.READ, Scope.USE}, 3600)
    assert secret.startswith(TOKEN_PREFIX)
    caller = await here.accounts.recognise(secret)
    assert (caller.how, caller.label, caller.credential_id) == (AuthMethod.TOKEN, "robot", made.id)
    assert caller.scopes == {Scope.READ, Scope.USE}
    assert made.expires_at is not None
    assert (made.expires_at - made.created_at).total_seconds() == 3600
    assert [one.id for one in await here.accounts.tokens(session)] == [made.id]
    assert [one.id for one in await here.accounts.sessions(session)] == [session.credential_id]


async def test_an_unknown_scope_grants_nothing(here: AccountsStage) -> None:
    await here.db.execute("UPDATE tokens SET scopes = '{read,teleport}'")
    assert (await here.accounts.recognise("torpor_root")).scopes == {Scope.READ}


async def test_a_token_cannot_create_one_with_more_scopes(here: AccountsStage) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    _, secret = await here.accounts.make_token(session, "small", {Scope.READ, Scope.ACCOUNT}, None)
    small = await here.accounts.recognise(secret)
    assert await refusal(here.accounts.make_token(small, "large", {Scope.READ, Scope.MANAGE}, None)) == "scope_missing"
    await here.accounts.make_token(small, "same", {Scope.READ}, None)


@pytest.mark.parametrize(
    ("label", "scopes", "lives_s"),
    [
        ("", EVERY_SCOPE, None),
        ("  ", EVERY_SCOPE, None),
        ("x" * 101, EVERY_SCOPE, None),
        ("two\nlines", EVERY_SCOPE, None),
        ("robot", frozenset(), None),
        ("robot", EVERY_SCOPE, 0),
        ("robot", EVERY_SCOPE, 1e12),
    ],
)
async def test_a_token_without_label_scopes_or_valid_lifetime_is_refused(
    here: AccountsStage, label: str, scopes: frozenset[Scope], lives_s: float | None
) -> None:
    assert await refusal(here.accounts.make_token(here.admin, label, scopes, lives_s)) == "bad_token"


async def test_an_expired_token_is_refused(here: AccountsStage) -> None:
    await here.db.execute("UPDATE tokens SET expires_at = now() - interval '1 second'")
    assert await refusal(here.accounts.recognise("torpor_root")) == "unauthorized"


async def test_only_its_owner_can_revoke_a_token_and_a_revoked_one_is_refused(here: AccountsStage) -> None:
    await here.sign_up("ada")
    await here.sign_up("bob")
    ada, bob = await here.session("ada"), await here.session("bob")
    made, secret = await here.accounts.make_token(ada, "robot", {Scope.READ}, None)
    assert await refusal(here.accounts.revoke(bob, made.id)) == "not_found"
    assert await refusal(here.accounts.revoke(ada, "no-id")) == "not_found"
    assert await refusal(here.accounts.revoke(ada, ada.credential_id)) == "not_found"
    assert await refusal(here.accounts.end_session(ada, made.id)) == "not_found"
    await here.accounts.recognise(secret)
    await here.accounts.revoke(ada, made.id)
    assert await refusal(here.accounts.recognise(secret)) == "unauthorized"
    assert [one["detail"]["label"] for one in await here.audited("token.revoke")] == ["robot"]


async def test_signing_out_with_a_token_does_not_revoke_it(here: AccountsStage) -> None:
    await here.accounts.sign_out(here.admin)
    assert (await here.accounts.recognise("torpor_root")).user == here.admin.user


async def test_the_number_of_tokens_of_a_user_is_limited(here: AccountsStage) -> None:
    await here.sign_up("ada")
    ada = await here.session("ada")
    for number in range(TOKENS_AT_MOST):
        await here.accounts.make_token(ada, f"robot {number}", {Scope.READ}, None)
    assert await refusal(here.accounts.make_token(ada, "one more", {Scope.READ}, None)) == "too_many_tokens"


async def test_the_time_of_last_use_of_a_token_is_recorded(here: AccountsStage) -> None:
    await here.sign_up("ada")
    ada = await here.session("ada")
    made, secret = await here.accounts.make_token(ada, "robot", {Scope.READ}, None)
    assert (made.last_used_at, made.made_from) == (None, HOME)
    await here.accounts.recognise(secret)
    (used,) = await here.accounts.tokens(ada)
    assert used.last_used_at is not None
    # Not with every request: once a minute is enough.
    await here.accounts.recognise(secret)
    assert (await here.accounts.tokens(ada))[0].last_used_at == used.last_used_at


async def test_the_token_of_the_machine_has_every_scope_and_replaces_the_earlier_one(here: AccountsStage) -> None:
    user = here.admin.user
    await here.db.execute("UPDATE tokens SET scopes = '{}', expires_at = now() WHERE digest = $1", digest("torpor_root"))
    await here.accounts.ensure_token(user, "test", "torpor_root")
    assert (await here.accounts.recognise("torpor_root")).scopes == EVERY_SCOPE
    await here.accounts.ensure_token(user, "test", "torpor_other")
    assert await refusal(here.accounts.recognise("torpor_root")) == "unauthorized"
    assert (await here.accounts.recognise("torpor_other")).user == user


async def test_a_created_token_expires_no_later_than_its_creator(here: AccountsStage) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    short, secret = await here.accounts.make_token(session, "short", EVERY_SCOPE, 60)
    caller = await here.accounts.recognise(secret)
    for lives_s in (None, 3600):
        made, _ = await here.accounts.make_token(caller, "child", {Scope.READ}, lives_s)
        assert made.expires_at == short.expires_at
    made, _ = await here.accounts.make_token(caller, "shorter", {Scope.READ}, 30)
    assert made.expires_at is not None
    assert short.expires_at is not None
    assert made.expires_at < short.expires_at
    # API tokens stay valid when the session that created them ends.
    assert (await here.accounts.make_token(session, "lasting", {Scope.READ}, None))[0].expires_at is None
    assert (await here.accounts.make_token(here.admin, "lasting", {Scope.READ}, None))[0].expires_at is None


async def test_a_revoked_token_cannot_create_tokens(here: AccountsStage) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    made, secret = await here.accounts.make_token(session, "stolen", EVERY_SCOPE, None)
    thief = await here.accounts.recognise(secret)
    await here.accounts.revoke(session, made.id)
    assert await refusal(here.accounts.make_token(thief, "another", {Scope.READ}, None)) == "unauthorized"
    assert await here.accounts.tokens(session) == []


async def descendants(here: AccountsStage) -> tuple[Caller, list[Caller]]:
    """A session and tokens; each token except the first is created with the one before."""
    await here.sign_up("ada")
    session = await here.session("ada")
    chain = [session]
    for label in ("first", "second", "third"):
        _, secret = await here.accounts.make_token(chain[-1], label, EVERY_SCOPE, None)
        chain.append(await here.accounts.recognise(secret))
    return session, chain[1:]


async def test_revoking_a_token_revokes_its_descendants_and_ends_their_connections(here: AccountsStage) -> None:
    session, (first, second, third) = await descendants(here)
    other, _ = await here.accounts.make_token(session, "other", {Scope.READ}, None)
    async with another_process(here) as there, watched(there, session, first, second, third) as (open_session, *open_tokens):
        await here.accounts.revoke(session, first.credential_id)
        await ended(*open_tokens)
        assert not open_session.done()
    for caller in (first, second, third):
        assert await refusal(here.accounts.recognise_again(caller)) == "unauthorized"
    assert [one.id for one in await here.accounts.tokens(session)] == [other.id]
    (entry,) = await here.audited("token.revoke")
    assert sorted(entry["detail"]["also_revoked"]) == sorted([second.credential_id, third.credential_id])


async def test_revoking_a_token_keeps_its_creator(here: AccountsStage) -> None:
    session, (first, second, third) = await descendants(here)
    await here.accounts.revoke(session, second.credential_id)
    assert await refusal(here.accounts.recognise_again(third)) == "unauthorized"
    assert [one.id for one in await here.accounts.tokens(session)] == [first.credential_id]


async def test_a_token_that_ends_all_other_credentials_stays_valid(here: AccountsStage) -> None:
    session, (first, second, third) = await descendants(here)
    await here.accounts.end_all(second, "ada")
    await here.accounts.recognise_again(second)
    for caller in (session, first, third):
        assert await refusal(here.accounts.recognise_again(caller)) == "unauthorized"


async def test_replacing_the_token_of_the_machine_revokes_its_descendants(here: AccountsStage) -> None:
    _, secret = await here.accounts.make_token(here.admin, "child", {Scope.READ}, None)
    child = await here.accounts.recognise(secret)
    async with another_process(here) as there, watched(there, child) as (open_child,):
        await here.accounts.ensure_token(here.admin.user, "test", "torpor_other")
        await ended(open_child)
    assert await refusal(here.accounts.recognise(secret)) == "unauthorized"


async def test_a_token_gets_no_scope_that_its_creator_has_lost(here: AccountsStage) -> None:
    """The caller was authenticated while the token still had the scope."""
    await here.db.execute("UPDATE tokens SET scopes = '{read,account}' WHERE digest = $1", digest("torpor_root"))
    assert await refusal(here.accounts.make_token(here.admin, "more", {Scope.MANAGE}, None)) == "scope_missing"
    await here.accounts.make_token(here.admin, "same", {Scope.READ}, None)


async def test_a_token_cannot_set_a_password(here: AccountsStage) -> None:
    """Without an old password to ask for, the holder of the token could set one and sign in as the user."""
    session = await here.accounts.recognise(
        await here.accounts.sign_in_with(ProviderIdentity("https://id.example.com", "1", ("ada",)))
    )
    _, secret = await here.accounts.make_token(session, "robot", {Scope.ACCOUNT}, None)
    robot = await here.accounts.recognise(secret)
    assert await refusal(here.accounts.change_password(robot, None, "a first password")) == "forbidden"
    assert await refusal(here.accounts.sign_in("ada", "a first password")) == "bad_credentials"


async def test_a_token_of_an_administrator_without_the_admin_scope_is_not_admin(here: AccountsStage) -> None:
    assert here.admin.is_admin
    _, secret = await here.accounts.make_token(here.admin, "robot", EVERY_SCOPE - {Scope.ADMIN}, None)
    robot = await here.accounts.recognise(secret)
    assert (robot.user.is_admin, robot.is_admin) == (True, False)
    await here.sign_up("ada")
    assert not (await here.session("ada")).is_admin
