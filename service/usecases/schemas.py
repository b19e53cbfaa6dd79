"""Schemas: having one generated, and reading what was."""

from dataclasses import dataclass
from uuid import UUID, uuid4

from service import tracing
from service.config import Limits
from service.domain.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidInput,
    NotFound,
    Unavailable,
)
from service.domain.reasons import Reason
from service.domain.tenancy import session_key
from service.domain.work import WorkItem, WorkKind
from service.usecases.ask import too_many_pending
from service.usecases.consistency import Watcher
from service.usecases.hints import Hints
from service.usecases.lookup import session_not_found
from service.usecases.waiting import WaitingRoom
from storage import calls, schema_drafts, sessions, trace_contexts
from storage.calls import UsageLine
from storage.database import Database
from storage.schema_drafts import StoredSchemaDraft


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
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
    """What callers do with schemas, in one server process."""

    def __init__(
        self,
        database: Database,
        hints: Hints,
        watcher: Watcher,
        waiting: WaitingRoom,
        *,
        max_pending: int = Limits().max_pending_answers,
    ) -> None:
        """At most `max_pending` schemas of a tenant are pending at once."""
        self._database = database
        self._hints = hints
        self._watcher = watcher
        self._waiting = waiting
        self._max_pending = max_pending

    async def generate(self, tenant_id: UUID, wanted: Wanted, *, deadline: float | None) -> Drafted:
        """Has a worker generate a schema, and waits for it.

        `deadline` is in the event loop's time. Raises InvalidInput, NotFound,
        FailedPrecondition (no schema could be made), DeadlineExceeded, Exhausted, Unavailable.
        """
        _refuse_nul(wanted)
        with self._waiting.place():
            item = await self._store(tenant_id, wanted)
            self._hints.add([item])
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
        drafted = await self.get(tenant_id, wanted.session, item.item_id)
        if drafted.draft.status == "failed":
            raise FailedPrecondition(
                Reason.SCHEMA_NOT_GENERATED,
                f"no schema could be made: {drafted.draft.failure}",
                {"draft": item.item_id, "cause": drafted.draft.failure},
            )
        return drafted

    async def get(self, tenant_id: UUID, session: str, draft_id: UUID) -> Drafted:
        """Reads a stored draft. Raises NotFound."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="schemas") as tx:
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

    async def _store(self, tenant_id: UUID, wanted: Wanted) -> WorkItem:
        key = session_key(tenant_id, wanted.session)
        draft_id = uuid4()
        asking = tracing.sampled()
        async with self._database.transaction(tenant_id, name="schemas") as tx:
            if await sessions.get(tx, key) is None:
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
        return WorkItem(
            kind=WorkKind.SCHEMA, tenant_id=tenant_id, session_key=key, item_id=draft_id
        )


def occasion(draft_id: UUID) -> str:
    """The occasion of a draft's model calls, as the ledger names it."""
    return f"schema:{draft_id}"


def _refuse_nul(wanted: Wanted) -> None:
    # The database keeps none.
    for field in ("domain", "example_query", "model"):
        if "\0" in getattr(wanted, field):
            raise InvalidInput(Reason.FIELD_INVALID, f"{field} holds a NUL character", field=field)
