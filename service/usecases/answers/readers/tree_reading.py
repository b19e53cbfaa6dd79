"""Reads a tree as a navigation does: one forest, as of when the question was asked."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from service.domain.tree.forest import forest_of, view_of
from service.domain.tree.nodes import BestLeaves, TextOffset
from service.domain.tree.spec import TreeSpec
from service.llm.offloading import beside
from service.usecases.answers.readers.levels import LevelsReader
from service.usecases.answers.readers.log_range import log_of
from service.usecases.answers.readers.tails import read_tail
from service.usecases.answers.readers.tree_retrieval import NodeText, best_leaves
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database, Transaction
from storage.tree import views
from storage.tree.views import StoredNode


class TreeReader(LevelsReader):
    """Reads a tree."""

    noun = "tree"

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
    ) -> "TreeReader | None":
        """Opens the tree that a question is asked of; returns None when there is no text.

        `count` is that of the model that builds it. Of text that has no leaf it holds at most
        `tail_bytes`.
        """
        async with database.transaction(tenant_id, name="answer") as tx:
            tops = await views.read_tops(tx, asked.session_key, asked.memory_id, asked.revision)
        tail = await read_tail(
            log_of(database, tenant_id, asked),
            tops[-1].node.end if tops else TextOffset(1),
            segment_tokens=spec.segment_tokens,
            max_bytes=tail_bytes,
            left_out=asked.left_out,
        )
        views_of_tops = [view_of(top.node) for top in tops]
        forest = await beside(forest_of, views_of_tops, tail.cuts, spec, count)
        if forest is None:
            return None
        return cls(database, tenant_id, asked, forest, tail)

    async def _look_up(self, tx: Transaction, ids: Iterable[str]) -> None:
        wanted = [one for one in ids if one not in self._views]
        if wanted:
            await self._nodes(tx, wanted)

    async def _revision_of(self, tx: Transaction, node_id: str) -> int:
        return (await self._nodes(tx, [node_id]))[node_id].revision

    async def _best_of(
        self, tx: Transaction, ask: BestLeaves, tail: Sequence[NodeText]
    ) -> Sequence[str]:
        key = self._asked.session_key, self._asked.memory_id
        return await best_leaves(
            tx, key, revision=self._asked.revision, tail=tail, query=ask.query, count=ask.count
        )

    async def _above(self, tx: Transaction, ids: Sequence[str]) -> Mapping[str, str]:
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

    async def _nodes(self, tx: Transaction, ids: Sequence[str]) -> Mapping[str, StoredNode]:
        asked = self._asked
        found = await views.read_nodes(tx, asked.session_key, asked.memory_id, ids, asked.revision)
        self._views |= {one: view_of(stored.node) for one, stored in found.items()}
        return found
