"""Makes the credentials of TLS, which follow the certificate files without a restart."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from service.settings import certificates
from service.settings.certificates import ServerCertificate, UnusableCertificate
from service.settings.config import Config

_log = structlog.get_logger("palimpsest.rpc")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stamp:
    """What changes about a file when its content or its rights change."""

    inode: int
    bytes: int
    modified_ns: int
    changed_ns: int


class Certificates:
    """The certificate that the server shows to new connections.

    A handshake reads the files again if they have changed. Files that cannot be used are logged
    once, and the earlier certificate stays. Raises UnusableCertificate.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stamps = self._look()
        found = certificates.read(config)
        if found is None:
            raise UnusableCertificate("TLS is not configured")
        self._current: ServerCertificate = found
        #: gRPC asks in threads of its own.
        self._lock = threading.Lock()

    @property
    def current(self) -> ServerCertificate:
        """Returns what new connections see."""
        return self._current

    @property
    def pair(self) -> tuple[Path, Path]:
        """The files of the certificate and of its key."""
        chain, key = self._config.tls_certificate_file, self._config.tls_key_file
        assert chain is not None and key is not None, "TLS is configured"  # noqa: PT018
        return chain, key

    def credentials(self, *, mutual: bool) -> grpc.ServerCredentials:
        """Returns the credentials of a port; `mutual`: whether clients must have a certificate.

        TLS 1.2 is the oldest version that gRPC accepts. It cannot ask for a certificate without
        requiring one.
        """
        shown = self._current

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            with self._lock:
                self._follow()
                if self._current is shown:
                    return None
                shown = self._current
                return _configuration(shown, mutual=mutual)

        first = _configuration(shown, mutual=mutual)
        return grpc.dynamic_ssl_server_credentials(
            first,
            changed,  # type: ignore[arg-type]  # None means unchanged; its types forget it
            require_client_authentication=mutual,
        )

    def follow(self) -> ServerCertificate:
        """Reads the files again if one has changed, and returns what new connections see."""
        with self._lock:
            self._follow()
            return self._current

    def _follow(self) -> None:
        """Reads the files again if one has changed since the last time."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            found = certificates.read(self._config)
        except UnusableCertificate as error:
            _log.error("the changed certificate files are not used", cause=str(error))
            return
        assert found is not None, "TLS stays configured"
        if found != self._current:
            self._current = found
            _log.info("new certificate", expires=found.expires.isoformat())

    def _look(self) -> Sequence[_Stamp | None]:
        return [_stamp(str(path)) for path in certificates.files(self._config)]


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _Stamp(
        inode=found.st_ino,
        bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
        changed_ns=found.st_ctime_ns,
    )


def _configuration(
    certificate: ServerCertificate, *, mutual: bool
) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)],
        root_certificates=certificate.client_ca if mutual else None,
    )
