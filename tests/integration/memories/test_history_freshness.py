"""Reads of a memory's past: how fresh they are, what they say they read, how long a page is."""

from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Edit
from palimpsest.v1 import memory_service_pb2, memory_service_pb2_grpc
from tests.integration.memories.test_history import SCHEMA, TEXTS, named, pages
from tests.support.sending import send


@pytest.fixture
async def memory(client: palimpsest.Client) -> palimpsest.Memory:
    """Makes three steps over three chunks: revisions 1 to 3."""
    session = await client.create_session(f"fresh-{uuid4().hex}")
    made = await session.create_memory("m", SCHEMA, chunk_tokens=1, encoding="amendments")
    await send(session, *TEXTS)
    assert (await made.get(fully_applied=True)).revision == 3
    return made


def reads(memory: palimpsest.Memory) -> list[tuple[Any, Any]]:
    """Returns each read of a memory's past: its method, and its request."""
    stub: Any = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)
    api = memory_service_pb2
    return [
        (stub.ListRevisions, api.ListRevisionsRequest(**named(memory))),
        (stub.ListAmendments, api.ListAmendmentsRequest(**named(memory))),
        (stub.ListRejections, api.ListRejectionsRequest(**named(memory))),
        (stub.DiffMemories, api.DiffMemoriesRequest(**named(memory), revision=0)),
        (stub.GetProvenance, api.GetProvenanceRequest(**named(memory), path="$.topics")),
    ]


async def test_each_read_waits_and_says_what_it_read(memory: palimpsest.Memory) -> None:
    call = memory._connection.call
    for number, (method, request) in enumerate(reads(memory)):
        token = await send(memory.session, f"The mill {number}\n====\n\nThe mill is a house.")
        if number % 2:
            request.consistency.at_least = token
        else:
            request.consistency.fully_applied = True
        response = await call(method, request)
        point = response.read_point
        if isinstance(request, memory_service_pb2.DiffMemoriesRequest):
            assert (point.revision, point.applied_position) == (0, 0)
            point = response.other_read_point
        assert (point.revision, point.applied_position) == (4 + number, 4 + number)
        assert (await memory.get(after=point.read_token)).revision == point.revision
        request.consistency.Clear()
        request.consistency.at_least = "nonsense"
        with pytest.raises(palimpsest.InvalidArgument) as caught:
            await call(method, request)
        assert caught.value.reason == "TOKEN_INVALID"
        assert list(caught.value.fields) == ["consistency.at_least"]


async def test_the_past_is_read_where_it_was(memory: palimpsest.Memory) -> None:
    await memory.rollback(1)
    why = await memory.provenance("$.topics", revision=1)
    assert (why.read_point.revision, why.read_point.applied_position) == (1, 1)
    found = await memory.diff(revision=2, other_revision=4)
    assert (found.read_point.revision, found.read_point.applied_position) == (2, 2)
    # The log is not read again.
    assert found.other_read_point == (await memory.provenance("$.topics")).read_point
    assert found.other_read_point.applied_position == 3


async def test_a_later_page_does_not_wait(memory: palimpsest.Memory) -> None:
    stub = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)
    request = memory_service_pb2.ListRevisionsRequest(**named(memory), page_size=1)
    request.consistency.fully_applied = True
    page = await memory._connection.call(stub.ListRevisions, request)
    request.page_token = page.next_page_token
    # What would be refused on a first page is not looked at.
    request.consistency.at_least = "nonsense"
    page = await memory._connection.call(stub.ListRevisions, request)
    assert [one.revision for one in page.revisions] == [1]


async def test_a_page_has_no_more_than_its_limit(memory: palimpsest.Memory) -> None:
    for number in range(101):
        await memory.edit([Edit.put("$.visitors", number)])
    request = memory_service_pb2.GetProvenanceRequest(
        **named(memory), path="$.visitors", page_size=2**31 - 1
    )
    stub = memory_service_pb2_grpc.MemoryServiceStub(memory._connection.channel)
    found = await pages(memory, stub.GetProvenance, request)
    assert [len(page.entries) for page in found] == [100, 1]
    for method, wanted in reads(memory):
        wanted.page_size = 2**31 - 1
        await memory._connection.call(method, wanted)
        wanted.page_size = -1
        with pytest.raises(palimpsest.InvalidArgument, match="page_size"):
            await memory._connection.call(method, wanted)
