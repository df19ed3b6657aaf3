"""Which Torpor is meant, and with whose word does one speak to it?

What the environment says (TORPOR_URL, TORPOR_TOKEN); else the credentials.json of a data directory that was named (TORPOR_DATA,
torpor.toml); else what `torpor login` stored; else the credentials.json of this user's own `torpor up`.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.paths import SETTINGS_FILE, config, default_data

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient
    from torpor.settings import Settings

CREDENTIALS = "credentials.json"
LOGIN = "login.json"
# What a command that only asks the API understands by itself. Anything else is a setting, and settings are checked.
UNDERSTOOD = frozenset({"TORPOR_URL", "TORPOR_TOKEN", "TORPOR_DATA", "TORPOR_TRACEBACK"})


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    url: str
    token: str


@dataclass(frozen=True, slots=True, repr=False)
class StoredLogin:
    """What `torpor login` stores."""

    url: str
    token: str
    username: str
    token_id: str | None = None
    """Of a token that was made for this; None: somebody brought theirs."""


def settings_here(**overrides: Any) -> "Settings":
    """What the command line, the environment and the `torpor.toml` in this folder say; Refused `bad_setting`."""
    from torpor.settings import find_toml, load

    return load(os.environ, toml=find_toml(os.environ, Path.cwd()), overrides=overrides)


def api_here(*, timeout_s: float | None = None) -> "ApiClient":
    from torpor.cli.client import ApiClient

    found = credentials(data_here(), os.environ)
    return ApiClient(found.url, found.token, timeout_s=timeout_s)


def data_here() -> Path:
    """The data directory. The settings are loaded, and refused, only where there are any: that takes longer than to ask."""
    says_more = any(name.startswith("TORPOR_") and name not in UNDERSTOOD for name in os.environ)
    if says_more or Path(SETTINGS_FILE).exists():
        return settings_here().data
    said = os.environ.get("TORPOR_DATA")
    return Path(said).expanduser().absolute() if said else default_data(os.environ)


def credentials(data: Path, environ: Mapping[str, str]) -> Credentials:
    """The environment's word counts more than a file's; a file is needed only for what the environment leaves open."""
    url, token = environ.get("TORPOR_URL"), environ.get("TORPOR_TOKEN")
    if not (url and token):
        written = _written(data, environ)
        url, token = url or written.url, token or written.token
    return Credentials(url.rstrip("/"), token)


def _written(data: Path, environ: Mapping[str, str]) -> Credentials:
    is_named = bool(environ.get("TORPOR_DATA")) or data != default_data(environ)
    login = None if is_named else stored_login(environ)
    if login is not None:
        return Credentials(login.url, login.token)
    try:
        read = _read(data / CREDENTIALS)
        return Credentials(str(read["url"]), str(read["token"]))
    except FileNotFoundError:
        raise CommandError(
            ExitCode.UNREACHABLE,
            f"torpor is not set up in {data}",
            code="not_set_up",
            advice="start it with `torpor up`, or sign in to another with `torpor login URL`,"
            " or set TORPOR_DATA, or TORPOR_URL and TORPOR_TOKEN",
        ) from None
    except KeyError:
        raise _unusable(f"{data / CREDENTIALS} does not hold a url and a token") from None


# ── what `torpor login` stores ────────────────────────────────────────────────────────────────────────────────────────


def stored_login(environ: Mapping[str, str]) -> StoredLogin | None:
    path = config(environ) / LOGIN
    try:
        read = _read(path)
        return StoredLogin(str(read["url"]), str(read["token"]), str(read["username"]), read.get("token_id"))
    except FileNotFoundError:
        return None
    except KeyError:
        raise _unusable(f"{path} does not hold a url, a username and a token") from None


def store_login(login: StoredLogin, environ: Mapping[str, str]) -> Path:
    """Readable for this user alone, and whole or not at all."""
    path = config(environ) / LOGIN
    told = {"url": login.url, "username": login.username, "token": login.token, "token_id": login.token_id}
    begun = path.with_name(f".{LOGIN}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(told, indent=2) + "\n")
        begun.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            begun.unlink()
        what = f"{path} cannot be written: {error.strerror}"
        advice = "set XDG_CONFIG_HOME to a folder that can be, or use TORPOR_URL and TORPOR_TOKEN"
        raise CommandError(ExitCode.REFUSED, what, code="cannot_store", advice=advice) from None
    return path


def forget_login(environ: Mapping[str, str]) -> None:
    (config(environ) / LOGIN).unlink(missing_ok=True)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unusable(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise _unusable(f"{path} does not hold a url and a token")
    return read


def _unusable(what: str) -> CommandError:
    advice = "`torpor up` and `torpor login` write theirs for the user that runs them; or set TORPOR_URL and TORPOR_TOKEN"
    return CommandError(ExitCode.UNREACHABLE, what, code="bad_credentials_file", advice=advice)
