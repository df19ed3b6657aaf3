"""Sign users in with an OpenID Connect provider: authorization code with PKCE.

Only an ID token is trusted that the provider signed, for this client, recently, and with the nonce of the browser that began
the sign-in.
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
"""The provider's metadata and keys are read again after this time."""
KEYS_AGAIN_S = 30.0
"""Before that, an unknown key makes them be read again at most this often, so that forged tokens cannot cause many reads."""
LEEWAY_S = 60
PLACES = ("authorization_endpoint", "jwks_uri", "token_endpoint")
# Only asymmetric algorithms: with a shared secret, or without a signature, others could forge tokens.
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
        """The identity that the provider confirms; Refused `sign_in_refused` when it does not."""
        async with self._client() as client:
            metadata = await self._described(client)
            token = await _fetch_token(client, metadata["token_endpoint"], code, verifier)
            claims = await self._proven(client, metadata, token, nonce)
            if not _names(claims):
                claims = {**await self._profile(client, metadata, claims["sub"]), **claims}
        verified = {str(claims["email"])} if claims.get("email") and claims.get("email_verified") is True else set()
        return ProviderIdentity(
            # Without the trailing slash, which may be configured differently later.
            issuer=self.options.issuer.rstrip("/"),
            subject=claims["sub"],
            names=(*_names(claims), claims["sub"]),
            is_admin=bool(self.options.admins & {claims["sub"], *verified}),
        )

    async def _proven(
        self, client: Any, metadata: Mapping[str, Any], token: Mapping[str, Any], nonce: str
    ) -> Mapping[str, Any]:
        """The claims of the ID token, after every claim that ties it to this sign-in is checked."""
        said = metadata.get("id_token_signing_alg_values_supported")
        offered = said if isinstance(said, list) and said else ["RS256"]
        registry = JWSRegistry(algorithms=[one for one in SIGNED_BY if one in offered], strict_check_header=False)
        id_token = str(token.get("id_token", ""))
        try:
            decoded = _decoded(id_token, await self._read_keys(client, metadata), registry)
        except (InvalidKeyIdError, BadSignatureError):
            # The provider may have a new key by now, perhaps with the same id.
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
            raise Refused("sign_in_refused", "the sign-in provider sent no valid subject for this user")
        return dict(claims)

    async def _profile(self, client: Any, metadata: Mapping[str, Any], subject: str) -> Mapping[str, Any]:
        """More claims about this user, where the ID token has no name."""
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
                raise Unavailable(f"the metadata of the sign-in provider lacks {', '.join(missing)}")
            self._metadata, self._keys = (self._clock() + KNOWN_FOR_S, found), None
        return self._metadata[1]

    async def _read_keys(self, client: Any, metadata: Mapping[str, Any]) -> KeySet:
        if self._keys is None:
            self._keys = _to_keys(await _get(client, metadata["jwks_uri"]))
        return self._keys

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        """Errors of the libraries are translated here."""
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
            raise Refused("sign_in_refused", "the sign-in provider did not confirm who you are; sign in again") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise Unavailable(f"the sign-in provider cannot be reached: {type(error).__name__}; try again later") from error


async def _fetch_token(client: Any, url: str, code: str, verifier: str) -> Mapping[str, Any]:
    try:
        token = await client.fetch_token(url, grant_type="authorization_code", code=code, code_verifier=verifier)
    except (TypeError, AttributeError, KeyError) as error:
        # The library expects an object and does not check it.
        raise Unavailable("the sign-in provider's response is not a token") from error
    if not isinstance(token, dict):
        raise Unavailable("the sign-in provider's response is not a token")
    return token


def _to_keys(found: Mapping[str, Any]) -> KeySet:
    """The keys that can be used; a provider may publish others."""
    listed = found.get("keys")
    keys: list[Key] = []
    for one in listed if isinstance(listed, list) else ():
        with contextlib.suppress(JoseError, ValueError, TypeError, KeyError, AttributeError):
            keys.append(import_key(one))
    if not keys:
        raise Unavailable("the sign-in provider publishes no usable key")
    return KeySet(keys)


def _decoded(id_token: str, keys: KeySet, registry: JWSRegistry) -> jwt.Token:
    """The token, if one of these keys signed it."""
    try:
        return jwt.decode(id_token, keys, registry=registry)
    except InvalidKeyIdError:
        if extract_compact(id_token.encode()).headers().get("kid"):
            raise
    # The token names no key: try each.
    for key in keys:
        with contextlib.suppress(JoseError, ValueError):
            return jwt.decode(id_token, key, registry=registry)
    raise BadSignatureError


async def _get(client: Any, url: str) -> Mapping[str, Any]:
    answer = await client.request("GET", url, withhold_token=True)
    answer.raise_for_status()
    found = answer.json()
    if not isinstance(found, dict):
        raise Unavailable(f"the sign-in provider's response to {url} is not a JSON object")
    return found


def _names(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Proposals for the user name, the best first."""
    email = claims.get("email")
    said = (claims.get("preferred_username"), email.partition("@")[0] if isinstance(email, str) else None)
    return tuple(name.partition("@")[0] for name in said if isinstance(name, str) and name)
