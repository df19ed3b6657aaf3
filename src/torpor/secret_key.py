"""Encrypt and decrypt the secrets of workspaces with the key of this installation, and derive its other keys.

The key is a file that only Torpor reads. AES-256-GCM: a sealed value is a nonce and the encrypted text, bound to the workspace
and the name, so that a value cannot be moved to another workspace in the database.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from torpor import atomic_file
from torpor.domain.errors import Refused
from torpor.domain.workspace_secrets import SealedSecret

KEY_BYTES = 32
NONCE_BYTES = 12
OTHERS = stat.S_IRWXO


class SecretKey:
    """The key in this file. The first secret creates it; it is read again for each use, so that it can be put back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def seal(self, workspace_id: str, name: str, value: str) -> SealedSecret:
        key = self._read_or_create()
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = nonce + AESGCM(key).encrypt(nonce, value.encode(), _bound_to(workspace_id, name))
        return SealedSecret(workspace_id, name, _id_of(key), sealed)

    def open(self, secret: SealedSecret) -> str:
        """The value; Refused `secret_unreadable` with what to do, if this key is missing or is another one."""
        key = self.read()
        if key is None:
            raise _unreadable(secret, f"the key file {self._path} is missing")
        if _id_of(key) != secret.key_id:
            raise _unreadable(
                secret, f"it is encrypted with the key {secret.key_id}, and {self._path} is the key {_id_of(key)}"
            )
        nonce, text = secret.sealed[:NONCE_BYTES], secret.sealed[NONCE_BYTES:]
        try:
            return AESGCM(key).decrypt(nonce, text, _bound_to(secret.workspace_id, secret.name)).decode()
        except (InvalidTag, ValueError):
            raise _unreadable(secret, "its encrypted value is damaged") from None

    def id(self) -> str:
        """Identifies the key, which is created if it is missing, and does not reveal it."""
        return _id_of(self._read_or_create())

    def derive(self, purpose: str) -> bytes:
        """A key for another purpose, the same in every process with this file, which is created if it is missing."""
        return hmac.digest(self._read_or_create(), purpose.encode(), "sha256")

    def read(self) -> bytes | None:
        """The key; None if there is no file. Refused `bad_secret_key` if the file cannot be used."""
        try:
            with self._path.open("rb") as file:
                mode, text = os.fstat(file.fileno()).st_mode, file.read(1024)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _bad_key(self._path, f"cannot be read: {error.strerror}") from error
        if mode & OTHERS:
            raise _bad_key(self._path, f"is open to other users; run: chmod 600 {self._path}")
        try:
            key = base64.b64decode(text.strip(), validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            raise _bad_key(self._path, f"does not contain {KEY_BYTES} bytes in base64; put the right file back")
        return key

    def _read_or_create(self) -> bytes:
        while (key := self.read()) is None:
            self._create()
        return key

    def _create(self) -> None:
        """A file that another process creates meanwhile stays: a link, unlike a rename, replaces nothing."""
        aside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            atomic_file.write(aside, base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n", mode=0o600)
            try:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self._path)
                atomic_file.sync_directory(self._path.parent)
            finally:
                aside.unlink(missing_ok=True)
        except OSError as error:
            raise _bad_key(self._path, f"cannot be created: {error.strerror}") from error


def _id_of(key: bytes) -> str:
    return hashlib.sha256(b"torpor secret key\0" + key).hexdigest()[:16]


def _bound_to(workspace_id: str, name: str) -> bytes:
    return f"{workspace_id}\0{name}".encode()


def _bad_key(path: Path, fault: str) -> Refused:
    return Refused("bad_secret_key", f"the key file {path} {fault} (an administrator can do this)")


def _unreadable(secret: SealedSecret, why: str) -> Refused:
    return Refused(
        "secret_unreadable",
        f"the secret {secret.name} cannot be decrypted: {why}. The home is not affected. An administrator puts the key file "
        "back; if it is lost, set the secret again with `torpor secrets set`, or remove it with `torpor secrets remove`, and "
        "start the workspace again.",
        secret=secret.name,
    )
