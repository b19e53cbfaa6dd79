"""A plain model of algorithm 1 and of episodes, and a look at what a worker made of a log."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.flows import ModelRequest
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import State, StateVector, first_state
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories import memories
from storage.state import vectors
from storage.tables import memory
from tests.integration.support.scripted import KEY, MEMORY, vector_reply
from tests.integration.support.writing import append_chunks
from tests.support.contents import CompressStepsContent, CompressVectorsContent, content_of

#: More revisions than any memory of these tests has.
MANY = 1_000_000
#: Revision, kind, from_position, to_position.
Line = tuple[int, str, int, int]


def step(number: int) -> Chunk:
    """Returns what an agent saw, thought and did at its n-th step; some parts are empty."""
    return Chunk(
        kind=ChunkKind.STEP,
        observation=f"Sign {number} says {number * 7} miles." if number % 4 else "",
        thought="Go on." if number % 3 else "",
        action=f"walk {number}",
    )


async def begin(database: Database, name: str, spec: StateSpec) -> WorkItem:
    """Returns a session of its own with the state memory `m`, which is what a worker is given."""
    key = session_key(DEFAULT_TENANT, name)
    identity = memory_id(key, "m")
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, key, name)
        await memories.create(
            tx, session_key=key, memory_id=identity, name="m", spec=spec, head=0, digest=b""
        )
        await vectors.add_first(tx, key, identity, first_state(spec).current)
    return WorkItem(
        kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=key, item_id=identity
    )


async def append_steps(database: Database, count: int, first: int = 1) -> None:
    """Steps `first` to `first + count - 1` of the session `s`."""
    chunks = [step(number) for number in range(first, first + count)]
    await append_chunks(database, "s", chunks, first=first)


@dataclass
class Plain:
    """Runs algorithm 1 step by step, without revisions and workers.

    It takes the asks that a model got, and checks that each is the one that is due.
    """

    spec: StateSpec
    asks: Iterator[ModelRequest]
    #: What the model says.
    reply: Callable[[ModelRequest, int], str] = vector_reply
    #: M.
    text: str = ""
    #: By level from 1 up: (text, first position, last position) since the level began.
    runs: list[list[tuple[str, int, int]]] = field(default_factory=lambda: [[]])
    #: R.
    recent: list[tuple[int, str]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = self.spec.task

    def read(self, position: int, text: str) -> None:
        """A step is there; what is due then is compressed."""
        self.recent.append((position, text))
        if len(self.recent) == self.spec.period:
            self.compress()

    def compress(self) -> None:
        """All recent steps and M become the new M."""
        ask = next(self.asks)
        assert isinstance(content_of(ask), CompressStepsContent)
        assert content_of(ask).current == self.text
        assert content_of(ask).current_is_task == (self.text == self.spec.task)
        assert list(content_of(ask).steps) == self.recent
        first, last = self.recent[0][0], self.recent[-1][0]
        self.recent = []
        self.text = self._made("step", first - 1, last, ask)
        self.runs[0].append((self.text, first, last))
        if self.spec.episode_vectors:
            self._episodes(last)

    def _episodes(self, cursor: int) -> None:
        for level in range(1, 100):
            run = self.runs[level - 1]
            if len(run) < self.spec.episode_vectors:
                return
            if level == len(self.runs):
                self.runs.append([])
            ask = next(self.asks)
            assert isinstance(content_of(ask), CompressVectorsContent)
            above = self.runs[level][-1][0] if self.runs[level] else ""
            assert (content_of(ask).above, list(content_of(ask).vectors)) == (
                above,
                [t for t, *_ in run],
            )
            text = self._made("episode", cursor, cursor, ask)
            self.runs[level].append((text, run[0][1], run[-1][2]))
            self.runs[level - 1] = []
            if level == 1:
                self.text = self.spec.task

    def _made(self, kind: str, after: int, upto: int, ask: ModelRequest) -> str:
        self.lines.append((len(self.lines) + 1, kind, after, upto))
        self.texts.append(self.reply(ask, 0))
        return self.texts[-1]

    def in_use(self) -> list[str]:
        """Returns the texts of the vectors in use, the highest level first."""
        return [*(run[-1][0] for run in reversed(self.runs[1:]) if run), self.text]


async def lines_of(database: Database, identity: UUID = MEMORY) -> list[Line]:
    """Returns the revisions of a memory, without the first."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch(
            "SELECT revision, kind, from_position, to_position FROM revision"
            " WHERE memory_id = %s AND revision > 0 ORDER BY revision",
            (identity,),
        )
        return [(row.revision, row.kind, row.from_position, row.to_position) for row in rows]


async def vectors_of(database: Database) -> Sequence[StateVector]:
    """Returns its vectors, without the task prompt."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        return await all_vectors(tx, (KEY, MEMORY))


async def all_vectors(tx: Transaction, key: tuple[UUID, UUID]) -> list[StateVector]:
    """Returns the vectors after M_1, oldest first."""
    page = await vectors.list_page(tx, key, level=0, after_revision=0, limit=MANY, max_bytes=2**40)
    return [vector for vector, _ in page]


async def state_at(database: Database, revision: int) -> State:
    """Returns the vectors in use at a revision."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        state = await vectors.read_state(tx, KEY, MEMORY, revision)
    assert state is not None
    return state


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a memory's row says about when it is looked at again."""

    has_work: bool
    resting: bool
    wake_position: int | None
    ready_at: datetime
    #: The database's clock.
    now: datetime


async def row_of(database: Database) -> Row:
    """Returns the row of the memory `m`."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        columns: Any = memory.c
        found = (
            await tx.fetch(
                select(
                    columns.has_work,
                    columns.resting,
                    columns.wake_position,
                    columns.ready_at,
                    func.clock_timestamp().label("now"),
                ).where(columns.memory_id == MEMORY)
            )
        )[0]
    return Row(**found._asdict())


def assert_is_algorithm_1(
    plain: Plain, lines: Sequence[Line], found: Sequence[StateVector], state: State
) -> None:
    """Checks that the worker wrote what the plain model says, and nothing else."""
    assert next(plain.asks, None) is None, "no call that is not due"
    assert list(lines) == plain.lines
    assert [vector.text for vector in found] == plain.texts
    assert [vector.text for vector in state.stack] == plain.in_use()


async def assert_follows_log(database: Database, item: WorkItem, plain: Plain) -> None:
    """`assert_is_algorithm_1` of a memory whose whole log the plain model has read."""
    key, identity = item.session_key, item.item_id
    async with database.transaction(DEFAULT_TENANT) as tx:
        stored = await memories.get(tx, key, identity)
        assert stored is not None
        state = await vectors.read_state(tx, key, identity, stored.revision)
        found = await all_vectors(tx, (key, identity))
    assert state is not None
    assert_is_algorithm_1(plain, await lines_of(database, identity), found, state)
    assert stored.applied_position == stored.head - len(plain.recent)
