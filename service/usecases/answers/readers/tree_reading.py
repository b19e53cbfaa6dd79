"""Reading a tree as a navigation does: one forest, as of when the question was asked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from service.domain.prompting.flows import Fetch
from service.domain.prompting.splitting import Cutter
from service.domain.tree.forest import Forest, over, tail_views, view_of
from service.domain.tree.nodes import BestLeaves, Children, NodeView, Text, TextOffset
from service.domain.tree.segmenting import Cut, SegmentPiece, joined
from service.domain.tree.spec import TreeSpec
from service.llm.offloading import beside
from service.usecases.answers.readers.log_range import log_of
from service.usecases.answers.readers.tails import pieces_between, read_tail
from service.usecases.answers.readers.tree_retrieval import TailText, best_leaves
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database, Transaction
from storage.tree import views
from storage.tree.views import StoredNode


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A leaf, or a piece of the tail, with its text."""

    view: NodeView
    #: The revision that committed it; of the tail, the one that is read.
    revision: int
    #: In the order of the text; one or more.
    pieces: Sequence[SegmentPiece]


class TreeReader:
    """What a navigation looks up. It changes nothing and may be asked in parallel."""

    #: What a sentence calls the memory.
    noun = "tree"

    def __init__(
        self,
        database: Database,
        tenant_id: UUID,
        asked: StoredAnswer,
        forest: Forest,
        tail: Mapping[str, Cut],
        left_out: tuple[int, int] | None = None,
    ) -> None:
        #: The first and the last chunk of what a navigation does not get to; None: nothing.
        self.left_out = left_out
        self._database = database
        self._tenant_id = tenant_id
        self._asked = asked
        self._forest = forest
        self._tail = tail
        #: What was looked up, by id: a node never changes.
        self._views = dict(forest.views)

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
    ) -> "TreeReader | None":
        """The tree that a question is asked of; None when there is no text.

        `count` is that of the model that builds it. Of text that has no leaf it holds at most
        `tail_bytes`.
        """
        async with database.transaction(tenant_id, name="answer") as tx:
            tops = await views.read_tops(tx, asked.session_key, asked.memory_id, asked.revision)
        tail = await read_tail(
            log_of(database, tenant_id, asked),
            tops[-1].node.end if tops else TextOffset(1),
            segment_tokens=spec.segment_tokens,
            cutter=cutter,
            max_bytes=tail_bytes,
            left_out=asked.left_out,
        )
        forest = await beside(_forest, [view_of(top.node) for top in tops], tail.cuts, spec, count)
        if forest is None:
            return None
        named = {f"t.{number}": cut for number, cut in enumerate(tail.cuts, 1)}
        return cls(database, tenant_id, asked, forest, named, tail.left_out)

    @property
    def root(self) -> NodeView:
        """Where a navigation begins."""
        return self._forest.root

    async def fetch(self, ask: Fetch) -> Any:
        """What the navigation wants to know, as `service.domain.tree.nodes` says it."""
        match ask:
            case Children():
                return await self._children(ask.node_id)
            case Text():
                cut = self._tail.get(ask.node_id)
                if cut is not None:
                    return cut.text
                return joined((await self.hold(ask.node_id)).pieces)
            case BestLeaves():
                return await self._best(ask)
        raise TypeError(f"a tree is not asked for {type(ask).__name__}")

    async def hold(self, node_id: str) -> Held:
        """A leaf or a piece of the tail with its text, chunk by chunk."""
        key, revision = self._asked.session_key, self._asked.revision
        async with self._database.transaction(self._tenant_id, name="answer") as tx:
            if node_id not in self._tail:
                stored = (await self._nodes(tx, [node_id]))[node_id]
                revision = stored.revision
            view = self._views[node_id]
            pieces = await pieces_between(tx, key, view.start, view.end)
        return Held(view=view, revision=revision, pieces=pieces)

    async def _children(self, node_id: str) -> tuple[NodeView, ...]:
        view = self._views[node_id]
        if not all(child in self._views for child in view.children):
            async with self._database.transaction(self._tenant_id, name="answer") as tx:
                await self._nodes(tx, view.children)
        return tuple(self._views[child] for child in view.children)

    async def _best(self, ask: BestLeaves) -> tuple[tuple[NodeView, ...], ...]:
        key = self._asked.session_key, self._asked.memory_id
        tail = [
            TailText(node_id=node_id, text=cut.text, text_tokens=cut.tokens)
            for node_id, cut in self._tail.items()
        ]
        async with self._database.transaction(self._tenant_id, name="answer") as tx:
            ids = await best_leaves(
                tx,
                key,
                revision=self._asked.revision,
                tail=tail,
                query=ask.query,
                count=ask.count,
            )
            above = await self._above(tx, ids)
        return tuple(tuple(self._path(one, above))[::-1] for one in ids)

    async def _above(self, tx: Transaction, ids: Sequence[str]) -> Mapping[str, str]:
        """The parent of each node between these and the root."""
        above = {
            child: view.node_id for view in self._forest.views.values() for child in view.children
        }
        wanted = [one for one in ids if one not in self._forest.views]
        while wanted:
            found = await self._nodes(tx, wanted)
            parents = {one: stored.parent_id for one, stored in found.items()}
            above |= {one: parent for one, parent in parents.items() if parent is not None}
            nexts = dict.fromkeys(parent for parent in parents.values() if parent is not None)
            wanted = [one for one in nexts if one not in self._forest.views]
        return above

    def _path(self, node_id: str, above: Mapping[str, str]) -> Iterator[NodeView]:
        """From a node up to a child of the root."""
        while node_id != self.root.node_id:
            yield self._views[node_id]
            node_id = above[node_id]

    async def _nodes(self, tx: Transaction, ids: Sequence[str]) -> Mapping[str, StoredNode]:
        asked = self._asked
        found = await views.read_nodes(tx, asked.session_key, asked.memory_id, ids, asked.revision)
        self._views |= {one: view_of(stored.node) for one, stored in found.items()}
        return found


def _forest(
    tops: Sequence[NodeView], cuts: Sequence[Cut], spec: TreeSpec, count: Callable[[str], int]
) -> Forest | None:
    return over(
        tops,
        tail_views(cuts, spec.summary_tokens, count),
        max_children=spec.max_children,
        summary_tokens=spec.summary_tokens,
        count=count,
    )
