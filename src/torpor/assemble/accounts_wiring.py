"""Build the accounts and the OpenID Connect provider from the settings."""

from torpor.accounts import Accounts
from torpor.accounts.provider import Provider, ProviderOptions, open_provider
from torpor.api.oidc import BACK
from torpor.bus.login_throttle import Throttle
from torpor.bus.redis import Bus
from torpor.bus.revocations import Revocations
from torpor.settings import Settings
from torpor.store.database import Database
from torpor.store.user_store import UserStore


def accounts(settings: Settings, database: Database, bus: Bus, revocations: Revocations) -> Accounts:
    return Accounts(UserStore(database), revocations, Throttle(bus), session_ttl_s=settings.session_ttl)


def provider(settings: Settings) -> Provider | None:
    """The OpenID Connect provider, if the settings name one."""
    if settings.oidc_issuer is None or settings.oidc_client_id is None or settings.oidc_client_secret is None:
        return None
    return open_provider(
        ProviderOptions(
            issuer=settings.oidc_issuer,
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret.get_secret_value(),
            redirect_uri=settings.base_url + BACK,
            name=settings.oidc_name,
            admins=frozenset(name for part in settings.oidc_admins.split(",") if (name := part.strip())),
        )
    )
