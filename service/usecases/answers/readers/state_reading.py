"""Reads the levels of a state memory as a navigation does, as of when the question came.

What all vectors of the lineage cover is listed without their texts; texts come with the nodes
that the navigation sees. What no vector covers, because a rollback or a level that began anew
left it out, is not shown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from service.domain.prompting.tokens import TOKEN_BYTES, estimate_tokens
from service.domain.state.navigating import (
    divided,
    revision_of,
    vector_id,
    vector_view,
)
from service.domain.state.vectors import STEPS_LEVEL, StateVector
from service.domain.tree.forest import Forest, forest_of
from service.domain.tree.nodes import BestLeaves, NodeView, TextOffset
from service.domain.tree.segmenting import Cut, Segmenter, joined
from service.domain.tree.spec import TreeSpec
from service.llm.offloading import beside
from service.llm.splitter import first_piece
from service.usecases.answers.readers.levels import LevelsReader
from service.usecases.answers.readers.log_range import log_of
from service.usecases.answers.readers.state_retrieval import best_pieces
from service.usecases.answers.readers.tails import TailCuts, pieces_between, read_tail
from service.usecases.answers.readers.tree_retrieval import NodeText
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


class StateReader(LevelsReader):
    """Reads the levels of a state memory."""

    noun = "memory"

    def __init__(
        self,
        database: Database,
        tenant_id: UUID,
        asked: StoredAnswer,
        forest: Forest,
        tail: TailCuts,
        *,
        placed: Sequence[Placed],
        spec: TreeSpec,
    ) -> None:
        """`placed`: all vectors of the lineage, in the order of the log."""
        super().__init__(database, tenant_id, asked, forest, tail)
        self._placed = placed
        self._spec = spec
        # Vectors are shown only once they were looked up.
        self._views = {view.node_id: view for view in forest.views.values() if not view.is_stored}

    @classmethod
    async def open(
        cls,
        database: Database,
        tenant_id: UUID,
        asked: StoredAnswer,
        *,
        spec: TreeSpec,
        count: Callable[[str], int],
        tail_bytes: int,
    ) -> "StateReader | None":
        """Opens the levels that a question is asked of; returns None when there is no text.

        Of steps that no vector covers yet it holds at most `tail_bytes`.
        """
        key = asked.session_key, asked.memory_id
        async with database.transaction(tenant_id, name="answer") as tx:
            lineage = await history.lineage(tx, *key, asked.revision)
            placed = await views.list_placed(tx, key, lineage)
            state = await vectors.read_state(tx, *key, asked.revision)
            tops = await _tops(tx, key, [one for one in placed if one.parent is None], spec)
        assert state is not None, "the answer's foreign key keeps its revision"
        tail = await read_tail(
            log_of(database, tenant_id, asked),
            TextOffset(state.applied_position + 1),
            segment_tokens=spec.segment_tokens,
            max_bytes=tail_bytes,
            left_out=asked.left_out,
        )
        # Sizes are estimated, whatever the model: there may be ten thousand tops.
        forest = await beside(forest_of, tops, tail.cuts, spec, estimate_tokens)
        if forest is None:
            return None
        reader = cls(*(database, tenant_id, asked, forest, tail), placed=placed, spec=spec)
        if forest.root.is_stored:
            async with database.transaction(tenant_id, name="answer") as tx:
                await reader._look_up(tx, [forest.root.node_id])
            reader.root = reader._views[forest.root.node_id]
        return reader

    async def _revision_of(self, tx: Transaction, node_id: str) -> int:
        return revision_of(node_id)

    async def _look_up(self, tx: Transaction, ids: Iterable[str]) -> None:
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
        segmenter = Segmenter(self._spec.segment_tokens, first_piece, view.start)
        return await beside(lambda: [*segmenter.feed(pieces), *segmenter.finish()])

    async def _best_of(
        self, tx: Transaction, ask: BestLeaves, tail: Sequence[NodeText]
    ) -> Sequence[str]:
        return await best_pieces(
            tx,
            self._asked.session_key,
            [one for one in self._placed if one.level == STEPS_LEVEL],
            tail,
            read=lambda revisions: self._pieces_under(tx, revisions),
            query=ask.query,
            count=ask.count,
        )

    async def _pieces_under(self, tx: Transaction, revisions: Sequence[int]) -> Sequence[NodeText]:
        """Returns what has text under these vectors of steps, with its text."""
        ids = [vector_id(STEPS_LEVEL, one) for one in revisions]
        await self._look_up(tx, ids)
        found: list[NodeText] = []
        for node_id in ids:
            view = self._views[node_id]
            cuts = {one: cut for one, cut in self._cuts.items() if one.startswith(f"{node_id}.")}
            if view.is_leaf:
                text = joined(
                    await pieces_between(tx, self._asked.session_key, view.start, view.end)
                )
                found.append(NodeText(node_id=node_id, text=text, tokens=view.text_tokens))
            found += [
                NodeText(node_id=n, text=cut.text, tokens=cut.tokens) for n, cut in cuts.items()
            ]
        return found

    async def _above(self, tx: Transaction, ids: Sequence[str]) -> Mapping[str, str]:
        made = (*self._forest.views.values(), *self._views.values())
        above = {child: view.node_id for view in made for child in view.children}
        return above | {
            vector_id(one.level, one.revision): vector_id(one.level + 1, one.parent)
            for one in self._placed
            if one.parent is not None
        }


def _may_be_long(vector: StateVector, most_bytes: int, limit: int) -> bool:
    return vector.level == STEPS_LEVEL and most_bytes > limit


async def _tops(
    tx: Transaction, key: tuple[UUID, UUID], placed: Sequence[Placed], spec: TreeSpec
) -> Sequence[NodeView]:
    """Reads the vectors on top, with as much of their texts as made-up summaries show."""
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
