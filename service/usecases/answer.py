"""Answering: a worker makes the answer to a stored question."""

from service.domain.ledger import CallScope
from service.domain.prism import asking as prism
from service.domain.prism.memory import PrismMemory
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.usecases.ask import occasion
from service.usecases.citing import cite
from service.usecases.making import Maker
from storage import answers, states
from storage.answers import StoredAnswer
from storage.database import Transaction


class Answerer(Maker[StoredAnswer]):
    """Makes answers in one worker process."""

    kind = "answer"

    async def find(self, tx: Transaction, item: WorkItem) -> StoredAnswer | None:
        """The question."""
        return await answers.get(tx, item.session_key, item.item_id)

    async def produce(self, item: WorkItem, wanted: StoredAnswer) -> None:
        """Reads the memory as it was when the question came, and cites it."""
        async with self._database.transaction(item.tenant_id) as tx:
            memory = await _load(tx, wanted)
        spec = wanted.prism
        model = spec.model or self._config.model
        scope = CallScope(
            tenant_id=item.tenant_id,
            session_key=wanted.session_key,
            memory_id=wanted.memory_id,
            occasion=occasion(wanted.answer_id),
        )
        flow = prism.answer(spec, memory, wanted.query, marker_key=self._marker_key)
        draft = await drive(flow, lambda ask: self._gateway.call(ask, model=model, scope=scope))
        async with self._database.transaction(item.tenant_id) as tx:
            key = (wanted.session_key, wanted.memory_id)
            citations = await cite(tx, key, memory, draft.paths, wanted.revision)
            await answers.complete(
                tx,
                wanted.session_key,
                wanted.answer_id,
                text=draft.text,
                citations=citations,
                model=model,
            )


async def _load(tx: Transaction, asked: StoredAnswer) -> PrismMemory:
    spec = asked.prism
    rows = await states.read_for_prompts(
        tx, asked.session_key, asked.memory_id, asked.revision, spec.encoding
    )
    assert rows is not None, "the answer's foreign key holds its revision"
    return PrismMemory.load(
        spec.schema(), base_json=rows.base, amendments=rows.amendments, encoding=spec.encoding
    )
