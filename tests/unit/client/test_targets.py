"""Where a client connects to: hosts, ports, sockets, TLS."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest import sync
from palimpsest._transport import parse_target
from tests.unit.client.agent_service import Service


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("host:5", "host:5"),
        ("grpc://host:5", "host:5"),
        ("grpc://host:5/", "host:5"),
        ("host", "host:50051"),
        ("grpc://host", "host:50051"),
        ("[::1]:5", "[::1]:5"),
        ("[::1]", "[::1]:50051"),
        ("::1", "[::1]:50051"),
        ("grpc://[::1]:5", "[::1]:5"),
        ("unix:/run/palimpsest.sock", "unix:/run/palimpsest.sock"),
        ("unix:///run/palimpsest.sock", "unix:///run/palimpsest.sock"),
        (" host:5\n", "host:5"),
    ],
)
def test_a_target_without_tls(target: str, address: str) -> None:
    assert parse_target(target) == (address, False)


def test_grpcs_and_credentials_mean_tls() -> None:
    assert parse_target("grpcs://host:5") == ("host:5", True)
    for target in ("grpcs://host:5", "host:5", "unix:/socket"):
        assert parse_target(target, has_credentials=True)[1]


@pytest.mark.parametrize("target", ["http://host:5", "https://host", "grpc://", "grpc://host/path"])
def test_what_is_no_target_is_refused_with_what_is_one(target: str) -> None:
    with pytest.raises(ValueError, match=r"is no address of the service: give .*grpc://HOST:PORT"):
        palimpsest.connect(target)


def test_credentials_without_tls_are_refused() -> None:
    with pytest.raises(ValueError, match="with credentials it is grpcs://HOST:PORT"):
        sync.connect("grpc://host:5", credentials=grpc.ssl_channel_credentials())


async def both(target: str, **options: Any) -> list[str]:
    """Returns what the session of a service is called, by either face of the client."""

    def plain() -> str:
        with sync.connect(target, **options) as client:
            return client.session("s").info().id

    async with palimpsest.connect(target, **options) as client:
        return [(await client.session("s").info()).id, await asyncio.to_thread(plain)]


async def test_a_socket_of_this_machine(tmp_path: Path) -> None:
    server = aio.server()
    Service().register(server)
    server.add_insecure_port(f"unix:{tmp_path}/api")
    await server.start()
    try:
        assert await both(f"unix:{tmp_path}/api") == ["s", "s"]
    finally:
        await server.stop(None)


def certificate(folder: Path) -> tuple[bytes, bytes]:
    """Returns a key for `localhost`, and its certificate, which is its own root."""
    key, root = folder / "key.pem", folder / "root.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    files = ["-nodes", "-keyout", str(key), "-out", str(root)]
    subprocess.run([*made, *files, *subject], check=True, capture_output=True, timeout=200)
    return key.read_bytes(), root.read_bytes()


async def test_tls_with_the_roots_that_are_given(tmp_path: Path) -> None:
    server = aio.server()
    Service().register(server)
    key, root = certificate(tmp_path)
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, root)]))
    await server.start()
    try:
        trusted = grpc.ssl_channel_credentials(root_certificates=root)
        assert await both(f"grpcs://localhost:{port}", credentials=trusted) == ["s", "s"]
        with pytest.raises(palimpsest.ConnectionFailed, match="none of the trusted roots"):
            await both(f"grpcs://localhost:{port}", reach_seconds=0.3)
    finally:
        await server.stop(None)


class Slow(Service):
    """Says for how long each call of a session may take."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[float] = []

    async def GetSession(self, request: Any, context: Any) -> Any:
        self.left.append(context.time_remaining())
        return await super().GetSession(request, context)


async def test_the_timeout_of_a_client_is_that_of_its_calls(tmp_path: Path) -> None:
    slow = Slow()
    server = aio.server()
    slow.register(server)
    server.add_insecure_port(f"unix:{tmp_path}/api")
    await server.start()
    try:
        await both(f"unix:{tmp_path}/api", timeout=1000.0)
        await both(f"unix:{tmp_path}/api")
    finally:
        await server.stop(None)
    # Much less than 30 s is left to none, and more than 40 s to those that may take longer.
    assert [left > 40 for left in slow.left] == [True, True, False, False]
