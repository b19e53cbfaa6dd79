"""Producers of the official client that write down what was acked, and when, and the look
after it: everything acked is in the log, in order, once."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

import palimpsest
from palimpsest import _errors
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from service.app.kinds import use_cases
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.engine.database import Database
from tests.acceptance.memories.kept_memory import QUICK
from tests.support.harness import Process, api, eventually, worker
from verification.chaos.log_looking import look

_Result = TypeVar("_Result")

#: Between two flushes of a producer.
FLUSHED = 4
#: How long a read of a memory, or the end of the traffic, may take: only what hangs is ended.
PATIENCE_SECONDS = 150.0
SCHEMA = "class Notes:\n    topics: dict[str, str]\n"


def text(session: str, number: int) -> str:
    """Returns what the n-th chunk of a session says, from 1."""
    return f"Number {number} of {session} is a ship in the harbour."


class Traffic:
    """Producers, each with a session and a memory of its own, in a thread of their own.

    They continue until `end`, through whatever happens to the service meanwhile.
    """

    def __init__(
        self, address: str, producers: int, *, prefix: str = "s", pause_seconds: float = 0.02
    ) -> None:
        self._address = address
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run_all, daemon=True)
        self.names = [f"{prefix}{number}" for number in range(producers)]
        #: Of each session: chunks that were acked, and that were sent.
        self.acked = dict.fromkeys(self.names, 0)
        self.sent = dict.fromkeys(self.names, 0)
        #: Of each session the time of each ack, monotonic.
        self.times: dict[str, list[float]] = {name: [] for name in self.names}

    def start(self) -> None:
        """Begins; returns at once."""
        self._thread.start()

    def end(self) -> None:
        """Stops sending and waits until all that was sent is acked. Raises what a client raised."""
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the clients hang"
        if self._failure is not None:
            raise self._failure

    def all_acked_since(self, moment: float) -> bool:
        """Returns whether each producer got an ack after that moment. Raises a client's error."""
        if self._failure is not None:
            raise self._failure
        return all(times and times[-1] > moment for times in self.times.values())

    def await_more(self, chunks: int) -> None:
        """Waits until each producer has had acks of so many more. Raises what a client raised."""
        before = dict(self.acked)

        def have_come() -> bool:
            if self._failure is not None:
                raise self._failure
            return all(self.acked[name] >= before[name] + chunks for name in self.names)

        eventually("each producer goes on", have_come)

    def all_acked_at(self, moment: float) -> float:
        """Waits until each producer has had an ack after a moment; when the last one had."""
        eventually("acks again", lambda: self.all_acked_since(moment))
        return max(min(one for one in times if one > moment) for times in self.times.values())

    def _run_all(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:
            # Raised by `end`, in the thread of the test.
            self._failure = error

    async def _run(self) -> None:
        async with palimpsest.connect(self._address) as client:
            async with asyncio.TaskGroup() as tasks:
                for name in self.names:
                    tasks.create_task(self._produce(client, name))

    async def _produce(self, client: palimpsest.Client, name: str) -> None:
        session = await client.create_session(name)
        await session.create_memory("m", schema_source=SCHEMA)
        async with session.producer("p") as producer:
            while not self._stop.is_set():
                self.sent[name] += 1
                await producer.append(text(name, self.sent[name]))
                if self.sent[name] % FLUSHED == 0:
                    ack = await producer.flush()
                    assert ack is not None
                    self.acked[name] = ack.producer_sequence
                    self.times[name].append(time.monotonic())
                await asyncio.sleep(self._pause_seconds)
            ack = await producer.flush()
            assert ack is not None
            self.acked[name] = ack.producer_sequence


def refusal(address: str, name: str) -> tuple[str, str]:
    """Returns reason and words of a refused CreateSession, to a client that does not retry."""
    with grpc.insecure_channel(address) as channel:
        stub: Any = session_service_pb2_grpc.SessionServiceStub(channel)
        try:
            new = session_service_pb2.Session(id=name)
            stub.CreateSession(session_service_pb2.CreateSessionRequest(session=new), timeout=60)
        except grpc.RpcError as error:
            refused: Any = error
            told = _errors.from_rpc(refused, address)
            return told.reason or "", str(told)
    return "", ""


@contextmanager
def service(url: str) -> Iterator[tuple[str, Process, Process]]:
    """Runs a server and a worker; the server's address, and both."""
    with ThreadPoolExecutor(max_workers=1) as thread, ExitStack() as stack:
        # Both take seconds, most of them alone.
        working = thread.submit(stack.enter_context, worker(url, **QUICK))
        with api(url, **QUICK) as (server, address):
            yield address, server, working.result()


def odd_words(*processes: Process) -> list[str]:
    """Returns what the logs of processes say and may not say, whatever fails: as a campaign's."""
    with tempfile.TemporaryDirectory() as name:
        for number, one in enumerate(processes):
            (Path(name) / f"process-{number}.log").write_text(one.log())
        return [one.what for one in look(Path(name)).violations]


def in_a_thread(what: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine where an event loop may be running already."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, what).result()


async def kept(address: str, traffic: Traffic) -> list[str]:
    """Returns what is wrong: nothing, when each session's log is what was sent, in
    order, once, and its memory has read all of it."""
    wrong = []
    async with palimpsest.connect(address) as client:
        for name in traffic.names:
            session = client.session(name)
            found = [chunk.text async for chunk in session.chunks()]
            if found != [text(name, number) for number in range(1, traffic.sent[name] + 1)]:
                wrong.append(f"{name}: {len(found)} chunks of {traffic.sent[name]}, or others")
            state = await session.memory("m").get(fully_applied=True, timeout=PATIENCE_SECONDS)
            if state.applied_position != traffic.sent[name]:
                wrong.append(f"{name}: applied up to {state.applied_position}")
    return wrong


async def differing(url: str, names: Sequence[str]) -> list[str]:
    """Returns what `palimpsest verify` finds in these sessions of a database."""
    database = Database.connect(url, pool_size=2, name="test")
    found = []
    try:
        for name in names:
            told = Verifier(database, use_cases()).verify(DEFAULT_TENANT, name)
            found += [f"{name}: {one}" async for one in told if isinstance(one, LocatedDifference)]
    finally:
        await database.close()
    return found
