"""Thousands of append streams that never send a frame."""

import palimpsest
from tests.support.harness import api
from tests.support.honest import Memory, attacked, is_unhurt, met
from verification.attacks.attack import Attack, Outcome, Stage

_MAX_GROWTH_MIB = 200
#: By how much others' calls may be slower.
_TIMES = 2


async def _run(stage: Stage) -> Outcome:
    streams, connections, calls = (1200, 6, 60) if stage.short else (5100, 6, 300)
    # In the short form the limits are smaller in the same measure.
    settings = {"PALIMPSEST_LIMIT_MAX_CALLS": "1000"} if stage.short else {}
    with api(stage.servers.new_database(), **settings) as (process, address):
        async with palimpsest.connect(address) as client:
            await client.create_session("s")
        calm = await met(address, calls)
        memory = Memory(process.pid)
        with memory.watched(), attacked(address, "silent", streams, connections):
            during = await met(address, calls)
        after = await met(address, calls)
    unhurt = is_unhurt(calm, during, _TIMES) or is_unhurt(after, during, _TIMES)
    return Outcome(
        held=unhurt and after.failed == 0 and memory.growth <= _MAX_GROWTH_MIB,
        found=f"{streams} streams: calm {calm.said()}; attacked {during.said()}; "
        f"memory +{memory.growth} MiB",
    )


ATTACK = Attack(
    name="silent_streams",
    finding="core 5",
    summary="opens more append streams than the server has places for calls, and sends nothing",
    goal=f"others' p95 within {_TIMES} x, none fails, memory within {_MAX_GROWTH_MIB} MiB",
    before="all others RESOURCE_EXHAUSTED TOO_MANY_CALLS for as long as the streams stayed",
    run=_run,
)
