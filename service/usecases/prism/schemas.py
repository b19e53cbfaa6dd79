"""Schemas: having one generated, and reading what was."""

from dataclasses import dataclass
from uuid import UUID, uuid4

from service.domain.memories.long_operations import OperationId, OperationKind
from service.domain.values.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidInput,
    NotFound,
    Unavailable,
)
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.settings.config import Limits
from service.telemetry import tracing
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.idempotency import is_open, store_result
from service.usecases.log.lookup import session_not_found
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories import long_operations
from service.usecases.memories.consistency import ProgressWatcher
from service.usecases.memories.long_operations import FoundOperation
from service.usecases.memories.on_demand import too_many_pending
from storage.calls import calls
from storage.calls.calls import UsageLine
from storage.engine import trace_contexts
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories import long_operations as stored_operations
from storage.prism import schema_drafts
from storage.prism.schema_drafts import StoredSchemaDraft


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaRequest:
    """What a schema is wanted for."""

    session: str
    #: What the texts are.
    domain: str
    #: A question of the kind that will be asked.
    example_query: str
    #: As provider/name; empty for the service's default.
    model: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafted:
    """A stored draft and what it cost."""

    draft: StoredSchemaDraft
    usage: tuple[UsageLine, ...]


class Schemas:
    """What clients do with schemas, in one server process."""

    def __init__(
        self,
        database: Database,
        wake_ups: WakeUps,
        watcher: ProgressWatcher,
        waiting: ConcurrencyLimiter,
        *,
        max_pending: int = Limits().max_pending_answers,
    ) -> None:
        """At most `max_pending` schemas of a tenant are pending at once."""
        self._database = database
        self._wake_ups = wake_ups
        self._watcher = watcher
        self._waiting = waiting
        self._max_pending = max_pending

    async def generate(
        self, tenant_id: UUID, wanted: SchemaRequest, *, deadline: float | None
    ) -> tuple[Drafted, FoundOperation]:
        """Has a worker generate a schema, and waits for it; returns also the operation.

        `deadline` is in the event loop's time. Raises InvalidInput, NotFound,
        FailedPrecondition (no schema could be made), DeadlineExceeded, Exhausted, Unavailable.
        """
        _refuse_nul(wanted)
        with self._waiting.slot():
            item = await self._store(tenant_id, wanted)
            self._wake_ups.add([item])
            try:
                in_time = await self._watcher.settled(item, deadline=deadline)
            except Unavailable as stopping:
                # Whoever would ask again would pay again.
                raise Unavailable(
                    stopping.reason,
                    f"{stopping.message}; draft {item.item_id} will have the schema",
                    {"draft": item.item_id},
                ) from stopping
        if not in_time:
            raise DeadlineExceeded(
                Reason.SCHEMA_NOT_READY_IN_TIME,
                f"the schema is still being made; draft {item.item_id} will have it",
                {"draft": item.item_id},
            )
        key = session_key(tenant_id, wanted.session)
        async with self._database.transaction(tenant_id, name="schemas") as tx:
            drafted = await _find(tx, wanted.session, key, item.item_id)
            operation = await long_operations.find(tx, _operation_id(key, item.item_id))
        if drafted.draft.status == "failed":
            raise FailedPrecondition(
                Reason.SCHEMA_NOT_GENERATED,
                f"no schema could be made: {drafted.draft.failure}",
                {"draft": item.item_id, "cause": drafted.draft.failure},
            )
        return drafted, operation

    async def get(self, tenant_id: UUID, session: str, draft_id: UUID) -> Drafted:
        """Reads a stored draft. Raises NotFound."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="schemas") as tx:
            return await _find(tx, session, key, draft_id)

    async def _store(self, tenant_id: UUID, wanted: SchemaRequest) -> WorkItem:
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
            operation_id = _operation_id(key, draft_id)
            await stored_operations.add(tx, operation_id, OperationKind.SCHEMA)
            if is_open():
                # A repeated request finds the draft by it, before and after it is complete.
                drafted = await _find(tx, wanted.session, key, draft_id)
                await store_result(tx, (drafted, await long_operations.find(tx, operation_id)))
        return WorkItem(
            kind=WorkKind.SCHEMA, tenant_id=tenant_id, session_key=key, item_id=draft_id
        )


async def _find(tx: Transaction, session: str, key: UUID, draft_id: UUID) -> Drafted:
    stored = await schema_drafts.get(tx, key, draft_id)
    if stored is None:
        if await sessions.get(tx, key) is None:
            raise session_not_found(session)
        raise NotFound(
            Reason.DRAFT_NOT_FOUND,
            f"session {session!r} has no schema draft {draft_id}",
            {"draft": draft_id},
        )
    usage = await calls.usage_of(tx, key, [occasion(draft_id)])
    return Drafted(draft=stored, usage=tuple(usage.get(occasion(draft_id), ())))


def _operation_id(key: UUID, draft_id: UUID) -> OperationId:
    return OperationId(session_key=key, operation_id=draft_id)


def occasion(draft_id: UUID) -> str:
    """The occasion of a draft's model calls, as the ledger names it."""
    return f"schema:{draft_id}"


def _refuse_nul(wanted: SchemaRequest) -> None:
    # The database keeps none.
    for field in ("domain", "example_query", "model"):
        if "\0" in getattr(wanted, field):
            raise InvalidInput(Reason.FIELD_INVALID, f"{field} holds a NUL character", field=field)
