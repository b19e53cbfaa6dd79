"""Measures how fast a memory is read over gRPC, against the parts that no read can avoid.

`value` is the median of GetMemory divided by the sum of the medians of a bare gRPC
echo of the same bytes and a bare SELECT of the same row. The three alternate.
"""

import asyncio
import json
import statistics
import subprocess
import sys
from typing import Any

import psycopg
from grpc import aio

import palimpsest
from palimpsest.v1 import memory_service_pb2, memory_service_pb2_grpc
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from tests.support.harness import Servers, api
from verification.benchmarks.alternating import alternate

#: Size of the memory that is read, in keys of about 400 bytes.
KEYS = 20
SCHEMA = '''class Notes:
    """What was said, by topic."""
    topics: dict[str, str]
'''

ECHO = """
import asyncio, uvloop, grpc
from grpc import aio
async def main():
    server = aio.server()
    async def echo(request, context):
        return request
    handler = grpc.method_handlers_generic_handler(
        "bench.Echo", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()
uvloop.run(main())
"""


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module."""
    echo = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
    assert echo.stdout is not None
    try:
        port = int(echo.stdout.readline())
        with Servers.started() as servers:
            url = servers.new_database()
            with api(url) as (_, address):
                return asyncio.run(_measure(address, servers.as_superuser(url), port, seconds))
    finally:
        echo.kill()
        echo.wait()
        echo.stdout.close()


async def _measure(address: str, url: str, echo_port: int, seconds: float) -> dict[str, Any]:
    async with palimpsest.connect(address) as client:
        session = await client.create_session("read")
        await session.create_memory("notes", schema_source=SCHEMA)
    key = session_key(DEFAULT_TENANT, "read")
    where = (key, memory_id(key, "notes"))
    value = json.dumps({"topics": {f"topic {n}": "x" * 400 for n in range(KEYS)}})
    bare = await psycopg.AsyncConnection.connect(url, autocommit=True)
    await bare.execute(
        "UPDATE prism_value SET value = %s WHERE session_key = %s AND memory_id = %s",
        (value, *where),
    )
    async with (
        aio.insecure_channel(address) as channel,
        aio.insecure_channel(f"127.0.0.1:{echo_port}") as echo_channel,
    ):
        stub = memory_service_pb2_grpc.MemoryServiceStub(channel)
        request = memory_service_pb2.GetMemoryRequest(session="read", memory="notes")
        payload = (await stub.GetMemory(request)).SerializeToString()
        call: Any = echo_channel.unary_unary("/bench.Echo/Echo")

        async def select() -> None:
            cursor = await bare.execute(
                "SELECT revision, value FROM prism_value WHERE session_key = %s AND memory_id = %s",
                where,
            )
            await cursor.fetchone()

        times = await alternate(
            {
                "get": lambda: stub.GetMemory(request),
                "echo": lambda: call(payload),
                "select": select,
            },
            seconds,
            warm=50,
        )
    await bare.close()
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return {
        "value": round(medians["get"] / (medians["echo"] + medians["select"]), 2),
        "goal": "<= 2",
        "response_bytes": len(payload),
        "reads": len(times["get"]),
        **{f"{name}_ms": round(taken * 1000, 3) for name, taken in medians.items()},
    }
