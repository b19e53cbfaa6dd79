"""Requests schemas, and generates them in workers."""

from dataclasses import dataclass
from uuid import UUID, uuid4

from service.domain.calls.ledger import CallScope
from service.domain.memories.long_operations import OperationId, OperationKind
from service.domain.prism.schemas import generation as schema_generation
from service.domain.values.tenancy import session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.gateway.driver import drive
from service.settings.config import Limits
from service.telemetry import tracing
from service.usecases.log.idempotency import store_result
from service.usecases.log.lookup import session_not_found
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.long_operations import FoundOperation, request
from service.usecases.memories.on_demand import OnDemandJob, too_many_pending
from storage.engine import trace_contexts
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.prism import schema_drafts
from storage.prism.schema_drafts import StoredSchemaDraft


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaRequest:
    """What a schema is requested for."""

    session: str
    #: What the texts are.
    domain: str
    #: A question of the kind that will be asked.
    example_query: str
    #: As provider/name; empty for the service's default.
    model: str


class Schemas:
    """What clients do with schemas, in one server process."""

    def __init__(
        self,
        database: Database,
        wake_ups: WakeUps,
        *,
        max_pending: int = Limits().max_pending_answers,
    ) -> None:
        """At most `max_pending` schemas of a tenant are pending at once."""
        self._database = database
        self._wake_ups = wake_ups
        self._max_pending = max_pending

    async def generate(self, tenant_id: UUID, wanted: SchemaRequest) -> FoundOperation:
        """Has a worker generate a schema. Raises NotFound, Exhausted."""
        key = session_key(tenant_id, wanted.session)
        draft_id = uuid4()
        asking = tracing.sampled()
        async with self._database.transaction(tenant_id, name="schemas") as tx:
            if await sessions.keep(tx, key) is None:
                raise session_not_found(wanted.session)
            stored = await schema_drafts.create(
                tx,
                session_key=key,
                draft_id=draft_id,
                domain=wanted.domain,
                example_query=wanted.example_query,
                model=wanted.model,
                max_pending=self._max_pending,
            )
            if not stored:
                raise too_many_pending("schemas", self._max_pending)
            if asking is not None:
                await trace_contexts.add(tx, key, draft_id, 0, asking)
            id = OperationId(session_key=key, operation_id=draft_id)
            operation = await request(tx, id, OperationKind.SCHEMA)
            await store_result(tx, operation)
        item = WorkItem(
            kind=WorkKind.SCHEMA, tenant_id=tenant_id, session_key=key, item_id=draft_id
        )
        self._wake_ups.add([item])
        return operation


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
