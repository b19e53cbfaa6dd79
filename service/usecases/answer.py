"""Answering: a worker makes the answer to a stored question."""

from collections.abc import Sequence

from service.config import Config
from service.domain import prism
from service.domain.citations import best_position
from service.domain.json_values import Json, canonical
from service.domain.ledger import CallScope
from service.domain.paths import Path
from service.domain.prism import AnswerDraft
from service.domain.prism_memory import PrismMemory
from service.domain.provenance import Touch, origin
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.llm.gateway import Gateway
from service.telemetry import tracer
from service.usecases.ask import occasion
from service.usecases.history import ORIGIN_AMENDMENTS, traced
from service.usecases.making import put_off
from storage import answers, log, states
from storage.amendment_log import LoggedAmendment
from storage.answers import StoredAnswer, StoredCitation
from storage.database import Database, Transaction
from storage.errors import StorageError

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
                await put_off(
                    self._database, self._config, item, attempts=asked.attempts, error=error
                )

    async def _answer(self, item: WorkItem, asked: StoredAnswer) -> None:
        async with self._database.transaction(item.tenant_id) as tx:
            memory = await _load(tx, asked)
        spec = asked.spec
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


async def _load(tx: Transaction, asked: StoredAnswer) -> PrismMemory:
    spec = asked.spec
    rows = await states.read_for_prompts(
        tx, asked.session_key, asked.memory_id, asked.revision, spec.encoding
    )
    assert rows is not None, "the answer's foreign key holds its revision"
    return PrismMemory.load(
        spec.schema(), base_json=rows.base, amendments=rows.amendments, encoding=spec.encoding
    )


async def _cite(
    tx: Transaction, asked: StoredAnswer, memory: PrismMemory, draft: AnswerDraft
) -> Sequence[StoredCitation]:
    """Follows each path of the draft back to the chunk that it came from."""
    found: list[tuple[Path, Json, LoggedAmendment]] = []
    for path in draft.paths[:MAX_CITATIONS]:
        value = memory.value_at(path)
        written = await _origin(tx, asked, path, value)
        if written is not None:
            found.append((path, value, written))
    ranges = {one.revision: (one.from_position, one.to_position) for _, _, one in found}
    texts = await log.read_texts(tx, asked.session_key, list(ranges.values()))
    citations: dict[tuple[int, str], StoredCitation] = {}
    for path, value, written in found:
        excerpt = value if isinstance(value, str) else canonical(value)
        first, last = ranges[written.revision]
        if first == last:
            # Written by hand, or merged from other values: no chunk says it.
            continue
        shown = [(p, texts[p]) for p in range(first + 1, last + 1)]
        position = best_position(excerpt, shown)
        citations[(position, str(path))] = StoredCitation(
            position=position,
            path=str(path),
            revision=written.revision,
            excerpt=excerpt[:EXCERPT_CHARACTERS],
        )
    return list(citations.values())


async def _origin(
    tx: Transaction, asked: StoredAnswer, path: Path, value: Json
) -> LoggedAmendment | None:
    """The amendment that first brought what `path` holds."""
    key = (asked.session_key, asked.memory_id)
    touches: list[Touch] = []
    logged: dict[tuple[int, int], LoggedAmendment] = {}
    async for one, touch in traced(tx, key, path, exists=True, at_revision=asked.revision):
        touches.append(touch)
        logged[(one.revision, one.ordinal)] = one
        if len(touches) >= ORIGIN_AMENDMENTS:
            break
    first = origin(value, touches)
    return None if first is None else logged[(first.revision, first.ordinal)]
