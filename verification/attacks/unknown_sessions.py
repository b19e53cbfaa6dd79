"""Core 12: many clients append to sessions that do not exist, and one to its own.

`python -m verification.attacks.unknown_sessions ADDRESS` runs the many in a process of their
own, since they would also keep the event loop of the one busy. It carries out the lines of its
standard input as commands, and ends when that ends.
"""

import asyncio
import statistics
import sys
import time
from itertools import count
from uuid import uuid4

import grpc
from grpc import aio

import palimpsest
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from tests.support.harness import api
from verification.attacks.attack import Attack, Outcome, Stage

CLIENTS = 200
#: Appends of the one while the many do each thing, and how often they do it.
APPENDS, SHORT_APPENDS = 100, 20
ROUNDS, SHORT_ROUNDS = 8, 4
#: How many times as long the one's median append may take. The short form has too few for
#: the goal on a busy machine; it was 20 to 50 times as long.
RATIO, SHORT_RATIO = 1.2, 1.6
#: How many appends were refused at least, so that there was an attack: the service refuses 50 at
#: once and then 50 a second, and the short form lasts a fraction of one.
REFUSED, SHORT_REFUSED = 200, 50

QUIET, UNKNOWN, KNOWN = "quiet", "unknown", "known"
_PYTHON = (sys.executable, "-m", __name__)


async def _attack(stage: Stage) -> Outcome:
    appends = SHORT_APPENDS if stage.short else APPENDS
    took: dict[str, list[float]] = {QUIET: [], UNKNOWN: [], KNOWN: []}
    with api(stage.servers.new_database()) as (_, address):
        many = await asyncio.create_subprocess_exec(
            *_PYTHON, address, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with palimpsest.connect(address) as client:
                one = _One(client.channel, (await client.create_session("one")).id)
                await one.append(appends)
                for _ in range(SHORT_ROUNDS if stage.short else ROUNDS):
                    for what, times in took.items():
                        await _tell(many, what)
                        times += await one.append(appends)
            refused = int(await _tell(many, QUIET))
        finally:
            assert many.stdin is not None
            many.stdin.close()
            await many.wait()
    p50 = {what: statistics.median(times) * 1000 for what, times in took.items()}
    ratio = p50[UNKNOWN] / p50[QUIET]
    limit = SHORT_RATIO if stage.short else RATIO
    least = SHORT_REFUSED if stage.short else REFUSED
    return Outcome(
        held=ratio <= limit and refused >= least,
        found=f"an append takes {p50[QUIET]:.1f} ms (p50), {p50[UNKNOWN]:.1f} ms beside"
        f" {CLIENTS} clients on unknown sessions ({ratio:.2f} times as long, may: {limit};"
        f" {refused} were refused), {p50[KNOWN]:.1f} ms beside {CLIENTS} on existing ones",
    )


async def _tell(many: asyncio.subprocess.Process, what: str) -> str:
    """Sends a command to all clients, once all have ended the one before."""
    assert many.stdin is not None
    assert many.stdout is not None
    many.stdin.write(f"{what}\n".encode())
    return (await many.stdout.readline()).decode()


class _One:
    """The client that does nothing wrong."""

    def __init__(self, channel: aio.Channel, session: str) -> None:
        self._stub = session_service_pb2_grpc.SessionServiceStub(channel)
        self._session = session
        self._numbers = count(1)

    async def append(self, times: int) -> list[float]:
        """Appends one chunk after the other; how long each took, in seconds."""
        took: list[float] = []
        for _, number in zip(range(times), self._numbers, strict=False):
            request = _request(self._session, number)
            began = time.perf_counter()
            await self._stub.Append(request)
            took.append(time.perf_counter() - began)
        return took


def _request(session: str, number: int) -> session_service_pb2.AppendRequest:
    chunk = chunks_pb2.Chunk(text=f"chunk {number}")
    return session_service_pb2.AppendRequest(session=session, chunks=[chunk])


class _Many:
    """The others."""

    def __init__(self, channel: aio.Channel) -> None:
        self._stub = session_service_pb2_grpc.SessionServiceStub(channel)
        self._doing: list[asyncio.Task[None]] = []
        #: How often an append was refused for its session.
        self.refused = 0

    async def do(self, what: str) -> None:
        """Ends what they do, and begins something else."""
        for task in self._doing:
            task.cancel()
        await asyncio.gather(*self._doing, return_exceptions=True)
        self._doing = []
        if what != QUIET:
            call = self._append_to_known if what == KNOWN else self._append_to_unknown
            self._doing = [asyncio.create_task(call(number)) for number in range(CLIENTS)]

    async def _append_to_unknown(self, number: int) -> None:
        while True:
            try:
                await self._stub.Append(_request(f"none-{uuid4().hex}", 1))
            except aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                self.refused += 1

    async def _append_to_known(self, number: int) -> None:
        for sequence in count(1):
            await self._stub.Append(_request(f"many-{number}", sequence))


async def _many(address: str) -> None:
    loop = asyncio.get_running_loop()
    async with palimpsest.connect(address) as client:
        for number in range(CLIENTS):
            await client.create_session(f"many-{number}")
        many = _Many(client.channel)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            await many.do(line.strip())
            print(many.refused, flush=True)


ATTACK = Attack(
    name="unknown_sessions",
    finding="core 12",
    summary="200 clients append to sessions that do not exist, as fast as they are refused",
    goal="another client's median append takes at most 20 % longer",
    before="26 to 1,204 ms (332 ms beside 200 clients on existing sessions)",
    run=_attack,
)

if __name__ == "__main__":
    asyncio.run(_many(sys.argv[1]))
