"""The database hangs and recovers: health must follow it, and liveness must not."""

import asyncio

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.cutting import Proxy, relayed
from tests.support.harness import Process
from verification.attacks.attack import Attack, Outcome, Stage

SERVING = health_pb2.HealthCheckResponse.SERVING


async def _run(stage: Stage) -> Outcome:
    outages, blips = (1, 3) if stage.short else (5, 20)
    url = stage.servers.new_database()
    async with relayed(url) as (relay, through):
        settings = {
            "PALIMPSEST_DATABASE_URL": through,
            "PALIMPSEST_LISTEN": "127.0.0.1:0",
            "PALIMPSEST_PROBE_SECONDS": "0.2",
        }
        process = await asyncio.to_thread(Process, "serve", settings, "listening on")
        try:
            address = process.ready_line.removeprefix("listening on ")
            async with aio.insecure_channel(address) as channel:
                return await _attack(channel, relay, outages, blips)
        finally:
            await asyncio.to_thread(process.close)


async def _attack(channel: aio.Channel, relay: Proxy, outages: int, blips: int) -> Outcome:
    stub = health_pb2_grpc.HealthStub(channel)
    changes: list[bool] = []

    async def follow() -> None:
        async for said in stub.Watch(health_pb2.HealthCheckRequest()):
            changes.append(said.status == SERVING)

    async def count(wanted: int) -> None:
        async with asyncio.timeout(120):
            while len(changes) < wanted:
                await asyncio.sleep(0.05)

    following = asyncio.create_task(follow())
    try:
        await count(1)
        for _ in range(blips):
            # Every connection breaks, and the next one is let in.
            relay.cut()
            await asyncio.sleep(1)
        flapped = len(changes) - 1
        live = 0
        for number in range(outages):
            relay.hold()
            await count(flapped + 2 + 2 * number)
            ask = health_pb2.HealthCheckRequest(service="palimpsest.live")
            live += (await stub.Check(ask)).status == SERVING
            relay.release()
            await count(flapped + 3 + 2 * number)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    expected = [True, *([False, True] * outages)]
    return Outcome(
        held=changes == expected and live == outages,
        found=f"{outages} outages were told as {changes.count(False)} losses and"
        f" {changes.count(True) - 1} returns, {flapped} changes by {blips} broken connections;"
        f" live in {live} of {outages} outages",
    )


ATTACK = Attack(
    name="lost_database",
    finding="issue 18, 11",
    summary="holds up and breaks the connections of an API server to its database",
    goal="health follows each outage once and no blip, and liveness follows none",
    before="the health service said SERVING whatever the database did",
    run=_run,
)
