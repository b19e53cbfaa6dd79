"""Reads the levels of a memory as a navigation does: as of when the question was asked."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from service.domain.access.trust import least_trust
from service.domain.prompting.flows import Fetch
from service.domain.tree.borders import SegmentPiece
from service.domain.tree.forest import Forest
from service.domain.tree.nodes import BestLeaves, Children, LeafText, NodeView, Text
from service.domain.tree.segmenting import Cut, joined
from service.usecases.answers.readers.tails import TailCuts, pieces_between
from service.usecases.answers.readers.tree_retrieval import NodeText
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database, Transaction
from storage.operations import chunk_retention


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A leaf, or a piece of the tail, with its text."""

    view: NodeView
    #: The revision that committed it; of the tail, the one that is read.
    revision: int
    #: In the order of the text; one or more.
    pieces: Sequence[SegmentPiece]


class LevelsReader(ABC):
    """Looks up what a navigation asks for. Changes nothing, and may be called in parallel."""

    #: What a sentence calls the memory.
    noun: ClassVar[str]

    def __init__(
        self,
        database: Database,
        tenant_id: UUID,
        asked: StoredAnswer,
        forest: Forest,
        tail: TailCuts,
    ) -> None:
        #: Where a navigation begins.
        self.root = forest.root
        #: The first and the last chunk that a navigation does not reach; None: it reaches all.
        self.left_out = tail.left_out
        self._database = database
        self._tenant_id = tenant_id
        self._asked = asked
        self._forest = forest
        #: The nodes that were looked up, by id: they never change.
        self._views = dict(forest.views)
        self._tail = tail.named
        #: The text of nodes that is known, by their ids.
        self._cuts: dict[str, Cut] = dict(self._tail)

    async def fetch(self, ask: Fetch) -> Any:
        """Returns what the navigation asks for, as `service.domain.tree.nodes` defines it."""
        match ask:
            case Children():
                children = self._views[ask.node_id].children
                if not all(child in self._views for child in children):
                    async with self._database.transaction(self._tenant_id, name="answer") as tx:
                        await self._look_up(tx, children)
                return tuple(self._views[child] for child in children)
            case Text():
                cut = self._cuts.get(ask.node_id)
                if cut is not None:
                    return LeafText(text=cut.text, trust=cut.trust)
                held = await self.hold(ask.node_id)
                text = joined(held.pieces)
                is_left = text.strip() or not await self._is_expired(held.view)
                trust = least_trust(piece.trust for piece in held.pieces)
                return LeafText(text=text if is_left else held.view.summary, trust=trust)
            case BestLeaves():
                return await self._best(ask)
        raise TypeError(f"a {self.noun} is not asked for {type(ask).__name__}")

    async def hold(self, node_id: str) -> Held:
        """Returns what has text itself, with that text, chunk by chunk."""
        revision = self._asked.revision
        async with self._database.transaction(self._tenant_id, name="answer") as tx:
            if node_id not in self._tail:
                revision = await self._revision_of(tx, node_id)
            view = self._views[node_id]
            pieces = await pieces_between(tx, self._asked.session_key, view.start, view.end)
        return Held(view=view, revision=revision, pieces=pieces)

    async def _is_expired(self, view: NodeView) -> bool:
        """Returns whether all text under a node has expired: its summary is what is left."""
        async with self._database.transaction(self._tenant_id, name="answer") as tx:
            upto = await chunk_retention.expired_position(tx, self._asked.session_key)
        return upto is not None and view.end.last_position <= upto

    async def _best(self, ask: BestLeaves) -> tuple[tuple[NodeView, ...], ...]:
        tail = [
            NodeText(node_id=node_id, text=cut.text, tokens=cut.tokens)
            for node_id, cut in self._tail.items()
        ]
        async with self._database.transaction(self._tenant_id, name="answer") as tx:
            ids = await self._best_of(tx, ask, tail)
            above = await self._above(tx, ids)
            paths = [tuple(_path(one, above, self.root.node_id))[::-1] for one in ids]
            await self._look_up(tx, dict.fromkeys(node for path in paths for node in path))
        return tuple(tuple(self._views[node] for node in path) for path in paths)

    @abstractmethod
    async def _look_up(self, tx: Transaction, ids: Iterable[str]) -> None:
        """Reads the views of those of these nodes that were not looked up yet."""

    @abstractmethod
    async def _revision_of(self, tx: Transaction, node_id: str) -> int:
        """Returns the revision that committed a node."""

    @abstractmethod
    async def _best_of(
        self, tx: Transaction, ask: BestLeaves, tail: Sequence[NodeText]
    ) -> Sequence[str]:
        """Returns the ids of the leaves and pieces of the tail that fit best, best first."""

    @abstractmethod
    async def _above(self, tx: Transaction, ids: Sequence[str]) -> Mapping[str, str]:
        """Returns the parent of each node between these and the root."""


def _path(node_id: str, above: Mapping[str, str], root: str) -> Iterator[str]:
    """Yields the nodes from one up to a child of the root."""
    while node_id != root:
        yield node_id
        node_id = above[node_id]
