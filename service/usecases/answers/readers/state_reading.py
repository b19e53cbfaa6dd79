"""Reading the levels of a state memory as a navigation does, as of when the question came.

What all vectors of the lineage cover is listed without their texts; texts come with the nodes
that the navigation sees. What no vector covers, because a rollback or a level that began anew
left it out, is not shown.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from service.domain.prompting.flows import Fetch
from service.domain.prompting.splitting import Cutter
from service.domain.prompting.tokens import TOKEN_BYTES
from service.domain.state.navigating import (
    divided,
    forest_of,
    revision_of,
    vector_id,
    vector_view,
)
from service.domain.state.vectors import STEPS_LEVEL, StateVector
from service.domain.tree.forest import Forest
from service.domain.tree.nodes import BestLeaves, Children, NodeView, Text, TextOffset
from service.domain.tree.segmenting import Cut, Segmenter, joined
from service.domain.tree.spec import TreeSpec
from service.llm.offloading import beside
from service.usecases.answers.readers.log_range import LogRange, log_of
from service.usecases.answers.readers.state_retrieval import StatePiece, best_pieces
from service.usecases.answers.readers.tails import pieces_between, read_tail
from service.usecases.answers.readers.tree_reading import Held
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database, Transaction
from storage.memories import history
from storage.state import vectors, views
from storage.state.views import Placed

#: Bytes that the names of a chunk's parts add to its content, at most.
NAMES_BYTES = 40
#: Characters of all vectors on top that are read before any is shown: made-up summaries show
#: their beginnings, the shorter the more there are.
TOPS_CHARACTERS = 8_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextForest:
    """What stands under the root, without its texts."""

    forest: Forest
    #: The pieces of the recent steps, by their ids.
    tail: Mapping[str, Cut]
    #: All vectors of the lineage, in the order of the log.
    placed: Sequence[Placed]
    #: The first and the last chunk that the tail does not have; None: it has all.
    left_out: tuple[int, int] | None


class StateReader:
    """What a navigation looks up. It changes nothing and may be asked in parallel."""

    #: What a sentence calls the memory.
    noun = "memory"

    def __init__(
        self,
        database: Database,
        tenant_id: UUID,
        asked: StoredAnswer,
        levels: ContextForest,
        *,
        spec: TreeSpec,
        cutter: Cutter,
    ) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._asked = asked
        self._levels = levels
        self._spec = spec
        self._cutter = cutter
        self._root = levels.forest.root
        #: Views as they are shown, by id: those of vectors only once they were looked up.
        self._views = {
            view.node_id: view for view in levels.forest.views.values() if not view.is_stored
        }
        #: The text of pieces, by id: of the recent steps, and of long vectors.
        self._cuts = dict(levels.tail)

    @classmethod
    async def open(
        cls,
        database: Database,
        tenant_id: UUID,
        asked: StoredAnswer,
        *,
        spec: TreeSpec,
        count: Callable[[str], int],
        cutter: Cutter,
        tail_bytes: int,
    ) -> "StateReader | None":
        """The levels that a question is asked of; None when there is no text.

        Of steps that no vector covers yet it holds at most `tail_bytes`.
        """
        held = log_of(database, tenant_id, asked)
        levels = await _levels(held, asked, spec, cutter, tail_bytes)
        if levels is None:
            return None
        reader = cls(database, tenant_id, asked, levels, spec=spec, cutter=cutter)
        root = levels.forest.root
        if root.is_stored:
            async with database.transaction(tenant_id, name="answer") as tx:
                await reader._look_at(tx, [root.node_id])
            reader._root = reader._views[root.node_id]
        return reader

    @property
    def left_out(self) -> tuple[int, int] | None:
        """The first and the last chunk of what a navigation does not get to; None: nothing."""
        return self._levels.left_out

    @property
    def root(self) -> NodeView:
        """Where a navigation begins."""
        return self._root

    async def fetch(self, ask: Fetch) -> Any:
        """What the navigation wants to know, as `service.domain.tree.nodes` says it."""
        match ask:
            case Children():
                children = self._views[ask.node_id].children
                async with self._database.transaction(self._tenant_id, name="answer") as tx:
                    await self._look_at(tx, children)
                return tuple(self._views[child] for child in children)
            case Text():
                cut = self._cuts.get(ask.node_id)
                return joined((await self.hold(ask.node_id)).pieces) if cut is None else cut.text
            case BestLeaves():
                return await self._best(ask)
        raise TypeError(f"a state memory is not asked for {type(ask).__name__}")

    async def hold(self, node_id: str) -> Held:
        """A vector of steps, or a piece, with its text, chunk by chunk."""
        view = self._views[node_id]
        is_recent = node_id in self._levels.tail
        async with self._database.transaction(self._tenant_id, name="answer") as tx:
            pieces = await pieces_between(tx, self._asked.session_key, view.start, view.end)
        revision = self._asked.revision if is_recent else revision_of(node_id)
        return Held(view=view, revision=revision, pieces=pieces)

    async def _look_at(self, tx: Transaction, ids: Iterable[str]) -> None:
        """Reads the vectors among these nodes that were not looked up yet."""
        wanted = [revision_of(one) for one in ids if one not in self._views]
        if not wanted:
            return
        key = self._asked.session_key, self._asked.memory_id
        found = await vectors.read_vectors(tx, *key, wanted)
        ranges = [(one.from_position, one.to_position) for one in found]
        sizes = await views.read_range_words(tx, key[0], ranges)
        limit = self._spec.segment_tokens * TOKEN_BYTES
        for vector, size in zip(found, sizes, strict=True):
            view = vector_view(vector, text_bytes=size.bytes)
            under: Mapping[str, NodeView] = {}
            if _may_be_long(vector, size.bytes + NAMES_BYTES * size.chunks, limit):
                cuts = await self._cut(tx, view)
                view, under = divided(view, cuts, self._spec)
                leaves = (one for one in under.values() if one.is_leaf)
                ordered = sorted(leaves, key=lambda one: one.start)
                self._cuts |= dict(zip((one.node_id for one in ordered), cuts, strict=False))
            self._views |= {view.node_id: view, **under}

    async def _cut(self, tx: Transaction, view: NodeView) -> Sequence[Cut]:
        pieces = await pieces_between(tx, self._asked.session_key, view.start, view.end)
        segmenter = Segmenter(self._spec.segment_tokens, self._cutter, view.start)
        return await beside(lambda: [*segmenter.feed(pieces), *segmenter.finish()])

    async def _best(self, ask: BestLeaves) -> tuple[tuple[NodeView, ...], ...]:
        tail = [
            StatePiece(node_id=one, text=cut.text, tokens=cut.tokens)
            for one, cut in self._levels.tail.items()
        ]
        leaves = [one for one in self._levels.placed if one.level == STEPS_LEVEL]
        async with self._database.transaction(self._tenant_id, name="answer") as tx:
            ids = await best_pieces(
                tx,
                self._asked.session_key,
                leaves,
                tail,
                read=lambda revisions: self._pieces_under(tx, revisions),
                query=ask.query,
                count=ask.count,
            )
            above = self._above()
            paths = [tuple(_path(one, above, self._root.node_id))[::-1] for one in ids]
            await self._look_at(tx, dict.fromkeys(node for path in paths for node in path))
        return tuple(tuple(self._views[node] for node in path) for path in paths)

    async def _pieces_under(
        self, tx: Transaction, revisions: Sequence[int]
    ) -> Sequence[StatePiece]:
        """What has text under these vectors of steps, with its text."""
        ids = [vector_id(STEPS_LEVEL, one) for one in revisions]
        await self._look_at(tx, ids)
        found: list[StatePiece] = []
        for node_id in ids:
            view = self._views[node_id]
            cuts = {one: cut for one, cut in self._cuts.items() if one.startswith(f"{node_id}.")}
            if view.is_leaf:
                text = joined(
                    await pieces_between(tx, self._asked.session_key, view.start, view.end)
                )
                found.append(StatePiece(node_id=node_id, text=text, tokens=view.text_tokens))
            found += [
                StatePiece(node_id=n, text=cut.text, tokens=cut.tokens) for n, cut in cuts.items()
            ]
        return found

    def _above(self) -> Mapping[str, str]:
        """The parent of each node below the root that is known of."""
        made = (*self._levels.forest.views.values(), *self._views.values())
        above = {child: view.node_id for view in made for child in view.children}
        return above | {
            vector_id(one.level, one.revision): vector_id(one.level + 1, one.parent)
            for one in self._levels.placed
            if one.parent is not None
        }


def _may_be_long(vector: StateVector, most_bytes: int, limit: int) -> bool:
    return vector.level == STEPS_LEVEL and most_bytes > limit


def _path(node_id: str, above: Mapping[str, str], root: str) -> Iterator[str]:
    """From a node up to a child of the root."""
    while node_id != root:
        yield node_id
        node_id = above[node_id]


async def _levels(
    held: LogRange, asked: StoredAnswer, spec: TreeSpec, cutter: Cutter, tail_bytes: int
) -> ContextForest | None:
    key = asked.session_key, asked.memory_id
    async with held.database.transaction(held.tenant_id, name="answer") as tx:
        lineage = await history.lineage(tx, *key, asked.revision)
        placed = await views.list_placed(tx, key, lineage)
        state = await vectors.read_state(tx, *key, asked.revision)
        tops = await _tops(tx, key, [one for one in placed if one.parent is None], spec)
    assert state is not None, "the answer's foreign key holds its revision"
    tail = await read_tail(
        held,
        TextOffset(state.applied_position + 1),
        segment_tokens=spec.segment_tokens,
        cutter=cutter,
        max_bytes=tail_bytes,
        left_out=asked.left_out,
    )
    forest = await beside(forest_of, tops, tail.cuts, spec)
    if forest is None:
        return None
    named = {f"t.{number}": cut for number, cut in enumerate(tail.cuts, 1)}
    return ContextForest(forest=forest, tail=named, placed=placed, left_out=tail.left_out)


async def _tops(
    tx: Transaction, key: tuple[UUID, UUID], placed: Sequence[Placed], spec: TreeSpec
) -> Sequence[NodeView]:
    """The vectors on top, with as much of their texts as made-up summaries show."""
    # A made-up node has two children or more, which share its summary.
    share = TOKEN_BYTES * -(-spec.summary_tokens // 2)
    characters = min(share, TOPS_CHARACTERS // max(len(placed), 1))
    texts = await views.read_beginnings(tx, key, [one.revision for one in placed], characters)
    ranges = [(one.from_position, one.to_position) for one in placed]
    sizes = await views.read_range_words(tx, key[0], ranges)
    return [
        NodeView(
            node_id=vector_id(one.level, one.revision),
            level=one.level,
            summary=texts[one.revision],
            children=(),
            start=TextOffset(one.from_position + 1),
            end=TextOffset(one.to_position + 1),
            text_tokens=-(-size.bytes // TOKEN_BYTES),
            is_stored=True,
        )
        for one, size in zip(placed, sizes, strict=True)
    ]
