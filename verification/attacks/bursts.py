"""Thousands of calls at once."""

import asyncio
from collections import Counter

from grpc import aio

import palimpsest
from palimpsest import _errors
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from tests.support.harness import api
from verification.attacks.attack import Attack, Outcome, Stage

#: A call may take so long on a busy machine, in seconds.
_SECONDS = 120
#: So that each channel has a connection of its own.
_OWN = (("grpc.use_local_subchannel_pool", 1),)


async def _run(stage: Stage) -> Outcome:
    calls = 1500 if stage.short else 4000
    with api(stage.servers.new_database()) as (_, address):
        async with palimpsest.connect(address) as client:
            await client.create_session("s")
        found = {count: await _burst(address, calls, count) for count in (1, 16)}
        repeated = await _repeated(address, calls)
    said = "; ".join(f"over {count}: {dict(ends)}" for count, ends in found.items())
    held = repeated == calls and not any(ends["bad"] for ends in found.values())
    return Outcome(
        held=held,
        found=f"{calls} calls, {said}; by the Python client {repeated} answered",
    )


async def _burst(address: str, calls: int, connections: int) -> Counter[str]:
    """Counts calls without a retry that were answered, refused with a delay, or ended badly."""
    ends: Counter[str] = Counter()
    channels = [aio.insecure_channel(address, options=_OWN) for _ in range(connections)]
    for channel in channels:
        await channel.channel_ready()

    async def call(number: int) -> None:
        stub = session_service_pb2_grpc.SessionServiceStub(channels[number % connections])
        try:
            await stub.GetSession(
                session_service_pb2.GetSessionRequest(session="s"), timeout=_SECONDS
            )
        except aio.AioRpcError as error:
            known = _errors.from_rpc(error, address)
            refused = isinstance(known, palimpsest.ResourceExhausted) and known.retry_seconds
            ends["refused" if refused else "bad"] += 1
            ends[error.code().name] += 1
        else:
            ends["answered"] += 1

    await asyncio.gather(*(call(number) for number in range(calls)))
    for channel in channels:
        await channel.close()
    return ends


async def _repeated(address: str, calls: int) -> int:
    """Returns how many calls of our own client were answered, which repeats what was refused."""
    async with palimpsest.connect(address) as client:
        session = client.session("s")
        async with asyncio.timeout(_SECONDS):
            ends = await asyncio.gather(
                *(session.info() for _ in range(calls)), return_exceptions=True
            )
    return sum(not isinstance(end, BaseException) for end in ends)


ATTACK = Attack(
    name="bursts",
    finding="core 7",
    summary="makes thousands of calls at once over one connection and over sixteen",
    goal="each is answered, or refused with RESOURCE_EXHAUSTED and a delay",
    before="4,000 calls: 1,400 ended with a bare CANCELLED",
    run=_run,
)
