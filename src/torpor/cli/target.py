"""Find the server and the token that a command uses.

In this order: the environment (TORPOR_URL, TORPOR_TOKEN); the credentials.json of a data directory that is set (TORPOR_DATA,
torpor.toml); the login that `torpor login` stored; the credentials.json of this user's own `torpor up`.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torpor import atomic_file
from torpor.cli.exit_codes import CommandError, ExitCode
from torpor.paths import CREDENTIALS_FILE, SETTINGS_FILE, config, default_data

if TYPE_CHECKING:
    from torpor.cli.client import ApiClient
    from torpor.settings import Settings

LOGIN = "login.json"
# The variables that a client command reads itself. All others are settings, which are validated.
UNDERSTOOD = frozenset({"TORPOR_URL", "TORPOR_TOKEN", "TORPOR_DATA", "TORPOR_TRACEBACK"})


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    url: str
    token: str


@dataclass(frozen=True, slots=True, repr=False)
class StoredLogin:
    """The content of login.json, which `torpor login` writes."""

    url: str
    token: str
    username: str
    token_id: str | None = None
    """The id of a token that `torpor login` created; None for a token that the user brought."""


def settings_here(**overrides: Any) -> "Settings":
    """The settings from the command line, the environment and the `torpor.toml` in this folder; Refused `bad_setting`."""
    from torpor.settings import find_toml, load

    return load(os.environ, toml=find_toml(os.environ, Path.cwd()), overrides=overrides)


def api_here(*, timeout_s: float | None = None) -> "ApiClient":
    from torpor.cli.client import ApiClient

    found = credentials(data_here(), os.environ)
    return ApiClient(found.url, found.token, timeout_s=timeout_s)


def data_here() -> Path:
    """The data directory. Settings are loaded and validated only if there are any: loading takes longer than an API call."""
    has_settings = any(name.startswith("TORPOR_") and name not in UNDERSTOOD for name in os.environ)
    if has_settings or Path(SETTINGS_FILE).exists():
        return settings_here().data
    data = os.environ.get("TORPOR_DATA")
    return Path(data).expanduser().absolute() if data else default_data(os.environ)


def credentials(data: Path, environ: Mapping[str, str]) -> Credentials:
    """The environment takes precedence; a file is read only for the part that the environment does not set."""
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
        read = _read(data / CREDENTIALS_FILE)
        return Credentials(str(read["url"]), str(read["token"]))
    except FileNotFoundError:
        raise CommandError(
            ExitCode.UNREACHABLE,
            f"torpor is not set up in {data}",
            code="not_set_up",
            advice="start it with `torpor up`, or sign in to a server with `torpor login URL`,"
            " or set TORPOR_DATA, or TORPOR_URL and TORPOR_TOKEN",
        ) from None
    except KeyError:
        raise _unusable(f"{data / CREDENTIALS_FILE} does not contain a url and a token") from None


# ── the login that is stored ──────────────────────────────────────────────────────────────────────────────────────────


def stored_login(environ: Mapping[str, str]) -> StoredLogin | None:
    path = config(environ) / LOGIN
    try:
        read = _read(path)
        return StoredLogin(str(read["url"]), str(read["token"]), str(read["username"]), read.get("token_id"))
    except FileNotFoundError:
        return None
    except KeyError:
        raise _unusable(f"{path} does not contain a url, a username and a token") from None


def store_login(login: StoredLogin, environ: Mapping[str, str]) -> Path:
    """Write the file atomically, readable for this user only."""
    path = config(environ) / LOGIN
    content = {"url": login.url, "username": login.username, "token": login.token, "token_id": login.token_id}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_file.write(path, (json.dumps(content, indent=2) + "\n").encode(), sync=False)
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        advice = "set XDG_CONFIG_HOME to a writable folder, or use TORPOR_URL and TORPOR_TOKEN"
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
        raise _unusable(f"{path} does not contain a url and a token")
    return read


def _unusable(what: str) -> CommandError:
    advice = "`torpor up` and `torpor login` write this file for the user who runs them; or set TORPOR_URL and TORPOR_TOKEN"
    return CommandError(ExitCode.UNREACHABLE, what, code="bad_credentials_file", advice=advice)
