"""Who is asking, and how did they show it?

Tokens, sessions and codes are random and stored as SHA-256 only; passwords as argon2id.
"""

from torpor.accounts.accounts import Accounts, UserChange
from torpor.accounts.callers import AuthMethod, Caller
from torpor.accounts.secret import TOKEN_PREFIX, digest, new_token

__all__ = ["TOKEN_PREFIX", "Accounts", "AuthMethod", "Caller", "UserChange", "digest", "new_token"]
