"""Core 3: several clients page through a log of large chunks at once."""

import asyncio
from pathlib import Path

import palimpsest
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from tests.support.harness import api
from verification.attacks.attack import Attack, Outcome, Stage

CHUNK_BYTES = 256 * 1024
CLIENTS = 10
#: Chunks of the log: 256 MiB, and 32 MiB in the short form.
CHUNKS, SHORT_CHUNKS = 1024, 128
#: What each client may cost the server, in MiB: some copies of a page of 2 MiB.
CLIENT_MIB = 20


async def _attack(stage: Stage) -> Outcome:
    count = SHORT_CHUNKS if stage.short else CHUNKS
    with api(stage.servers.new_database()) as (server, address):
        async with palimpsest.connect(address) as client:
            session = await client.create_session("large")
            async with session.producer("p") as producer:
                for number in range(count):
                    await producer.append(f"{number:06} ".ljust(CHUNK_BYTES, "x"))
        before = _memory_mib(server.pid, "VmRSS")
        reading = asyncio.gather(*(_page(address) for _ in range(CLIENTS)))
        answered, failed = await _others(address, reading)
        read = await reading
        grown = _memory_mib(server.pid, "VmHWM") - before
    limit = CLIENTS * CLIENT_MIB
    return Outcome(
        held=grown < limit and failed == 0 and read == [count] * CLIENTS,
        found=f"{CLIENTS} clients read {sum(read)} chunks of {count * CLIENTS}; the server grew by"
        f" {grown:.0f} MiB (may: {limit}); {failed} of {answered + failed} reads of another"
        " client failed",
    )


async def _page(address: str) -> int:
    """Reads all of the log, by pages as large as may be asked for; how many chunks came."""
    async with palimpsest.connect(address) as client:
        stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
        request = session_service_pb2.ListChunksRequest(session="large", page_size=1000)
        seen = 0
        while True:
            page = await stub.ListChunks(request)
            seen += len(page.chunks)
            request.page_token = page.next_page_token
            if not request.page_token:
                return seen


async def _others(address: str, until: "asyncio.Future[list[int]]") -> tuple[int, int]:
    """Reads the session as another client does; how often that went well, and failed."""
    answered = failed = 0
    async with palimpsest.connect(address) as client:
        session = client.session("large")
        while not until.done():
            try:
                await session.info()
                answered += 1
            except palimpsest.PalimpsestError:
                failed += 1
            await asyncio.wait((until,), timeout=0.1)
    return answered, failed


def _memory_mib(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


ATTACK = Attack(
    name="paged_logs",
    finding="core 3",
    summary="ten clients page through a log of 256 MiB in chunks of 256 KiB",
    goal=f"memory grows by less than {CLIENT_MIB} MiB a client, and others are answered",
    before="RSS 473 to 3,400 MB; another client's read failed within its 60 s",
    run=_attack,
)
