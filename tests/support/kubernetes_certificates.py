"""The certificate authority of a Kubernetes cluster for tests, and the kubeconfigs of its users."""

import datetime
import ipaddress
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=1)
ADMINISTRATORS = "system:masters"
"""The group that may do everything."""


@dataclass(frozen=True)
class KeyPair:
    certificate: Path
    key: Path


class Certificates:
    """All files are in one folder, which is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes-ca")])
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.authority = self._write("ca", builder.sign(self._key, hashes.SHA256()), self._key)

    def server(self, name: str, *, addresses: Sequence[str], names: Sequence[str] = ()) -> KeyPair:
        alternatives: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        alternatives += [x509.DNSName(one) for one in names]
        extension = x509.SubjectAlternativeName(alternatives)
        return self._issue(name, [x509.NameAttribute(NameOID.COMMON_NAME, name)], ExtendedKeyUsageOID.SERVER_AUTH, extension)

    def client(self, user: str, *groups: str) -> KeyPair:
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        return self._issue(user.replace(":", "-"), subject, ExtendedKeyUsageOID.CLIENT_AUTH)

    def kubeconfig(self, url: str, user: str, *groups: str) -> Path:
        """A file with which this user signs in."""
        pair = self.client(user, *groups)
        cluster = {"server": url, "certificate-authority-data": _encoded(self.authority.certificate)}
        credentials = {"client-certificate-data": _encoded(pair.certificate), "client-key-data": _encoded(pair.key)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "current-context": "tests",
        }
        file = self._folder / f"{user.replace(':', '-')}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(json.dumps(config))  # which is YAML, too
        return file

    def signing_key(self) -> Path:
        """A key that signs the tokens of service accounts."""
        return self._write_key("service-accounts", ec.generate_private_key(ec.SECP256R1()))

    def _issue(
        self,
        file: str,
        subject: list[x509.NameAttribute[str]],
        usage: x509.ObjectIdentifier,
        extension: x509.ExtensionType | None = None,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name(subject), key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if extension is not None:
            builder = builder.add_extension(extension, critical=False)
        return self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
        return builder.not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + VALID)

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
        file = self._folder / f"{name}.crt"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return KeyPair(file, self._write_key(name, key))

    def _write_key(self, name: str, key: ec.EllipticCurvePrivateKey) -> Path:
        file = self._folder / f"{name}.key"
        file.touch(mode=0o600)
        # The API server takes the public key of service accounts from such a file, but not from one in PKCS 8.
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        file.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
        return file


def _encoded(file: Path) -> str:
    return b64encode(file.read_bytes()).decode()
