"""Generating: a worker makes the schema that a draft stands for."""

from service.domain.ledger import CallScope
from service.domain.schemas import generation as schema_generation
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.usecases.making import Maker
from service.usecases.schemas import occasion
from storage import schema_drafts
from storage.database import Transaction
from storage.schema_drafts import StoredSchemaDraft


class Generator(Maker[StoredSchemaDraft]):
    """Makes schemas in one worker process."""

    async def find(self, tx: Transaction, item: WorkItem) -> StoredSchemaDraft | None:
        """The draft."""
        return await schema_drafts.get(tx, item.session_key, item.item_id)

    async def produce(self, item: WorkItem, wanted: StoredSchemaDraft) -> None:
        """Asks the model until its schema can be read."""
        model = wanted.model or self._config.model
        scope = CallScope(
            tenant_id=item.tenant_id,
            session_key=wanted.session_key,
            memory_id=None,
            occasion=occasion(wanted.draft_id),
        )
        flow = schema_generation.generate(
            wanted.domain, wanted.example_query, marker_key=self._marker_key
        )
        draft = await drive(flow, lambda ask: self._gateway.call(ask, model=model, scope=scope))
        async with self._database.transaction(item.tenant_id, name="schemas") as tx:
            await schema_drafts.complete(
                tx,
                wanted.session_key,
                wanted.draft_id,
                source=draft.source,
                model=draft.model,
                replies=draft.attempts,
            )
