"""Connections that are old or idle are closed gracefully; calls and clients continue."""

import asyncio
from typing import Any

import pytest
from grpc import aio

import palimpsest
from palimpsest import Edit
from palimpsest.v1 import memory_service_pb2, memory_service_pb2_grpc
from tests.acceptance.log.test_flow_control import SCHEMA, serving
from tests.support.cutting import Proxy, cutting

pytestmark = pytest.mark.timeout(120)


async def until_gone(proxy: Proxy) -> None:
    while proxy._writers:
        await asyncio.sleep(0.05)


async def test_an_old_connection_ends_when_its_calls_have(url: str) -> None:
    async with (
        serving(url, connection_seconds=1) as address,
        cutting(address) as proxy,
        palimpsest.connect(proxy.address) as client,
    ):
        session = await client.create_session("s")
        memory = await session.create_memory("m", SCHEMA)
        stub = memory_service_pb2_grpc.MemoryServiceStub(client.channel)
        request = memory_service_pb2.WatchMemoryRequest(session="s", memory="m", after_revision=0)
        watching: Any = stub.WatchMemory(request)
        assert not (await watching.read()).HasField("revision")
        # Others get new connections, over and over, without an error.
        while proxy.connections < 3:
            assert (await memory.get()).revision == 0
            await asyncio.sleep(0.05)
        await memory.edit([Edit.put("$.text", "new")])
        told = await watching.read()
        assert told is not aio.EOF
        assert told.revision.revision == 1
        watching.cancel()
        await until_gone(proxy)


async def test_an_idle_connection_is_closed_and_the_next_call_makes_another(url: str) -> None:
    async with (
        serving(url, connection_idle_seconds=1) as address,
        cutting(address) as proxy,
        palimpsest.connect(proxy.address) as client,
    ):
        session = await client.create_session("s")
        await until_gone(proxy)
        assert (await session.info()).head == 0
        assert proxy.connections == 2
