"""Users: create, change, deactivate, and sign in with a provider."""

import pytest

from tests.accounts.test_sessions import refusal
from tests.support.accounts_stage import ELSEWHERE, HOME, PASSWORD, AccountsStage
from torpor.accounts import UserChange
from torpor.accounts.accounts import ProviderIdentity
from torpor.bus.login_throttle import OF_ONE_NAME
from torpor.domain.access import Scope

pytestmark = pytest.mark.anyio
ISSUER = "https://id.example.com"


async def test_a_user_is_found_by_name_and_by_id(here: AccountsStage) -> None:
    user_id = await here.sign_up("ada")
    assert await here.accounts.user("ada") == await here.accounts.user(user_id)
    assert await refusal(here.accounts.user("eve")) == "not_found"
    assert await refusal(here.accounts.user("00000000-0000-0000-0000-000000000000")) == "not_found"
    for nobody in ("", "\0", "a\0", "\ud800"):
        assert await refusal(here.accounts.user(nobody)) == "not_found"


async def test_users_are_listed_in_pages(here: AccountsStage) -> None:
    for name in ("cleo", "ada", "bob"):
        await here.sign_up(name)
    first = await here.accounts.users(limit=2)
    rest = await here.accounts.users(after=first[-1].user.username, limit=9)
    assert [one.user.username for one in (*first, *rest)] == ["ada", "bob", "cleo", "root"]


async def test_a_username_is_unique(here: AccountsStage) -> None:
    await here.sign_up("ada")
    assert await refusal(here.accounts.create_user(here.admin, "ada", password=PASSWORD)) == "name_taken"


@pytest.mark.parametrize("name", ["", "Ada", "ada lovelace", "-ada", "a" * 65, "ada\n", "00000000-0000-0000-0000-000000000000"])
async def test_an_invalid_username_is_refused(here: AccountsStage, name: str) -> None:
    assert await refusal(here.accounts.create_user(here.admin, name)) == "bad_username"


async def test_a_short_password_is_refused(here: AccountsStage) -> None:
    assert await refusal(here.accounts.create_user(here.admin, "ada", password="short")) == "bad_password"
    await here.sign_up("ada")
    assert await refusal(here.accounts.change_user(here.admin, "ada", UserChange(password="short"))) == "bad_password"
    assert await refusal(here.accounts.change_password(await here.session("ada"), PASSWORD, "short")) == "bad_password"


async def test_a_change_keeps_fields_that_are_not_given(here: AccountsStage) -> None:
    await here.sign_up("ada")
    changed = await here.accounts.change_user(here.admin, "ada", UserChange(max_running=7))
    assert (changed.user.is_admin, changed.user.is_active, changed.user.max_running) == (False, True, 7)
    changed = await here.accounts.change_user(here.admin, "ada", UserChange(is_admin=True))
    assert (changed.user.is_admin, changed.user.max_running) == (True, 7)
    changed = await here.accounts.change_user(here.admin, "ada", UserChange(max_running=None))
    assert changed.user.max_running is None
    told = [one["detail"] for one in await here.audited("user.change")]
    assert [set(one) - {"user_id", "username"} for one in told] == [{"max_running"}, {"is_admin"}, {"max_running"}]
    await here.sign_in("ada")


@pytest.mark.parametrize("change", [UserChange(is_active=False), UserChange(is_admin=False)])
async def test_the_last_administrator_cannot_be_removed(here: AccountsStage, change: UserChange) -> None:
    await here.sign_up("ada", is_admin=True)
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=False))
    assert await refusal(here.accounts.change_user(here.admin, "root", change)) == "last_administrator"
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=True))
    await here.accounts.change_user(here.admin, "root", change)


@pytest.mark.parametrize("change", [UserChange(is_active=False), UserChange(is_admin=False)])
async def test_an_administrator_who_cannot_sign_in_does_not_count_as_another(here: AccountsStage, change: UserChange) -> None:
    await here.accounts.create_user(here.admin, "robot", is_admin=True)
    assert await refusal(here.accounts.change_user(here.admin, "root", change)) == "last_administrator"
    await here.accounts.change_user(here.admin, "robot", change)
    await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",), is_admin=True))
    await here.accounts.change_user(here.admin, "root", change)


async def test_the_last_administrator_stays_even_if_they_cannot_sign_in(here: AccountsStage) -> None:
    await here.sign_up("ada")
    await here.db.execute("UPDATE users SET password = NULL WHERE username = 'root'")
    assert await refusal(here.accounts.change_user(here.admin, "root", UserChange(is_admin=False))) == "last_administrator"
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=False))


async def test_a_password_set_by_an_administrator_ends_sessions_and_tokens(here: AccountsStage) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    _, secret = await here.accounts.make_token(session, "robot", {Scope.READ}, None)
    await here.accounts.change_user(here.admin, "ada", UserChange(password="another password"))
    assert await refusal(here.accounts.recognise_again(session)) == "unauthorized"
    assert await refusal(here.accounts.recognise(secret)) == "unauthorized"
    assert await refusal(here.sign_in("ada")) == "bad_credentials"
    await here.accounts.sign_in("ada", "another password")


async def test_an_administrator_signs_a_user_out_everywhere(here: AccountsStage) -> None:
    await here.sign_up("ada")
    sessions = [await here.session("ada") for _ in range(3)]
    _, secret = await here.accounts.make_token(sessions[0], "robot", {Scope.READ}, None)
    stolen = await here.accounts.recognise(secret)
    told: set[str] = set()
    here.accounts._revocations._listeners.append(lambda revoked: told.update(revoked.credential_ids))
    await here.accounts.end_all(here.admin, "ada")
    for caller in (*sessions, stolen):
        assert await refusal(here.accounts.recognise_again(caller)) == "unauthorized"
    assert told == {caller.credential_id for caller in (*sessions, stolen)}
    await here.sign_in("ada")


async def test_signing_oneself_out_everywhere_keeps_the_current_credential(here: AccountsStage) -> None:
    session = await here.session("root")
    await here.accounts.end_all(here.admin, "root")
    assert await refusal(here.accounts.recognise_again(session)) == "unauthorized"
    await here.accounts.recognise_again(here.admin)


@pytest.mark.parametrize("ends_tokens", [False, True])
async def test_a_password_change_ends_tokens_only_if_requested(here: AccountsStage, ends_tokens: bool) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    _, secret = await here.accounts.make_token(session, "robot", {Scope.READ}, None)
    await here.accounts.change_password(session, PASSWORD, "another password", ends_tokens=ends_tokens)
    assert (await here.accounts.tokens(session) == []) is ends_tokens
    if ends_tokens:
        assert await refusal(here.accounts.recognise(secret)) == "unauthorized"
    await here.accounts.recognise_again(session)


async def test_a_user_without_a_password_sets_one_without_an_old_one(here: AccountsStage) -> None:
    session = await here.accounts.recognise(await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",))))
    await here.accounts.change_password(session, None, "a first password")
    await here.accounts.sign_in("ada", "a first password")
    assert await refusal(here.accounts.change_password(session, None, "another password")) == "wrong_password"


# ── from a provider ───────────────────────────────────────────────────────────────────────────────────────────────────


async def username_of(here: AccountsStage, identity: ProviderIdentity) -> str:
    return (await here.accounts.recognise(await here.accounts.sign_in_with(identity))).user.username


async def test_a_provider_user_keeps_its_username_when_the_provider_renames_it(here: AccountsStage) -> None:
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("ada",))) == "ada"
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("countess",))) == "ada"
    assert [one["detail"]["by"] for one in await here.audited("session.begin")] == ["oidc", "oidc"]


async def test_a_provider_user_does_not_take_over_an_existing_username(here: AccountsStage) -> None:
    await here.sign_up("ada")
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("ada",))) == "ada-2"
    assert await username_of(here, ProviderIdentity(ISSUER, "2", ("ada",))) == "ada-3"
    assert await username_of(here, ProviderIdentity("https://elsewhere.example.com", "1", ("ada",))) == "ada-4"


async def test_a_provider_user_becomes_administrator_when_the_provider_says_so(here: AccountsStage) -> None:
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("ada",))) == "ada"
    await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",), is_admin=True), came_from=HOME)
    assert (await here.accounts.user("ada")).user.is_admin
    (promoted,) = await here.audited("user.change")
    assert (promoted["username"], promoted["how"], promoted["came_from"]) == ("ada", "SYSTEM", HOME)
    assert (promoted["detail"]["is_admin"], promoted["detail"]["by"]) == (True, "oidc")
    await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",), is_admin=True))
    assert len(await here.audited("user.change")) == 1


async def test_a_deactivated_user_cannot_sign_in_by_a_provider(here: AccountsStage) -> None:
    await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",)))
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=False))
    assert (
        await refusal(here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",)), came_from=ELSEWHERE))
        == "unauthorized"
    )
    (refused,) = await here.audited("session.refused")
    assert (refused["username"], refused["came_from"], refused["outcome"]) == ("ada", ELSEWHERE, "unauthorized")
    assert refused["detail"] == {"by": "oidc"}


async def test_refused_provider_sign_ins_are_audited_up_to_a_limit(here: AccountsStage) -> None:
    for _ in range(3 * OF_ONE_NAME):
        await here.accounts.not_vouched_for("sign_in_refused", came_from=ELSEWHERE)
    assert len(await here.audited("session.refused")) == OF_ONE_NAME


async def test_users_of_the_same_name_get_numbered_usernames(here: AccountsStage) -> None:
    await here.sign_up("john")
    others = "SELECT gen_random_uuid(), 'john-' || number, false FROM generate_series(2, 250) AS number"
    await here.db.execute(f"INSERT INTO users (id, username, is_admin) {others}")
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("john",))) == "john-251"


@pytest.mark.parametrize("subject", ["", "a\0", "\0", "\ud800", "x" * 256])
async def test_an_invalid_provider_subject_is_refused(here: AccountsStage, subject: str) -> None:
    assert await refusal(here.accounts.sign_in_with(ProviderIdentity(ISSUER, subject, ("ada",)))) == "sign_in_refused"
    assert await refusal(here.accounts.user("ada")) == "not_found"
