"""MemWalker through the service itself: what any client does, and nothing else."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import palimpsest
from palimpsest import values
from palimpsest.navigation_values import TrajectoryEvent
from palimpsest.trees import Tree
from service.domain.chunks import ChunkKind
from service.evaluation.datasets import Document, Question
from service.evaluation.strategies import Failed, Outcome, Prepared, Spent, Walk, added

MEMORY = "tree"
PRODUCER = "eval"
#: What the ledger calls the building of a tree.
_BUILDING = "summarize"


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


class MemWalkerStrategy:
    """Streams a document into a session, seals its tree, and asks it."""

    def __init__(
        self,
        client: palimpsest.Client,
        settings: TreeSettings,
        *,
        timeout_seconds: float,
        session_of: Callable[[Document], str],
    ) -> None:
        self._client = client
        self._settings = settings
        self._timeout = timeout_seconds
        self._session_of = session_of

    async def prepare(self, document: Document) -> Prepared:
        """Appends the document and builds its tree; one that is there already is kept."""
        name = self._session_of(document)
        try:
            session = await self._client.create_session(name, exist_ok=True)
            tree = await self._tree(session)
            await _append(session, document)
            await tree.seal(on_progress=_Patience(self._timeout).look)
            report = await session.usage(MEMORY)
        except palimpsest.PalimpsestError as error:
            raise Failed(f"the tree was not built: {error}") from error
        building = [line.usage for line in report.lines if line.purpose == _BUILDING]
        return Prepared(session=name, spent=added(_spent(one) for one in building), state=tree)

    async def _tree(self, session: palimpsest.Session) -> Tree:
        settings = self._settings
        try:
            return await session.create_tree(
                MEMORY,
                segment_tokens=settings.segment_tokens,
                max_children=settings.max_children,
                summary_tokens=settings.summary_tokens,
                reasoning=settings.reasoning,
                model=settings.model,
            )
        except palimpsest.PalimpsestError as error:
            if error.reason != "MEMORY_EXISTS":
                raise
            return session.tree(MEMORY)

    async def ask(self, document: Document, prepared: Prepared, question: Question) -> Outcome:
        """The answer that the navigation found, with the leaves that it read."""
        assert isinstance(prepared.state, Tree), "prepare() made it"
        settings = self._settings
        leaves: list[TrajectoryEvent] = []

        def hear(event: object) -> None:
            if isinstance(event, TrajectoryEvent) and event.kind == "leaf":
                leaves.append(event)

        try:
            answer = await prepared.state.ask(
                question.text,
                options=question.options,
                hybrid_leaves=settings.hybrid_leaves,
                beam=settings.beam,
                max_calls=settings.max_calls,
                timeout=self._timeout,
                on_event=hear,
            )
        except palimpsest.PalimpsestError as error:
            raise Failed(str(error)) from error
        if answer.status != "complete":
            raise Failed(answer.failure or "the answer was not made")
        return _outcome(answer, leaves)


class _Patience:
    """Gives a tree up that does not grow."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._revision = -1
        self._until = 0.0

    def look(self, info: values.MemoryInfo) -> None:
        """Raises Failed when the tree was at this revision for too long."""
        now = time.monotonic()
        if info.revision != self._revision:
            self._revision, self._until = info.revision, now + self._seconds
        elif now > self._until:
            raise Failed(f"the tree did not grow for {self._seconds:g} s")


async def _append(session: palimpsest.Session, document: Document) -> None:
    async with session.producer(PRODUCER) as producer:
        # A run that goes on finds what an earlier one appended.
        for chunk in document.chunks[producer.last_acked_sequence :]:
            match chunk.kind:
                case ChunkKind.TEXT:
                    # Parts of a document are paragraphs, and say so by what is behind them.
                    await producer.append(f"{chunk.text}\n")
                case ChunkKind.MESSAGE:
                    await producer.append_message(chunk.role, chunk.text)
                case ChunkKind.STEP:
                    await producer.append_step(
                        observation=chunk.observation,
                        thought=chunk.thought,
                        action=chunk.action,
                    )


def _outcome(answer: values.Answer, leaves: Sequence[TrajectoryEvent]) -> Outcome:
    counts = answer.statistics
    return Outcome(
        text="" if answer.no_answer else answer.text,
        no_answer=answer.no_answer or "",
        model=answer.model,
        spent=_spent(answer.usage),
        seen=frozenset(at for one in leaves for at in _covered(one)),
        cited=frozenset(at for one in answer.citations for at in _covered(one)),
        answer_id=answer.answer_id,
        walk=None
        if counts is None
        else Walk(
            valid_actions=counts.valid_actions,
            invalid_actions=counts.invalid_actions,
            reverts=counts.reverts,
            leaves_read=counts.leaves_read,
            tokens=counts.tokens,
            text_tokens=counts.text_tokens,
        ),
    )


def _covered(node: TrajectoryEvent | values.Citation) -> range:
    return range(node.from_position, node.to_position + 1)


def _spent(used: values.Usage) -> Spent:
    return Spent(
        calls=used.calls,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cost_micro_usd=used.cost_micro_usd,
    )
