"""Quotas over the API: set, exceeded, shared by two servers, changed while running."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.rpc import error_details_pb2

import palimpsest
from palimpsest import ResourceExhausted
from palimpsest.v1 import access_service_pb2 as pb
from palimpsest.v1 import (
    chunks_pb2,
    memories_pb2,
    memory_service_pb2,
    operation_service_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)
from service.rpc.interceptors import quota_limit
from service.rpc.pipeline import REGISTER
from storage.engine.database import Database
from tests.acceptance.access.serving import serving
from tests.support.access import Caller, Refused, connected, operator_key
from tests.support.harness import Servers, api

LIST = session_service_pb2.ListSessionsRequest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Two servers that share a Redis, with a client of each for an operator and a tenant."""

    address: str
    operator: Caller
    first: Caller
    second: Caller

    async def set(self, **changes: int) -> pb.Quota:
        """Sets quotas of the tenant at the first server."""
        request = pb.UpdateQuotaRequest(
            quota=pb.Quota(tenant="acme", **changes), update_mask=FieldMask(paths=list(changes))
        )
        changed: pb.Quota = await self.operator.call("UpdateQuota", request)
        return changed


@pytest.fixture
async def site(servers: Servers, url: str, database: Database) -> AsyncIterator[Site]:
    settings: dict[str, Any] = {
        "authentication": "required",
        "key_cache_seconds": 0.001,
        "redis_url": servers.valkey.url,
        "default_memory": "none",
    }
    async with (
        serving(url, **settings) as one,
        serving(url, **settings) as two,
        connected(one, await operator_key(database)) as operator,
        connected(two) as other,
    ):
        acme = await operator.tenant("acme")
        key = (await operator.key("acme")).key
        yield Site(address=one, operator=operator, first=acme, second=other.with_token(key))


async def refused(caller: Caller, name: str, *requests: Any) -> Refused:
    with pytest.raises(Refused) as found:
        await caller.call(name, *requests)
    assert (found.value.code, found.value.reason) == ("RESOURCE_EXHAUSTED", "QUOTA_EXHAUSTED")
    return found.value


def create(id: str) -> session_service_pb2.CreateSessionRequest:
    return session_service_pb2.CreateSessionRequest(session=session_service_pb2.Session(id=id))


def create_memory(session: str, id: str) -> memory_service_pb2.CreateMemoryRequest:
    prism = memories_pb2.PrismSpec(schema_source="class N:\n    a: str\n")
    memory = memories_pb2.Memory(session=session, id=id, prism=prism)
    return memory_service_pb2.CreateMemoryRequest(memory=memory)


def append(*texts: str) -> session_service_pb2.AppendRequest:
    chunks = [chunks_pb2.Chunk(text=text) for text in texts]
    return session_service_pb2.AppendRequest(session="a", chunks=chunks)


async def called(caller: Caller, count: int) -> list[Refused]:
    """Makes so many calls at once, and returns those that a quota refuses."""
    calls = [caller.call("ListSessions", LIST) for _ in range(count)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    found = [one for one in results if isinstance(one, BaseException)]
    for one in found:
        assert isinstance(one, Refused)
        assert one.reason == "QUOTA_EXHAUSTED"
    return [one for one in found if isinstance(one, Refused)]


async def test_a_quota_names_itself_its_value_and_how_to_raise_it(site: Site) -> None:
    await site.first.call("CreateSession", create("a"))
    quota = await site.set(sessions=1)
    assert (quota.tenant, quota.sessions, quota.requests_per_second) == ("acme", 1, 0)
    found = await refused(site.first, "CreateSession", create("b"))
    assert found.metadata == {"quota": "sessions", "limit": "1"}
    assert "quota sessions of 1" in found.message
    assert "palimpsest access quota set" in found.message
    kinds = {type(detail) for detail in found.details}
    assert error_details_pb2.QuotaFailure in kinds
    assert error_details_pb2.RetryInfo not in kinds
    # It changes while servers run; and what exists stays.
    await site.set(sessions=2)
    await site.second.call("CreateSession", create("b"))
    await site.set(sessions=1)
    assert len((await site.first.call("ListSessions", LIST)).sessions) == 2


async def test_what_was_done_before_is_not_refused_by_a_full_quota(site: Site) -> None:
    made = create("a")
    made.request_id = str(uuid4())
    await site.first.call("CreateSession", made)
    batch = append("abc")
    batch.request_id = str(uuid4())
    appended = await site.first.call("Append", batch)
    key = (await site.operator.key("acme")).key
    async with palimpsest.connect(site.address, token=key) as client:
        schema = "class N:\n    a: str\n"
        await client.session("a").create_memory("notes", schema_source=schema)
        await site.set(sessions=1, memories=1, stored_bytes=3)
        # Repeats, and what exists.
        assert (await site.second.call("CreateSession", made)).id == "a"
        assert await site.second.call("Append", batch) == appended
        await client.create_session("a", exist_ok=True)
        await client.session("a").create_memory("notes", schema_source=schema, exist_ok=True)
        with pytest.raises(Refused) as exists:
            await site.first.call("CreateSession", create("a"))
        assert exists.value.reason == "SESSION_EXISTS"
        # What is new is refused, and leaves nothing.
        made.session.id, made.request_id = "b", str(uuid4())
        await refused(site.first, "CreateSession", made)
        batch.request_id = str(uuid4())
        await refused(site.first, "Append", batch)
        with pytest.raises(ResourceExhausted):
            await client.session("a").create_memory("more", schema_source=schema)
        assert len((await site.first.call("ListSessions", LIST)).sessions) == 1
        assert [one.id for one in await client.session("a").memories()] == ["notes"]


async def test_calls_at_one_moment_do_not_exceed_a_quota_together(site: Site) -> None:
    callers = [site.first, site.second] * 6
    for number in range(4):
        await site.first.call("CreateSession", create(f"s{number}"))
    await site.set(sessions=7, memories=3)
    sessions = [one.call("CreateSession", create(f"t{n}")) for n, one in enumerate(callers)]
    assert len(await passed(sessions, "sessions")) == 3
    # In sessions of their own, which do not wait for each other.
    memories = [
        one.call("CreateMemory", create_memory(f"s{n % 4}", f"m{n}"))
        for n, one in enumerate(callers)
    ]
    assert len(await passed(memories, "memories")) == 3


async def passed(calls: list[Any], quota: str) -> list[Any]:
    """Makes calls at once; returns what those result in that the quota does not refuse."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for one in results:
        if isinstance(one, BaseException):
            assert isinstance(one, Refused)
            assert (one.reason, one.metadata["quota"]) == ("QUOTA_EXHAUSTED", quota)
    return [one for one in results if not isinstance(one, BaseException)]


async def test_a_burst_is_limited_over_both_servers_and_no_other_tenant(site: Site) -> None:
    other = await site.operator.tenant("other")
    await site.set(requests_per_second=2)
    began = time.monotonic()
    of_each = await asyncio.gather(called(site.first, 60), called(site.second, 60))
    found = [*of_each[0], *of_each[1]]
    passed, spent = 120 - len(found), time.monotonic() - began
    # A second's worth, and what returns meanwhile.
    assert 2 <= passed <= 2 * (1 + spent) + 1
    assert not await called(other, 60)
    (info,) = [one for one in found[0].details if isinstance(one, error_details_pb2.RetryInfo)]
    assert 0 < info.retry_delay.ToTimedelta().total_seconds() <= 1
    assert found[0].metadata == {"quota": "requests_per_second", "limit": "2"}
    await site.set(requests_per_second=0)
    assert not await called(site.first, 60)


async def test_appends_are_limited_and_a_stream_is_slowed_down(site: Site) -> None:
    await site.first.call("CreateSession", create("a"))
    await site.set(chunks_per_second=1)
    # The batch is owed for a minute.
    await site.first.call("Append", append(*["a"] * 60))
    found = await refused(site.second, "Append", append("b"))
    assert found.metadata == {"quota": "chunks_per_second", "limit": "1"}
    await site.set(chunks_per_second=0, bytes_per_second=200)
    key = (await site.operator.key("acme")).key
    async with palimpsest.connect(site.address, token=key) as client:
        async with client.session("a").producer("p") as producer:
            for number in range(100):
                await producer.append(f"{number}")
        stored = [one.text async for one in client.session("a").chunks()]
    # Slowed down, not broken: each is there once, in order.
    assert stored[60:] == [str(number) for number in range(100)]


async def test_a_stream_beyond_what_may_be_stored_keeps_what_was_acked(site: Site) -> None:
    await site.first.call("CreateSession", create("a"))
    await site.first.call("Append", append("abc"))
    await site.set(stored_bytes=3)
    found = await refused(site.first, "Append", append("d"))
    assert found.metadata == {"quota": "stored_bytes", "limit": "3"}
    key = (await site.operator.key("acme")).key
    async with palimpsest.connect(site.address, token=key) as client:
        with pytest.raises(ResourceExhausted):
            async with client.session("a").producer("p") as producer:
                await producer.append("e")
        assert [one.position async for one in client.session("a").chunks()] == [1]


async def test_memories_and_streams_are_limited(site: Site) -> None:
    await site.first.call("CreateSession", create("a"))
    await site.set(memories=1, concurrent_streams=1)
    key = (await site.operator.key("acme")).key
    async with palimpsest.connect(site.address, token=key) as client:
        session = client.session("a")
        memory = await session.create_memory("notes", schema_source="class N:\n    a: str\n")
        with pytest.raises(ResourceExhausted) as found:
            await session.create_memory("more", schema_source="class N:\n    a: str\n")
        assert found.value.metadata["quota"] == "memories"
        wait = operation_service_pb2.WaitOperationRequest(operation="0" * 64)
        async with session.producer("p") as producer:
            await producer.append("e")
            with pytest.raises(ResourceExhausted) as busy:
                await anext(memory.watch())
            assert busy.value.metadata == {"quota": "concurrent_streams", "limit": "1"}
            # Streams of all servers count together.
            busy_there = await refused(site.second, "WaitOperation", wait)
            assert busy_there.metadata == busy.value.metadata
        # The server that had it reports its end.
        while await is_refused(site.second, wait):
            await asyncio.sleep(0.01)


@pytest.mark.prove
async def test_streams_of_a_killed_server_count_no_more(
    site: Site, url: str, servers: Servers
) -> None:
    await site.first.call("CreateSession", create("a"))
    await site.set(concurrent_streams=1)
    wait = operation_service_pb2.WaitOperationRequest(operation="0" * 64)
    required = {"PALIMPSEST_AUTHENTICATION": "required", **servers.redis_settings()}
    with api(url, **required) as (process, address):
        async with grpc.aio.insecure_channel(address) as channel:
            service = session_service_pb2_grpc.SessionServiceStub(channel)
            key = ("authorization", f"Bearer {site.first.token}")
            stream = service.AppendChunks(metadata=(key,))
            opening = session_service_pb2.AppendChunksRequest.Open(
                session="a", producer_id="p", epoch=1
            )
            await stream.write(session_service_pb2.AppendChunksRequest(open=opening))
            await stream.read()
            assert await is_refused(site.second, wait)
            process.kill()
            # What the server reported last is still valid.
            assert await is_refused(site.second, wait)
    # No server reports the end of the stream.
    while await is_refused(site.second, wait):
        await asyncio.sleep(0.1)


async def is_refused(caller: Caller, request: Any) -> bool:
    with pytest.raises(Refused) as found:
        await caller.call("WaitOperation", request)
    assert found.value.reason in ("QUOTA_EXHAUSTED", "OPERATION_NOT_FOUND")
    return found.value.reason == "QUOTA_EXHAUSTED"


async def test_only_operators_set_quotas_and_bad_ones_are_refused(site: Site) -> None:
    mask = FieldMask(paths=["sessions"])
    own = pb.UpdateQuotaRequest(quota=pb.Quota(sessions=9), update_mask=mask)
    with pytest.raises(Refused) as denied:
        await site.first.call("UpdateQuota", own)
    assert denied.value.code == "PERMISSION_DENIED"
    found: pb.Quota = await site.first.call("GetQuota", pb.GetQuotaRequest())
    assert (found.tenant, found.sessions) == ("acme", 0)
    for request, field in (
        (pb.UpdateQuotaRequest(update_mask=mask), "quota"),
        (pb.UpdateQuotaRequest(quota=pb.Quota(tenant="acme")), "update_mask"),
        (
            pb.UpdateQuotaRequest(
                quota=pb.Quota(tenant="acme"), update_mask=FieldMask(paths=["tenant"])
            ),
            "update_mask",
        ),
        (
            pb.UpdateQuotaRequest(quota=pb.Quota(tenant="acme", sessions=-1), update_mask=mask),
            "quota.sessions",
        ),
    ):
        with pytest.raises(Refused) as bad:
            await site.operator.call("UpdateQuota", request)
        assert bad.value.code == "INVALID_ARGUMENT"
        assert field in bad.value.message
    unknown = pb.UpdateQuotaRequest(quota=pb.Quota(tenant="none", sessions=1), update_mask=mask)
    with pytest.raises(Refused) as missing:
        await site.operator.call("UpdateQuota", unknown)
    assert missing.value.reason == "TENANT_NOT_FOUND"


async def test_what_is_not_set_returns_to_the_default(url: str, database: Database) -> None:
    settings = {"authentication": "required", "limits": {"tenant_sessions": 4}}
    async with (
        serving(url, **settings) as address,
        palimpsest.connect(address, token=await operator_key(database)) as client,
    ):
        await client.access.create_tenant("acme")
        assert (await client.access.quota(tenant="acme")).sessions == 4
        assert (await client.access.quota()).sessions == 0
        changed = await client.access.update_quota({"sessions": 0, "memories": 9}, tenant="acme")
        assert (changed.sessions, changed.memories) == (0, 9)
        changed = await client.access.update_quota({"sessions": None}, tenant="acme")
        assert (changed.sessions, changed.memories) == (4, 9)
        with pytest.raises(ValueError, match="requests_per_second"):
            await client.access.update_quota({})
        (event,) = [
            one async for one in client.access.audit_events(tenant="acme", action="quota.")
        ][-1:]
        assert dict(event.details) == {"sessions": "default"}


def test_every_stream_counts_as_one() -> None:
    methods = [one for _, service in REGISTER.values() for one in service.methods]
    streams = {one.name for one in methods if one.client_streaming or one.server_streaming}
    assert streams == quota_limit._ASKS | quota_limit._STREAMS
    assert {one.name for one in methods} >= quota_limit._FREE
