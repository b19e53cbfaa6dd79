"""Reads state memories: the working context now, at a position, or of a revision."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from service.domain.state.showing import CONTEXT_SHARE, shown
from service.domain.state.spec import Period, StateSpec
from service.domain.state.triggers import SizedStep
from service.domain.state.vectors import StateVector
from service.domain.state.working_context import WorkingContext, is_due
from service.domain.values.errors import DeadlineExceeded, Exhausted, OutOfRange
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import memory_id, session_key
from service.llm.providers.facts import ModelFacts
from service.settings.config import Limits
from service.usecases.log.lookup import (
    find_memory,
    item_key,
    memory_not_found,
    missing,
    refuse_other_kind,
    revision_not_found,
)
from service.usecases.memories.consistency import (
    Consistency,
    progress_of,
    refuse_stopped,
)
from service.usecases.memories.memories import read_token
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.database import Database
from storage.memories.memories import StoredMemory
from storage.memories.progress import Progress
from storage.state import contexts, vectors
from storage.state.contexts import ContextBounds, StoredContext

#: A read that waits for nothing.
LATEST = Consistency()


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextReading:
    """A working context, and where it was read."""

    memory: StoredMemory
    context: WorkingContext
    #: When its vectors were committed, by their revisions.
    created_at: Mapping[int, datetime]
    #: A compression is due and not made yet.
    due: bool
    #: Stands for the log up to the context's head.
    token: str


class WorkingContexts:
    """What clients read of state memories."""

    def __init__(
        self,
        database: Database,
        watcher: ProgressWatcher,
        token_key: bytes,
        limits: Limits,
        facts: Callable[[StateSpec], ModelFacts] | None = None,
    ) -> None:
        """`facts` knows a memory's model, whose window no context passes; None: all is shown."""
        self._database = database
        self._watcher = watcher
        self._token_key = token_key
        self._facts = facts
        self._bounds = ContextBounds(
            chunks=limits.max_context_chunks,
            content_bytes=limits.max_context_bytes,
            # More would not fit a reply.
            metadata_bytes=limits.max_message_bytes,
        )

    async def read(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        *,
        consistency: Consistency = LATEST,
        position: int | None = None,
        deadline: float | None = None,
    ) -> ContextReading:
        """Returns the working context: of now, or of when the log ended at `position`.

        Once it is `fully_applied` nothing is due in it; a token waits for nothing, since every
        chunk is in it. `deadline` is in the event loop's time. Raises NotFound, InvalidInput
        (token), FailedPrecondition (another kind, stalled), OutOfRange, Exhausted (too large,
        held), DeadlineExceeded.
        """
        if position is not None:
            return await self._read_at(tenant_id, session, name, position)
        found = await self._caught_up(tenant_id, session, name, consistency, deadline)
        return self._reading(found, flush_position=found.flush_position, now=found.now)

    async def read_revision(
        self, tenant_id: UUID, session: str, name: str, revision: int
    ) -> ContextReading:
        """Returns the vectors of a revision, with nothing recent.

        Raises NotFound, FailedPrecondition (another kind), OutOfRange.
        """
        found = await self._found(tenant_id, session, name, contexts.read_revision, revision)
        if found.state is None:
            raise revision_not_found(name, revision, found.memory.revision)
        return self._reading(found)

    async def list_vectors(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        *,
        level: int,
        after_revision: int,
        limit: int,
        max_bytes: int,
        consistency: Consistency = LATEST,
        deadline: float | None = None,
    ) -> tuple[StoredMemory, Sequence[tuple[StateVector, datetime]]]:
        """Returns the memory and what `vectors.list_page` finds. Waits and raises as `read`."""
        if consistency != LATEST:
            await self._caught_up(tenant_id, session, name, consistency, deadline)
        async with self._database.transaction(tenant_id, name="context") as tx:
            stored = await find_memory(tx, session, name, StateSpec.kind)
            found = await vectors.list_page(
                tx,
                item_key(stored),
                level=level,
                after_revision=after_revision,
                limit=limit,
                max_bytes=max_bytes,
            )
        return stored, found

    async def catch_up(
        self, tenant_id: UUID, session: str, name: str, *, deadline: float | None
    ) -> None:
        """Returns once no compression is due. Raises as `read`."""
        everything = Consistency(fully_applied=True)
        await self._caught_up(tenant_id, session, name, everything, deadline)

    async def _caught_up(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        consistency: Consistency,
        deadline: float | None,
    ) -> StoredContext:
        found = await self._found(tenant_id, session, name, contexts.read_newest)
        stored = found.memory
        # A token that cannot be used is refused, although there is nothing to wait for.
        consistency.wanted_position(
            self._token_key, stored.session_key, head=stored.head, incarnation=stored.incarnation
        )
        if consistency.fully_applied and _is_behind(found):
            found = await self._wait(tenant_id, found, deadline)
        return found

    def read_token(self, stored: StoredMemory, position: int) -> str:
        """Returns the token of the log of a memory up to `position`."""
        return read_token(self._token_key, stored, position)

    async def _read_at(
        self, tenant_id: UUID, session: str, name: str, position: int
    ) -> ContextReading:
        found = await self._found(tenant_id, session, name, contexts.read_at_position, position)
        if position > found.memory.head:
            raise _beyond_head(found.memory, position)
        return self._reading(found)

    async def _found(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        read: Callable[..., Awaitable[StoredContext | None]],
        *at: int,
    ) -> StoredContext:
        """Returns what is read of a state memory. Raises NotFound, FailedPrecondition."""
        key = session_key(tenant_id, session)
        async with self._database.direct(tenant_id, name="context") as direct:
            found = await read(direct, (key, memory_id(key, name)), self._bounds, *at)
        if found is None:
            async with self._database.transaction(tenant_id, name="context") as tx:
                raise await missing(tx, session, name)
        refuse_other_kind(name, found.memory.spec, StateSpec.kind)
        return found

    async def _wait(
        self, tenant_id: UUID, found: StoredContext, deadline: float | None
    ) -> StoredContext:
        """Returns the context once nothing is due.

        Appended chunks make nothing less due, so it is read again when the memory has a new
        revision; or is idle, since a step that was being appended may have ended a pause that
        seemed long enough by the clock.
        """
        stored = found.memory
        _refuse_stopped(stored.name, progress_of(stored))
        cause = stored.waiting_cause
        looks = self._watcher.progress_of_read(
            tenant_id,
            item_key(stored),
            deleted=memory_not_found(stored.session_name, stored.name),
            deadline=deadline,
        )
        async with aclosing(looks) as seen:
            async for progress in seen:
                if progress.revision != found.memory.revision or progress.is_idle:
                    names = stored.session_name, stored.name
                    found = await self._found(tenant_id, *names, contexts.read_newest)
                    if not _is_behind(found):
                        return found
                _refuse_stopped(stored.name, progress)
                cause = progress.waiting_cause
        raise _late(found, cause)

    def _reading(
        self, found: StoredContext, *, flush_position: int = 0, now: datetime | None = None
    ) -> ContextReading:
        if not found.is_whole:
            raise self._too_large(found)
        stored = found.memory
        context = _context_of(found)
        due = is_due(StateSpec.of(stored), context, flush_position=flush_position, now=now)
        return ContextReading(
            memory=stored,
            context=self._shown(stored, context),
            created_at=found.created_at,
            due=due,
            token=self.read_token(stored, context.head),
        )

    def _shown(self, stored: StoredMemory, context: WorkingContext) -> WorkingContext:
        if self._facts is None:
            return context
        facts = self._facts(StateSpec.of(stored))
        window = facts.window_tokens
        found = shown(context, StateSpec.of(stored), window_tokens=window, count=facts.count)
        if found is None:
            most = int(window * CONTEXT_SHARE)
            why = f"{len(context.recent)} chunks are recent, and the vectors leave no room for them"
            what = f"tokens, of the {window} of its model's window; flush it to compress them"
            raise context_too_large(stored.name, why, most, what)
        return found

    def _too_large(self, found: StoredContext) -> Exhausted:
        limit, what = self._bounds.chunks, "chunks"
        if found.recent_chunks <= limit:
            limit = self._bounds.content_bytes
            what = f"bytes of content, and {self._bounds.metadata_bytes} of metadata"
        return context_too_large(
            found.memory.name, f"{found.recent_chunks} chunks are recent", limit, what
        )


def context_too_large(memory: str, why: str, limit: int, what: str) -> Exhausted:
    """Returns the refusal of a context that passes a limit."""
    return Exhausted(
        Reason.CONTEXT_TOO_LARGE,
        f"the working context of memory {memory!r} is too large: {why}; it may have {limit} {what}."
        " A shorter period, or one in tokens, keeps it smaller",
        {"memory": memory, "limit": limit},
        retry_seconds=0,
    )


def _context_of(found: StoredContext) -> WorkingContext:
    assert found.state is not None, "every revision of a state memory has its vectors"
    return WorkingContext(state=found.state, recent=[SizedStep.of(one) for one in found.recent])


def _is_behind(found: StoredContext) -> bool:
    """Returns whether something is due.

    Of more chunks than a read may return only the worker knows, unless their number decides: it
    has checked them when the memory is idle.
    """
    spec = StateSpec.of(found.memory)
    if not found.is_whole:
        return _is_wanted(found) or (_goes_by_content(spec) and not found.memory.is_idle)
    context = _context_of(found)
    return is_due(spec, context, flush_position=found.flush_position, now=found.now)


def _is_wanted(found: StoredContext) -> bool:
    """Returns whether something is due whatever the recent chunks are."""
    assert found.state is not None, "the context of now has a revision"
    spec, state = StateSpec.of(found.memory), found.state
    return (
        found.recent_chunks >= spec.max_period
        or found.flush_position > state.applied_position
        or state.levels.full_level(spec.episode_vectors) is not None
    )


def _goes_by_content(spec: StateSpec) -> bool:
    return bool(spec.period_tokens or spec.idle_ms) or spec.period_kind is Period.ADAPTIVE


def _refuse_stopped(memory: str, progress: Progress) -> None:
    # Something is due after the cursor, or at it: whatever stops the memory stops that.
    refuse_stopped(memory, progress.applied_position + 1, progress)


def _beyond_head(stored: StoredMemory, position: int) -> OutOfRange:
    # Unlike other kinds: what is not compressed is in a context all the same.
    return OutOfRange(
        Reason.POSITION_NOT_APPLIED,
        f"the log of session {stored.session_name!r} ends at position {stored.head},"
        f" before {position}",
        {"position": position, "applied_position": stored.head},
    )


def _late(found: StoredContext, waiting_cause: str | None) -> DeadlineExceeded:
    stored = found.memory
    known = {"applied_position": stored.applied_position, "revision": stored.revision}
    cause = {} if waiting_cause is None else {"cause": waiting_cause}
    why = "" if waiting_cause is None else f"; it waits for its model: {waiting_cause}"
    return DeadlineExceeded(
        Reason.NOT_APPLIED_IN_TIME,
        f"memory {stored.name!r} is applied up to position {stored.applied_position} at revision"
        f" {stored.revision}, and a compression is due{why}. Ask again with a"
        " longer deadline, or for what is there",
        {"position": found.upto, **known, **cause},
    )
