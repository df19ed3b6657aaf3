"""Make, save and load the credentials that a worker needs to join a job."""

import datetime
import ipaddress
import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torpor import atomic_file
from torpor.sort.documents import decode
from torpor.sort.errors import SortFailed, SortRefused

JOIN = "join.json"
NAME = "torpor-sort"
"""The name in every certificate. Workers have any address, so the certificate itself is trusted, not a host name."""
VALID_DAYS = 3_650


@dataclass(frozen=True, slots=True)
class JoinCredentials:
    """Everything that a worker needs to find the master and to be accepted; the content of `join.json`."""

    job: str
    address: str
    """The master's HOST:PORT."""
    tls: bool
    certificate: str
    """PEM. Master and workers all serve with it. Empty without TLS."""
    private_key: str = field(repr=False)
    token: str = field(repr=False)


def make_join(job: str, address: str, tls: bool) -> JoinCredentials:
    certificate, private_key = _make_certificate() if tls else ("", "")
    return JoinCredentials(job, address, tls, certificate, private_key, secrets.token_urlsafe(32))


def make_secret(path: Path, *, tls: bool) -> str:
    """Make the join file of a future master. Returns its job."""
    if path.exists():
        raise SortRefused("exists", f"{path} exists and is not overwritten; remove it or choose another name")
    join = make_join(secrets.token_hex(8), "", tls)
    save_join(join, path)
    return join.job


def save_join(join: JoinCredentials, path: Path) -> None:
    """Only its owner can read it, at any time."""
    try:
        atomic_file.write(path, (json.dumps(asdict(join), indent=2) + "\n").encode())
    except OSError as error:
        raise SortFailed(f"the join file {path} cannot be written: {error.strerror}") from error


def load_join(path: Path) -> JoinCredentials:
    try:
        return decode(JoinCredentials, path.read_bytes())
    except OSError as error:
        raise SortRefused(
            "no_join", f"the join file {path} cannot be read: {error.strerror}; copy it from the master"
        ) from error
    except ValueError as error:
        raise SortRefused("bad_join", f"{path} is not a valid join file; copy the one that the master writes") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(address: str) -> tuple[str, int]:
    """Host and port. The brackets of an IPv6 host are removed."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise SortRefused("bad_address", f"{address!r} is not HOST:PORT with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _make_certificate() -> tuple[str, str]:
    # Only a master needs it, once, and its import takes longer than the start of many jobs.
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
