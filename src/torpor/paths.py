"""Name the files and folders that Torpor uses, on this machine and for this user.

Separate from the settings, because a command that only calls the API must not wait until those are loaded.
"""

from collections.abc import Mapping
from pathlib import Path

NAME = "torpor"
SETTINGS_FILE = "torpor.toml"
"""In the folder where a command is run."""
CREDENTIALS_FILE = "credentials.json"
"""In the data directory: how commands on this machine sign in."""
SECRET_KEY_FILE = "secrets.key"  # noqa: S105 - the name of a file
"""In the data directory: the key that encrypts the secrets of workspaces."""
PID_FILE = "torpor.pid"
"""In the data directory: locked by the process that runs there."""
KIT_FOLDER = "kits"
"""In the data directory: the kits, each under its content hash."""


def default_data(environ: Mapping[str, str]) -> Path:
    """The data directory of `torpor up`."""
    return Path(environ.get("XDG_DATA_HOME") or _home(environ) / ".local" / "share") / NAME


def config(environ: Mapping[str, str]) -> Path:
    """The folder with one user's configuration, such as the stored login."""
    return Path(environ.get("XDG_CONFIG_HOME") or _home(environ) / ".config") / NAME


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME", "/root"))
