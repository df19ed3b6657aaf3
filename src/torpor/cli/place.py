"""Which Torpor is meant, and with whose word does one speak to it?"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torpor.cli.ends import Ended, ExitCode

if TYPE_CHECKING:
    from torpor.cli.client import Api
    from torpor.settings import Settings

CREDENTIALS = "credentials.json"


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    url: str
    token: str


def settings_here(**overrides: Any) -> "Settings":
    """What the command line, the environment and the `torpor.toml` in this folder say; Refused `bad_setting`."""
    from torpor.settings import find_toml, load

    return load(os.environ, toml=find_toml(os.environ, Path.cwd()), overrides=overrides)


def api_here() -> "Api":
    from torpor.cli.client import Api

    found = credentials(settings_here().data, os.environ)
    return Api(found.url, found.token)


def credentials(data: Path, environ: Mapping[str, str]) -> Credentials:
    """The environment's word counts more than the file's; a file is needed only for what the environment leaves open."""
    url, token = environ.get("TORPOR_URL"), environ.get("TORPOR_TOKEN")
    if not (url and token):
        written = _written(data)
        url, token = url or written.url, token or written.token
    return Credentials(url.rstrip("/"), token)


def _written(data: Path) -> Credentials:
    path = data / CREDENTIALS
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return Credentials(str(read["url"]), str(read["token"]))
    except FileNotFoundError:
        raise Ended(
            ExitCode.UNREACHABLE,
            f"torpor is not set up in {data}",
            code="not_set_up",
            advice="start it with `torpor up`, or set TORPOR_DATA, or TORPOR_URL and TORPOR_TOKEN",
        ) from None
    except OSError as error:
        raise _unusable(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise _unusable(f"{path} does not hold a url and a token") from None


def _unusable(what: str) -> Ended:
    advice = "`torpor up` writes it for the user that runs it; or set TORPOR_URL and TORPOR_TOKEN"
    return Ended(ExitCode.UNREACHABLE, what, code="bad_credentials_file", advice=advice)
