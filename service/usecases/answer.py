"""Answering: a worker makes the answer to a stored question."""

from service.config import Config
from service.domain import prism
from service.domain.ledger import CallScope
from service.domain.prism_memory import PrismMemory
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.llm.gateway import Gateway
from service.telemetry import tracer
from service.usecases.ask import occasion
from service.usecases.citing import cite
from service.usecases.making import put_off
from storage import answers, states
from storage.answers import StoredAnswer
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
            key = (asked.session_key, asked.memory_id)
            citations = await cite(tx, key, memory, draft.paths, asked.revision)
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
