"""Sends thousands of hostile `authorization` headers and certificates to a service.

Each is refused as UNAUTHENTICATED, or before the service sees it; none is an internal error, and
none is logged. `make prove` runs it.
"""

import asyncio
import base64
import json
import random
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import jwt
import pytest
from structlog.testing import capture_logs

import palimpsest
from palimpsest.v1 import session_service_pb2
from storage.engine.database import Database
from tests.acceptance.access.serving import serving
from tests.support.access import operator_key
from tests.support.certificates import Authority, Pair
from tests.support.issuer import AUDIENCE, Issuer, issuing
from tests.support.raw_http2 import framed

SEED = 20_261_127
#: How many of each kind are tried.
EACH = 400
CERTIFICATES = 60
#: Calls at once on one connection.
BATCH = 40
METHOD = "/palimpsest.v1.SessionService/ListSessions"

OK, UNAUTHENTICATED = "0", "16"
#: gRPC refuses headers that are too large, and closes connections whose headers are no HTTP/2.
TOO_LARGE, CLOSED = "8", "closed"

Header = Sequence[tuple[bytes, bytes]]


class Connection:
    """Makes calls with headers that no gRPC client sends."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")

    async def statuses(self, headers: Sequence[Header]) -> list[str]:
        """Returns the gRPC status of a call with each; CLOSED where there is none."""
        found = await self._together(headers)
        if len(headers) == 1 or CLOSED not in found:
            return found
        # One of them ended the connection of all.
        return [(await self._together([one]))[0] for one in headers]

    async def _together(self, headers: Sequence[Header]) -> list[str]:
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        state = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        state.initiate_connection()
        statuses: dict[int, str] = {}
        numbers = []
        for one in headers:
            number = state.get_next_available_stream_id()
            numbers.append(number)
            head = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", METHOD.encode())]
            head += [(b":authority", b"a"), (b"content-type", b"application/grpc")]
            state.send_headers(number, [*head, (b"te", b"trailers"), *one])
            message = session_service_pb2.ListSessionsRequest().SerializeToString()
            state.send_data(number, framed(message), end_stream=True)
        try:
            async with asyncio.timeout(100):
                writer.write(state.data_to_send())
                while len(statuses) < len(numbers) and (data := await reader.read(1 << 20)):
                    for event in state.receive_data(data):
                        _read(event, statuses)
                    writer.write(state.data_to_send())
        except ConnectionError:
            pass
        finally:
            writer.close()
        return [statuses.get(number, CLOSED) for number in numbers]


def _read(event: h2.events.Event, statuses: dict[int, str]) -> None:
    match event:
        case h2.events.ResponseReceived() | h2.events.TrailersReceived():
            found = dict(event.headers or ())
            if b"grpc-status" in found:
                statuses[event.stream_id or 0] = found[b"grpc-status"].decode()
        case h2.events.StreamReset():
            statuses.setdefault(event.stream_id or 0, CLOSED)


def text(dice: random.Random, most: int = 60, letters: str = string.printable) -> str:
    return "".join(dice.choices(letters, k=dice.randrange(most)))


def mutated(dice: random.Random, token: str) -> str:
    """Returns a token that was cut, changed, doubled, or mixed."""
    at = dice.randrange(len(token))
    changes: list[Callable[[], str]] = [
        lambda: token[:at],
        lambda: token[at:],
        lambda: token[:at] + dice.choice(string.ascii_letters) + token[at + 1 :],
        lambda: token[:at] + text(dice, letters=string.printable) + token[at:],
        lambda: token.swapcase(),
        lambda: token + token,
        lambda: token[:at] + chr(dice.randrange(0x80, 0x2FF)) + token[at:],
        lambda: token[::-1],
        lambda: token[:at] + "." + token[at:],
        lambda: token[:at] + "\x00" + token[at:],
    ]
    while (found := dice.choice(changes)()) == token:
        at = dice.randrange(len(token))
    return found


def json_value(dice: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: dice.choice((True, False)),
        lambda: dice.choice((0, -1, 2**63, 10**400, -(10**30), dice.randrange(10**10))),
        lambda: dice.choice((1e308, float("inf"), float("nan"), -0.0, 1.5)),
        lambda: text(dice),
    ]
    if depth < 3:
        kinds += [
            lambda: [json_value(dice, depth + 1) for _ in range(dice.randrange(4))],
            lambda: {text(dice, 8): json_value(dice, depth + 1) for _ in range(dice.randrange(4))},
        ]
    return dice.choice(kinds)()


def part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def with_wrong_claims(dice: random.Random, issuer: Issuer) -> str:
    """Returns a token with a valid signature and one or more claims that are nonsense."""
    # An `exp` that is a number may be valid.
    wrong = {"exp", *dice.sample(("iss", "aud", "sub", "tenant"), k=dice.randrange(1, 4))}
    claims = {**issuer.claims(), **{name: json_value(dice) for name in sorted(wrong)}}
    claims["nbf"] = json_value(dice)
    key = issuer.keys[0]
    content = json.dumps(claims).encode()
    return jwt.PyJWS().encode(content, key.private, key.algorithm, {"kid": key.key_id})


def with_a_wrong_head(dice: random.Random, issuer: Issuer) -> str:
    head = {
        "alg": dice.choice(("none", "None", "HS256", "ES256", "RS256", "ES256K", json_value(dice))),
        "kid": dice.choice(("first", "unknown", "../../etc/passwd", json_value(dice))),
        dice.choice(("jku", "jwk", "x5u", "crit", "b64", "typ", "zip")): json_value(dice),
    }
    _, body, signature = issuer.token().split(".")
    encoded = part(json.dumps(head).encode())
    return f"{encoded}.{body}.{dice.choice((signature, '', part(dice.randbytes(64))))}"


def deep(dice: random.Random, issuer: Issuer) -> str:
    many = dice.randrange(1, 2000)
    nested = part(dice.choice((b"[" * many, b'{"a":' * many)))
    return f"{nested}.{nested}.{part(dice.randbytes(8))}"


def bearer(token: str) -> Header:
    return [(b"authorization", b"Bearer " + token.encode())]


def hostile(dice: random.Random, issuer: Issuer, key: str) -> Iterator[tuple[str, Header]]:
    """Yields kinds and headers."""
    token = issuer.token()
    for _ in range(EACH):
        yield "a key that was changed", bearer(mutated(dice, key))
        yield "a token that was changed", bearer(mutated(dice, token))
        yield "wrong claims", bearer(with_wrong_claims(dice, issuer))
        yield "a wrong head", bearer(with_a_wrong_head(dice, issuer))
        yield "random bytes", [(b"authorization", b"Bearer " + dice.randbytes(dice.randrange(100)))]
        yield "random headers", [(b"authorization", dice.randbytes(dice.randrange(60)))]
        scheme = dice.choice(
            ("Basic", "bearer", "BEARER", "", "Bearer Bearer", "Token", text(dice))
        )
        blank = dice.choice(("", " ", "\t", "  "))
        content = dice.choice(("", text(dice), "x" + key[1:])).encode()
        yield "schemes", [(b"authorization", scheme.encode() + blank.encode() + content)]
    for _ in range(EACH // 10):
        yield "deep", bearer(deep(dice, issuer))
        several = [bearer(key)[0] for _ in range(dice.randrange(2, 5))]
        yield "several headers", several
        yield "long", bearer("x" * dice.randrange(5000, 60_000))
        yield "without", [(b"x-authorization", b"Bearer " + key.encode())]


def logged(
    capture: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, logs: Sequence[Any]
) -> str:
    """Returns all that was written, by whichever way."""
    out, err = capture.readouterr()
    return f"{out}{err}{caplog.text}{logs}"


@pytest.mark.prove
async def test_hostile_headers_are_refused_and_not_logged(
    url: str,
    database: Database,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    dice, key = random.Random(SEED), await operator_key(database)
    found: Counter[tuple[str, str]] = Counter()
    async with issuing() as issuer:
        settings = {"jwt_issuer": issuer.url, "jwt_audience": AUDIENCE}
        with capture_logs() as logs:
            async with serving(url, authentication="required", **settings) as address:
                connection = Connection(address)
                assert await connection.statuses([bearer(key), bearer(issuer.token())]) == [OK, OK]
                tried = list(hostile(dice, issuer, key))
                for start in range(0, len(tried), BATCH):
                    batch = tried[start : start + BATCH]
                    statuses = await connection.statuses([header for _, header in batch])
                    found.update(
                        (kind, status) for (kind, _), status in zip(batch, statuses, strict=True)
                    )
                assert await connection.statuses([bearer(key)]) == [OK]
    assert len(tried) >= 7 * EACH
    refused = {UNAUTHENTICATED, CLOSED}
    unexpected = {
        (kind, status): many
        for (kind, status), many in found.items()
        if status not in refused and not (kind == "long" and status == TOO_LARGE)
    }
    assert unexpected == {}
    # Most of them did reach the service.
    assert sum(many for (_, status), many in found.items() if status == UNAUTHENTICATED) > 5 * EACH
    shown = logged(capfd, caplog, logs)
    # As text, and as `repr` shows bytes.
    sent = {value.removeprefix(b"Bearer ") for _, head in tried for _, value in head}
    secrets = {one.decode(errors="replace") for one in sent} | {repr(one)[2:-1] for one in sent}
    assert not [one for one in secrets if len(one) > 12 and one in shown]
    assert key[20:] not in shown


URIS = (
    "palimpsest:", "palimpsest:%00", "palimpsest:" + "x" * 3000, "palimpsest:%ff%fe",
    "palimpsest:%", "palimpsest:default/..", "palimpsest:DEFAULT", "PALIMPSEST:default", "palimpsest://default",
    "palimpsest:system", "palimpsest:default?scope=admin", "palimpsest: default",
    "palimpsest:'; DROP TABLE tenant; --", "urn:palimpsest:default", "palimpsest:default%0a",
)  # fmt: skip


@pytest.mark.prove
async def test_hostile_certificates_are_refused_and_not_logged(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    dice, authority, root = random.Random(SEED), Authority(), tmp_path / "root.pem"
    certificate, key = authority.issue("localhost").write(tmp_path, "api")
    trusted = authority.root.pem
    root.write_bytes(trusted)
    settings = {
        "authentication": "required",
        "tls_certificate_file": certificate,
        "tls_key_file": key,
        "tls_client_ca_file": root,
    }
    letters = string.ascii_letters + string.digits + ' /=,+"\\<>;#%'
    clients = [authority.issue(f"planted-{text(dice, 40, letters)}", uris=[uri]) for uri in URIS]
    for _ in range(CERTIFICATES):
        uri = f"palimpsest:{text(dice, 40, string.ascii_lowercase + '%:/')}"
        clients.append(authority.issue("planted", uris=[uri] * dice.randrange(1, 3)))
    with capture_logs() as logs:
        async with serving(url, **settings) as address:
            found = Counter([await outcome(address, trusted, one) for one in clients])
            stranger = Authority("Another").issue("planted", uris=["palimpsest:default"])
            assert await outcome(address, trusted, stranger) == "handshake"
            good = authority.issue("planted", uris=["palimpsest:default"])
            assert await outcome(address, trusted, good) == "OK"
    assert {*found} <= {"CREDENTIALS_INVALID", "CREDENTIALS_MISSING"}, found
    assert found.total() == len(URIS) + CERTIFICATES
    assert "planted" not in logged(capfd, caplog, logs)


async def outcome(address: str, roots: bytes, client: Pair) -> str:
    """Returns what a call with a certificate ends with."""
    async with palimpsest.connect(
        f"grpcs://{address}",
        credentials=grpc.ssl_channel_credentials(roots, client.key_pem, client.pem),
        reach_seconds=0.2,
    ) as connected:
        try:
            await connected.create_session("s", exist_ok=True)
        except palimpsest.ConnectionFailed:
            return "handshake"
        except palimpsest.PalimpsestError as error:
            return error.reason
    return "OK"
