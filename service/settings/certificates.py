"""Reads and checks the certificate files of the API."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from service.domain.operations.doctor import Finding, bad, ok, warn
from service.settings.config import Config

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

#: Bytes of a file, at most.
MAX_BYTES = 1024 * 1024
#: The doctor warns so long before a certificate expires.
EXPIRY_WARNING = timedelta(days=21)

_CERTIFICATE = "PALIMPSEST_TLS_CERTIFICATE_FILE"
_KEY = "PALIMPSEST_TLS_KEY_FILE"
_CLIENT_CA = "PALIMPSEST_TLS_CLIENT_CA_FILE"
_MUTUAL = "PALIMPSEST_MUTUAL_TLS_LISTEN"


class UnusableCertificate(Exception):
    """TLS cannot be served; the message is one clear line, without anything of the key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCertificate:
    """What a server needs to serve TLS, checked."""

    #: PEM: the certificate, and those between it and its root.
    chain: bytes
    #: PEM, without a passphrase.
    key: bytes
    #: PEM of the roots of client certificates; None: clients have none.
    client_ca: bytes | None
    #: When the first of the chain is no longer valid.
    expires: datetime
    #: The names and addresses of hosts that the certificate is for.
    hosts: Sequence[str]


def has_tls(config: Config) -> bool:
    """Returns whether TLS is configured, usable or not."""
    return config.tls_certificate_file is not None or config.tls_key_file is not None


def files(config: Config) -> Sequence[Path]:
    """Returns the files that `read` reads."""
    named = (config.tls_certificate_file, config.tls_key_file, config.tls_client_ca_file)
    return [path for path in named if path is not None]


def read(config: Config, now: datetime | None = None) -> ServerCertificate | None:
    """Returns the certificate that the API serves; None where TLS is not configured.

    Raises UnusableCertificate.
    """
    now = now or datetime.now(UTC)
    chain_path, key_path = config.tls_certificate_file, config.tls_key_file
    ca_path = config.tls_client_ca_file
    if config.mutual_tls_listen is not None and ca_path is None:
        raise UnusableCertificate(f"{_MUTUAL} is set, and {_CLIENT_CA} is not: set both")
    if chain_path is None and key_path is None and ca_path is None:
        return None
    for variable, path in ((_CERTIFICATE, chain_path), (_KEY, key_path)):
        if path is None:
            raise UnusableCertificate(f"TLS is configured, and {variable} is not set: set it")
    assert chain_path is not None, "it was checked"
    assert key_path is not None, "it was checked"
    chain, key = _content(chain_path, _CERTIFICATE), _content(key_path, _KEY)
    certificates = _certificates(chain, chain_path, _CERTIFICATE, now)
    _check_key(key, key_path, certificates[0], chain_path)
    client_ca = None
    if ca_path is not None:
        client_ca = _content(ca_path, _CLIENT_CA)
        _certificates(client_ca, ca_path, _CLIENT_CA, now)
    return ServerCertificate(
        chain=chain,
        key=key,
        client_ca=client_ca,
        expires=min(one.not_valid_after_utc for one in certificates),
        hosts=_hosts(certificates[0]),
    )


def finding(config: Config, now: datetime | None = None) -> Finding | None:
    """Returns what the doctor says of the files; None where TLS is not configured."""
    now = now or datetime.now(UTC)
    try:
        found = read(config, now)
    except UnusableCertificate as error:
        said, _, advice = str(error).rpartition(": ")
        return bad("tls", said, advice)
    if found is None:
        return None
    left = found.expires - now
    said = f"the certificate expires on {found.expires:%Y-%m-%d}"
    if left < EXPIRY_WARNING:
        advice = "renew it in place: servers load the new files by themselves"
        return warn("tls", f"{said}, in {left.days} day(s)", advice)
    return ok("tls", said)


def _open(path: str, flags: int) -> int:
    # A pipe without a writer would block for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def _content(path: Path, variable: str) -> bytes:
    try:
        with open(path, "rb", opener=_open) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        raise UnusableCertificate(
            f"cannot read {path} ({variable}): {cause}: name a file that this user may read"
        ) from None
    if not content or len(content) > MAX_BYTES:
        amount = "more than 1 MiB" if content else "nothing"
        raise UnusableCertificate(f"{path} ({variable}) holds {amount}: write PEM into it")
    return content


def _certificates(
    content: bytes, path: Path, variable: str, now: datetime
) -> "Sequence[Certificate]":
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError:
        raise UnusableCertificate(
            f"{path} ({variable}) holds no certificate that can be read: write PEM into it"
        ) from None
    for one in found:
        if one.not_valid_after_utc <= now:
            said = f"expired on {one.not_valid_after_utc:%Y-%m-%d}: renew it"
        elif one.not_valid_before_utc > now:
            said = f"is valid from {one.not_valid_before_utc:%Y-%m-%dT%H:%MZ} on: check the clock"
        else:
            continue
        raise UnusableCertificate(f"a certificate in {path} ({variable}) {said}")
    return found


def _check_key(key: bytes, key_path: Path, certificate: "Certificate", chain_path: Path) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    try:
        public = load_pem_private_key(key, password=None).public_key()
    except TypeError:
        raise UnusableCertificate(
            f"the key in {key_path} ({_KEY}) has a passphrase: write it without one"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UnusableCertificate(
            f"{key_path} ({_KEY}) holds no private key that can be read: write PEM into it"
        ) from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if public.public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise UnusableCertificate(
            f"the key in {key_path} is not that of the first certificate in {chain_path}:"
            " write the two that belong together"
        )


def _hosts(certificate: "Certificate") -> Sequence[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*names.get_values_for_type(x509.DNSName), *(str(one) for one in addresses))
