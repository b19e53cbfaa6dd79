"""The hot paths of a service, each as one call of the code that it runs.

Another one is a line in `PATHS`. `tests.integration.engine.test_plans` runs them on a database with
many sessions, and looks at how each of their statements was carried out.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count, cycle
from typing import Any
from uuid import UUID, uuid4

from service.dispatch.turns import Turns
from service.domain.calls.ledger import CallScope, HeldCall, Lease
from service.domain.log.appending import SERVER_PRODUCER, Request, Submission
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.spend.budgets import BudgetPeriod
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import first_state
from service.domain.values.memory_specs import MemorySpec, MemoryStatus
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Config, Limits
from service.usecases.answers.ask import occasion
from service.usecases.log.append import Appender
from service.usecases.log.chunk_filter import ChunkFilter
from service.usecases.log.sessions import read_chunks
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.step_engine import StepEngine
from service.usecases.search.index import Indexer
from service.usecases.search.search import Searcher, SearchQuery
from storage.answers import answers, interest, listing
from storage.calls import call_ledger, calls, intents
from storage.engine.database import Database, Transaction
from storage.log import chunks as log
from storage.log import ends, sessions
from storage.log.ranges import Range
from storage.memories import (
    flushing,
    history,
    job_results,
    memories,
    queue,
    revisions,
    waiting,
    work,
)
from storage.memories.progress import read_progress
from storage.memories.queue import Done
from storage.prism import states
from storage.spend import budgets, spend
from storage.state import vectors
from tests.integration.support.scripted import (
    SPEC,
    STATE,
    TREE,
    Script,
    answerer,
    prism_method,
    state_method,
    tree_method,
)
from tests.integration.support.writing import drop_wake_ups, submission, submitted
from tests.support.cloning import Copy
from tests.support.gateways import gateway

#: The memory of each session.
NAME = "m"
#: The kinds of sessions, by what memory they have.
SPECS: dict[str, MemorySpec] = {"prism": SPEC, "state": STATE, "tree": TREE}
#: What a worker has in hand at the most.
PLACES = 16
TEXT = "The ship lies in another harbour now, and the crew is paid."
THREAD = "auth0|5f7c"


class Site:
    """A database with many sessions of each kind, and which of them come next."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._next: dict[str, Iterator[Copy]] = {}
        self._numbers = count(1)
        #: A server process, as answers know it.
        self.waiter = uuid4()

    def use(self, kind: str, copies: Sequence[Copy]) -> None:
        """Takes these in turn from now on."""
        self._next[kind] = cycle(copies)

    def next(self, kind: str = "prism") -> Copy:
        """Returns one that was not used for long."""
        return next(self._next[kind])

    def some(self, count: int) -> Sequence[Copy]:
        """Returns so many."""
        return [self.next() for _ in range(count)]

    def producer(self) -> str:
        """Returns one that no session has."""
        return f"p{next(self._numbers)}-{uuid4().hex}"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Yields a transaction of the default tenant."""
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            yield tx

    @asynccontextmanager
    async def undone(self) -> AsyncIterator[Transaction]:
        """Yields the same; it leaves nothing behind."""
        try:
            async with self.database.transaction(DEFAULT_TENANT) as tx:
                yield tx
                raise _Undone
        except _Undone:
            pass


class _Undone(Exception):
    pass


def item_of(copy: Copy) -> WorkItem:
    """Returns its memory."""
    return WorkItem(
        kind=WorkKind.MEMORY,
        tenant_id=copy.tenant_id,
        session_key=copy.key,
        item_id=memory_id(copy.key, NAME),
    )


def key_of(copy: Copy) -> tuple[UUID, UUID]:
    """Returns its memory's key."""
    return copy.key, item_of(copy).item_id


async def make_session(site: Site, copy: Copy, kind: str) -> None:
    """Makes a session with a memory of a kind, and applies and indexes a first chunk."""
    spec = SPECS[kind]
    async with site.transaction() as tx:
        await sessions.create(tx, copy.key, copy.name)
        await memories.create(
            tx,
            session_key=copy.key,
            memory_id=item_of(copy).item_id,
            name=NAME,
            spec=spec,
            head=0,
            value="{}" if kind == "prism" else None,
            digest=b"",
        )
        if isinstance(spec, StateSpec):
            await vectors.add_first(tx, *key_of(copy), first_state(spec).current)
    await _append(site, [_batch(site, copy)])
    await _drained(site, copy, kind)
    await _indexed(site, copy)


def _batch(site: Site, copy: Copy, *, chunks: int = 1) -> Submission:
    return submission(copy.name, [TEXT] * chunks, producer=site.producer())


async def _append(site: Site, *groups: Sequence[Submission]) -> None:
    """Appends each group at once, one after the other, by one server."""
    appender = Appender(site.database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    try:
        for group in groups:
            await asyncio.gather(*(appender.submit(DEFAULT_TENANT, one) for one in group))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _drained(site: Site, copy: Copy, kind: str) -> None:
    makes: dict[str, Callable[[Database, Script], StepEngine[Any]]] = {
        "prism": prism_method,
        "state": state_method,
        "tree": tree_method,
    }
    await makes[kind](site.database, Script()).drain(item_of(copy))


async def _indexed(site: Site, copy: Copy) -> None:
    item = replace(item_of(copy), kind=WorkKind.INDEX, item_id=copy.key)
    await Indexer(site.database, None, Config()).index(item)


async def append_one(site: Site) -> None:
    """A producer's first chunk, and its second, which is written on a guess."""
    first = _batch(site, site.next())
    second = submission(first.session, [TEXT], first=2, producer=first.producer_id)
    await _append(site, [first], [second])
    await _append(site, [_of_thread(first, 3)], [_of_thread(first, 4)])


def _of_thread(before: Submission, sequence: int) -> Submission:
    """Returns a chunk of a thread, of the same producer."""
    chunk = Chunk(kind=ChunkKind.TEXT, text=TEXT, thread=THREAD, source="user:42")
    return replace(before, chunks=(submitted(sequence, chunk),))


async def append_many(site: Site) -> None:
    """Chunks for several sessions at once, which are one commit."""
    await _append(site, [_batch(site, copy) for copy in site.some(16)])


async def append_requests(site: Site) -> None:
    """Chunks without a producer, twice."""
    copy = site.next()
    some = [
        replace(
            submission(copy.name, [TEXT], first=0, producer=SERVER_PRODUCER),
            request=Request(request_id=uuid4().hex, digest=bytes(32)),
        )
        for _ in range(2)
    ]
    await _append(site, some[:1], some[1:])


async def step(site: Site) -> None:
    """A PRISM memory's step."""
    copy = site.next()
    await _append(site, [_batch(site, copy)])
    await _drained(site, copy, "prism")


async def compress(site: Site) -> None:
    """A state memory's."""
    copy = site.next("state")
    await _append(site, [_batch(site, copy, chunks=3)])
    await _drained(site, copy, "state")


async def build(site: Site) -> None:
    """A tree's."""
    copy = site.next("tree")
    await _append(site, [_batch(site, copy, chunks=8)])
    await _drained(site, copy, "tree")


async def index(site: Site) -> None:
    """The words of a chunk."""
    copy = site.next()
    await _append(site, [_batch(site, copy)])
    await _indexed(site, copy)


async def read(site: Site) -> None:
    """Reading a memory, its session, its states and its history."""
    key = key_of(site.next())
    async with site.database.direct(DEFAULT_TENANT) as direct:
        assert await memories.read_newest(direct, *key)
    async with site.transaction() as tx:
        assert await memories.get(tx, *key)
        assert await sessions.get(tx, key[0])
        assert await log.read(tx, key[0], 0, 100)
        assert await states.read_nearest(tx, *key, 1)
        assert await history.list_revisions(tx, *key, -1, 100)
        await calls.usage_of(tx, key[0], ["answer:x"], [key[1]])
        await ends.newest(tx, key[0], Range(from_position=1, to_position=1), 2**20)
        await ends.first(tx, key[0], Range(from_position=1, to_position=1), 2**20)


async def flush(site: Site) -> None:
    """Ending a wait for more, as reads with a token do."""
    key = key_of(site.next())
    async with site.undone() as tx:
        await flushing.end_wait(tx, *key, 1)
        await flushing.flush(tx, key[0], None, 1)


async def watch(site: Site) -> None:
    """Reads the progress that a hundred readers wait for."""
    some = site.some(100)
    async with site.database.direct(DEFAULT_TENANT) as direct:
        await read_progress(direct, [key_of(copy) for copy in some])
    async with site.transaction() as tx:
        made = [replace(item_of(copy), kind=WorkKind.ANSWER) for copy in some]
        await job_results.ended(tx, made)
        keys = [(one.session_key, one.item_id) for one in made]
    async with site.database.direct(DEFAULT_TENANT) as direct:
        await interest.given_up(direct, keys)
        for write in (interest.leave, interest.renew):
            await write(direct, keys, waiter=site.waiter, seconds=3600)


async def take_work(site: Site) -> None:
    """Looks for work of all classes as a worker does, with its heartbeat."""
    worker, turns = uuid4(), Turns(PLACES)
    await queue.want(site.database, [item_of(copy) for copy in site.some(2)])
    taken = await queue.take(site.database, worker, done=(), scan=turns.scan(PLACES, ()))
    items = [one.item for one in taken.items]
    await queue.beat(site.database, worker, items)
    await queue.sweep(site.database, dead_after_seconds=60)
    done = [Done(item=item, more=True) for item in items]
    await queue.take(site.database, worker, done=done, scan=None)
    await queue.waits(site.database, ())
    await queue.forget_tenants(site.database)
    await queue.claim(site.database, worker, [item_of(site.next())])
    await queue.leave(site.database, worker)
    async with site.database.sweeping() as tx:
        await work.without_words(tx, 10)


async def wait_for_models(site: Site) -> None:
    """Reads which models have waiting work."""
    async with site.database.sweeping() as tx:
        await waiting.list_waiting(tx)


async def hold(site: Site) -> None:
    """Keeping a call, forgetting those of dead executors, and leaving work for later."""
    copy = site.next()
    key, memory = key_of(copy)
    scope = CallScope(
        tenant_id=DEFAULT_TENANT, session_key=key, memory_id=memory, occasion="revise:1:1"
    )
    async with site.database.direct(DEFAULT_TENANT) as direct:
        lease = HeldCall(scope=scope, key=bytes(32), lease=Lease(fence=1))
        await call_ledger.renew(direct, [lease], 10.0, waits=True)
    async with site.undone() as tx:
        await intents.forget(tx, key)
        held = await revisions.lock(tx, key, memory)
        assert held is not None
        await revisions.back_off(tx, held, 1.0)
        await waiting.back_off_memory(tx, held, model="m", cause="away", seconds=1.0)
        await work.defer(tx, item_of(copy), 1.0)


async def check_budgets(site: Site) -> None:
    """A call that budgets of its tenant and its session concern."""
    copy = site.next()
    key, memory = key_of(copy)
    scope = CallScope(
        tenant_id=DEFAULT_TENANT, session_key=key, memory_id=memory, occasion="revise:1:1"
    )
    async with site.undone() as tx:
        for place in (None, (key, key), (key, memory)):
            for period in BudgetPeriod:
                await budgets.put(tx, place, period, limit_tokens=10**12, limit_micro_usd=None)
        await budgets.check(tx, scope, tokens=100, micro_usd=None)


async def ask(site: Site) -> None:
    """A question and its answer, and looking at it afterwards."""
    copy = site.next()
    key, memory = key_of(copy)
    item = replace(item_of(copy), kind=WorkKind.ANSWER, item_id=uuid4())
    async with site.transaction() as tx:
        await answers.create(
            tx,
            session_key=key,
            answer_id=item.item_id,
            memory_id=memory,
            query="Whereabouts is the ship?",
            revision=1,
            applied_position=1,
            waiter=site.waiter,
            wanted_seconds=3600,
            max_pending=1000,
        )
        await interest.want(tx, (key, item.item_id), waiter=site.waiter, seconds=3600, resumes=True)
    async with site.database.direct(DEFAULT_TENANT) as direct:
        assert await interest.given_up(direct, [(key, item.item_id)]) == {}
        for write in (interest.leave, interest.renew):
            await write(direct, [(key, item.item_id)], waiter=site.waiter, seconds=3600)
    await answerer(site.database, gateway(Script(), site.database)).make(item)
    async with site.transaction() as tx:
        stored = await answers.get(tx, key, item.item_id)
        assert stored is not None
        assert stored.status == "complete"
        await calls.usage_of_answer(tx, key, item.item_id, occasion(item.item_id))
        await listing.list_newest(
            tx, key, memory_id=memory, status=None, before=None, limit=100, max_bytes=2**20
        )


async def search(site: Site) -> None:
    """Searching a session by words."""

    found = await Searcher(site.database, None, _no_order, Config()).find(
        DEFAULT_TENANT, site.next().name, SearchQuery(query="ship in a harbour")
    )
    assert found.found


async def _no_order(*_: object, **__: object) -> Sequence[int]:
    raise AssertionError("this search asks for no reranking")


async def read_thread(site: Site) -> None:
    """The chunks of a thread, listed and searched."""
    copy = site.next()
    first = _batch(site, copy)
    await _append(site, [first], [_of_thread(first, 2)])
    await _indexed(site, copy)
    wanted = ChunkFilter(threads=(THREAD,), excluded_threads=("other",))
    page = await read_chunks(
        site.database,
        DEFAULT_TENANT,
        copy.name,
        from_position=0,
        limit=100,
        max_bytes=2**20,
        wanted=wanted,
    )
    assert page.chunks
    query = SearchQuery(query="ship in a harbour", filter=wanted)
    found = await Searcher(site.database, None, _no_order, Config()).find(
        DEFAULT_TENANT, copy.name, query
    )
    assert found.found


async def list_pages(site: Site) -> None:
    """The first page, and a later one, of what there is."""
    copy = site.next()
    async with site.transaction() as tx:
        for name in ("", copy.name):
            await sessions.list_after(tx, name, 100)
        for after in (None, key_of(copy)):
            await memories.list_of_all(tx, status=None, after=after, limit=100)
        await memories.list_of_all(tx, status=MemoryStatus.STALLED, after=None, limit=100)
        await memories.list_after(tx, copy.key, "", None)


async def create(site: Site) -> None:
    """Making a session, and a memory with what belongs to it."""
    copy = Copy(name=f"new-{uuid4().hex}")
    async with site.transaction() as tx:
        await sessions.create(tx, copy.key, copy.name)
    async with site.undone() as tx:
        await sessions.lock_alone(tx, copy.key)
        made = await memories.create(
            tx,
            session_key=copy.key,
            memory_id=item_of(copy).item_id,
            name=NAME,
            spec=SPEC,
            head=0,
            digest=b"",
            value="{}",
        )
        assert isinstance(made, memories.CreatedMemory)


async def spent(site: Site) -> None:
    """Reads what a session has spent."""
    async with site.transaction() as tx:
        await spend.total(tx, spend.SpendFilter(session_key=site.next().key))


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """A hot path, and what its statements may read."""

    does: Callable[[Site], Awaitable[None]]
    #: Rows that a scan may read and throw away.
    rows: int = 64
    #: Pages that a statement may look at.
    pages: int = 150


PATHS: dict[str, Path] = {
    "append to one": Path(does=append_one),
    "append to many": Path(does=append_many, pages=600),
    "append by requests": Path(does=append_requests),
    "step": Path(does=step),
    "compress": Path(does=compress),
    # Of three indexes more than before: what a connection has to learn of them counts.
    "build": Path(does=build, pages=200),
    "index": Path(does=index),
    "read": Path(does=read),
    "flush": Path(does=flush),
    "watch": Path(does=watch, rows=100, pages=1500),
    "take work": Path(does=take_work, rows=200),
    "wait for models": Path(does=wait_for_models),
    "hold": Path(does=hold),
    "check budgets": Path(does=check_budgets),
    # What a function has to learn of a table that changed, policies and all, counts as well.
    "ask": Path(does=ask, pages=250),
    "search": Path(does=search),
    "read a thread": Path(does=read_thread),
    "list pages": Path(does=list_pages, rows=101, pages=1200),
    "create": Path(does=create),
    "spent": Path(does=spent),
}
