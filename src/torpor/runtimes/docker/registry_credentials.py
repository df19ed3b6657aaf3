"""Read the credentials of image registries from a file in the format of Docker's `config.json`.

The file is read at each pull, so a changed password needs no restart. Its content is in no message and in no log line.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torpor.domain.errors import Code, Failed
from torpor.domain.image_reference import DEFAULT_REGISTRY, ImageReference

# The names under which files have the credentials of the default registry.
NAMES_OF_DEFAULT = (DEFAULT_REGISTRY, "index.docker.io", "registry-1.docker.io")
SETTING = "the setting registry_credentials"


def registry_auth(path: Path | None, image: ImageReference) -> str | None:
    """The value of the header X-Registry-Auth for this image; None: no credentials for its registry.

    IMAGE_PULL_FAILED if the file cannot be used: a pull without credentials would fail with a misleading answer.
    """
    if path is None:
        return None
    entry = _entries(path).get(image.registry)
    if entry is None:
        return None
    facts = _facts(path, image.registry, entry)
    return base64.urlsafe_b64encode(json.dumps({**facts, "serveraddress": image.registry}).encode()).decode()


def _entries(path: Path) -> Mapping[str, Any]:
    """The entries of the file, by registry."""
    try:
        read = json.loads(path.read_bytes())
    except OSError as error:
        raise _broken(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # without the error's text, which quotes the file
        raise _broken(path, "is not JSON") from error.with_traceback(None)
    auths = read.get("auths", {}) if isinstance(read, dict) else None
    if not isinstance(auths, dict):
        raise _broken(path, 'is not in the format of Docker\'s config.json: {"auths": {"REGISTRY": {"auth": "..."}}}')
    if not auths and ("credsStore" in read or "credHelpers" in read):
        raise _broken(path, "names a credential helper, which Torpor does not run; write the credentials into `auths`")
    return {_registry(name): entry for name, entry in auths.items()}


def _registry(name: str) -> str:
    """The keys are hosts, or URLs in older files: https://index.docker.io/v1/"""
    host = name.partition("://")[2] if "://" in name else name
    host = host.partition("/")[0]
    return DEFAULT_REGISTRY if host in NAMES_OF_DEFAULT else host


def _facts(path: Path, registry: str, entry: Any) -> dict[str, str]:
    given = {name: value for name, value in entry.items() if isinstance(value, str)} if isinstance(entry, dict) else {}
    if given.get("identitytoken"):
        return {"identitytoken": given["identitytoken"]}
    if given.get("auth"):
        user, colon, password = _decoded(given["auth"]).partition(":")
        if not colon:
            raise _broken(path, f"has no valid `auth` for {registry}: it must be the Base64 of USER:PASSWORD")
        return {"username": user, "password": password}
    if given.get("username") and given.get("password"):
        return {"username": given["username"], "password": given["password"]}
    raise _broken(path, f"has an entry for {registry} without `auth` and without `identitytoken`")


def _decoded(auth: str) -> str:
    """Empty if it is not Base64."""
    try:
        return base64.b64decode(auth, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _broken(path: Path, fault: str) -> Failed:
    return Failed(Code.IMAGE_PULL_FAILED, f"the file {path} of {SETTING} {fault}; an administrator corrects it")
