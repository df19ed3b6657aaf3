"""Who is the first user, and how do the other commands on this machine act as that user?"""

import json
import secrets

from torpor.accounts import Accounts, new_token
from torpor.domain.errors import Refused
from torpor.settings import Settings

ADMIN = "admin"
CREDENTIALS = "credentials.json"


async def ensure_credentials(settings: Settings, accounts: Accounts) -> str | None:
    """The first user, and a file by which the other commands on this machine act as that user.

    The code of a one-time sign-in link where this is the first start of an installation; else None.
    """
    path = settings.data / CREDENTIALS
    is_first_start = not path.exists() and not await accounts.users(limit=1)
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = {"username": ADMIN, "password": secrets.token_urlsafe(12), "token": new_token()}
    except ValueError as error:
        raise Refused("bad_credentials_file", f"{path} is not valid JSON ({error}); mend it or remove it") from error
    if not isinstance(known, dict) or not all(isinstance(known.get(key), str) for key in ("username", "token")):
        raise Refused("bad_credentials_file", f"{path} lacks username or token; mend it or remove it")
    user = await accounts.ensure_admin(known["username"], known.get("password") or secrets.token_urlsafe(12))
    await accounts.ensure_token(user, f"credentials of {settings.data}", known["token"])
    if known.get("password") and not await accounts.knows(known["username"], known["password"]):
        # The database is older than this file, or the password was changed since: say nothing rather than something wrong.
        known["password"] = None
    aside = path.with_suffix(".new")
    aside.touch(mode=0o600)
    aside.write_text(json.dumps({**known, "url": settings.base_url}, indent=2) + "\n", encoding="utf-8")
    aside.replace(path)
    return await accounts.sign_in_code(user) if is_first_start else None
