"""Bad input of the methods that erase, and of those that say what was erased."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from google.rpc import error_details_pb2, status_pb2

import palimpsest
from palimpsest.v1 import (
    access_service_pb2,
    access_service_pb2_grpc,
    memory_service_pb2,
    memory_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)

#: The same in each process that collects the tests.
UNKNOWN = "0b6f2f0e-3f0c-4b51-9a5e-0f6f3c1f7a10"
LONG = "x" * 501
CONTROL = "a\x00b"
LIST = access_service_pb2.ListErasuresRequest
RECEIPT = access_service_pb2.GetErasureReceiptRequest
KEPT_OUT = access_service_pb2.ListKeptOutTextsRequest
ALLOW = access_service_pb2.AllowTextRequest
TENANT = access_service_pb2.DeleteTenantRequest
SESSION = session_service_pb2.DeleteSessionRequest
MEMORY = memory_service_pb2.DeleteMemoryRequest
REDACT = session_service_pb2.RedactChunksRequest

#: A request, its values, and the code and reason of the error that it ends with.
INVALID = ("INVALID_ARGUMENT", "FIELD_INVALID")
GONE = ("NOT_FOUND", "SESSION_NOT_FOUND")
CASES: list[tuple[type, dict[str, Any], tuple[str, str]]] = [
    (LIST, {"page_size": -1}, INVALID),
    (LIST, {"page_token": "x" * 4097}, INVALID),
    (LIST, {"page_token": "garbage"}, ("INVALID_ARGUMENT", "TOKEN_INVALID")),
    (LIST, {"page_token": CONTROL}, ("INVALID_ARGUMENT", "TOKEN_INVALID")),
    (LIST, {"tenant": "a/b"}, INVALID),
    (LIST, {"tenant": "nowhere"}, ("NOT_FOUND", "TENANT_NOT_FOUND")),
    (RECEIPT, {}, INVALID),
    (RECEIPT, {"erasure": "7"}, INVALID),
    (RECEIPT, {"erasure": CONTROL}, INVALID),
    (RECEIPT, {"erasure": UNKNOWN}, ("NOT_FOUND", "ERASURE_NOT_FOUND")),
    (RECEIPT, {"erasure": UNKNOWN, "tenant": CONTROL}, INVALID),
    (TENANT, {}, INVALID),
    (TENANT, {"tenant": "nowhere"}, ("NOT_FOUND", "TENANT_NOT_FOUND")),
    (TENANT, {"tenant": "nowhere", "reason": LONG}, INVALID),
    (TENANT, {"tenant": "nowhere", "reason": CONTROL}, INVALID),
    (TENANT, {"tenant": "default"}, ("FAILED_PRECONDITION", "TENANT_PROTECTED")),
    (TENANT, {"tenant": "system"}, ("FAILED_PRECONDITION", "TENANT_PROTECTED")),
    (SESSION, {}, INVALID),
    (SESSION, {"session": "none"}, GONE),
    (SESSION, {"session": "a\nb"}, INVALID),
    (SESSION, {"session": "s", "reason": LONG}, INVALID),
    (SESSION, {"session": "s", "reason": CONTROL}, INVALID),
    (SESSION, {"session": "s", "request_id": "x" * 300}, INVALID),
    (MEMORY, {"session": "s"}, INVALID),
    (MEMORY, {"session": "none", "memory": "m"}, GONE),
    (MEMORY, {"session": "s", "memory": "none"}, ("NOT_FOUND", "MEMORY_NOT_FOUND")),
    (MEMORY, {"session": "s", "memory": "m", "reason": LONG}, INVALID),
    (MEMORY, {"session": "s", "memory": "m", "reason": CONTROL}, INVALID),
    (REDACT, {"session": "s"}, INVALID),
    (REDACT, {"session": "none", "text": "abc"}, GONE),
    (REDACT, {"session": "s", "positions": {}}, INVALID),
    (REDACT, {"session": "s", "positions": {"ranges": [{"first": 2, "last": 1}]}}, INVALID),
    (REDACT, {"session": "s", "positions": {"ranges": [{"first": 2}]}}, INVALID),
    (REDACT, {"session": "s", "positions": {"ranges": [{"first": 0, "last": 1}]}}, INVALID),
    (REDACT, {"session": "s", "positions": {"ranges": [{"first": -1, "last": 1}]}}, INVALID),
    (REDACT, {"session": "s", "positions": {"ranges": [{"first": 1, "last": 1}] * 1001}}, INVALID),
    (REDACT, {"session": "s", "text": "ab"}, INVALID),
    (REDACT, {"session": "s", "text": "x" * 1001}, INVALID),
    (REDACT, {"session": "s", "text": "  \t "}, INVALID),
    (REDACT, {"session": "s", "text": "a\x00bc"}, INVALID),
    (REDACT, {"session": "s", "thread": "a/b"}, INVALID),
    (REDACT, {"session": "s", "source": "a\x7fb"}, INVALID),
    (REDACT, {"session": "s", "text": "abc", "reason": LONG}, INVALID),
    (REDACT, {"session": "s", "text": "abc", "reason": CONTROL}, INVALID),
    (REDACT, {"session": "s", "text": "abc", "request_id": "\x01"}, INVALID),
    (KEPT_OUT, {}, INVALID),
    (KEPT_OUT, {"session": "none"}, GONE),
    (KEPT_OUT, {"session": "s", "page_size": -1}, INVALID),
    (KEPT_OUT, {"session": "s", "page_token": "forged"}, ("INVALID_ARGUMENT", "TOKEN_INVALID")),
    (ALLOW, {"session": "s"}, INVALID),
    (ALLOW, {"session": "none", "id": "0" * 32}, GONE),
    (ALLOW, {"session": "s", "id": "0" * 32}, ("NOT_FOUND", "ERASURE_NOT_FOUND")),
    (ALLOW, {"session": "s", "id": "A" * 32}, INVALID),
    (ALLOW, {"session": "s", "id": "0" * 31}, INVALID),
    (ALLOW, {"session": "s", "id": "0" * 32, "request_id": "\x01"}, INVALID),
]


@pytest.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s", exist_ok=True)
        if not [one async for one in session.chunks()]:
            await session.append(["abc", "def"])
    async with grpc.aio.insecure_channel(address.removeprefix("grpc://")) as opened:
        yield opened


def method_of(channel: grpc.aio.Channel, request: object) -> Any:
    access = access_service_pb2_grpc.AccessServiceStub(channel)
    sessions = session_service_pb2_grpc.SessionServiceStub(channel)
    memories = memory_service_pb2_grpc.MemoryServiceStub(channel)
    return {
        LIST: access.ListErasures,
        RECEIPT: access.GetErasureReceipt,
        KEPT_OUT: access.ListKeptOutTexts,
        ALLOW: access.AllowText,
        TENANT: access.DeleteTenant,
        SESSION: sessions.DeleteSession,
        MEMORY: memories.DeleteMemory,
        REDACT: sessions.RedactChunks,
    }[type(request)]


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Returns the reason that an error has in its details."""
    trailing = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert any(one.Unpack(info) for one in status.details)
    return str(info.reason)


@pytest.mark.parametrize(
    ("kind", "values", "ends"),
    CASES,
    ids=[f"{kind.__name__}-{str(values)[:40]!a}" for kind, values, _ in CASES],
)
async def test_a_bad_request_has_one_clear_error(
    channel: grpc.aio.Channel, kind: type, values: dict[str, Any], ends: tuple[str, str]
) -> None:
    request = kind(**values)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method_of(channel, request)(request)
    assert (caught.value.code().name, reason_of(caught.value)) == ends
    assert caught.value.details()
    assert LONG not in str(caught.value.details())


async def test_positions_after_the_head_are_no_chunks(channel: grpc.aio.Channel) -> None:
    ranges = [{"first": 3, "last": 2**63 - 1}, {"first": 2**62, "last": 2**62}]
    positions = ParseDict({"ranges": ranges}, REDACT.Positions())
    request = REDACT(session="s", positions=positions, keep_out=True)
    found = await method_of(channel, request)(request)
    assert (found.chunks, found.kept_out, found.HasField("operation")) == (0, 0, False)
    # Ranges that overlap name their chunks once.
    both = [{"first": 1, "last": 2}, {"first": 2, "last": 9}]
    positions = ParseDict({"ranges": both}, REDACT.Positions())
    request = REDACT(session="s", positions=positions, validate_only=True)
    assert (await method_of(channel, request)(request)).chunks == 2


async def test_a_page_token_is_for_its_own_list_alone(
    channel: grpc.aio.Channel, client: palimpsest.Client
) -> None:
    sessions = session_service_pb2_grpc.SessionServiceStub(channel)
    for name in ("page-1", "page-2", "page-3", "page-4"):
        session = await client.create_session(name)
        if name < "page-3":
            await session.delete()
    page = await method_of(channel, LIST())(LIST(page_size=1))
    assert page.next_page_token
    following = await method_of(channel, LIST())(LIST(page_token=page.next_page_token))
    assert following.erasures
    assert page.erasures[0].id not in [one.id for one in following.erasures]
    other = await sessions.ListSessions(session_service_pb2.ListSessionsRequest(page_size=1))
    changed = page.next_page_token[:-4] + "AAAA"
    assert other.next_page_token
    for token in (other.next_page_token, changed):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method_of(channel, LIST())(LIST(page_token=token))
        assert reason_of(caught.value) == "TOKEN_INVALID"
