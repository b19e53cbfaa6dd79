"""Connects by TLS, with and without client certificates, while certificates are replaced."""

import asyncio
import os
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

import palimpsest
from service.app.foundation import CannotStart
from service.cli.doctor import _api
from service.cli.output import CommandError
from service.settings.config import Config
from tests.acceptance.access.serving import serving
from tests.support.certificates import Authority, Pair

AUTHORITY = Authority()
CLIENT = AUTHORITY.issue("client")


class Files:
    """The certificate files of a service."""

    def __init__(self, folder: Path) -> None:
        self.served = AUTHORITY.issue("localhost")
        self.certificate, self.key = self.served.write(folder, "api")
        self.root = folder / "root.pem"
        self.root.write_bytes(AUTHORITY.root.pem)

    def settings(self, *, mutual: bool = False) -> dict[str, Any]:
        found = {"tls_certificate_file": self.certificate, "tls_key_file": self.key}
        # What a certificate allows is of no interest here.
        return found | (
            {"tls_client_ca_file": self.root, "authentication": "none"} if mutual else {}
        )

    def replace(self, pair: Pair) -> None:
        self.served = pair
        pair.write(self.certificate.parent, "api")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def trusting(
    client: Pair | None = None, authority: Authority = AUTHORITY
) -> grpc.ChannelCredentials:
    roots = authority.root.pem
    if client is None:
        return grpc.ssl_channel_credentials(roots)
    return grpc.ssl_channel_credentials(roots, client.key_pem, client.pem)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


async def works(address: str, credentials: grpc.ChannelCredentials) -> bool:
    """Returns whether a client can make a call."""
    target = f"grpcs://{address}"
    async with palimpsest.connect(target, credentials=credentials, reach_seconds=0.2) as client:
        try:
            return bool(await client.create_session("s", exist_ok=True))
        except palimpsest.ConnectionFailed:
            return False


def shown(address: str) -> str:
    """Returns the certificate that a new connection sees."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def connects(address: str, version: ssl.TLSVersion) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # Otherwise the library of the test itself refuses old versions.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return secure.version() is not None
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_only_clients_with_tls_that_trust_it_are_served(url: str, files: Files) -> None:
    async with serving(url, **files.settings()) as address:
        assert await works(address, trusting())
        assert not await works(address, trusting(authority=Authority("Another")))
        async with palimpsest.connect(address, reach_seconds=0.2) as client:
            with pytest.raises(palimpsest.ConnectionFailed):
                await client.create_session("s")
        versions = {
            one.name: await asyncio.to_thread(connects, address, one)
            for one in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
        }
        assert versions == {"TLSv1_1": False, "TLSv1_2": True, "TLSv1_3": True}


async def test_new_files_apply_without_a_restart_and_broken_ones_do_not(
    url: str, files: Files
) -> None:
    async with serving(url, **files.settings()) as address:
        first = files.served
        kept = palimpsest.connect(f"grpcs://{address}", credentials=trusting())
        session = await kept.create_session("s", exist_ok=True)
        assert await asyncio.to_thread(shown, address) == first.pem.decode()
        with capture_logs() as logs:
            # For a moment the two files do not belong together.
            second = AUTHORITY.issue("localhost")
            files.certificate.write_bytes(second.pem)
            for _ in range(3):
                assert await asyncio.to_thread(shown, address) == first.pem.decode()
            refused = [one for one in logs if one["log_level"] == "error"]
            assert [one["event"] for one in refused] == [
                "the changed certificate files are not used"
            ]
            assert "is not that of the first certificate" in refused[0]["cause"]
            files.key.write_bytes(second.key_pem)
            assert await asyncio.to_thread(shown, address) == second.pem.decode()
            files.key.unlink()
            assert await asyncio.to_thread(shown, address) == second.pem.decode()
        assert await works(address, trusting())
        # A connection from before continues.
        assert (await session.info()).id == "s"
        await kept.close()
        assert second.key_pem.decode() not in str(logs)


async def test_mutual_tls_lets_in_only_clients_with_a_certificate(url: str, files: Files) -> None:
    async with serving(url, **files.settings(mutual=True)) as address:
        assert await works(address, trusting(CLIENT))
        assert not await works(address, trusting())
        stranger = Authority("Another").issue("client")
        assert not await works(address, trusting(stranger))
        # Later roots apply as well.
        files.root.write_bytes(Authority("Yet another").root.pem)
        assert not await works(address, trusting(CLIENT))


async def test_the_doctor_asks_by_tls(
    url: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(url, **files.settings()) as address:
        config = Config.model_validate(files.settings())
        assert (await _api(address, config)).said == f"{address} serves"
        monkeypatch.setenv("PALIMPSEST_CA_FILE", str(files.root))
        target = f"grpcs://{address}"
        assert (await _api(target, Config())).said == f"{target} serves"
    with pytest.raises(CommandError, match="is no address of the service"):
        await _api("http://localhost:1", Config())


async def test_a_command_says_in_one_line_why_tls_failed(
    url: str, files: Files, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(Authority("Another").root.pem)
    async with serving(url, **files.settings()) as address:
        given = ("session", "list", "--address", f"grpcs://{address}", "--ca-file", str(other))
        done = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "service.cli", *given),
            env={k: v for k, v in os.environ.items() if not k.startswith("GRPC_")},
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await done.communicate()
    (line,) = errors.decode().splitlines()
    assert line.startswith(f"error: {address} shows a certificate of none of the trusted roots")


async def test_a_second_address_for_clients_with_a_certificate(url: str, files: Files) -> None:
    other = f"127.0.0.1:{free_port()}"
    settings = {**files.settings(mutual=True), "mutual_tls_listen": other}
    async with serving(url, **settings) as address:
        assert await works(address, trusting())
        assert await works(other, trusting(CLIENT))
        assert not await works(other, trusting())


async def test_a_server_without_usable_files_does_not_start(url: str, files: Files) -> None:
    files.key.write_bytes(AUTHORITY.issue("localhost").key_pem)
    with pytest.raises(CannotStart, match="write the two that belong together"):
        async with serving(url, **files.settings()):
            pass
