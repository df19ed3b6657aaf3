"""How is an OpenID Connect provider asked, and when is it believed?

Authorization code with PKCE. Nothing is believed but an ID token that the provider signed, for us, just now, for the very
browser that set out: its nonce says so.
"""

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
import structlog
from authlib.common.errors import AuthlibBaseError  # type: ignore[import-untyped]
from authlib.integrations.httpx_client import AsyncOAuth2Client  # type: ignore[import-untyped]
from authlib.oidc.core import CodeIDToken  # type: ignore[import-untyped]
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import Key, KeySet, import_key
from joserfc.jws import JWSRegistry, extract_compact

from torpor.accounts.accounts import ProviderIdentity
from torpor.accounts.provider import AuthorizationRequest, ProviderOptions
from torpor.domain.errors import Refused, Unavailable

log = structlog.get_logger()

SCOPE = "openid profile email"
ANSWERS_WITHIN_S = 10.0
KNOWN_FOR_S = 3600.0
"""After so long its description and its keys are read again."""
KEYS_AGAIN_S = 30.0
"""So seldom are they read again before that, whoever comes with what they did not sign."""
LEEWAY_S = 60
PLACES = ("authorization_endpoint", "jwks_uri", "token_endpoint")
# Only what a provider signs with a key that is its own: with a shared secret, or with none, whoever knows us could sign.
SIGNED_BY = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")


class OpenIdProvider:
    """Implements `provider.Provider`."""

    def __init__(self, options: ProviderOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        self._metadata: tuple[float, Mapping[str, Any]] | None = None
        self._keys: KeySet | None = None
        self._keys_again_at = float("-inf")

    async def begin(self) -> AuthorizationRequest:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        async with self._client() as client:
            metadata = await self._described(client)
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"], state=state, code_verifier=verifier, nonce=nonce
            )
        return AuthorizationRequest(url, state, nonce, verifier)

    async def vouch(self, code: str, *, nonce: str, verifier: str) -> ProviderIdentity:
        """Whom it vouches for; Refused `sign_in_refused` when it does not."""
        async with self._client() as client:
            metadata = await self._described(client)
            token = await _fetch_token(client, metadata["token_endpoint"], code, verifier)
            claims = await self._proven(client, metadata, token, nonce)
            if not _names(claims):
                claims = {**await self._profile(client, metadata, claims["sub"]), **claims}
        verified = {str(claims["email"])} if claims.get("email") and claims.get("email_verified") is True else set()
        return ProviderIdentity(
            # Whether it ends in a slash is nobody's choice twice.
            issuer=self.options.issuer.rstrip("/"),
            subject=claims["sub"],
            names=(*_names(claims), claims["sub"]),
            is_admin=bool(self.options.admins & {claims["sub"], *verified}),
        )

    async def _proven(
        self, client: Any, metadata: Mapping[str, Any], token: Mapping[str, Any], nonce: str
    ) -> Mapping[str, Any]:
        """What the ID token claims, once every claim that makes it ours was checked."""
        said = metadata.get("id_token_signing_alg_values_supported")
        offered = said if isinstance(said, list) and said else ["RS256"]
        registry = JWSRegistry(algorithms=[one for one in SIGNED_BY if one in offered], strict_check_header=False)
        id_token = str(token.get("id_token", ""))
        try:
            decoded = _decoded(id_token, await self._read_keys(client, metadata), registry)
        except (InvalidKeyIdError, BadSignatureError):
            # It may sign with a new key by now, perhaps one of the same name.
            if self._clock() < self._keys_again_at:
                raise
            self._keys, self._keys_again_at = None, self._clock() + KEYS_AGAIN_S
            decoded = _decoded(id_token, await self._read_keys(client, metadata), registry)
        essential: dict[str, dict[str, Any]] = {
            "iss": {"essential": True, "value": metadata["issuer"]},
            "aud": {"essential": True, "value": self.options.client_id},
            "exp": {"essential": True},
            "sub": {"essential": True, "allow_blank": False},
            "nonce": {"essential": True, "value": nonce},
        }
        about = {"nonce": nonce, "client_id": self.options.client_id, "access_token": token.get("access_token")}
        claims = CodeIDToken(decoded.claims, decoded.header, essential, about)
        claims.validate(leeway=LEEWAY_S)
        if not isinstance(claims["sub"], str):
            raise Refused("sign_in_refused", "the sign-in provider did not say who this is")
        return dict(claims)

    async def _profile(self, client: Any, metadata: Mapping[str, Any], subject: str) -> Mapping[str, Any]:
        """What else it says of this person, where the ID token does not name them."""
        if "userinfo_endpoint" not in metadata:
            return {}
        answer = await client.get(metadata["userinfo_endpoint"])
        answer.raise_for_status()
        said = answer.json()
        return said if isinstance(said, dict) and said.get("sub") == subject else {}

    async def _described(self, client: Any) -> Mapping[str, Any]:
        if self._metadata is None or self._metadata[0] <= self._clock():
            found = await _get(client, f"{self.options.issuer.rstrip('/')}/.well-known/openid-configuration")
            if str(found.get("issuer", "")).rstrip("/") != self.options.issuer.rstrip("/"):
                raise Unavailable(f"the sign-in provider calls itself {found.get('issuer')!r}, not {self.options.issuer!r}")
            missing = [name for name in PLACES if not isinstance(found.get(name), str)]
            if missing:
                raise Unavailable(f"the sign-in provider does not say its {', '.join(missing)}")
            self._metadata, self._keys = (self._clock() + KNOWN_FOR_S, found), None
        return self._metadata[1]

    async def _read_keys(self, client: Any, metadata: Mapping[str, Any]) -> KeySet:
        if self._keys is None:
            self._keys = _to_keys(await _get(client, metadata["jwks_uri"]))
        return self._keys

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        """Foreign errors become ours where they enter."""
        try:
            async with AsyncOAuth2Client(
                client_id=self.options.client_id,
                client_secret=self.options.client_secret,
                scope=SCOPE,
                redirect_uri=self.options.redirect_uri,
                code_challenge_method="S256",
                timeout=ANSWERS_WITHIN_S,
            ) as client:
                yield client
        except (AuthlibBaseError, JoseError) as error:
            log.warning("sign_in_refused", issuer=self.options.issuer, why=str(error))
            raise Refused("sign_in_refused", "the sign-in provider did not vouch for you; begin again") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise Unavailable(f"the sign-in provider cannot be asked just now: {type(error).__name__}") from error


async def _fetch_token(client: Any, url: str, code: str, verifier: str) -> Mapping[str, Any]:
    try:
        token = await client.fetch_token(url, grant_type="authorization_code", code=code, code_verifier=verifier)
    except (TypeError, AttributeError, KeyError) as error:
        # The library takes any answer for an object.
        raise Unavailable("the sign-in provider answers with something else than a token") from error
    if not isinstance(token, dict):
        raise Unavailable("the sign-in provider answers with something else than a token")
    return token


def _to_keys(found: Mapping[str, Any]) -> KeySet:
    """Those that can be used; a provider may have others."""
    listed = found.get("keys")
    keys: list[Key] = []
    for one in listed if isinstance(listed, list) else ():
        with contextlib.suppress(JoseError, ValueError, TypeError, KeyError, AttributeError):
            keys.append(import_key(one))
    if not keys:
        raise Unavailable("the sign-in provider publishes no key that could be used")
    return KeySet(keys)


def _decoded(id_token: str, keys: KeySet, registry: JWSRegistry) -> jwt.Token:
    """What one of these has signed."""
    try:
        return jwt.decode(id_token, keys, registry=registry)
    except InvalidKeyIdError:
        if extract_compact(id_token.encode()).headers().get("kid"):
            raise
    # It does not say which: whichever it is.
    for key in keys:
        with contextlib.suppress(JoseError, ValueError):
            return jwt.decode(id_token, key, registry=registry)
    raise BadSignatureError


async def _get(client: Any, url: str) -> Mapping[str, Any]:
    answer = await client.request("GET", url, withhold_token=True)
    answer.raise_for_status()
    found = answer.json()
    if not isinstance(found, dict):
        raise Unavailable(f"the sign-in provider answers {url} with something else than an object")
    return found


def _names(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """What this person may like to be called, the best first."""
    email = claims.get("email")
    said = (claims.get("preferred_username"), email.partition("@")[0] if isinstance(email, str) else None)
    return tuple(name.partition("@")[0] for name in said if isinstance(name, str) and name)
