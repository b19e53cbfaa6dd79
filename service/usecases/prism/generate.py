"""Completes schema drafts in a worker."""

from service.domain.calls.ledger import CallScope
from service.domain.prism.schemas import generation as schema_generation
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.usecases.memories.on_demand import OnDemandJob
from storage.engine.database import Transaction
from storage.prism import schema_drafts
from storage.prism.schema_drafts import StoredSchemaDraft


class Generator(OnDemandJob[StoredSchemaDraft]):
    """Makes schemas in one worker process."""

    async def find(self, tx: Transaction, item: WorkItem) -> StoredSchemaDraft | None:
        """Returns the draft."""
        return await schema_drafts.get(tx, item.session_key, item.item_id)

    async def produce(self, item: WorkItem, pending: StoredSchemaDraft) -> None:
        """Asks the model until its schema can be read."""
        model = pending.model or self._config.model
        scope = CallScope(
            tenant_id=item.tenant_id,
            session_key=pending.session_key,
            memory_id=None,
            occasion=schema_drafts.occasion(pending.draft_id),
            incarnation=pending.incarnation,
        )
        flow = schema_generation.generate(
            pending.domain, pending.example_query, marker_key=self._marker_key
        )
        draft = await drive(flow, lambda ask: self._gateway.call(ask, model=model, scope=scope))
        async with self._database.transaction(item.tenant_id, name="schemas") as tx:
            await schema_drafts.complete(
                tx,
                pending.session_key,
                pending.draft_id,
                source=draft.source,
                model=draft.model,
                replies=draft.attempts,
            )
