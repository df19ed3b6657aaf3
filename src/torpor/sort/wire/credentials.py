"""What must one know to take part in a job, and where is it kept?"""

import datetime
import ipaddress
import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from torpor.sort.data.files import sync_directory
from torpor.sort.errors import SortFailed, SortRefused

JOIN = "join.json"
NAME = "torpor-sort"
"""In every certificate: workers come and go under any address, so the certificate itself is what is trusted."""
VALID_DAYS = 3_650


@dataclass(frozen=True, slots=True)
class JoinCredentials:
    """Everything that a worker needs to find the master and to be believed; `join.json`."""

    job: str
    address: str
    """The master's HOST:PORT."""
    tls: bool
    certificate: str
    """PEM; master and workers all serve with it. Empty without TLS."""
    private_key: str = field(repr=False)
    token: str = field(repr=False)


def make_join(job: str, address: str, tls: bool) -> JoinCredentials:
    certificate, private_key = _make_certificate() if tls else ("", "")
    return JoinCredentials(job, address, tls, certificate, private_key, secrets.token_urlsafe(32))


def make_secret(path: Path, *, tls: bool) -> str:
    """A join file for a master that is to come; its job."""
    if path.exists():
        raise SortRefused("exists", f"{path} is there already, and is not written over")
    join = make_join(secrets.token_hex(8), "", tls)
    save_join(join, path)
    return join.job


def save_join(join: JoinCredentials, path: Path) -> None:
    """Written aside and renamed; only its owner may read it, at no time anybody else."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with suppress(FileNotFoundError):
            aside.unlink()
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123 (the mode, from the start)
            json.dump(asdict(join), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise SortFailed(f"the join file {path} cannot be written: {error.strerror}") from error


def load_join(path: Path) -> JoinCredentials:
    try:
        plain = json.loads(path.read_text())
    except OSError as error:
        raise SortRefused("no_join", f"the join file {path} cannot be read: {error.strerror}; the master writes it") from error
    except ValueError as error:
        raise SortRefused("bad_join", f"{path} is not a join file as the master writes it") from error
    expected: dict[str, type] = {each.name: bool if each.name == "tls" else str for each in fields(JoinCredentials)}
    if not isinstance(plain, dict) or {name: type(value) for name, value in plain.items()} != expected:
        raise SortRefused("bad_join", f"{path} is not a join file as the master writes it")
    return JoinCredentials(**plain)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(address: str) -> tuple[str, int]:
    """Host and port; an IPv6 host stands in brackets, and comes without them."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise SortRefused("bad_address", f"{address!r} is not HOST:PORT with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _make_certificate() -> tuple[str, str]:
    # Only a master needs it, and only once; it takes longer to import than many a job to start.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks differ between machines.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
