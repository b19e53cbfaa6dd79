"""Floods of the tools for models over HTTP: slow bodies, large requests, unread streams."""

import socket
from contextlib import closing

import palimpsest
from tests.support.harness import api
from tests.support.honest import Memory, attacked, is_unhurt, met
from verification.attacks.attack import Attack, Outcome, Stage

_MAX_GROWTH_MIB = 300
#: By how much others' calls may be slower.
_TIMES = 5
#: Connections of each flood, and in the short form.
_FLOODS = {"slow": (1500, 100), "large": (100, 10), "listening": (1500, 100)}


async def _run(stage: Stage) -> Outcome:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    calls = 60 if stage.short else 300
    found: list[str] = []
    held = True
    at = {"PALIMPSEST_HTTP_LISTEN": f"127.0.0.1:{port}"}
    with api(stage.servers.new_database(), **at) as (process, address):
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            await session.create_memory("m", "class Facts:\n    notes: dict[str, str]\n")
        for what, connections in _FLOODS.items():
            many = connections[1 if stage.short else 0]
            calm = await met(address, calls)
            memory = Memory(process.pid)
            with (
                memory.watched(),
                attacked(str(port), what, many, module="tests.support.raw_http1"),
            ):
                during = await met(address, calls)
            after = await met(address, calls)
            unhurt = is_unhurt(calm, during, _TIMES) or is_unhurt(after, during, _TIMES)
            held &= unhurt and after.failed == 0 and memory.growth <= _MAX_GROWTH_MIB
            said = f"calm {calm.said()}; attacked {during.said()}; memory +{memory.growth} MiB"
            found.append(f"{many} x {what}: {said}")
        traced = process.log().count("Traceback")
    return Outcome(held=held and not traced, found="; ".join((*found, f"{traced} tracebacks")))


ATTACK = Attack(
    name="tool_floods",
    finding="surfaces 2",
    summary="slow bodies, the largest requests, and streams of changes that are not read, at /mcp",
    goal=f"others' p95 within {_TIMES} x, none fails, memory within {_MAX_GROWTH_MIB} MiB",
    before="one request of 260 KiB (130,000 positions to forget) stopped the server for 7 s",
    run=_run,
)
