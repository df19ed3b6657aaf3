"""Users, sessions, API tokens, passwords and sign-in with an OpenID Connect provider.

Tokens, sessions and codes are random and stored only as SHA-256; passwords are stored as argon2id.
"""

from torpor.accounts.accounts import Accounts, UserChange
from torpor.accounts.callers import AuthMethod, Caller
from torpor.accounts.secret import digest, new_token

__all__ = ["Accounts", "AuthMethod", "Caller", "UserChange", "digest", "new_token"]
