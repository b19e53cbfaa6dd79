"""Measures what authentication costs a unary call: with a key, against a server that asks for none.

Two API servers are processes on the same database, and one client alternates between them. The call
is GetSession, which is among the cheapest, so that the share of authentication is at its largest.
`value` is the median with a key divided by that without. A key is looked up once in ten seconds,
during which all other calls hash it and compare. Beside it: a token of an issuer, whose signature
is verified once.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from grpc import aio

from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from storage.engine.database import Database
from tests.support.access import operator_key
from tests.support.harness import Servers, api
from tests.support.issuer import AUDIENCE, Issuer, issuing
from verification.benchmarks.alternating import compare

SESSION = "s"
WARM_CALLS = 30

_Headers = Sequence[tuple[str, str]]


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module."""
    with Servers.started() as servers:
        return asyncio.run(_run(servers, seconds))


async def _run(servers: Servers, seconds: float) -> dict[str, Any]:
    url = servers.new_database()
    async with issuing() as issuer:
        required = {
            "PALIMPSEST_AUTHENTICATION": "required",
            "PALIMPSEST_JWT_ISSUER": issuer.url,
            "PALIMPSEST_JWT_AUDIENCE": AUDIENCE,
        }
        with ExitStack() as stack:
            # The issuer answers in this process while they run, and not while they start.
            _, open_address = stack.enter_context(api(url))
            _, address = stack.enter_context(api(url, **required))
            key = await _key(url)
            return await _measure(open_address, address, key, issuer, seconds)


async def _key(url: str) -> str:
    database = Database.connect(url, pool_size=1, name="benchmark")
    try:
        return await operator_key(database, "default")
    finally:
        await database.close()


async def _measure(
    open_address: str, address: str, key: str, issuer: Issuer, seconds: float
) -> dict[str, Any]:
    request = session_service_pb2.GetSessionRequest(session=SESSION)
    async with AsyncExitStack() as stack:
        without, with_one = [
            session_service_pb2_grpc.SessionServiceStub(
                await stack.enter_async_context(aio.insecure_channel(one))
            )
            for one in (open_address, address)
        ]
        made = session_service_pb2.Session(id=SESSION)
        await without.CreateSession(session_service_pb2.CreateSessionRequest(session=made))
        # In pairs: the server that gets more of the calls would be the faster one.
        key_result, token_result = [
            await compare(
                partial(without.GetSession, request),
                partial(with_one.GetSession, request, metadata=one),
                seconds / 2,
                warm=WARM_CALLS,
            )
            for one in (_bearer(key), _bearer(issuer.token(exp=2**31)))
        ]
    return {
        "value": key_result.pop("ratio"),
        "goal": "<= 1.05",
        **key_result,
        **{f"token_{name}": value for name, value in token_result.items()},
    }


def _bearer(token: str) -> _Headers:
    return (("authorization", f"Bearer {token}"),)
