"""Measures what quotas cost a unary call: of a tenant that has all of them, against one with none.

One API server serves both tenants, with keys, and one client alternates between them. GetSession is
among the cheapest calls, so that the share of quotas is at its largest; `value` is its median with
quotas divided by that without. Append is measured beside it: it also counts its chunks, their bytes
and what is stored. Medians leave out the few calls that lease tokens from Redis, means do not.
"""

import asyncio
from functools import partial
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from palimpsest.v1 import access_service_pb2, chunks_pb2, session_service_pb2
from storage.engine.database import Database
from tests.support.access import Caller, connected, operator_key
from tests.support.harness import Servers, api
from verification.benchmarks.alternating import compare

SESSION = "s"
WARM_CALLS = 30
#: More than one client uses, and so little that a lease lasts for few calls.
QUOTAS = {
    "requests_per_second": 2_000,
    "chunks_per_second": 2_000,
    "bytes_per_second": 1_000_000,
    "concurrent_asks": 100,
    "concurrent_streams": 100,
    "sessions": 1_000_000,
    "memories": 1_000_000,
    "stored_bytes": 10**12,
}


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module."""
    with Servers.started() as servers:
        url = servers.new_database()
        required = {"PALIMPSEST_AUTHENTICATION": "required", **servers.redis_settings()}
        with api(url, **required) as (_, address):
            return asyncio.run(_run(url, address, seconds))


async def _run(url: str, address: str, seconds: float) -> dict[str, Any]:
    database = Database.connect(url, pool_size=1, name="benchmark")
    try:
        key = await operator_key(database)
    finally:
        await database.close()
    async with connected(address, key) as operator:
        callers = {name: await operator.tenant(name) for name in ("without", "with")}
        quota = access_service_pb2.Quota(tenant="with", **QUOTAS)
        mask = FieldMask(paths=list(QUOTAS))
        await operator.call(
            "UpdateQuota", access_service_pb2.UpdateQuotaRequest(quota=quota, update_mask=mask)
        )
        session = session_service_pb2.Session(id=SESSION)
        for one in callers.values():
            await one.call(
                "CreateSession", session_service_pb2.CreateSessionRequest(session=session)
            )
        get = session_service_pb2.GetSessionRequest(session=SESSION)
        chunk = chunks_pb2.Chunk(text="The harbour museum is closed on Mondays.")
        append = session_service_pb2.AppendRequest(session=SESSION, chunks=[chunk])
        found = await _compare(callers, "GetSession", get, seconds / 2)
        appended = await _compare(callers, "Append", append, seconds / 2)
    return {
        "value": found.pop("ratio"),
        "goal": "<= 1.05",
        **found,
        **{f"append_{name}": value for name, value in appended.items()},
    }


async def _compare(
    callers: dict[str, Caller], method: str, request: Message, seconds: float
) -> dict[str, float]:
    without, with_them = [partial(one.call, method, request) for one in callers.values()]
    return await compare(without, with_them, seconds, warm=WARM_CALLS)
