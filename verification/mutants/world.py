"""A world to be broken: a session, and the servers, workers and clients that use it.

All of them run in one process, each with connections of its own, so that a scenario can
hold one where it wants and let another one pass. They are the real use cases on a real
database; only the model is scripted.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest import mock
from uuid import uuid4

import psycopg

from service.app.kinds import KINDS, memories_of
from service.domain.memories.specs import SPECS
from service.domain.prism.spec import FOLD_TOKENS, Encoding, PrismSpec
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.spec import StateSpec
from service.domain.tree.spec import TreeSpec
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.providers.facts import ModelFacts
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from service.settings.config import Config, Limits
from service.usecases.answers.answer import Answerer
from service.usecases.calls.call_ledger import CallLedger
from service.usecases.log import metrics as log_metrics
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories import metrics as step_metrics
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine import errors as storage_errors
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import queue
from storage.memories.queue import QueueScan, WorkClass
from tests.support.gateways import gateway
from tests.support.step_engines import before_commits, step_engine
from verification.chaos.history import Event, ModelCalled, Refused
from verification.chaos.workload import NAME

TOKEN_KEY = b"token-key"
CONFIG = Config(step_backoff_seconds=0.001, step_tries=2)
FACTS = ModelFacts(window_tokens=32_768, count=estimate_tokens)
PRISM = PrismSpec(
    schema_source="class N:\n    topics: dict[str, str]\n    edits: dict[str, str]\n",
    chunk_tokens=1,
    model="test/scripted",
    encoding=Encoding.AMENDMENTS,
    fold_tokens=FOLD_TOKENS,
)
#: A chunk or two are a segment.
TREE = TreeSpec(segment_tokens=64, max_children=3, summary_tokens=32, model="test/scripted")
STATE = StateSpec(task="Find the town.", period=1, state_tokens=64, model="test/scripted")
#: Longer than any scenario takes: leases run out where a scenario says so.
LEASE_SECONDS = 600.0
#: Rounds after which a session that still has work hangs.
SETTLE_ROUNDS = 20
#: No task waits longer for another: then the scenario is broken.
PATIENCE_SECONDS = 150.0


class Gate:
    """Blocks tasks that arrive, until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()

    async def pass_(self) -> None:
        """Waits here."""
        self.reached.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._open.wait()

    async def wait(self) -> None:
        """Waits until a task is blocked here."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.reached.wait()

    def open(self) -> None:
        """Lets blocked tasks continue, and all later ones."""
        self._open.set()


@dataclass
class Model:
    """A model that says something else at each call, and writes down that it was asked."""

    events: list[Event]
    serials: Iterator[int] = field(default_factory=lambda: count(1))
    #: Called while it thinks, with the ask; it may raise.
    meanwhile: Callable[[ModelRequest], Awaitable[None]] | None = None
    #: What it says in place of its reply, and how that ends.
    instead: Callable[[ModelRequest], tuple[str, End] | None] | None = None

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Returns a reply with its serial, which names what it was shown."""
        serial = next(self.serials)
        try:
            if self.meanwhile is not None:
                await self.meanwhile(ask)
        except ModelFailure:
            self._called(serial, ask, "500")
            raise
        self._called(serial, ask, "replied")
        said = None if self.instead is None else self.instead(ask)
        text, end = said or (self._reply(ask, f"[s{serial}]"), End.COMPLETE)
        return Completion(
            text=text,
            end=end,
            model=model,
            input_tokens=9,
            output_tokens=3,
            cached_tokens=0,
            cache_write_tokens=None,
            cost_micro_usd=None,
        )

    def _called(self, serial: int, ask: ModelRequest, outcome: str) -> None:
        self.events.append(
            ModelCalled(
                serial=serial,
                prompt=ask.text,
                outcome=outcome,
                is_paid=outcome == "replied",
                at=time.monotonic(),
            )
        )

    def _reply(self, ask: ModelRequest, mark: str) -> str:
        kind = ask.purpose.value
        if kind == "revise":
            # The newest chunk is after the memory.
            name = NAME.findall(ask.text)[-1]
            topic = f"c{name[0]}x{name[1]}"
            return f'[OBJECTS FOR ADD]\n{{"$.topics.{topic}": {{"add": "{mark}"}}}}'
        if kind == "consolidate":
            return '{"changes": []}'
        if kind == "answer":
            return f"[ANSWER]\nIt is so {mark}.\n[PATHS]\n"
        return f"It is about the river {mark}."


class World:
    """One session, and all clients and workers that use it."""

    def __init__(
        self,
        url: str,
        superuser_url: str,
        session: str,
        *,
        pools: dict[str, Database] | None = None,
    ) -> None:
        """`pools` are connections by name that worlds in the same database share."""
        self.url = url
        self.superuser_url = superuser_url
        self.session = session
        self.key = session_key(DEFAULT_TENANT, session)
        self.events: list[Event] = []
        #: What guards did: as the service counts it, and refusals as clients saw them.
        self.counted: Counter[str] = Counter()
        #: What a scenario found wrong that is in no table.
        self.wrong: list[str] = []
        #: Whether a call may be paid for twice here: its executor had lost the right to it.
        self.may_pay_again = False
        #: Whether in the end each memory has read its log.
        self.is_drained = True
        self._expected: list[tuple[str, str, list[tuple[Any, ...]]]] = []
        self.model = Model(self.events)
        self._specs: dict[str, MemorySpec] = {}
        self._shared = pools
        self._own: dict[str, Database] = {}
        self._superuser: psycopg.AsyncConnection[Any] | None = None

    def database(self, name: str) -> Database:
        """Connections of a process of its own."""
        pools = self._own if self._shared is None else self._shared
        if name not in pools:
            pools[name] = Database.connect(self.url, pool_size=4, name=name)
        return pools[name]

    async def begin(self, **specs: MemorySpec) -> None:
        """Makes the session, with a memory by each name."""
        database = self.database("begin")
        async with database.transaction(DEFAULT_TENANT) as tx:
            await sessions.create(tx, self.key, self.session)
        made = memories_of(database, WakeUps(_lose), ProgressWatcher(database), TOKEN_KEY, Limits())
        for name, spec in specs.items():
            await made.create(DEFAULT_TENANT, self.session, name, spec)
            self._specs[name] = spec

    async def end(self) -> None:
        """Closes the connections that are its own."""
        for database in self._own.values():
            await database.close()
        if self._superuser is not None:
            await self._superuser.close()

    def item(self, name: str) -> WorkItem:
        """Returns what a worker is woken for."""
        return WorkItem(
            kind=WorkKind.MEMORY,
            tenant_id=DEFAULT_TENANT,
            session_key=self.key,
            item_id=memory_id(self.key, name),
        )

    async def run_sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs a statement as the superuser, from whom no row is hidden."""
        if self._superuser is None:
            self._superuser = await psycopg.AsyncConnection.connect(
                self.superuser_url, autocommit=True
            )
        cursor = await self._superuser.execute(statement.encode(), values)
        return await cursor.fetchall() if cursor.description else []

    def expect(self, sentence: str, query: str, *rows: tuple[Any, ...]) -> None:
        """Reports `sentence` unless the query, given the session's key, returns these rows."""
        self._expected.append((sentence, query, list(rows)))

    async def look(self) -> None:
        """Looks for what was expected."""
        for sentence, query, rows in self._expected:
            if await self.run_sql(query, self.key) != rows:
                self.wrong.append(sentence)

    def refuse(
        self, client: str, name: str, sequence: int, error: Exception, mark: str = ""
    ) -> None:
        """Writes down that the service said no."""
        reason = getattr(error, "reason", type(error).__name__)
        self.counted[f"refused:{reason}"] += 1
        self.events.append(
            Refused(
                client=client,
                session=self.session,
                name=name,
                sequence=sequence,
                reason=str(reason),
                mark=mark,
                at=time.monotonic(),
            )
        )

    async def until_blocked(self, task: "asyncio.Task[Any]", *, counted: str) -> None:
        """Until a task has ended, or waits for a lock; that is counted."""
        until = time.monotonic() + PATIENCE_SECONDS
        # Others may work in the same database: only ours wait in vain.
        while not task.done() and time.monotonic() < until:
            waiting = await self.run_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock'"
            )
            if waiting[0][0]:
                self.counted[counted] += 1
                return
            await asyncio.sleep(0.01)

    async def drain(self, worker: "Worker", name: str) -> float | None:
        """Handles a wake-up as a worker does; backs off when the database is away."""
        try:
            return await worker.drain(self.item(name))
        except Exception as error:
            # A worker continues, and finds the work again.
            self.counted[f"put off:{type(error).__name__}"] += 1
            return None

    async def settle(self) -> None:
        """Works on what a look at the queue finds, until it finds nothing more."""
        worker = Worker(self, "settle")
        for _ in range(SETTLE_ROUNDS):
            mine = await worker.take()
            if not mine and not await self._waits():
                return
            self.counted["found"] += len(mine)
            for item in mine:
                try:
                    await worker.handle(item)
                except Exception as error:
                    self.counted[f"put off:{type(error).__name__}"] += 1
            await asyncio.sleep(0.002)
        self.wrong.append("there is work that never ends")

    async def _waits(self) -> bool:
        """Returns whether something waits for its next try."""
        rows = await self.run_sql(
            "SELECT count(*) FROM memory WHERE session_key = %s AND status = 'active'"
            " AND has_work AND ready_at > now() AND ready_at < now() + interval '1 second'",
            self.key,
        )
        return bool(rows[0][0])


class Worker:
    """A worker process: the three methods and an answerer, on connections of its own."""

    def __init__(self, world: World, name: str, *, hold: Gate | None = None) -> None:
        """With `hold` its first commit of a step waits there, after the model's reply."""
        self.world = world
        self.database = world.database(name)
        self.gateway = gateway(
            world.model, self.database, lease_seconds=LEASE_SECONDS, config=CONFIG
        )
        ledger = self.gateway._ledger
        assert isinstance(ledger, CallLedger), "the gateway's ledger is on the database"
        self.ledger = ledger
        self.gateway._replays = _Replays(world.counted)  # type: ignore[assignment]
        self._engines = {
            kind: step_engine(kind, self.database, self.gateway, CONFIG, FACTS) for kind in SPECS
        }
        if hold is not None:
            for engine in self._engines.values():
                before_commits(engine, hold.pass_)
        self.answerer = Answerer(
            self.database, self.gateway, lambda _: FACTS, b"marker", CONFIG, kinds=KINDS
        )

    async def take(self) -> list[WorkItem]:
        """Returns what a look at the queue finds of the session: memories and answers."""
        cycle = (WorkClass.ANSWERS, WorkClass.RECENT, WorkClass.BACKLOG)
        scan = QueueScan(total=1000, cycle=cycle, bound=queue.UNBOUND, after=queue.NOBODY)
        me = uuid4()
        taken = await queue.take(self.database, me, done=(), scan=scan)
        await queue.leave(self.database, me)
        return [one.item for one in taken.items if one.item.session_key == self.world.key]

    async def drain(self, item: WorkItem) -> float | None:
        """Advances a memory. Raises StorageError."""
        specs = {memory_id(self.world.key, name): s for name, s in self.world._specs.items()}
        return await self._engines[specs[item.item_id].kind].drain(item)

    async def handle(self, item: WorkItem) -> None:
        """Does what a wake-up is for. Raises StorageError."""
        if item.kind is WorkKind.ANSWER:
            await self.answerer.make(item)
        else:
            await self.drain(item)


class _Replays:
    """Counts replies that were found, in place of the gateway's own counter."""

    def __init__(self, counted: Counter[str]) -> None:
        self._counted = counted

    def add(self, amount: int, attributes: object = None) -> None:
        """As a counter of OpenTelemetry."""
        self._counted["replays"] += amount


async def _lose(_: object) -> None:
    """A dispatcher that loses all wake-ups: what a worker looks for by itself is the guarantee."""


@contextmanager
def counting(counted: Counter[str]) -> Iterator[None]:
    """Yields what the service counts of its guards, by the names that its meters have for them."""

    def guard(amount: int, attributes: dict[str, str]) -> None:
        counted[attributes["guard"]] += amount

    def key(amount: int, attributes: dict[str, str]) -> None:
        counted[f"key:{attributes['constraint']}"] += amount

    def fenced(amount: int) -> None:
        counted["fenced"] += amount

    def failed(amount: int) -> None:
        counted["failed"] += amount

    with (
        mock.patch.object(log_metrics._GUARDS, "add", guard),
        mock.patch.object(storage_errors._REFUSED, "add", key),
        mock.patch.object(step_metrics.FENCED, "add", fenced),
        mock.patch.object(step_metrics.FAILED, "add", failed),
    ):
        yield
