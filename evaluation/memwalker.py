"""MemWalker through the service itself: what any client does, and nothing else."""

from dataclasses import dataclass

import palimpsest
from evaluation.asking import ask, request_of
from evaluation.datasets import Document, Question
from evaluation.sessions import Place, building, create, until
from evaluation.strategies import Failed, Outcome, Prepared
from palimpsest.v1 import answer_service_pb2

MEMORY = "tree"


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSettings:
    """How trees are built and navigated; 0 and empty mean the service's defaults."""

    segment_tokens: int = 0
    max_children: int = 0
    summary_tokens: int = 0
    reasoning: bool = True
    hybrid_leaves: int = 0
    beam: int = 0
    max_calls: int = 0
    #: As provider/name.
    model: str = ""


def _is_sealed(info: palimpsest.MemoryInfo) -> bool:
    return info.status is palimpsest.MemoryStatus.SEALED


class MemWalkerStrategy:
    """Seals a tree over the document, and asks it."""

    def __init__(self, place: Place, settings: TreeSettings) -> None:
        self._place = place
        self._settings = settings

    async def prepare(self, document: Document) -> Prepared:
        """Builds the document's tree; one that is there already is kept."""
        try:
            session = await self._place.opened(document)
            await create(lambda: self._create(session))
            tree = session.tree(MEMORY)
            await tree.seal()
            await until(tree, _is_sealed, self._place.timeout_seconds)
            spent = await building(session, MEMORY)
        except palimpsest.PalimpsestError as error:
            raise Failed(f"the tree was not built: {error}") from error
        return Prepared(session=session.id, spent=spent)

    async def _create(self, session: palimpsest.Session) -> None:
        settings = self._settings
        await session.create_tree(
            MEMORY,
            segment_tokens=settings.segment_tokens,
            max_children=settings.max_children,
            summary_tokens=settings.summary_tokens,
            reasoning=settings.reasoning,
            model=settings.model,
        )

    async def ask(self, document: Document, prepared: Prepared, question: Question) -> Outcome:
        """Returns the answer that the navigation found, with the leaves that it read."""
        settings = self._settings
        navigation = answer_service_pb2.NavigationOptions(
            hybrid_leaves=settings.hybrid_leaves,
            beam=settings.beam,
            max_calls=settings.max_calls,
        )
        request = request_of(
            question, session=prepared.session, memory=MEMORY, navigation=navigation
        )
        asked = await ask(self._place.client, request, self._place.timeout_seconds)
        return asked.outcome(seen=asked.shown, cited=asked.covered)
