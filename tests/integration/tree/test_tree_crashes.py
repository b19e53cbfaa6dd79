"""For any stream and any crashes, the sealed tree is the one that is built in one go.

Workers are killed before, within and after their commits and wherever else they wait,
the model fails now and then, and chunks come in any batches, also while a worker is at it.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.nodes import Node, TextOffset
from service.domain.tree.planning import Planned, TreePlan
from service.domain.tree.segmenting import Segmenter, piece_of
from service.domain.tree.spec import TreeSpec
from service.domain.tree.summarizing import compress, summarize
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.gateway.driver import drive
from service.llm.gateway.gateway import Gateway
from service.llm.splitter import first_piece
from service.usecases.tree.method import TreeMethod
from storage.engine.database import Database
from storage.log import chunks as log
from storage.log import sessions
from storage.memories import memories
from storage.tree import trees
from tests.integration.support.crashing import (
    Crash,
    FailingScript,
    Killed,
    crashes,
    dying_at_commits,
)
from tests.integration.support.growing import assert_is_tree, nodes_of, want_seal
from tests.integration.support.scripted import CONFIG, TREE, summary_reply, tree_method
from tests.integration.support.writing import append_chunks
from tests.support.gateways import SHORT_LEASE_SECONDS, gateway
from tests.support.properties import examples

#: No step gives up: failures only cost time here.
PATIENT = CONFIG.model_copy(
    update={"step_tries": 1000, "step_backoff_seconds": 0.0001, "build_concurrency": 4}
)
#: Longer than any example needs, in turns of a worker.
MAX_TURNS = 200
SESSIONS = count(1)


@dataclass(frozen=True)
class Turn:
    """Chunks that come, and what happens to the worker that reads them."""

    chunks: int
    #: Whether they come while it is at work.
    meanwhile: bool
    crash: Crash | None


@dataclass(frozen=True)
class Story:
    """A stream, and what happens while it is read."""

    chunks: Sequence[Chunk]
    turns: Sequence[Turn]
    #: Of the model's calls, those that fail.
    failing: frozenset[int]
    max_children: int


_WORDS = [
    "the",
    "of",
    "and",
    "town",
    "horse",
    "rain",
    "bread",
    "window",
    "letter",
    "sea",
    "金魚",
    "Straße",
]


def _text(number: int, seed: int, words: int) -> str:
    """Words with ends of sentences and paragraphs among them; no two are alike."""
    ends = ["", "", "", ".", "", "", ".\n\n", "", "?", "", "\n"]
    return " ".join(
        f"{_WORDS[(seed * 7 + n * n) % len(_WORDS)]}{number}x{n}{ends[(seed + n * 3) % len(ends)]}"
        for n in range(words)
    ) + ("" if seed % 3 else " ")


def _chunk(number: int, drawn: tuple[ChunkKind, int, int]) -> Chunk:
    kind, seed, words = drawn
    text = _text(number, seed, words)
    if kind is ChunkKind.STEP:
        return Chunk(kind=kind, observation=text, thought="so", action=f"go {seed}")
    return Chunk(kind=kind, text=text, role="ann" if kind is ChunkKind.MESSAGE else "")


CHUNKS = st.lists(
    st.tuples(st.sampled_from(ChunkKind), st.integers(0, 99), st.integers(1, 80)), max_size=16
).map(lambda drawn: [_chunk(number, one) for number, one in enumerate(drawn)])
CRASHES = crashes(0, 120)
TURNS = st.lists(
    st.builds(Turn, chunks=st.integers(0, 9), meanwhile=st.booleans(), crash=CRASHES), max_size=6
)
STORIES = st.builds(
    Story,
    chunks=CHUNKS,
    turns=TURNS,
    failing=st.frozensets(st.integers(1, 20), max_size=4),
    max_children=st.integers(2, 4),
)


@pytest.mark.prove
@settings(
    max_examples=examples(60),
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(story=STORIES)
async def test_a_tree_is_the_same_however_it_was_built(database: Database, story: Story) -> None:
    world = await World.begin(database, story)
    left = list(story.chunks)
    for turn in story.turns:
        now, left = left[: turn.chunks], left[turn.chunks :]
        if turn.meanwhile:
            await asyncio.gather(world.append(now), world.work(turn.crash))
        else:
            await world.append(now)
            await world.work(turn.crash)
    await world.append(left)
    await world.seal()
    for turn in story.turns:
        await world.work(turn.crash)
    await world.work_to_the_end()
    tree = await nodes_of(database, *world.keys)
    assert tree == await _in_one_go(story, await world.read_log())
    assert_is_tree(tree, story.max_children, sealed=True)
    paid = [ask.text for ask in world.model.paid]
    assert len(paid) == len(set(paid)), "nothing is paid twice"


async def _in_one_go(story: Story, chunks: Sequence[LoggedChunk]) -> dict[str, Node]:
    """Returns the tree over a log that is there as a whole, without a worker or a database."""
    spec = _spec(story)
    segmenter = Segmenter(spec.segment_tokens, first_piece, TextOffset(1))
    plan = TreePlan((), (), (), max_children=spec.max_children)
    plan.add(segmenter.feed([piece_of(chunk) for chunk in chunks]))
    plan.add(segmenter.finish())
    plan.close()

    async def call(ask: ModelRequest) -> ModelReply:
        return ModelReply(text=summary_reply(ask, 0), model="")

    named: dict[str, Any] = {
        "spec": spec,
        "marker_key": b"marker",
        "window_tokens": 32_768,
        "count": estimate_tokens,
    }
    made: list[Planned] = []
    while (planned := plan.next()) is not None:
        if planned.cut is not None:
            flow = summarize(planned.cut.text, **named)
        else:
            flow = compress([child.summary for child in plan.children(planned)], **named)
        plan.finish(planned, await drive(flow, call))
        made.append(planned)
    return {one.name: one.node for one in made if one.node is not None}


def _spec(story: Story) -> TreeSpec:
    return replace(TREE, max_children=story.max_children)


@dataclass
class World:
    """A session of its own with a tree, its producer and its workers."""

    database: Database
    model: FailingScript
    gateway: Gateway
    name: str
    sent: int = 0

    @property
    def keys(self) -> tuple[Any, Any]:
        key = session_key(DEFAULT_TENANT, self.name)
        return key, memory_id(key, "m")

    @property
    def item(self) -> WorkItem:
        key, identity = self.keys
        return WorkItem(
            kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=key, item_id=identity
        )

    @classmethod
    async def begin(cls, database: Database, story: Story) -> "World":
        model = FailingScript(failing=story.failing)
        world = cls(
            database,
            model,
            gateway(model, database, lease_seconds=SHORT_LEASE_SECONDS),
            f"s{next(SESSIONS)}",
        )
        key, identity = world.keys
        async with database.transaction(DEFAULT_TENANT) as tx:
            await sessions.create(tx, key, world.name)
            await memories.create(
                tx,
                session_key=key,
                memory_id=identity,
                name="m",
                spec=_spec(story),
                head=0,
                digest=b"",
            )
        return world

    async def append(self, chunks: Sequence[Chunk]) -> None:
        if not chunks:
            return
        first = self.sent + 1
        self.sent += len(chunks)
        await append_chunks(self.database, self.name, chunks, first=first)

    async def seal(self) -> None:
        await want_seal(self.database, self.sent, *self.keys)

    async def work(self, crash: Crash | None) -> float | None:
        drain = tree_method(self.database, self.model, PATIENT, calls=self.gateway).drain(self.item)
        if crash is None:
            return await drain
        if crash.where == "waiting":
            await _cut_off(drain, crash.at)
            return None
        with _dying(crash), suppress(Killed):
            await drain
        return None

    async def work_to_the_end(self) -> None:
        for _ in range(MAX_TURNS):
            await self.work(None)
            async with self.database.transaction(DEFAULT_TENANT) as tx:
                stored = await memories.get(tx, *self.keys)
            assert stored is not None
            if stored.status == "sealed":
                assert stored.applied_position == self.sent
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it was not sealed")

    async def read_log(self) -> Sequence[LoggedChunk]:
        async with self.database.transaction(DEFAULT_TENANT) as tx:
            return await log.read(tx, self.keys[0], 0, self.sent + 1)


async def _cut_off(doing: Awaitable[Any], turns: int) -> None:
    task = asyncio.ensure_future(doing)
    for _ in range(turns):
        if task.done():
            break
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@contextmanager
def _dying(crash: Crash) -> Iterator[None]:
    """Kills the worker at a commit of a revision."""
    store = TreeMethod._stored
    stores = count(1)

    def stored(*arguments: Any) -> None:
        if crash.where == "behind" and next(stores) == crash.at:
            raise Killed
        store(*arguments)

    with dying_at_commits(crash, trees) as patched:
        patched.setattr(TreeMethod, "_stored", stored)
        yield
