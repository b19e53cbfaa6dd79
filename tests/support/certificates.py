"""Certificates that tests make: an authority, and what it issues."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


def named(common_name: str) -> x509.Name:
    found = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    return x509.Name(found)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.encoded_key(NoEncryption())

    def encrypted_key_pem(self, passphrase: bytes) -> bytes:
        return self.encoded_key(BestAvailableEncryption(passphrase))

    def encoded_key(self, encryption: KeySerializationEncryption) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Writes both; returns their paths."""
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        for path, content in zip(paths, (self.pem, self.key_pem), strict=True):
            path.write_bytes(content)
        return paths


@dataclass(frozen=True)
class Authority:
    """Issues certificates."""

    name: str = "Test authority"
    root: Pair = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self._signed(named(self.name), [], (-DAY, DAY), None))

    def issue(
        self,
        common_name: str,
        *,
        uris: Sequence[str] = (),
        begins: timedelta = -DAY,
        ends: timedelta = 90 * DAY,
    ) -> Pair:
        """Returns a certificate, from so long to so long after now; for `localhost`."""
        sans: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ip_address("127.0.0.1")),
            *(x509.UniformResourceIdentifier(one) for one in uris),
        ]
        return self._signed(named(common_name), sans, (begins, ends), self.root)

    def _signed(
        self,
        subject: x509.Name,
        sans: Sequence[x509.GeneralName],
        valid: tuple[timedelta, timedelta],
        issuer: Pair | None,
    ) -> Pair:
        now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(named(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + valid[0])
            .not_valid_after(now + valid[1])
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        )
        if sans:
            builder = builder.add_extension(x509.SubjectAlternativeName(sans), False)
        signed = builder.sign(key if issuer is None else issuer.key, hashes.SHA256())
        return Pair(certificate=signed, key=key)
