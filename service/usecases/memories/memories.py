"""Creates, reads and lists memories."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID, uuid4

from service.domain.log.read_tokens import ReadToken
from service.domain.memories.long_operations import OperationId, OperationKind
from service.domain.prism.spec import PrismSpec
from service.domain.values.errors import AlreadyExists, Exhausted, PalimpsestError
from service.domain.values.memory_specs import MemorySpec, MemoryStatus
from service.domain.values.reasons import Reason
from service.domain.values.tenancy import memory_id, session_key
from service.settings.config import Limits
from service.telemetry import tracing
from service.telemetry.names import GenAiOperation
from service.usecases.log.idempotency import store_result, tried_again
from service.usecases.log.lookup import (
    being_deleted,
    find_memory,
    item_key,
    log_expired,
    memory_not_found,
    missing,
    position_not_applied,
    revision_not_found,
    session_not_found,
)
from service.usecases.log.room import FindRoom, find_unlimited
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import (
    Consistency,
    not_applied_in_time,
    progress_of,
    refuse_stopped,
)
from service.usecases.memories.kinds import FirstRevision, KindUseCases
from service.usecases.memories.long_operations import FoundOperation, request
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.claims import Claim
from storage.engine.database import Database, Transaction
from storage.engine.listing import ListPage
from storage.log import sessions
from storage.memories import flushing, memories, stalls
from storage.memories.memories import StoredMemory, Unmade
from storage.operations import chunk_retention
from storage.prism import states


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReading:
    """A memory's value, and where it was read."""

    memory: StoredMemory
    #: Canonical JSON.
    value_json: str
    #: The revision that the value is the state at.
    revision: int
    #: All chunks up to here are in the value.
    applied_position: int
    #: Stands for the log up to `applied_position`.
    token: str


class ValueReader(ABC):
    """Reads the values of memories of one kind."""

    @abstractmethod
    async def read(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        *,
        revision: int | None = None,
        position: int | None = None,
    ) -> MemoryReading:
        """Returns the value at a revision, or at a position of the log, or the newest.

        Raises NotFound, OutOfRange.
        """

    async def catch_up(  # noqa: B027 - most have nothing to wait for
        self, tenant_id: UUID, session: str, name: str, *, deadline: float | None
    ) -> None:
        """Returns once nothing is due in a value that has the whole log at any time.

        Raises NotFound, FailedPrecondition (stalled), Exhausted (held), DeadlineExceeded.
        """


def reading_of(
    token_key: bytes, stored: StoredMemory, value: str, revision: int, applied_position: int
) -> MemoryReading:
    """Returns a value with the token of where it was read."""
    return MemoryReading(
        memory=stored,
        value_json=value,
        revision=revision,
        applied_position=applied_position,
        token=read_token(token_key, stored, applied_position),
    )


def read_token(token_key: bytes, stored: StoredMemory, position: int) -> str:
    """Returns the token of the log of a memory up to `position`."""
    token = ReadToken(
        session_key=stored.session_key, incarnation=stored.incarnation, position=position
    )
    return token.sign(token_key)


#: Stalled memories that one transaction retries.
RETRY_MEMORIES = 200


class Memories:
    """Does what clients ask of memories, in one server process."""

    def __init__(
        self,
        database: Database,
        wake_ups: WakeUps,
        watcher: ProgressWatcher,
        token_key: bytes,
        limits: Limits,
        kinds: Mapping[str, KindUseCases],
        values: Mapping[str, ValueReader],
        find_room: FindRoom = find_unlimited,
    ) -> None:
        """`values` reads the kinds of memories whose values are not stored whole."""
        self._database = database
        self._wake_ups = wake_ups
        self._watcher = watcher
        self._token_key = token_key
        self._limits = limits
        self._kinds = kinds
        self._values = values
        self._find_room = find_room

    async def create(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        spec: MemorySpec,
    ) -> StoredMemory:
        """Creates a memory. Raises NotFound, AlreadyExists, Exhausted, SchemaInvalid."""
        identity = memory_id(session_key(tenant_id, session), name)
        with tracing.memory(GenAiOperation.CREATE_MEMORY_STORE, identity):
            first, room = self._first(spec), await self._find_room(tenant_id)
            async with self._database.transaction(tenant_id, name="memories") as tx:
                stored = await self._create(tx, session, name, spec, first)
                await room(tx)
                await store_result(tx, stored)
        self.wake(tenant_id, stored)
        return stored

    async def rebuild(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        spec: MemorySpec,
        source: str,
        *,
        allow_expired_log: bool = False,
    ) -> FoundOperation:
        """Creates a memory that is rebuilt from `source`; returns the operation.

        With `allow_expired_log` it reads what remains of the log. Raises as `create`.
        """
        key = session_key(tenant_id, session)
        target = memory_id(key, name), name
        with tracing.memory(GenAiOperation.CREATE_MEMORY_STORE, target[0]):
            first, room = self._first(spec), await self._find_room(tenant_id)
            async with self._database.transaction(tenant_id, name="memories") as tx:
                stored = await self._create(
                    tx,
                    session,
                    name,
                    spec,
                    first,
                    rebuilt_from=source,
                    allow_expired_log=allow_expired_log,
                )
                await room(tx)
                if not spec.has_whole_log:
                    # It reads the log as it is now: its operation waits for that.
                    await flushing.flush(tx, *item_key(stored), stored.head)
                id = OperationId(session_key=key, operation_id=uuid4())
                operation = await request(tx, id, OperationKind.REBUILD, target, goal=stored.head)
                await store_result(tx, operation)
        self.wake(tenant_id, stored)
        return operation

    def _first(self, spec: MemorySpec) -> FirstRevision:
        """Returns what a memory begins with. Raises InvalidInput, SchemaInvalid."""
        spec.check(backlog_chunks=self._limits.backlog_chunks)
        return self._kinds[spec.kind].first(spec)

    async def _create(
        self,
        tx: Transaction,
        session: str,
        name: str,
        spec: MemorySpec,
        first: FirstRevision,
        *,
        rebuilt_from: str | None = None,
        allow_expired_log: bool = False,
    ) -> StoredMemory:
        key = session_key(tx.tenant_id, session)
        identity = memory_id(key, name)
        # Alone, or those that are created at the same time would not count each other.
        held = await sessions.lock_alone(tx, key)
        if held is None:
            raise session_not_found(session)
        if held.head and not allow_expired_log:
            expired = await chunk_retention.expired_position(tx, key)
            if expired is not None:
                raise log_expired(session, expired)
        created = await memories.create(
            tx,
            session_key=key,
            memory_id=identity,
            name=name,
            spec=spec,
            rebuilt_from=rebuilt_from,
            head=held.head,
            value=first.value,
            digest=first.digest,
        )
        if isinstance(created, Unmade):
            raise _refusal(created, session, name)
        limit = self._limits.max_memories
        if created.count > limit:
            raise Exhausted(
                Reason.TOO_MANY_MEMORIES,
                f"a session has at most {limit} memories: delete one, or use another session",
                {"limit": limit},
                retry_seconds=0,
            )
        if first.write is not None:
            await first.write(tx, key, identity)
        return created.memory

    async def get(self, tenant_id: UUID, session: str, name: str) -> StoredMemory:
        """Returns a memory's row. Raises NotFound."""
        async with self._database.transaction(tenant_id, name="memories") as tx:
            return await find_memory(tx, session, name)

    async def read(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        consistency: Consistency,
        *,
        deadline: float | None,
    ) -> MemoryReading:
        """Returns the newest value that `consistency` allows.

        `deadline` is in the event loop's time. Raises NotFound, InvalidInput (token),
        FailedPrecondition (stalled, sealed), Exhausted (held), DeadlineExceeded.
        """
        stored, value = await self._caught_up(tenant_id, session, name, consistency, deadline)
        if value is None:
            return await self._values[stored.kind].read(tenant_id, session, name)
        return reading_of(self._token_key, stored, value, stored.revision, stored.applied_position)

    async def catch_up(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        consistency: Consistency,
        *,
        deadline: float | None,
    ) -> None:
        """Waits until the memory is as fresh as a read of it must be. Raises as `read`."""
        if consistency.at_least or consistency.fully_applied:
            await self._caught_up(tenant_id, session, name, consistency, deadline)

    async def _caught_up(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        consistency: Consistency,
        deadline: float | None,
    ) -> tuple[StoredMemory, str | None]:
        key = session_key(tenant_id, session)
        stored, value = await self._read_newest(tenant_id, key, session, name)
        wanted = consistency.wanted_position(
            self._token_key, key, head=stored.head, incarnation=stored.incarnation
        )
        if stored.spec.has_whole_log:
            if consistency.fully_applied:
                values = self._values[stored.kind]
                await values.catch_up(tenant_id, session, name, deadline=deadline)
        elif stored.applied_position < wanted:
            await self._wait(tenant_id, stored, wanted, deadline)
            stored, value = await self._read_newest(tenant_id, key, session, name)
        return stored, value

    def read_token(self, stored: StoredMemory, position: int) -> str:
        """Returns the token of the log of a memory up to `position`."""
        return read_token(self._token_key, stored, position)

    async def restore(self, tx: Transaction, held: Claim, revision: int, *, comment: str) -> None:
        """Commits a new revision of a locked memory with the state of an earlier one."""
        use_cases = self._kinds[held.spec.kind]
        await use_cases.restore(tx, held, revision, comment=comment, limits=self._limits)

    async def read_revision(
        self, tenant_id: UUID, session: str, name: str, revision: int
    ) -> MemoryReading:
        """Returns the value as it was at `revision`. Raises NotFound, OutOfRange."""
        key = session_key(tenant_id, session)
        async with self._database.direct(tenant_id, name="memories") as direct:
            found = await states.read_past(direct, key, memory_id(key, name), revision)
        if found is None:
            async with self._database.transaction(tenant_id, name="memories") as tx:
                raise await missing(tx, session, name)
        stored, rows = found
        values = self._values.get(stored.kind)
        if values is not None:
            return await values.read(tenant_id, session, name, revision=revision)
        if rows is None:
            raise revision_not_found(name, revision, stored.revision)
        value = rows.memory(PrismSpec.of(stored).schema()).value_json
        return reading_of(self._token_key, stored, value, revision, rows.applied_position)

    async def read_position(
        self, tenant_id: UUID, session: str, name: str, position: int
    ) -> MemoryReading:
        """Returns the newest value without a chunk after `position`.

        Raises NotFound, OutOfRange.
        """
        async with self._database.transaction(tenant_id, name="memories") as tx:
            stored = await find_memory(tx, session, name)
        if stored.spec.has_whole_log:
            return await self._values[stored.kind].read(tenant_id, session, name, position=position)
        if position > stored.applied_position:
            raise position_not_applied(name, position, stored.applied_position)
        async with self._database.transaction(tenant_id, name="memories") as tx:
            revision = await states.revision_at(
                tx, *item_key(stored), position=position, newest=stored.revision
            )
        return await self.read_revision(tenant_id, session, name, revision)

    async def list_after(
        self, tenant_id: UUID, session: str, after: str, limit: int | None
    ) -> ListPage[StoredMemory]:
        """Returns the memories of a session after the name `after`, by name. Raises NotFound."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="memories") as tx:
            if await sessions.get(tx, key) is None:
                raise session_not_found(session)
            found = await memories.list_after(tx, key, after, None if limit is None else limit + 1)
        more = limit is not None and len(found) > limit
        return ListPage(items=found[:limit], more=more)

    async def list_of_all(
        self,
        tenant_id: UUID,
        *,
        status: MemoryStatus | None,
        after: tuple[UUID, UUID] | None,
        limit: int,
    ) -> Sequence[StoredMemory]:
        """Returns up to `limit` memories of all sessions after a key, by key."""
        async with self._database.transaction(tenant_id, name="memories") as tx:
            return await memories.list_of_all(tx, status=status, after=after, limit=limit)

    async def retry_all(self, tenant_id: UUID, session: str) -> int:
        """Retries all stalled memories of a session, or of all; returns their number.

        Raises NotFound.
        """
        key = session_key(tenant_id, session) if session else None
        retried, more = 0, True

        async def retry_some(tx: Transaction) -> tuple[Sequence[tuple[UUID, UUID]], bool]:
            if key is not None and await sessions.get(tx, key) is None:
                raise session_not_found(session)
            woken, is_cut = await stalls.retry_some(tx, key, RETRY_MEMORIES)
            if not is_cut:
                await store_result(tx, retried + len(woken))
            return woken, is_cut

        while more:
            woken, more = await tried_again(
                self._database, tenant_id, retry_some, name="memories.retry_all"
            )
            retried += len(woken)
            self._wake_ups.add_memories(tenant_id, woken)
        return retried

    async def retry(self, tenant_id: UUID, session: str, name: str) -> int:
        """Retries a memory; returns 1 if it was stalled, else 0. Raises NotFound."""
        async with self._database.transaction(tenant_id, name="memories.retry") as tx:
            stored = await find_memory(tx, session, name)
            woken = await stalls.retry(tx, *item_key(stored))
            await store_result(tx, int(woken))
        if woken:
            # A tree may be at the head and have nodes to build all the same.
            self._wake_ups.add_memories(tenant_id, [item_key(stored)])
        else:
            self.wake(tenant_id, stored)
        return int(woken)

    async def _read_newest(
        self, tenant_id: UUID, key: UUID, session: str, name: str
    ) -> tuple[StoredMemory, str | None]:
        async with self._database.direct(tenant_id, name="memories") as direct:
            found = await memories.read_newest(direct, key, memory_id(key, name))
        if found is None:
            async with self._database.transaction(tenant_id, name="memories") as tx:
                raise await missing(tx, session, name)
        return found

    async def _wait(
        self, tenant_id: UUID, stored: StoredMemory, wanted: int, deadline: float | None
    ) -> None:
        progress = progress_of(stored)
        refuse_stopped(stored.name, wanted, progress)
        key = (stored.session_key, stored.memory_id)
        if stored.spec.lingers:
            async with self._database.transaction(tenant_id, name="memories") as tx:
                woken = await flushing.end_wait(tx, *key, wanted)
            keys = [(stored.session_key, one) for one in woken]
            self._wake_ups.add_memories(tenant_id, keys, wanted=True)
        looks = self._watcher.progress_of_read(
            tenant_id,
            key,
            deleted=memory_not_found(stored.session_name, stored.name),
            deadline=deadline,
        )
        async with aclosing(looks) as seen:
            async for progress in seen:
                refuse_stopped(stored.name, wanted, progress)
                if progress.applied_position >= wanted:
                    return
        raise not_applied_in_time(stored.name, wanted, progress)

    async def flush(self, tenant_id: UUID, session: str, name: str) -> tuple[str, int]:
        """Ends the wait for more chunks; returns the token of what is in the log, and its head.

        An empty `name` means all memories of the session. Raises NotFound.
        """
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id, name="memories") as tx:
            # Before the memories, as appends do: each locks several of them.
            held = await sessions.lock_head(tx, key)
            if held is None:
                raise session_not_found(session)
            one = item_key(await find_memory(tx, session, name))[1] if name else None
            woken = await flushing.flush(tx, key, one, held.head)
            token = ReadToken(session_key=key, incarnation=held.incarnation, position=held.head)
            result = await store_result(tx, (token.sign(self._token_key), held.head))
        self._wake_ups.add_memories(tenant_id, [(key, one) for one in woken])
        return result

    def wake(self, tenant_id: UUID, stored: StoredMemory) -> None:
        """Wakes a worker for a memory that is behind, or is to be consolidated or sealed."""
        asked = (stored.consolidate_position, stored.seal_position)
        # One that is at the head may still have something that is due.
        behind = stored.applied_position < stored.head or stored.spec.has_whole_log
        wanted = behind or asked != (None, None)
        if wanted and stored.status == "active":
            self._wake_ups.add_memories(tenant_id, [item_key(stored)])


def _refusal(why: Unmade, session: str, name: str) -> PalimpsestError:
    if why is Unmade.BEING_DELETED:
        return being_deleted("memory", name)
    return AlreadyExists(
        Reason.MEMORY_EXISTS,
        f"session {session!r} has a memory {name!r} already",
        {"session": session, "memory": name},
    )
