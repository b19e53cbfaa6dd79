"""The certificate files of the API: what is wrong with them, in one line that says what to do."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from service.settings import reading
from service.settings.certificates import MAX_BYTES, UnusableCertificate, finding, read
from service.settings.config import Config
from tests.support.certificates import DAY, Authority

AUTHORITY = Authority()
GOOD = AUTHORITY.issue("localhost")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return GOOD.write(tmp_path, "api")


def config(files: tuple[Path, Path], client_ca: Path | None = None) -> Config:
    return Config(
        tls_certificate_file=files[0], tls_key_file=files[1], tls_client_ca_file=client_ca
    )


def test_files_that_belong_together_are_read(files: tuple[Path, Path], tmp_path: Path) -> None:
    root = tmp_path / "root.pem"
    root.write_bytes(AUTHORITY.root.pem)
    found = read(config(files, root))
    assert found is not None
    assert (found.chain, found.key, found.client_ca) == (GOOD.pem, GOOD.key_pem, root.read_bytes())
    assert found.expires == GOOD.certificate.not_valid_after_utc
    assert list(found.hosts) == ["localhost", "127.0.0.1"]
    assert read(Config()) is None


def test_some_of_the_settings_alone_are_refused(files: tuple[Path, Path]) -> None:
    certificate, key = files
    for given, said in (
        ({"tls_certificate_file": certificate}, "PALIMPSEST_TLS_KEY_FILE is not set"),
        ({"tls_key_file": key}, "PALIMPSEST_TLS_CERTIFICATE_FILE is not set"),
        ({"tls_client_ca_file": certificate}, "PALIMPSEST_TLS_CERTIFICATE_FILE is not set"),
        ({"mutual_tls_listen": "127.0.0.1:1"}, "PALIMPSEST_TLS_CLIENT_CA_FILE is not: set both"),
    ):
        refused = Config.model_validate(given)
        with pytest.raises(UnusableCertificate, match=said):
            read(refused)
        assert [one for one in reading.refusals(refused) if said in one]


def missing(certificate: Path, key: Path) -> None:
    key.unlink()


def a_folder(certificate: Path, key: Path) -> None:
    certificate.unlink()
    certificate.mkdir()


def empty(certificate: Path, key: Path) -> None:
    key.write_bytes(b"")


def too_large(certificate: Path, key: Path) -> None:
    certificate.write_bytes(GOOD.pem + b"\n" * MAX_BYTES)


def no_certificate(certificate: Path, key: Path) -> None:
    certificate.write_bytes(GOOD.key_pem)


def broken_certificate(certificate: Path, key: Path) -> None:
    certificate.write_bytes(GOOD.pem.replace(b"MII", b"MIJ", 1))


def no_key(certificate: Path, key: Path) -> None:
    key.write_bytes(GOOD.pem)


def with_a_passphrase(certificate: Path, key: Path) -> None:
    key.write_bytes(GOOD.encrypted_key_pem(b"secret"))


def of_another(certificate: Path, key: Path) -> None:
    key.write_bytes(AUTHORITY.issue("localhost").key_pem)


def expired(certificate: Path, key: Path) -> None:
    AUTHORITY.issue("localhost", begins=-2 * DAY, ends=-DAY).write(certificate.parent, "api")


def of_the_future(certificate: Path, key: Path) -> None:
    AUTHORITY.issue("localhost", begins=DAY).write(certificate.parent, "api")


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (missing, "cannot read .*api.key .*TLS_KEY_FILE.: no such file or directory: name a file"),
        (a_folder, "cannot read .*api.pem .*TLS_CERTIFICATE_FILE.: is a directory: name a file"),
        (empty, "api.key .* holds nothing: write PEM"),
        (too_large, "api.pem .* holds more than 1 MiB: write PEM"),
        (no_certificate, "api.pem .* holds no certificate that can be read: write PEM"),
        (broken_certificate, "api.pem .* holds no certificate that can be read: write PEM"),
        (no_key, "api.key .* holds no private key that can be read: write PEM"),
        (with_a_passphrase, "api.key .* has a passphrase: write it without one"),
        (of_another, "api.key is not that of the first certificate in .*api.pem: write the two"),
        (expired, r"api.pem .* expired on \d{4}-\d\d-\d\d: renew it"),
        (of_the_future, r"api.pem .* is valid from \d{4}-\d\d-\d\dT.* on: check the clock"),
    ],
)
def test_unusable_files_are_refused(
    files: tuple[Path, Path], breaks: Callable[[Path, Path], None], said: str
) -> None:
    breaks(*files)
    with pytest.raises(UnusableCertificate, match=said) as refused:
        read(config(files))
    assert "\n" not in str(refused.value)
    found = finding(config(files))
    assert found is not None
    assert (found.name, found.level) == ("tls", "bad")
    assert found.advice


def test_roots_of_clients_are_checked_as_well(files: tuple[Path, Path], tmp_path: Path) -> None:
    root = tmp_path / "root.pem"
    root.write_text("no certificate")
    with pytest.raises(UnusableCertificate, match=r"root.pem .*TLS_CLIENT_CA_FILE. holds no cert"):
        read(config(files, root))


def test_the_doctor_warns_before_a_certificate_expires(files: tuple[Path, Path]) -> None:
    assert finding(Config()) is None
    now = datetime.now(UTC)
    for days, level in ((0, "ok"), (68, "ok"), (70, "warn"), (89, "warn"), (91, "bad")):
        found = finding(config(files), now + timedelta(days=days))
        assert found is not None
        assert found.level == level, days
