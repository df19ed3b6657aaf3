"""Create the first user, and the file with which commands on this machine sign in as that user."""

import asyncio
import json
import secrets

from torpor import atomic_file
from torpor.accounts import Accounts, new_token
from torpor.domain.errors import Refused
from torpor.paths import CREDENTIALS_FILE
from torpor.settings import Settings

ADMIN = "admin"


async def ensure_credentials(settings: Settings, accounts: Accounts) -> str | None:
    """Return the code of a one-time sign-in link on the first start of an installation, else None."""
    path = settings.data / CREDENTIALS_FILE
    is_first_start = not path.exists() and not await accounts.users(limit=1)
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = {"username": ADMIN, "password": secrets.token_urlsafe(12), "token": new_token()}
    except ValueError as error:
        raise Refused("bad_credentials_file", f"{path} is not valid JSON ({error}). Correct it, or remove it") from error
    if not isinstance(known, dict) or not all(isinstance(known.get(key), str) for key in ("username", "token")):
        raise Refused("bad_credentials_file", f"{path} has no username or no token. Correct it, or remove it")
    user = await accounts.ensure_admin(known["username"], known.get("password") or secrets.token_urlsafe(12))
    await accounts.ensure_token(user, f"credentials of {settings.data}", known["token"])
    if known.get("password") and not await accounts.knows(known["username"], known["password"]):
        # The database is older than this file, or the password was changed later: store no password instead of a wrong one.
        known["password"] = None
    content = json.dumps({**known, "url": settings.base_url}, indent=2) + "\n"
    # The data directory is locked, so the name of the partial file may be fixed: the next start replaces one that was left.
    partial = path.with_suffix(".new")
    await asyncio.to_thread(atomic_file.write, path, content.encode(), partial=partial)
    return await accounts.sign_in_code(user) if is_first_start else None
