"""PRISM and PCC through the service: their memories are made, and asked."""

from dataclasses import dataclass

import palimpsest
from evaluation.asking import ask, request_of
from evaluation.datasets import Document, Question
from evaluation.schemas import DOMAINS, GENERAL, TASK, SchemaChoice
from evaluation.sessions import Place, building, create, until
from evaluation.strategies import Failed, Outcome, Prepared

PRISM, STATE = "prism", "state"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySettings:
    """How memories are made; 0 and empty mean the service's defaults."""

    schema: SchemaChoice = SchemaChoice.GENERAL
    #: For PRISM memories: tokens of a step.
    chunk_tokens: int = 0
    #: For state memories: chunks that are compressed at once, and tokens of a vector.
    period: int = 0
    state_tokens: int = 0
    #: As provider/name.
    model: str = ""


class PrismStrategy:
    """Reads the document into a structured memory, and asks it for its final answers."""

    def __init__(self, place: Place, settings: MemorySettings) -> None:
        self._place = place
        self._settings = settings

    async def prepare(self, document: Document) -> Prepared:
        """Makes the document's memory; one that is there already is kept."""
        head = len(document.chunks)
        try:
            session = await self._place.opened(document)
            await create(lambda: self._create(session, document))
            memory = session.memory(PRISM)
            await memory.flush()
            seconds = self._place.timeout_seconds
            await until(memory, lambda info: info.applied_position >= head, seconds)
            spent = await building(session, PRISM)
        except palimpsest.PalimpsestError as error:
            raise Failed(f"the memory was not made: {error}") from error
        return Prepared(session=session.id, spent=spent)

    async def _create(self, session: palimpsest.Session, document: Document) -> None:
        await session.create_memory(
            PRISM,
            schema_source=await self._schema(session, document),
            task=TASK,
            chunk_tokens=self._settings.chunk_tokens,
            model=self._settings.model,
        )

    async def _schema(self, session: palimpsest.Session, document: Document) -> str:
        if self._settings.schema is SchemaChoice.GENERAL:
            return GENERAL
        schema = await session.generate_schema(
            DOMAINS[document.chunks[0].kind],
            document.questions[0].text,
            model=self._settings.model,
            timeout=self._place.timeout_seconds,
        )
        return schema.schema_source

    async def ask(self, document: Document, prepared: Prepared, question: Question) -> Outcome:
        """Returns the memory's answer, with the chunks that what it rests on was written from."""
        request = request_of(question, session=prepared.session, memory=PRISM)
        asked = await ask(self._place.client, request, self._place.timeout_seconds)
        return asked.outcome(seen=None, cited=asked.cited)


class PccStrategy:
    """Compresses the document as an agent's steps are, and asks the working context."""

    def __init__(self, place: Place, settings: MemorySettings) -> None:
        self._place = place
        self._settings = settings

    async def prepare(self, document: Document) -> Prepared:
        """Makes the document's memory; one that is there already is kept."""
        settings = self._settings
        try:
            session = await self._place.opened(document)
            await create(
                lambda: session.create_state(
                    STATE,
                    task=TASK,
                    period=settings.period,
                    state_tokens=settings.state_tokens,
                    model=settings.model,
                )
            )
            state = session.state(STATE)
            info = await until(state, lambda info: info.idle, self._place.timeout_seconds)
            spent = await building(session, STATE)
        except palimpsest.PalimpsestError as error:
            raise Failed(f"the memory was not made: {error}") from error
        return Prepared(
            session=session.id, spent=spent, state=recent(info.applied_position, document)
        )

    async def ask(self, document: Document, prepared: Prepared, question: Question) -> Outcome:
        """Answers from the working context, which shows the newest chunks as they are."""
        assert isinstance(prepared.state, frozenset), "prepare() made it"
        request = request_of(question, session=prepared.session, memory=STATE)
        asked = await ask(self._place.client, request, self._place.timeout_seconds)
        return asked.outcome(seen=prepared.state, cited=asked.covered)


def recent(applied_position: int, document: Document) -> frozenset[int]:
    """Positions of the chunks that are not compressed."""
    return frozenset(range(applied_position + 1, len(document.chunks) + 1))
