"""Sends tokens with every call, by TLS or to this machine only, and shows them nowhere."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

import palimpsest
from palimpsest import sync
from palimpsest._credentials import is_local
from palimpsest._transport import OPTIONS
from tests.support.certificates import Authority
from tests.unit.client.agent_service import Service, refuse

SECRET = "pk_0123456789_SeCrEtSeCrEt"
AUTHORITY = Authority()
VARIABLES = ("TOKEN", "TOKEN_FILE", "CA_FILE", "CERTIFICATE_FILE", "KEY_FILE", "PLAIN_TOKEN")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"PALIMPSEST_{name}", raising=False)


class Seen(aio.ServerInterceptor):
    """Records the `authorization` of each call by its method."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {}

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        found = [one.value for one in details.invocation_metadata if one.key == "authorization"]
        self.sent.setdefault(details.method.rpartition("/")[2], []).extend(found or [""])
        return await continuation(details)


@asynccontextmanager
async def serving(
    seen: Seen, credentials: grpc.ServerCredentials | None = None, service: Service | None = None
) -> AsyncIterator[str]:
    server = aio.server(interceptors=(seen,))
    (service or Service()).register(server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("localhost:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}" if credentials is None else f"grpcs://localhost:{port}"
    finally:
        await server.stop(None)


async def use(target: str, **options: Any) -> None:
    """Makes a unary call and opens a stream, by either face of the client."""

    def blocking() -> None:
        with sync.connect(target, **options) as client:
            session = client.session("s")
            session.info()
            with session.producer("p") as producer:
                producer.append("text")

    async with palimpsest.connect(target, **options) as client:
        session = client.session("s")
        await session.info()
        async with session.producer("p") as producer:
            await producer.append("text")
    await asyncio.to_thread(blocking)


async def test_a_token_is_sent_with_every_call() -> None:
    seen = Seen()
    async with serving(seen) as address:
        await use(address, token=SECRET)
    assert set(seen.sent) >= {"GetSession", "AppendChunks"}
    assert {one for found in seen.sent.values() for one in found} == {f"Bearer {SECRET}"}


async def test_without_a_token_no_header_is_sent() -> None:
    seen = Seen()
    async with serving(seen) as address:
        await use(address)
    assert {one for found in seen.sent.values() for one in found} == {""}


async def test_a_token_is_taken_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, file = Seen(), tmp_path / "token"
    file.write_text("of-a-file\n")
    async with serving(seen) as address:
        monkeypatch.setenv("PALIMPSEST_TOKEN", "of-a-variable\n")
        await use(address)
        await use(address, token="of-the-program")
        monkeypatch.setenv("PALIMPSEST_TOKEN", "")
        monkeypatch.setenv("PALIMPSEST_TOKEN_FILE", str(file))
        await use(address)
    assert [*dict.fromkeys(seen.sent["GetSession"])] == [
        "Bearer of-a-variable",
        "Bearer of-the-program",
        "Bearer of-a-file",
    ]
    monkeypatch.setenv("PALIMPSEST_TOKEN", "both")
    with pytest.raises(ValueError, match="are both set: set one of them"):
        palimpsest.connect("localhost")


async def test_fresh_tokens_of_functions_and_files(tmp_path: Path) -> None:
    seen, file, issued = Seen(), tmp_path / "token", iter(("first", "second"))
    async with serving(seen) as address:
        async with palimpsest.connect(address, token=lambda: next(issued)) as client:
            await client.session("s").info()
            await client.session("s").info()
        file.write_text("third")
        async with palimpsest.connect(address, token=file) as client:
            await client.session("s").info()
            # As Kubernetes replaces a projected token.
            (tmp_path / "new").write_text("fourth\n")
            os.replace(tmp_path / "new", file)
            await client.session("s").info()
    assert seen.sent["GetSession"] == [
        f"Bearer {n}" for n in ("first", "second", "third", "fourth")
    ]


def fails() -> str:
    raise RuntimeError(SECRET)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fails, "RuntimeError"),
        (lambda: "", "the token is empty"),
        (lambda: None, "a token is a str, not NoneType"),
        (lambda: f"{SECRET}\n{SECRET}", "characters that no token has"),
    ],
)
async def test_a_function_without_a_token_fails_its_call_only(
    function: Callable[[], str], said: str
) -> None:
    seen = Seen()
    async with serving(seen) as address, palimpsest.connect(address, token=function) as client:
        with pytest.raises(palimpsest.Unauthenticated, match=said) as call:
            await client.session("s").info()
        with pytest.raises(palimpsest.Unauthenticated, match=said) as stream:
            async with client.session("s").producer("p") as producer:
                await producer.append("text")
        assert SECRET not in f"{call.value}{stream.value}"
    assert seen.sent == {}


@pytest.mark.parametrize(
    "token", ["", " ", "two words", "naïve", "a\x00b", "x" * 8193, "a\r\nb: c"]
)
def test_what_no_token_is_is_refused_without_its_text(token: str) -> None:
    with pytest.raises(ValueError, match="token") as refused:
        palimpsest.connect("localhost", token=token)
    assert not token.strip() or token not in str(refused.value)


@pytest.mark.parametrize(
    "target", ["host:5", "grpc://10.0.0.7", "0.0.0.0:5", "localhost.example", "[2001:db8::1]:5"]
)
async def test_a_token_is_not_sent_to_other_machines_without_tls(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for connect in (palimpsest.connect, sync.connect):
        with pytest.raises(
            ValueError, match=r"is not sent to .* without TLS: .*grpcs://"
        ) as refused:
            connect(target, token=SECRET)
        assert SECRET not in str(refused.value)
        assert connect(target)
        assert connect(target, token=SECRET, plain_token=True)
    monkeypatch.setenv("PALIMPSEST_TOKEN", SECRET)
    with pytest.raises(ValueError, match="without TLS"):
        palimpsest.connect(target)
    monkeypatch.setenv("PALIMPSEST_PLAIN_TOKEN", "true")
    assert palimpsest.connect(target)


def test_addresses_of_this_machine() -> None:
    local = ("127.0.0.1:5", "[::1]:5", "localhost:5", "unix:/api", "[::ffff:127.0.0.1]:5")
    assert all(map(is_local, local))
    assert not any(map(is_local, ("127.0.0.1.example:5", "[::]:5", "*:5", "dns:///localhost:5")))


async def test_no_proxy_receives_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    seen = Seen()
    async with server, serving(seen) as address:
        async with palimpsest.connect(address, token=SECRET) as client:
            await client.session("s").info()
        assert (received, seen.sent["GetSession"]) == ([], [f"Bearer {SECRET}"])
        # gRPC would use it otherwise.
        async with aio.insecure_channel(address, options=OPTIONS) as channel:
            channel.get_state(try_to_connect=True)
            async with asyncio.timeout(100):
                while not received:
                    await asyncio.sleep(0.01)
        assert b"CONNECT" in received[0]


async def test_tls_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, server = tmp_path / "root.pem", AUTHORITY.issue("localhost")
    root.write_bytes(AUTHORITY.root.pem)
    certificate, key = AUTHORITY.issue("client").write(tmp_path, "client")
    credentials = grpc.ssl_server_credentials(
        [(server.key_pem, server.pem)], AUTHORITY.root.pem, require_client_auth=True
    )
    own = {"certificate_file": certificate, "key_file": key}
    seen = Seen()
    async with serving(seen, credentials) as target:
        await use(target, token=SECRET, ca_file=root, **own)
        with pytest.raises(palimpsest.ConnectionFailed, match="a certificate of the client"):
            await use(target, ca_file=root, reach_seconds=0.2)
        for name, path in (("CA", root), ("CERTIFICATE", certificate), ("KEY", key)):
            monkeypatch.setenv(f"PALIMPSEST_{name}_FILE", str(path))
        await use(target, token=SECRET)
        # For a target without TLS the variables mean nothing.
        assert palimpsest.connect("localhost")
    assert {*seen.sent["GetSession"]} == {f"Bearer {SECRET}"}
    assert len(seen.sent["GetSession"]) == 4


@pytest.mark.parametrize(
    ("name", "trusted", "said"),
    [
        ("localhost", "another", r"none of the trusted roots: name its root by ca_file"),
        ("127.0.0.2", "own", "for another name: connect to a name that it has"),
        ("localhost", "expired", "a certificate that has expired"),
        ("localhost", "plain", "does not use TLS"),
    ],
)
async def test_a_failed_handshake_says_why(
    name: str, trusted: str, said: str, tmp_path: Path
) -> None:
    root = tmp_path / "root.pem"
    root.write_bytes((Authority("Another") if trusted == "another" else AUTHORITY).root.pem)
    ends = timedelta(seconds=-1) if trusted == "expired" else timedelta(days=1)
    shown = AUTHORITY.issue("localhost", ends=ends)
    credentials = grpc.ssl_server_credentials([(shown.key_pem, shown.pem)])
    server = aio.server()
    if trusted == "plain":
        port = server.add_insecure_port("0.0.0.0:0")
    else:
        port = server.add_secure_port("0.0.0.0:0", credentials)
    await server.start()
    try:
        with pytest.raises(palimpsest.ConnectionFailed, match=said):
            await use(f"grpcs://{name}:{port}", ca_file=root, reach_seconds=0.2)
    finally:
        await server.stop(None)


def test_certificate_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    certificate, key = AUTHORITY.issue("client").write(tmp_path, "client")
    garbage = tmp_path / "garbage"
    garbage.write_text(SECRET)
    other_key, locked = tmp_path / "other.key", tmp_path / "locked.key"
    other_key.write_bytes(AUTHORITY.issue("client").key_pem)
    locked.write_bytes(AUTHORITY.issue("client").encrypted_key_pem(SECRET.encode()))
    torn = tmp_path / "torn.pem"
    torn.write_text(f"-----BEGIN CERTIFICATE-----\n{SECRET}\n-----END CERTIFICATE-----\n")
    pair = {"certificate_file": certificate}
    for target, options, said in (
        ("grpcs://h", {"ca_file": tmp_path / "no"}, "cannot read .*no .*: no such file"),
        ("grpcs://h", {"ca_file": garbage}, "garbage .* is no PEM file"),
        ("grpcs://h", {"certificate_file": certificate}, "key_file .*_KEY_FILE. is missing"),
        ("grpcs://h", {"key_file": key}, "certificate_file .* is missing"),
        ("grpcs://h", {"ca_file": key}, "client.key .*PALIMPSEST_CA_FILE.* holds no certificate"),
        ("grpcs://h", {"ca_file": torn}, "torn.pem .* holds no certificate"),
        ("grpcs://h", {**pair, "key_file": other_key}, "client.pem .*other.key .* belong together"),
        ("grpcs://h", {**pair, "key_file": locked}, "locked.key .* without a passphrase"),
        ("grpcs://h", {"certificate_file": torn, "key_file": key}, "torn.pem .* belong together"),
        ("h:1", {"ca_file": certificate}, "are not used, since h:1 is without TLS"),
        (
            "grpcs://h",
            {"ca_file": certificate, "credentials": grpc.ssl_channel_credentials()},
            "since there are credentials already",
        ),
    ):
        with pytest.raises(ValueError, match=said) as refused:
            palimpsest.connect(target, **options)
        assert SECRET not in str(refused.value)


class Refusing(Service):
    """Refuses every read of a session."""

    code = grpc.StatusCode.UNAUTHENTICATED

    async def GetSession(self, request: Any, context: Any) -> Any:
        reason = "SCOPE_MISSING" if self.code.name == "PERMISSION_DENIED" else "CREDENTIALS_INVALID"
        await refuse(context, self.code, reason, "use another key")


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, palimpsest.Unauthenticated, "CREDENTIALS_INVALID"),
        (grpc.StatusCode.PERMISSION_DENIED, palimpsest.PermissionDenied, "SCOPE_MISSING"),
    ],
)
async def test_refusals_are_errors_of_their_own_and_nothing_shows_the_token(
    code: grpc.StatusCode,
    kind: type[palimpsest.PalimpsestError],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service, seen = Refusing(), Seen()
    service.code = code
    caplog.set_level(logging.DEBUG)
    async with serving(seen, service=service) as address:
        client = palimpsest.connect(address, token=SECRET)
        with pytest.raises(kind, match="use another key") as refused:
            await client.session("s").info()
        assert refused.value.reason == reason
        assert len(seen.sent["GetSession"]) == 1, "it is not made again"
        shown = [repr(client), repr(vars(client)), repr(vars(client._connection)), caplog.text]
        shown += [repr(vars(client._connection.access)), repr(refused.value), str(refused.value)]
        shown += [repr(refused.value.__cause__), repr(vars(refused.value))]
        assert SECRET not in "".join(shown)
        await client.close()
