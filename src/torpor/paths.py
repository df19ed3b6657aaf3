"""Where does this program keep things, on this machine and for this user?

Apart from the settings, because a command that only asks the API need not wait until those are loaded.
"""

from collections.abc import Mapping
from pathlib import Path

NAME = "torpor"
SETTINGS_FILE = "torpor.toml"  # in the folder where a command is given


def default_data(environ: Mapping[str, str]) -> Path:
    """What a product that runs here keeps."""
    return Path(environ.get("XDG_DATA_HOME") or _home(environ) / ".local" / "share") / NAME


def config(environ: Mapping[str, str]) -> Path:
    """What one user has said once and for all."""
    return Path(environ.get("XDG_CONFIG_HOME") or _home(environ) / ".config") / NAME


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME", "/root"))
