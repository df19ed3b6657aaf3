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


async def test_users_come_in_pages(here: AccountsStage) -> None:
    for name in ("cleo", "ada", "bob"):
        await here.sign_up(name)
    first = await here.accounts.users(limit=2)
    rest = await here.accounts.users(after=first[-1].user.username, limit=9)
    assert [one.user.username for one in (*first, *rest)] == ["ada", "bob", "cleo", "root"]


async def test_a_name_is_taken_once(here: AccountsStage) -> None:
    await here.sign_up("ada")
    assert await refusal(here.accounts.create_user(here.admin, "ada", password=PASSWORD)) == "name_taken"


@pytest.mark.parametrize("name", ["", "Ada", "ada lovelace", "-ada", "a" * 65, "ada\n", "00000000-0000-0000-0000-000000000000"])
async def test_not_everything_is_a_name(here: AccountsStage, name: str) -> None:
    assert await refusal(here.accounts.create_user(here.admin, name)) == "bad_username"


async def test_a_short_password_is_none(here: AccountsStage) -> None:
    assert await refusal(here.accounts.create_user(here.admin, "ada", password="short")) == "bad_password"
    await here.sign_up("ada")
    assert await refusal(here.accounts.change_user(here.admin, "ada", UserChange(password="short"))) == "bad_password"
    assert await refusal(here.accounts.change_password(await here.session("ada"), PASSWORD, "short")) == "bad_password"


async def test_what_is_not_named_stays_as_it_is(here: AccountsStage) -> None:
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
async def test_there_is_always_an_administrator_left(here: AccountsStage, change: UserChange) -> None:
    await here.sign_up("ada", is_admin=True)
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=False))
    assert await refusal(here.accounts.change_user(here.admin, "root", change)) == "last_administrator"
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=True))
    await here.accounts.change_user(here.admin, "root", change)


@pytest.mark.parametrize("change", [UserChange(is_active=False), UserChange(is_admin=False)])
async def test_an_administrator_that_cannot_sign_in_is_none_to_rely_on(here: AccountsStage, change: UserChange) -> None:
    await here.accounts.create_user(here.admin, "robot", is_admin=True)
    assert await refusal(here.accounts.change_user(here.admin, "root", change)) == "last_administrator"
    await here.accounts.change_user(here.admin, "robot", change)
    await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",), is_admin=True))
    await here.accounts.change_user(here.admin, "root", change)


async def test_where_no_administrator_can_sign_in_the_last_of_them_stays_all_the_same(here: AccountsStage) -> None:
    await here.sign_up("ada")
    await here.db.execute("UPDATE users SET password = NULL WHERE username = 'root'")
    assert await refusal(here.accounts.change_user(here.admin, "root", UserChange(is_admin=False))) == "last_administrator"
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=False))


async def test_a_password_set_by_an_administrator_ends_whatever_they_were_recognised_by(here: AccountsStage) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    _, secret = await here.accounts.make_token(session, "robot", {Scope.READ}, None)
    await here.accounts.change_user(here.admin, "ada", UserChange(password="another password"))
    assert await refusal(here.accounts.recognise_again(session)) == "unauthorized"
    assert await refusal(here.accounts.recognise(secret)) == "unauthorized"
    assert await refusal(here.sign_in("ada")) == "bad_credentials"
    await here.accounts.sign_in("ada", "another password")


async def test_an_administrator_signs_somebody_out_everywhere(here: AccountsStage) -> None:
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


async def test_an_administrator_who_signs_out_everywhere_stays_where_they_are(here: AccountsStage) -> None:
    session = await here.session("root")
    await here.accounts.end_all(here.admin, "root")
    assert await refusal(here.accounts.recognise_again(session)) == "unauthorized"
    await here.accounts.recognise_again(here.admin)


@pytest.mark.parametrize("ends_tokens", [False, True])
async def test_who_changes_their_password_says_whether_their_tokens_end(here: AccountsStage, ends_tokens: bool) -> None:
    await here.sign_up("ada")
    session = await here.session("ada")
    _, secret = await here.accounts.make_token(session, "robot", {Scope.READ}, None)
    await here.accounts.change_password(session, PASSWORD, "another password", ends_tokens=ends_tokens)
    assert (await here.accounts.tokens(session) == []) is ends_tokens
    if ends_tokens:
        assert await refusal(here.accounts.recognise(secret)) == "unauthorized"
    await here.accounts.recognise_again(session)


async def test_who_never_had_a_password_names_no_old_one(here: AccountsStage) -> None:
    session = await here.accounts.recognise(await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",))))
    await here.accounts.change_password(session, None, "a first password")
    await here.accounts.sign_in("ada", "a first password")
    assert await refusal(here.accounts.change_password(session, None, "another password")) == "wrong_password"


# ── from a provider ───────────────────────────────────────────────────────────────────────────────────────────────────


async def username_of(here: AccountsStage, identity: ProviderIdentity) -> str:
    return (await here.accounts.recognise(await here.accounts.sign_in_with(identity))).user.username


async def test_the_same_person_is_the_same_user_whatever_they_are_called_now(here: AccountsStage) -> None:
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("ada",))) == "ada"
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("countess",))) == "ada"
    assert [one["detail"]["by"] for one in await here.audited("session.begin")] == ["oidc", "oidc"]


async def test_a_name_that_is_taken_is_never_taken_over(here: AccountsStage) -> None:
    await here.sign_up("ada")
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("ada",))) == "ada-2"
    assert await username_of(here, ProviderIdentity(ISSUER, "2", ("ada",))) == "ada-3"
    assert await username_of(here, ProviderIdentity("https://elsewhere.example.com", "1", ("ada",))) == "ada-4"


async def test_who_is_named_as_administrator_is_one_from_then_on(here: AccountsStage) -> None:
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("ada",))) == "ada"
    await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",), is_admin=True), came_from=HOME)
    assert (await here.accounts.user("ada")).user.is_admin
    (promoted,) = await here.audited("user.change")
    assert (promoted["username"], promoted["how"], promoted["came_from"]) == ("ada", "SYSTEM", HOME)
    assert (promoted["detail"]["is_admin"], promoted["detail"]["by"]) == (True, "oidc")
    await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",), is_admin=True))
    assert len(await here.audited("user.change")) == 1


async def test_a_deactivated_user_is_let_in_by_no_provider(here: AccountsStage) -> None:
    await here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",)))
    await here.accounts.change_user(here.admin, "ada", UserChange(is_active=False))
    assert (
        await refusal(here.accounts.sign_in_with(ProviderIdentity(ISSUER, "1", ("ada",)), came_from=ELSEWHERE))
        == "unauthorized"
    )
    (refused,) = await here.audited("session.refused")
    assert (refused["username"], refused["came_from"], refused["outcome"]) == ("ada", ELSEWHERE, "unauthorized")
    assert refused["detail"] == {"by": "oidc"}


async def test_whoever_goes_on_not_being_vouched_for_does_not_fill_the_log(here: AccountsStage) -> None:
    for _ in range(3 * OF_ONE_NAME):
        await here.accounts.not_vouched_for("sign_in_refused", came_from=ELSEWHERE)
    assert len(await here.audited("session.refused")) == OF_ONE_NAME


async def test_however_many_are_called_the_same_each_gets_a_name(here: AccountsStage) -> None:
    await here.sign_up("john")
    others = "SELECT gen_random_uuid(), 'john-' || number, false FROM generate_series(2, 250) AS number"
    await here.db.execute(f"INSERT INTO users (id, username, is_admin) {others}")
    assert await username_of(here, ProviderIdentity(ISSUER, "1", ("john",))) == "john-251"


@pytest.mark.parametrize("subject", ["", "a\0", "\0", "\ud800", "x" * 256])
async def test_what_cannot_be_a_person_is_none(here: AccountsStage, subject: str) -> None:
    assert await refusal(here.accounts.sign_in_with(ProviderIdentity(ISSUER, subject, ("ada",)))) == "sign_in_refused"
    assert await refusal(here.accounts.user("ada")) == "not_found"
