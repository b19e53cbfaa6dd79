"""Generating: a worker makes the schema that a draft stands for."""

from service.config import Config
from service.domain import schema_generation
from service.domain.ledger import CallScope
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.llm.gateway import Gateway
from service.telemetry import tracer
from service.usecases.making import put_off
from service.usecases.schemas import occasion
from storage import schema_drafts
from storage.database import Database
from storage.errors import StorageError
from storage.schema_drafts import StoredSchemaDraft


class Generator:
    """Makes schemas in one worker process."""

    def __init__(
        self, database: Database, gateway: Gateway, marker_key: bytes, config: Config
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._marker_key = marker_key
        self._config = config

    async def make(self, item: WorkItem) -> None:
        """Makes a pending draft's schema; does nothing when it is settled.

        Two workers may do it at once after a crash: the journal makes them share the
        model calls, and the first to store the schema wins. Raises StorageError.
        """
        async with self._database.transaction(item.tenant_id) as tx:
            wanted = await schema_drafts.get(tx, item.session_key, item.item_id)
        if wanted is None or wanted.status != "pending":
            return
        with tracer().start_as_current_span("palimpsest.schema"):
            try:
                await self._generate(item, wanted)
            except StorageError:
                raise
            except Exception as error:
                # A description that breaks the flow must fail, not kill its worker.
                await put_off(
                    self._database, self._config, item, attempts=wanted.attempts, error=error
                )

    async def _generate(self, item: WorkItem, wanted: StoredSchemaDraft) -> None:
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
        async with self._database.transaction(item.tenant_id) as tx:
            await schema_drafts.complete(
                tx,
                wanted.session_key,
                wanted.draft_id,
                source=draft.source,
                model=draft.model,
                replies=draft.attempts,
            )
