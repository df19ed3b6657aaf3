"""A provider's ID token is accepted only if every part is valid."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from joserfc.jwk import RSAKey

from tests.support.openid_providers import SECRET, Forger, forging_provider, provider_at
from torpor.accounts.accounts import ProviderIdentity
from torpor.accounts.openid import KEYS_AGAIN_S, KNOWN_FOR_S, OpenIdProvider
from torpor.accounts.provider import ProviderOptions, open_provider
from torpor.domain.errors import Refused, Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
def forger() -> Iterator[Forger]:
    with forging_provider() as running:
        yield running


async def vouched(forger: Forger, **more: Any) -> ProviderIdentity:
    return await provider_at(forger.issuer, **more).vouch("a code", nonce="nonce", verifier="a verifier")


async def test_a_valid_id_token_is_accepted(forger: Forger) -> None:
    forger.claims = {"preferred_username": "ada", "email": "countess@example.com"}
    assert await vouched(forger) == ProviderIdentity(forger.issuer, "1", ("ada", "countess", "1"))
    (asked,) = forger.asked
    assert (asked["code"], asked["code_verifier"], asked["grant_type"]) == ("a code", "a verifier", "authorization_code")
    assert asked["redirect_uri"].endswith("/oidc/back")
    assert SECRET not in asked.values()


NOW = time.time()
FORGED: dict[str, dict[str, Any]] = {
    "the nonce of another sign-in": {"claims": {"nonce": "another"}},
    "no nonce": {"without": frozenset({"nonce"})},
    "for somebody else": {"claims": {"aud": "another client"}},
    "for us by leave of somebody else": {"claims": {"aud": ["torpor", "other"], "azp": "other"}},
    "for nobody": {"without": frozenset({"aud"})},
    "by another issuer": {"claims": {"iss": "https://evil.example.com"}},
    "by no issuer": {"without": frozenset({"iss"})},
    "about nobody": {"without": frozenset({"sub"})},
    "about an empty name": {"claims": {"sub": ""}},
    "about a number": {"claims": {"sub": 7}},
    "long over": {"claims": {"exp": int(NOW) - 3600, "iat": int(NOW) - 7200}},
    "without an end": {"without": frozenset({"exp"})},
    "signed with what we know as well": {"header": {"alg": "HS256"}},
    "signed with what we know as well, as the provider offers": {
        "header": {"alg": "HS256"},
        "described": {"id_token_signing_alg_values_supported": ["HS256", "none"]},
    },
    "not signed": {"id_token": "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIiwibm9uY2UiOiJub25jZSJ9."},
    "not signed, as the provider offers": {
        "id_token": "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIiwibm9uY2UiOiJub25jZSJ9.",
        "described": {"id_token_signing_alg_values_supported": ["none"]},
    },
    "signed with another key": {"published": [RSAKey.generate_key(2048, {"kid": "one"})]},
    "signed with a key nobody published": {"published": [RSAKey.generate_key(2048, {"kid": "two"})]},
    "nothing at all": {"id_token": ""},
    "no token": {"id_token": "no token"},
}


@pytest.mark.parametrize("forged", FORGED)
async def test_an_id_token_with_any_wrong_part_is_refused(forger: Forger, forged: str) -> None:
    for name, value in FORGED[forged].items():
        setattr(forger, name, value)
    with pytest.raises(Refused) as refused:
        await vouched(forger)
    assert refused.value.code == "sign_in_refused"
    # The log has the cause; the client does not get it.
    assert refused.value.message in (
        "the sign-in provider did not confirm who you are; sign in again",
        "the sign-in provider sent no valid subject for this user",
    )


async def test_a_new_key_is_learned_when_it_is_used(forger: Forger) -> None:
    provider = provider_at(forger.issuer)
    await provider.vouch("a code", nonce="nonce", verifier="a verifier")
    forger.key, forger.header = RSAKey.generate_key(2048, {"kid": "two"}), {"alg": "RS256", "kid": "two"}
    assert (await provider.vouch("a code", nonce="nonce", verifier="a verifier")).subject == "1"


async def test_a_new_key_of_the_same_name_is_learned_as_well(forger: Forger) -> None:
    provider = provider_at(forger.issuer)
    await provider.vouch("a code", nonce="nonce", verifier="a verifier")
    forger.key = RSAKey.generate_key(2048, {"kid": "one"})
    assert (await provider.vouch("a code", nonce="nonce", verifier="a verifier")).subject == "1"


async def test_forged_tokens_do_not_cause_a_key_read_each_time(forger: Forger) -> None:
    now = 0.0
    provider = provider_at(forger.issuer)
    provider._clock = lambda: now
    forger.published = [RSAKey.generate_key(2048, {"kid": "one"})]
    for _ in range(5):
        with pytest.raises(Refused):
            await provider.vouch("a code", nonce="nonce", verifier="a verifier")
    assert forger.keys_read == 2
    now = KEYS_AGAIN_S
    forger.published = []
    assert (await provider.vouch("a code", nonce="nonce", verifier="a verifier")).subject == "1"


async def test_a_token_without_a_key_id_is_checked_with_every_published_key(forger: Forger) -> None:
    others = [RSAKey.generate_key(2048) for _ in range(2)]
    forger.header = {"alg": "RS256"}
    forger.published = [others[0], forger.key, others[1]]
    assert (await vouched(forger)).subject == "1"
    forger.published = others
    with pytest.raises(Refused) as refused:
        await vouched(forger)
    assert refused.value.code == "sign_in_refused"


async def test_unusable_keys_are_ignored(forger: Forger) -> None:
    ours = forger.key.as_dict(private=False)
    forger.key_set = {"keys": [7, {}, {"kty": "RSA"}, {"kty": "of tomorrow", "kid": "one"}, ours]}
    assert (await vouched(forger)).subject == "1"


@pytest.mark.parametrize("key_set", [{"no": "keys"}, {"keys": None}, {"keys": 7}, {"keys": []}, {"keys": [7]}, [7]])
async def test_a_provider_without_keys_is_unavailable(forger: Forger, key_set: Any) -> None:
    forger.key_set = key_set
    with pytest.raises(Unavailable):
        await vouched(forger)


@pytest.mark.parametrize("token", [[], [7], "x", 7])
async def test_an_invalid_token_response_is_refused(forger: Forger, token: Any) -> None:
    forger.token = token
    with pytest.raises((Refused, Unavailable)):
        await vouched(forger)


async def test_a_trailing_slash_of_the_issuer_does_not_change_the_identity(forger: Forger) -> None:
    assert await provider_at(f"{forger.issuer}/").vouch("a code", nonce="nonce", verifier="v") == await vouched(forger)


@pytest.mark.parametrize(
    ("claims", "is_admin"),
    [
        ({"sub": "boss"}, True),
        ({"email": "boss@example.com", "email_verified": True}, True),
        ({"email": "boss@example.com"}, False),
        ({"email": "boss@example.com", "email_verified": "true"}, False),
        # Users choose this name themselves, so it must not make them administrators.
        ({"preferred_username": "boss"}, False),
        ({"preferred_username": "boss@example.com"}, False),
    ],
)
async def test_administrators_are_recognised_by_verified_claims(forger: Forger, claims: dict[str, Any], is_admin: bool) -> None:
    forger.claims = claims
    assert (await vouched(forger, admins=frozenset({"boss", "boss@example.com"}))).is_admin is is_admin


@pytest.mark.parametrize(
    ("claims", "names"),
    [
        ({}, ("1",)),
        ({"preferred_username": "ada@example.com"}, ("ada", "1")),
        ({"email": "ada@example.com"}, ("ada", "1")),
        ({"preferred_username": 7, "email": None}, ("1",)),
    ],
)
async def test_usernames_are_derived_from_the_claims(forger: Forger, claims: dict[str, Any], names: tuple[str, ...]) -> None:
    forger.claims = claims
    assert (await vouched(forger)).names == names


@pytest.mark.parametrize(
    "described",
    [
        {"issuer": "https://evil.example.com"},
        {"token_endpoint": "http://127.0.0.1:1/"},
        {"jwks_uri": "no address"},
        {"jwks_uri": 7},
        {"token_endpoint": None},
    ],
)
async def test_a_provider_with_invalid_metadata_is_unavailable(forger: Forger, described: dict[str, Any]) -> None:
    forger.described = described
    with pytest.raises(Unavailable):
        await vouched(forger)


async def test_a_provider_that_fails_is_unavailable(forger: Forger) -> None:
    forger.token_status = 503
    with pytest.raises(Unavailable):
        await vouched(forger)


async def test_provider_metadata_is_read_again_after_a_while(forger: Forger) -> None:
    now = 0.0
    provider = provider_at(forger.issuer)
    provider._clock = lambda: now
    await provider.begin()
    forger.described = {"authorization_endpoint": f"{forger.issuer}/moved"}
    assert "/moved" not in (await provider.begin()).url
    now = KNOWN_FOR_S
    assert "/moved" in (await provider.begin()).url


def test_the_client_secret_is_not_in_the_repr() -> None:
    provider = open_provider(ProviderOptions("https://id.example.com", "torpor", SECRET, "https://torpor.example.com/", "it"))
    assert isinstance(provider, OpenIdProvider)
    assert provider.options.client_secret == SECRET
    assert SECRET not in repr(provider.options)
