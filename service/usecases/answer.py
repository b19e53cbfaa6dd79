"""Answering: a worker makes the answer to a stored question."""

from collections.abc import Callable

from service.config import Config
from service.domain.ledger import CallScope
from service.domain.prism import asking as prism
from service.domain.prism.memory import PrismMemory
from service.domain.specs import MemoryKind, kind_of
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.llm.facts import ModelFacts
from service.llm.gateway import Gateway
from service.usecases.ask import occasion
from service.usecases.citing import cite
from service.usecases.making import Maker
from service.usecases.navigate import Navigator
from storage import answers, states
from storage.answers import StoredAnswer
from storage.database import Database, Transaction


class Answerer(Maker[StoredAnswer]):
    """Makes answers in one worker process."""

    kind = "answer"

    def __init__(
        self,
        database: Database,
        gateway: Gateway,
        facts: Callable[[str], ModelFacts],
        marker_key: bytes,
        config: Config,
    ) -> None:
        super().__init__(database, gateway, marker_key, config)
        self._navigator = Navigator(database, gateway, facts, marker_key, config)

    async def find(self, tx: Transaction, item: WorkItem) -> StoredAnswer | None:
        """The question."""
        return await answers.get(tx, item.session_key, item.item_id)

    async def produce(self, item: WorkItem, wanted: StoredAnswer) -> None:
        """Reads the memory as it was when the question came, by the reader of its kind."""
        if kind_of(wanted.spec) is MemoryKind.TREE:
            await self._navigate(item, wanted)
        else:
            await self._read(item, wanted)

    async def _navigate(self, item: WorkItem, wanted: StoredAnswer) -> None:
        navigated = await self._navigator.navigate(item, wanted)
        async with self._database.transaction(item.tenant_id) as tx:
            await answers.complete(
                tx,
                wanted.session_key,
                wanted.answer_id,
                text=navigated.text,
                citations=navigated.citations,
                model=navigated.model,
                no_answer=navigated.navigation.no_answer,
                statistics=navigated.navigation.statistics,
            )

    async def _read(self, item: WorkItem, wanted: StoredAnswer) -> None:
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
