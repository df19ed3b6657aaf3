"""The interface of a sign-in provider (OpenID Connect), and its options."""

from dataclasses import dataclass, field
from typing import Protocol

from torpor.accounts.accounts import ProviderIdentity


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """The address to which a browser is sent, and what it must keep until it returns."""

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
    """The address to which the provider sends browsers back."""
    name: str
    """The label of the sign-in button."""
    admins: frozenset[str] = frozenset()
    """Subjects, or e-mail addresses that the provider has verified. Names that users can choose themselves are no proof.

    These users become administrators at each sign-in, even if an administrator has removed that right meanwhile.
    """


class Provider(Protocol):
    @property
    def options(self) -> ProviderOptions: ...

    async def begin(self) -> AuthorizationRequest:
        """Unavailable when the provider cannot be asked."""
        ...

    async def vouch(self, code: str, *, nonce: str, verifier: str) -> ProviderIdentity:
        """The identity that the provider confirms; Refused `sign_in_refused` when it does not."""
        ...


def open_provider(options: ProviderOptions) -> Provider:
    # Imported here because it takes longer to load than the rest of this package, and most installations have no provider.
    from torpor.accounts.openid import OpenIdProvider

    return OpenIdProvider(options)
