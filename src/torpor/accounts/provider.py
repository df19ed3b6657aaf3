"""With whom may people sign in besides us, and what is such a provider asked?"""

from dataclasses import dataclass, field
from typing import Protocol

from torpor.accounts.accounts import ProviderIdentity


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """Where a browser is sent, and what it must keep until it comes back."""

    url: str
    state: str
    nonce: str
    verifier: str


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    redirect_uri: str
    """Where it sends browsers back to."""
    name: str
    """What the button says."""
    admins: frozenset[str] = frozenset()
    """Subjects, or e-mail addresses that the provider has verified. Names that people choose for themselves prove nothing.

    Whoever is named here is an administrator from each sign-in on, also if an administrator has decided otherwise meanwhile.
    """


class Provider(Protocol):
    @property
    def options(self) -> ProviderOptions: ...

    async def begin(self) -> AuthorizationRequest:
        """Unavailable when it cannot be asked."""
        ...

    async def vouch(self, code: str, *, nonce: str, verifier: str) -> ProviderIdentity:
        """Whom it vouches for; Refused `sign_in_refused` when it does not."""
        ...


def open_provider(options: ProviderOptions) -> Provider:
    # It takes longer to load than everything else about people, and most installations have none.
    from torpor.accounts.openid import OpenIdProvider

    return OpenIdProvider(options)
