"""Reads, lists, awaits and cancels long operations."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from uuid import UUID, uuid4

from service.domain.access.identity import may_use_session
from service.domain.log.redactions import Redaction
from service.domain.memories.long_operations import (
    ENDED,
    Operation,
    OperationId,
    OperationKind,
    OperationState,
    OperationTarget,
)
from service.domain.values.errors import DeadlineExceeded, NotFound
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.usecases.log.idempotency import store_result, tried_again
from service.usecases.log.lookup import session_not_found
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.calls import calls
from storage.calls.calls import UsageLine
from storage.engine.claims import Claim
from storage.engine.database import Database, Transaction
from storage.engine.listing import ListPage
from storage.log import deleting, redacting, sessions
from storage.memories import flushing, job_results, long_operations, memories, revisions
from storage.memories.long_operations import PageCursor
from storage.memories.memories import StoredMemory
from storage.prism import schema_drafts
from storage.prism.schema_drafts import StoredSchemaDraft
from storage.tree import trees

#: How often a schema that is waited for is read, for its cost and for why it waits.
DRAFT_SECONDS = 2.0
#: The same of a redaction, which takes moments as a rule.
REDACTION_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundOperation:
    """An operation and, once it is done, what it resulted in."""

    operation: Operation
    result: StoredMemory | StoredSchemaDraft | Redaction | None = None
    #: What it cost by now, of a schema.
    usage: tuple[UsageLine, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationFilter:
    """Which operations are listed; empty or None means all."""

    session: str = ""
    memory: str = ""
    kind: OperationKind | None = None
    state: OperationState | None = None


class LongOperations:
    """What clients do with operations, in one server process."""

    def __init__(
        self,
        database: Database,
        watcher: ProgressWatcher,
        remove: Callable[[UUID, UUID, UUID], Awaitable[None]],
    ) -> None:
        """`remove`: removes the rows of a memory that was deleted: of tenant, session and key."""
        self._database = database
        self._watcher = watcher
        self._remove = remove

    async def get(self, tenant_id: UUID, text: str) -> FoundOperation:
        """Returns an operation by its id. Raises NotFound."""
        async with self._database.transaction(tenant_id, name="operations") as tx:
            return await find(tx, _parsed(text))

    async def list_operations(
        self, tenant_id: UUID, wanted: OperationFilter, *, before: PageCursor | None, limit: int
    ) -> tuple[ListPage[Operation], PageCursor | None]:
        """Lists operations that were requested before a cursor, newest first.

        Returns also the cursor after which others follow. Raises NotFound (session).
        """
        key = session_key(tenant_id, wanted.session) if wanted.session else None
        async with self._database.transaction(tenant_id, name="operations") as tx:
            if key is not None and await sessions.get(tx, key) is None:
                raise session_not_found(wanted.session)
            read = partial(
                long_operations.list_newest,
                tx,
                session_key=key,
                memory_id=memory_id(key, wanted.memory) if key and wanted.memory else None,
                kind=wanted.kind,
                before=before,
                limit=limit + 1,
            )
            found = await read()
            if await _end(tx, found):
                found = await read()
        more, found = len(found) > limit, found[:limit]
        last = (found[-1].created_at, found[-1].id.operation_id) if more else None
        kept = [one for one in found if wanted.state in (None, one.state)]
        return ListPage(items=kept, more=more), last

    async def wait(
        self, tenant_id: UUID, text: str, *, deadline: float | None
    ) -> AsyncGenerator[FoundOperation]:
        """Yields an operation as it is, and after each change until it has ended.

        `deadline` is in the event loop's time. Raises NotFound, DeadlineExceeded, Exhausted
        (too many wait), Unavailable (the server stops).
        """
        last = await self.get(tenant_id, text)
        yield last
        if last.operation.state in ENDED:
            return
        async with aclosing(self._changes(tenant_id, last.operation, deadline)) as changes:
            async for _ in changes:
                found = await self.get(tenant_id, text)
                if found != last:
                    yield found
                if found.operation.state in ENDED:
                    return
                last = found
        raise DeadlineExceeded(
            Reason.OPERATION_NOT_ENDED_IN_TIME,
            f"operation {text} has not ended in time; it goes on, and WaitOperation waits for it",
            {"operation": text},
        )

    async def _changes(
        self, tenant_id: UUID, operation: Operation, deadline: float | None
    ) -> AsyncGenerator[None]:
        """Yields when what an operation works on may have changed, until the deadline."""
        key = operation.id.session_key
        deleted = _not_found(str(operation.id))
        if operation.kind is OperationKind.REDACTION:
            now = asyncio.get_running_loop().time
            while deadline is None or now() < deadline:
                await asyncio.sleep(REDACTION_SECONDS)
                yield
            return
        if operation.memory_id is None:
            item = WorkItem(
                kind=WorkKind.SCHEMA,
                tenant_id=tenant_id,
                session_key=key,
                item_id=operation.id.operation_id,
            )
            settled = self._watcher.settled_of_read(
                item, every=DRAFT_SECONDS, deleted=deleted, deadline=deadline
            )
            async with aclosing(settled) as looks:
                async for _ in looks:
                    yield
            return
        progress = self._watcher.progress_of_read(
            tenant_id, (key, operation.memory_id), deleted=deleted, deadline=deadline
        )
        try:
            async with aclosing(progress) as seen:
                async for _ in seen:
                    yield
        except NotFound:
            # The memory was deleted, which is an end unless the session was as well.
            yield

    async def cancel(self, tenant_id: UUID, text: str) -> FoundOperation:
        """Cancels an operation, unless it has ended; deletes what a rebuild was making.

        Raises NotFound.
        """
        id = _parsed(text)
        deleted: UUID | None = None

        async def cancel(tx: Transaction) -> FoundOperation:
            nonlocal deleted
            operation = (await find(tx, id)).operation
            deleted = None if operation.state in ENDED else await _cancel(tx, operation)
            return await store_result(tx, await find(tx, id))

        found = await tried_again(self._database, tenant_id, cancel, name="operations")
        if deleted is not None:
            await self._remove(tenant_id, id.session_key, deleted)
        return found


async def find(tx: Transaction, id: OperationId) -> FoundOperation:
    """Returns an operation, whose end it stores when it is the first to see it.

    Raises NotFound, also where the client's credentials do not allow its session.
    """
    operation = await long_operations.get(tx, id)
    if operation is not None and not may_use_session(operation.session):
        raise _not_found(str(id))
    if operation is not None and await _end(tx, [operation]):
        operation = await long_operations.get(tx, id)
    if operation is None:
        raise _not_found(str(id))
    usage: Sequence[UsageLine] = ()
    result: StoredMemory | StoredSchemaDraft | Redaction | None = None
    if operation.kind is OperationKind.SCHEMA:
        occasion = schema_drafts.occasion(id.operation_id)
        usage = (await calls.usage_of(tx, id.session_key, [occasion])).get(occasion, ())
    if operation.state is OperationState.DONE:
        if operation.kind is OperationKind.REDACTION:
            found = await redacting.read_redactions(tx, id.session_key, [id.operation_id])
            result = found.get(id.operation_id)
        elif operation.memory_id is None:
            result = await schema_drafts.get(tx, id.session_key, id.operation_id)
        elif operation.facts is not None:
            result = await memories.get(tx, id.session_key, operation.memory_id)
    return FoundOperation(operation=operation, result=result, usage=tuple(usage))


async def request(
    tx: Transaction,
    id: OperationId,
    kind: OperationKind,
    target: tuple[UUID, str] | None = None,
    *,
    goal: int = 0,
) -> FoundOperation:
    """Stores an operation in the transaction that requests its work; `target`: its memory."""
    identity, name = target or (None, "")
    await long_operations.add(tx, id, kind, memory_id=identity, memory=name, goal=goal)
    return await find(tx, id)


async def request_consolidation(
    tx: Transaction, held: Claim, memory: str, *, goal: int
) -> FoundOperation:
    """Requests a consolidation; returns the open operation of the memory, if it has one.

    The caller has the memory from `lock`.
    """
    kind = OperationKind.CONSOLIDATION
    known = await _open(tx, held, kind)
    await flushing.want_consolidation(tx, held, goal)
    if known is not None:
        await long_operations.move_goal(tx, known.id, goal)
        return await find(tx, known.id)
    return await request(tx, _new_id(held), kind, (held.memory_id, memory), goal=goal)


async def request_seal(tx: Transaction, held: Claim, memory: str, *, goal: int) -> FoundOperation:
    """Requests that a tree is sealed; returns the operation that does it or did it, if any.

    After one that failed the tree is sealed at `goal`, with what was appended meanwhile. The
    caller has the memory from `lock`.
    """
    kind = OperationKind.SEAL
    known = await _open(tx, held, kind) or await long_operations.newest(
        tx, held.session_key, held.memory_id, kind
    )
    # Not of a tree that was deleted, whose name this one has.
    if known is not None and known.facts is not None and known.state not in _NOT_SEALED:
        return await find(tx, known.id)
    if held.seal_position is not None and not _may_seal_elsewhere(known):
        # It was requested before, and is sealed there.
        goal = held.seal_position
    await trees.want_seal(tx, held, goal)
    return await request(tx, _new_id(held), kind, (held.memory_id, memory), goal=goal)


#: Ends of a seal after which it can be requested again.
_NOT_SEALED = (OperationState.FAILED, OperationState.CANCELLED)


def _may_seal_elsewhere(known: Operation | None) -> bool:
    """Returns whether a seal has failed and RetryMemory has not completed it since."""
    return (
        known is not None
        and known.state is OperationState.FAILED
        and isinstance(known.facts, OperationTarget)
        and not known.facts.is_sealed
    )


async def _open(tx: Transaction, held: Claim, kind: OperationKind) -> Operation | None:
    """Returns the operation of a memory that has not ended; stores the end of one that has."""
    known = await long_operations.newest(tx, held.session_key, held.memory_id, kind)
    if known is None or known.ended is not None or await _end(tx, [known]):
        return None
    return known


def _new_id(held: Claim) -> OperationId:
    return OperationId(session_key=held.session_key, operation_id=uuid4())


async def _end(tx: Transaction, found: Sequence[Operation]) -> bool:
    """Stores how operations ended whose end was not reported; returns whether there are any."""
    ended = [
        (one.id, one.state, one.failure())
        for one in found
        if one.ended is None and one.state in ENDED
    ]
    if ended:
        # Others may be first: what they stored counts, and is read again.
        await long_operations.end(tx, ended)
    return bool(ended)


async def _cancel(tx: Transaction, operation: Operation) -> UUID | None:
    """Cancels an operation; returns the memory that was deleted for it."""
    id = operation.id
    deleted: UUID | None = None
    match operation.kind:
        case OperationKind.REBUILD:
            assert operation.memory_id is not None, "a check of the table"
            await deleting.lock_session(tx, id.session_key)
            await revisions.lock(tx, id.session_key, operation.memory_id)
            # It may have ended before the memory was locked.
            if (await find(tx, id)).operation.state in ENDED:
                return None
            await deleting.delete_memory(tx, id.session_key, operation.memory_id)
            deleted = operation.memory_id
        case OperationKind.CONSOLIDATION | OperationKind.SEAL:
            assert operation.memory_id is not None, "a check of the table"
            held = await revisions.lock(tx, id.session_key, operation.memory_id)
            # It may have ended before the memory was locked.
            if held is None or (await find(tx, id)).operation.state in ENDED:
                return None
            if operation.kind is OperationKind.SEAL:
                await trees.cancel_seal(tx, held)
            else:
                await flushing.cancel_consolidation(tx, held)
        case OperationKind.REDACTION:
            # What is removed stays removed.
            return None
        case OperationKind.SCHEMA:
            if not await job_results.store(
                tx,
                WorkKind.SCHEMA,
                id.session_key,
                id.operation_id,
                status="failed",
                failure="cancelled",
            ):
                return None
    await long_operations.end(tx, [(id, OperationState.CANCELLED, None)])
    return deleted


def _parsed(text: str) -> OperationId:
    id = OperationId.parse(text)
    if id is None:
        raise _not_found(text)
    return id


def _not_found(text: str) -> NotFound:
    return NotFound(
        Reason.OPERATION_NOT_FOUND,
        f"there is no operation {text!r}; operations are kept for 30 days",
        {"operation": text},
    )
