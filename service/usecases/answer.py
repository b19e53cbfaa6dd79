"""Answering: a worker makes the answer to a stored question."""

from collections.abc import Sequence

import structlog

from service.config import Config
from service.domain import prism
from service.domain.citations import best_position
from service.domain.json_values import Json, canonical, parse
from service.domain.ledger import CallScope
from service.domain.paths import Path
from service.domain.prism import AnswerDraft, PrismMemory, PrismSpec
from service.domain.provenance import Write, origin
from service.domain.schema_source import parse_source
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.llm.gateway import Gateway
from service.llm.transport import ModelFailure
from service.telemetry import tracer
from service.usecases.ask import occasion
from storage import amendment_log, answers, log, memories
from storage.answers import StoredAnswer, StoredCitation
from storage.database import Database, Transaction
from storage.errors import StorageError

_log = structlog.get_logger("palimpsest.answer")

#: Characters of a cited value that an answer repeats.
EXCERPT_CHARACTERS = 500
#: Citations that an answer keeps.
MAX_CITATIONS = 20


class Answerer:
    """Makes answers in one worker process."""

    def __init__(
        self, database: Database, gateway: Gateway, marker_key: bytes, config: Config
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._marker_key = marker_key
        self._config = config

    async def make(self, item: WorkItem) -> None:
        """Answers a pending question; does nothing when it is settled.

        Two workers may do it at once after a crash: the journal makes them share the
        model call, and the first to store the answer wins. Raises StorageError.
        """
        async with self._database.transaction(item.tenant_id) as tx:
            asked = await answers.get(tx, item.session_key, item.item_id)
        if asked is None or asked.status != "pending":
            return
        with tracer().start_as_current_span("palimpsest.answer"):
            try:
                await self._answer(item, asked)
            except StorageError:
                raise
            except Exception as error:
                # A question that breaks the reader must fail, not kill its worker.
                await self._failed(item, asked, error)

    async def _answer(self, item: WorkItem, asked: StoredAnswer) -> None:
        async with self._database.transaction(item.tenant_id) as tx:
            memory = await _load(tx, asked)
        spec = PrismSpec.from_json(asked.spec)
        model = spec.model or self._config.model
        scope = CallScope(
            tenant_id=item.tenant_id,
            session_key=asked.session_key,
            memory_id=asked.memory_id,
            occasion=occasion(asked.answer_id),
        )
        flow = prism.answer(spec, memory, asked.query, marker_key=self._marker_key)
        draft = await drive(flow, lambda ask: self._gateway.call(ask, model=model, scope=scope))
        async with self._database.transaction(item.tenant_id) as tx:
            citations = await _cite(tx, asked, memory, draft)
            await answers.complete(
                tx,
                asked.session_key,
                asked.answer_id,
                text=draft.text,
                citations=citations,
                model=model,
            )

    async def _failed(self, item: WorkItem, asked: StoredAnswer, error: Exception) -> None:
        known = isinstance(error, ModelFailure)
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
        _log.warning(
            "answer failed",
            answer=str(asked.answer_id),
            attempt=asked.attempts + 1,
            cause=cause,
            exc_info=None if known else error,
        )
        final = isinstance(error, ModelFailure) and not error.retryable
        async with self._database.transaction(item.tenant_id) as tx:
            if final or asked.attempts + 1 >= self._config.step_tries:
                await answers.fail(tx, asked.session_key, asked.answer_id, cause)
            else:
                seconds = self._config.step_backoff_seconds * 2**asked.attempts
                await answers.back_off(tx, asked.session_key, asked.answer_id, seconds)


async def _load(tx: Transaction, asked: StoredAnswer) -> PrismMemory:
    rows = await memories.read_prism(tx, asked.session_key, asked.memory_id, asked.revision)
    assert rows is not None, "the answer's foreign key holds its revision"
    return PrismMemory.load(
        parse_source(PrismSpec.from_json(asked.spec).schema_source),
        base_json=rows.base,
        base_revision=rows.base_revision,
        amendments=rows.amendments,
    )


async def _cite(
    tx: Transaction, asked: StoredAnswer, memory: PrismMemory, draft: AnswerDraft
) -> Sequence[StoredCitation]:
    """Follows each path of the draft back to the chunk that it came from."""
    found: list[tuple[Path, Json, int]] = []
    for path in draft.paths[:MAX_CITATIONS]:
        value = memory.value_at(path)
        written = await amendment_log.find_writers(
            tx, asked.session_key, asked.memory_id, str(path), asked.revision
        )
        writes = [
            Write(revision=w.revision, path=Path.parse(w.path), value=parse(w.value))
            for w in written
        ]
        revision = origin(path, value, writes)
        if revision is not None:
            found.append((path, value, revision))
    ranges = await amendment_log.read_ranges(
        tx, asked.session_key, asked.memory_id, [revision for _, _, revision in found]
    )
    texts = await log.read_texts(tx, asked.session_key, list(ranges.values()))
    citations: dict[tuple[int, str], StoredCitation] = {}
    for path, value, revision in found:
        excerpt = value if isinstance(value, str) else canonical(value)
        first, last = ranges[revision]
        shown = [(p, texts[p]) for p in range(first + 1, last + 1)]
        position = best_position(excerpt, shown)
        citations[(position, str(path))] = StoredCitation(
            position=position,
            path=str(path),
            revision=revision,
            excerpt=excerpt[:EXCERPT_CHARACTERS],
        )
    return list(citations.values())
