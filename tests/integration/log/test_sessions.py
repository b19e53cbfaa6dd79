"""Sessions over gRPC: their metadata, etags, deletion, and requests that come again."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

import palimpsest
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from tests.support import forking
from tests.support.harness import Servers, api


@pytest.fixture(scope="module")
def address(servers: Servers) -> Iterator[str]:
    with api(servers.new_database()) as (_, address):
        yield address


@pytest.fixture(scope="module")
async def client(address: str) -> AsyncIterator[palimpsest.Client]:
    async with palimpsest.connect(address) as client:
        yield client


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    return await client.create_session(f"user:{uuid4().hex}", metadata={"plan": "free"})


async def test_metadata_is_kept_and_replaced_as_a_whole(session: palimpsest.Session) -> None:
    before = await session.info()
    assert (before.id, before.metadata, before.language) == (
        session.id,
        {"plan": "free"},
        "english",
    )
    after = await session.update(metadata={"team": "réd"})
    assert after.metadata == {"team": "réd"}
    assert after.etag != before.etag
    assert await session.info() == after
    assert (await session.update(metadata={})).metadata == {}


async def test_an_etag_guards_an_update(session: palimpsest.Session) -> None:
    read = await session.info()
    await session.append("Appending changes no etag.")
    first = await session.update(metadata={"a": "1"}, etag=read.etag)
    with pytest.raises(palimpsest.Aborted) as refused:
        await session.update(metadata={"a": "2"}, etag=read.etag)
    assert refused.value.reason == "ETAG_MISMATCH"
    assert refused.value.metadata == {"current": first.etag}
    assert (await session.info()).metadata == {"a": "1"}


async def test_retention_is_replaced_as_a_whole(client: palimpsest.Client) -> None:
    given = palimpsest.Retention(answer_days=30, call_days=0)
    session = await client.create_session(f"user:{uuid4().hex}", retention=given)
    before = await session.info()
    assert before.retention == given
    wanted = palimpsest.Retention(idle_session_days=365)
    after = await session.update(retention=wanted, etag=before.etag)
    assert (after.retention, after.metadata) == (wanted, {})
    assert after.etag != before.etag
    both = await session.update(retention=palimpsest.Retention(), metadata={"a": "b"})
    assert (both.retention, both.metadata) == (palimpsest.Retention(), {"a": "b"})
    for days in (-1, 36_501):
        with pytest.raises(palimpsest.InvalidArgument):
            await session.update(retention=palimpsest.Retention(session_days=days))
    with pytest.raises(ValueError, match="metadata or retention"):
        await session.update()


async def test_what_cannot_be_metadata_is_refused(session: palimpsest.Session) -> None:
    for wrong in ({"": "x"}, {"k" * 65: "x"}, {"k": "v" * 1025}, {"k": "\0"}):
        with pytest.raises(palimpsest.InvalidArgument):
            await session.update(metadata=wrong)
    with pytest.raises(palimpsest.InvalidArgument):
        await session.update(metadata={str(number): "" for number in range(17)})
    assert (await session.info()).metadata == {"plan": "free"}


async def test_a_mask_names_what_is_updated(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    named = session_service_pb2.Session(id=session.id)
    for paths in ([], ["language"], ["metadata", "head"]):
        request = session_service_pb2.UpdateSessionRequest(
            session=named, update_mask=FieldMask(paths=paths)
        )
        with pytest.raises(palimpsest.InvalidArgument):
            await client.call(stub.UpdateSession, request)


async def test_a_session_of_an_id_that_was_deleted_has_none_of_its_metadata(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    before = await session.info()
    await client.delete_session(session.id)
    with pytest.raises(palimpsest.NotFound):
        await session.info()
    with pytest.raises(palimpsest.NotFound):
        await session.delete()
    await session.delete(missing_ok=True)
    await client.create_session(session.id)
    after = await session.info()
    assert (after.metadata, after.head) == ({}, 0)
    with pytest.raises(palimpsest.Aborted):
        await session.update(metadata={}, etag=before.etag)


async def test_one_that_is_there_keeps_its_metadata(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    again = await client.create_session(session.id, exist_ok=True, metadata={"plan": "paid"})
    assert (await again.info()).metadata == {"plan": "free"}
    with pytest.raises(palimpsest.AlreadyExists, match="choose another id"):
        await client.create_session(session.id, exist_ok=True, language="german")


async def test_a_request_that_comes_again_is_done_once(client: palimpsest.Client) -> None:
    id_, request_id = f"once-{uuid4().hex}", uuid4().hex
    session = await client.create_session(id_, request_id=request_id)
    await client.create_session(id_, request_id=request_id)
    with pytest.raises(palimpsest.AlreadyExists) as refused:
        await client.create_session(id_, request_id=request_id, exist_ok=True, language="german")
    assert refused.value.reason == "REQUEST_CONTENT_CHANGED"
    etag = (await session.info()).etag
    for _ in range(2):
        updated = await session.update(metadata={"a": "b"}, etag=etag, request_id=f"u{request_id}")
        assert updated.metadata == {"a": "b"}
    for _ in range(2):
        await session.delete(request_id=f"d{request_id}")


async def test_a_page_size_above_the_limit_is_the_limit(client: palimpsest.Client) -> None:
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    request = session_service_pb2.ListSessionsRequest(page_size=100_000)
    assert (await client.call(stub.ListSessions, request)).sessions
    with pytest.raises(palimpsest.InvalidArgument):
        await client.call(stub.ListSessions, session_service_pb2.ListSessionsRequest(page_size=-1))


def command(address: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    words = ("session", *arguments, "--address", address)
    return forking.run(words, environment=os.environ, seconds=100)


def test_the_command_line(address: str) -> None:
    assert command(address, "create", "cli", "--metadata", "a=b").stdout == "cli\n"
    assert command(address, "show", "cli").stdout.splitlines() == [
        "cli: 0 chunks, 0 bytes",
        "  a=b",
    ]
    assert command(address, "update", "cli").returncode == 1
    assert command(address, "update", "cli", "--metadata", "c=d").stdout == "cli\n"
    stale = command(address, "update", "cli", "--clear", "--etag", "old")
    assert "was updated since it was read" in stale.stderr
    assert command(address, "delete", "cli").stderr == "session cli is deleted\n"
    assert command(address, "delete", "cli").returncode == 1
    assert command(address, "delete", "cli", "--missing-ok").returncode == 0
