"""The formats of the Connect protocol."""

import base64
import gzip
import json
import zlib

import grpc
import pytest

from palimpsest.v1 import access_service_pb2
from palimpsest.v1 import session_service_pb2 as pb
from service.domain.values.errors import Exhausted, InvalidInput, NotFound
from service.domain.values.reasons import Reason
from service.rpc.errors import abort_arguments
from service.rpc.http import wire
from service.rpc.http.wire import Codec, Unacceptable

LIMIT = 1000


def test_a_message_is_read_as_it_was_written() -> None:
    message = pb.GetSessionRequest(session="josé")
    for codec in Codec:
        content = wire.encode(message, codec)
        assert wire.decode(content, codec, pb.GetSessionRequest) == message
    assert wire.decode(b"", Codec.JSON, pb.ListSessionsRequest) == pb.ListSessionsRequest()
    both = (b'{"request_id": "1"}', b'{"requestId": "1"}')
    found = [wire.decode(one, Codec.JSON, pb.CreateSessionRequest).request_id for one in both]
    assert found == ["1", "1"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"sesion": "a"}', "sesion"),
        (b'{"session": 1}', "session"),
        (b'{"session": "a", "session": "b"}', "session"),
        (b"[" * 100_000, "has to be an object"),
        (b'{"session": ' + b"[" * 100_000, "recursion"),
        (b"\xff", "JSON"),
        (b'{"session": "\xed\xa0\x80"}', "JSON"),
        (b"null", "JSON"),
        (b"1" * 10_000, "JSON"),
    ],
)
def test_what_is_no_message_is_one_clear_error(content: bytes, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        wire.decode(content, Codec.JSON, pb.GetSessionRequest)
    assert caught.value.reason is Reason.REQUEST_MALFORMED
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_broken_protobuf_is_the_same_error() -> None:
    with pytest.raises(InvalidInput, match="encode it by the proto"):
        wire.decode(b"\x0a\xff", Codec.PROTO, pb.GetSessionRequest)


def test_a_compressed_body_has_the_limit_of_others() -> None:
    assert wire.inflate(gzip.compress(b"a" * LIMIT), "gzip", LIMIT) == b"a" * LIMIT
    assert wire.inflate(b"a", "identity", LIMIT) == b"a"
    bomb = gzip.compress(bytes(10**8))
    for content, encoding, refusal, said in (
        (bomb, "gzip", Unacceptable, "1000 bytes"),
        (b"no gzip", "gzip", InvalidInput, "compress it anew"),
        (gzip.compress(b"a" * 100)[:-9], "gzip", InvalidInput, "is cut"),
        (b"a", "br", Unacceptable, "use gzip"),
    ):
        with pytest.raises(refusal, match=said):
            wire.inflate(content, encoding, LIMIT)
    assert zlib.decompress(wire.deflate(b"a" * 5000), 31) == b"a" * 5000


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("gzip", True),
        ("br, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("br", False),
        ("", False),
    ],
)
def test_who_accepts_gzip(header: str, accepts: bool) -> None:
    assert wire.accepts_gzip(header) is accepts


def test_the_query_of_a_get() -> None:
    text = b"connect=v1&encoding=json&message=%7B%22session%22%3A%22a%22%7D"
    assert wire.query_message(text, LIMIT) == b'{"session":"a"}'
    packed = base64.urlsafe_b64encode(gzip.compress(b"a" * 500)).rstrip(b"=")
    text = b"encoding=proto&base64=1&compression=gzip&message=" + packed
    assert (wire.query_codec(text), wire.query_message(text, LIMIT)) == (Codec.PROTO, b"a" * 500)
    for broken in (b"connect=v2", b"encoding=xml", b"base64=1&message=a"):
        with pytest.raises(InvalidInput):
            wire.query_message(broken, LIMIT)


@pytest.mark.parametrize("header", ["-1", "1.5", "x", "12345678901", "1_0", "\u0661"])
def test_a_deadline_that_is_none(header: str) -> None:
    with pytest.raises(InvalidInput, match="connect-timeout-ms"):
        wire.timeout(header)


def test_a_deadline_in_seconds() -> None:
    assert (wire.timeout("1500"), wire.timeout("")) == (1.5, None)


def test_an_error_has_its_reason_in_words_and_bytes() -> None:
    error = NotFound(Reason.SESSION_NOT_FOUND, "there is no session 'a'", {"session": "a"})
    found = wire.failure(*abort_arguments(error)).content
    assert (found["code"], found["message"]) == ("not_found", "there is no session 'a'")
    info = found["details"][0]
    assert info["type"] == "google.rpc.ErrorInfo"
    assert info["debug"]["reason"] == "SESSION_NOT_FOUND"
    assert not info["value"].endswith("=")
    json.dumps(found)


def test_headers_say_what_http_clients_understand() -> None:
    error = Exhausted(Reason.TOO_MANY_CALLS, "later", retry_seconds=1.2)
    assert wire.failure(*abort_arguments(error)).headers == [("retry-after", "2")]
    missing = wire.Failure(code=grpc.StatusCode.UNAUTHENTICATED, message="no key")
    assert missing.headers == [("www-authenticate", "Bearer")]
    assert set(wire.STATUSES) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


def test_the_end_of_a_stream() -> None:
    failed = wire.Failure(code=grpc.StatusCode.CANCELLED, message="gone")
    flags, size = wire.opened(wire.end_of_stream(failed)[: wire.PREFIX_BYTES])
    content = json.loads(wire.end_of_stream(failed)[wire.PREFIX_BYTES :])
    assert (flags, content["error"]["code"]) == (wire.END_OF_STREAM, "canceled")
    assert size == len(wire.end_of_stream(failed)) - wire.PREFIX_BYTES
    assert wire.event(b"{}", "end") == b"event: end\ndata: {}\n\n"


@pytest.mark.parametrize(
    "body",
    [
        b'{"session": "s", "source": "web", "trust": false}',
        b'{"session": "s", "source": "web", "trust": true}',
    ],
)
def test_an_enum_that_is_true_or_false_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="trust has to be the name"):
        wire.decode(body, wire.Codec.JSON, access_service_pb2.SetSourceTrustRequest)
