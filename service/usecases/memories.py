"""Creating, reading and listing memories, and their logs."""

import hashlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from service.config import Limits
from service.domain.errors import AlreadyExists, Exhausted, NotFound, OutOfRange
from service.domain.prism import PrismMemory, PrismSpec
from service.domain.read_tokens import ReadToken
from service.domain.reasons import Reason
from service.domain.schema_source import parse_source
from service.domain.tenancy import memory_id, session_key
from service.domain.work import WorkItem, WorkKind
from service.usecases.consistency import (
    Consistency,
    Watcher,
    memory_not_found,
    not_applied_in_time,
    refuse_stalled,
    session_not_found,
)
from service.usecases.hints import Hints
from storage import amendment_log, memories, sessions
from storage.amendment_log import LoggedAmendment, LoggedRejection
from storage.database import Database, Transaction
from storage.memories import StoredMemory
from storage.work import Progress


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


class Memories:
    """What callers do with memories."""

    def __init__(
        self,
        database: Database,
        hints: Hints,
        watcher: Watcher,
        token_key: bytes,
        limits: Limits,
    ) -> None:
        self._database = database
        self._hints = hints
        self._watcher = watcher
        self._token_key = token_key
        self._limits = limits

    async def create(
        self, tenant_id: UUID, session: str, name: str, spec: PrismSpec
    ) -> StoredMemory:
        """Makes a PRISM memory. Raises NotFound, AlreadyExists, Exhausted, SchemaInvalid."""
        empty = PrismMemory.create(parse_source(spec.schema_source))
        key = session_key(tenant_id, session)
        identity = memory_id(key, name)
        async with self._database.transaction(tenant_id) as tx:
            held = await sessions.lock_head(tx, key)
            if held is None:
                raise session_not_found(session)
            made = await memories.create(
                tx,
                session_key=key,
                memory_id=identity,
                name=name,
                spec=spec.to_json(),
                head=held.head,
                value=empty.value_json,
                digest=hashlib.sha256(empty.value_json.encode()).digest(),
            )
            if not made:
                raise AlreadyExists(
                    Reason.MEMORY_EXISTS,
                    f"session {session!r} has a memory {name!r} already",
                    {"session": session, "memory": name},
                )
            if await memories.count(tx, key) > self._limits.max_memories:
                raise Exhausted(
                    Reason.TOO_MANY_MEMORIES,
                    f"a session has at most {self._limits.max_memories} memories",
                    {"limit": self._limits.max_memories},
                    retry_seconds=0,
                )
            stored = await memories.get(tx, key, identity)
        assert stored is not None, "it was made in this transaction"
        self._wake(tenant_id, stored)
        return stored

    async def read(
        self,
        tenant_id: UUID,
        session: str,
        name: str,
        consistency: Consistency,
        *,
        deadline: float | None,
    ) -> MemoryReading:
        """The newest value that `consistency` allows.

        `deadline` is in the event loop's time. Raises NotFound, InvalidInput (token),
        FailedPrecondition (stalled), DeadlineExceeded.
        """
        key = session_key(tenant_id, session)
        stored, value = await self._read_newest(tenant_id, key, session, name)
        wanted = consistency.wanted_position(
            self._token_key, key, head=stored.head, incarnation=stored.incarnation
        )
        if stored.applied_position < wanted:
            await self._wait(tenant_id, stored, wanted, deadline)
            stored, value = await self._read_newest(tenant_id, key, session, name)
        return self._reading(stored, value, stored.revision, stored.applied_position)

    async def read_revision(
        self, tenant_id: UUID, session: str, name: str, revision: int
    ) -> MemoryReading:
        """The value as it was at `revision`. Raises NotFound, OutOfRange."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id) as tx:
            stored = await self._get(tx, key, session, name)
            rows = await memories.read_prism(tx, key, stored.memory_id, revision)
        if rows is None:
            raise OutOfRange(
                Reason.REVISION_NOT_FOUND,
                f"memory {name!r} has no revision {revision}; the newest is {stored.revision}",
                {"revision": revision, "newest": stored.revision},
            )
        spec = PrismSpec.from_json(stored.spec)
        memory = PrismMemory.load(
            parse_source(spec.schema_source),
            base_json=rows.base,
            base_revision=rows.base_revision,
            amendments=rows.amendments,
        )
        return self._reading(stored, memory.value_json, revision, rows.applied_position)

    async def list_all(self, tenant_id: UUID, session: str) -> Sequence[StoredMemory]:
        """The memories of a session by name. Raises NotFound."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id) as tx:
            if await sessions.get(tx, key) is None:
                raise session_not_found(session)
            return await memories.list_all(tx, key)

    async def list_amendments(
        self, tenant_id: UUID, session: str, name: str, after: tuple[int, int], limit: int
    ) -> Sequence[LoggedAmendment]:
        """Up to `limit` amendments behind (revision, ordinal). Raises NotFound."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id) as tx:
            stored = await self._get(tx, key, session, name)
            return await amendment_log.list_amendments(tx, key, stored.memory_id, after, limit)

    async def list_rejections(
        self, tenant_id: UUID, session: str, name: str, after: tuple[int, int], limit: int
    ) -> Sequence[LoggedRejection]:
        """Up to `limit` rejections behind (revision, ordinal). Raises NotFound."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id) as tx:
            stored = await self._get(tx, key, session, name)
            return await amendment_log.list_rejections(tx, key, stored.memory_id, after, limit)

    async def retry(self, tenant_id: UUID, session: str, name: str) -> StoredMemory:
        """Lets a stalled memory go on. Raises NotFound."""
        key = session_key(tenant_id, session)
        async with self._database.transaction(tenant_id) as tx:
            stored = await self._get(tx, key, session, name)
            if await memories.retry(tx, key, stored.memory_id):
                stored = await self._get(tx, key, session, name)
        self._wake(tenant_id, stored)
        return stored

    async def _get(self, tx: Transaction, key: UUID, session: str, name: str) -> StoredMemory:
        stored = await memories.get(tx, key, memory_id(key, name))
        if stored is None:
            raise await self._missing(tx, key, session, name)
        return stored

    async def _read_newest(
        self, tenant_id: UUID, key: UUID, session: str, name: str
    ) -> tuple[StoredMemory, str]:
        async with self._database.direct(tenant_id) as direct:
            found = await memories.read_newest(direct, key, memory_id(key, name))
        if found is None:
            async with self._database.transaction(tenant_id) as tx:
                raise await self._missing(tx, key, session, name)
        return found

    async def _missing(self, tx: Transaction, key: UUID, session: str, name: str) -> NotFound:
        if await sessions.get(tx, key) is None:
            return session_not_found(session)
        return memory_not_found(session, name)

    async def _wait(
        self, tenant_id: UUID, stored: StoredMemory, wanted: int, deadline: float | None
    ) -> None:
        progress = Progress(
            revision=stored.revision,
            applied_position=stored.applied_position,
            head=stored.head,
            stall_cause=None if stored.stall is None else stored.stall.cause,
            stall_position=0 if stored.stall is None else stored.stall.position,
        )
        refuse_stalled(stored.name, wanted, progress)
        key = (stored.session_key, stored.memory_id)
        async with aclosing(self._watcher.progress(tenant_id, key, deadline=deadline)) as seen:
            async for progress in seen:
                refuse_stalled(stored.name, wanted, progress)
                if progress.applied_position >= wanted:
                    return
        raise not_applied_in_time(stored.name, wanted, progress.applied_position, progress.revision)

    def _reading(
        self, stored: StoredMemory, value: str, revision: int, applied_position: int
    ) -> MemoryReading:
        token = ReadToken(
            session_key=stored.session_key,
            incarnation=stored.incarnation,
            position=applied_position,
        )
        return MemoryReading(
            memory=stored,
            value_json=value,
            revision=revision,
            applied_position=applied_position,
            token=token.sign(self._token_key),
        )

    def _wake(self, tenant_id: UUID, stored: StoredMemory) -> None:
        if stored.applied_position < stored.head and stored.status == "active":
            self._hints.add(
                [
                    WorkItem(
                        kind=WorkKind.MEMORY,
                        tenant_id=tenant_id,
                        session_key=stored.session_key,
                        item_id=stored.memory_id,
                    )
                ]
            )
