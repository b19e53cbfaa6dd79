"""Hundreds of calls whose message lacks its last byte."""

import asyncio

import palimpsest
from tests.support.harness import api
from tests.support.honest import Memory, attacked, is_unhurt, met
from verification.attacks.attack import Attack, Outcome, Stage

_MAX_GROWTH_MIB = 200
#: By how much others' calls may be slower.
_TIMES = 2
#: Until hundreds of streams are open. Opening them slows other clients, well-behaved or not.
_OPENING_SECONDS = 3.0


async def _run(stage: Stage) -> Outcome:
    streams, calls = (120, 60) if stage.short else (400, 300)
    held, said = True, []
    # As unary calls over one and over several connections, and within opened streams.
    for what, connections in (("partial", 1), ("partial", 8), ("opened", 1), ("opened", 8)):
        with api(stage.servers.new_database()) as (process, address):
            async with palimpsest.connect(address) as client:
                await client.create_session("s")
            calm = await met(address, calls)
            memory = Memory(process.pid)
            with memory.watched(), attacked(address, what, streams, connections):
                opened = asyncio.create_task(asyncio.sleep(_OPENING_SECONDS))
                opening = await met(address, calls)
                await opened
                during = await met(address, calls)
            after = await met(address, calls)
        unhurt = is_unhurt(calm, during, _TIMES) or is_unhurt(after, during, _TIMES)
        failed = opening.failed + after.failed
        held = held and unhurt and failed == 0 and memory.growth <= _MAX_GROWTH_MIB
        said.append(
            f"{what} over {connections}: calm {calm.said()}; while they open {opening.said()}; "
            f"attacked {during.said()}; memory +{memory.growth} MiB"
        )
    return Outcome(held=held, found=f"{streams} messages one byte short; " + "; ".join(said))


ATTACK = Attack(
    name="partial_messages",
    finding="core 6",
    summary="sends 4 MiB messages but for their last byte",
    goal=f"once open others' p95 within {_TIMES} x, none fails, +{_MAX_GROWTH_MIB} MiB at most",
    before="400 messages: memory +1,524 MiB, held for as long as the client liked",
    run=_run,
)
