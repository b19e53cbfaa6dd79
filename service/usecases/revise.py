"""Revising: bringing a PRISM memory up to the head of its log, step by step.

A step reads, thinks and writes: chunks and state are read and the transaction is
closed; the flow is driven, each reply durable before it is used; one transaction
writes the revision and moves the cursor. What makes it exactly-once is in the keys
of `storage.tables.revision`; the epoch only saves the work of a worker that lost
its memory to another one.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from uuid import UUID

import structlog
from opentelemetry.trace import Span

from service.config import Config
from service.domain import prism
from service.domain.amendments import Revision
from service.domain.chunks import LoggedChunk
from service.domain.errors import FailedPrecondition
from service.domain.folding import should_fold
from service.domain.ledger import CallScope
from service.domain.prism import OnFailure, PrismMemory, PrismSpec
from service.domain.rules import Rules
from service.domain.schema_source import parse_source
from service.domain.work import WorkItem
from service.llm.driver import drive
from service.llm.gateway import Gateway
from service.llm.transport import ModelFailure
from service.telemetry import meter, tracer
from storage import calls, log, memories, sessions
from storage.database import Database, Transaction
from storage.errors import StorageError
from storage.memories import Claim, Fenced, NewRevision

_log = structlog.get_logger("palimpsest.revise")

#: Chunks that one look at the log brings; steps then take from these.
READ_CHUNKS = 64
#: A step that keeps failing waits at most this long between two tries.
MAX_BACKOFF_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """A memory in this worker's hands."""

    tenant_id: UUID
    held: Claim
    spec: PrismSpec
    memory: PrismMemory
    #: Chunks behind the cursor that were read already.
    pending: Sequence[LoggedChunk] = ()
    #: Where the next step ends, when a worker that died had paid for it already.
    paid_position: int | None = None

    def moved(self, number: int, position: int, memory: PrismMemory) -> "_State":
        """The state after revision `number`, which reaches `position`."""
        held = replace(self.held, revision=number, applied_position=position, attempts=0)
        pending = tuple(chunk for chunk in self.pending if chunk.position > position)
        return replace(self, held=held, memory=memory, pending=pending, paid_position=None)


class Reviser:
    """Advances PRISM memories in one worker process."""

    def __init__(
        self, database: Database, gateway: Gateway, marker_key: bytes, config: Config
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._marker_key = marker_key
        self._config = config
        self._steps = meter().create_counter(
            "palimpsest.steps", description="Committed changes of memories, by kind"
        )
        self._fenced = meter().create_counter(
            "palimpsest.steps.fenced", description="Results thrown away: another worker has it"
        )
        self._failures = meter().create_counter(
            "palimpsest.steps.failed", description="Tries of steps that failed"
        )

    async def drain(self, item: WorkItem, *, stop: asyncio.Event | None = None) -> bool:
        """Advances the memory until it is at the head; True when there is more to do.

        It leaves between two steps when its time is up (`drain_seconds`), so that others
        get their turn, and when `stop` is set; and for good when a step failed and waits
        for its next try, or another worker has taken the memory over. Raises
        StorageError when the database cannot be reached.
        """
        until = asyncio.get_running_loop().time() + self._config.drain_seconds
        state = await self._take(item)
        while state is not None:
            late = asyncio.get_running_loop().time() > until
            if late or (stop is not None and stop.is_set()):
                return True
            try:
                state = await self._advance(state)
            except Fenced:
                self._fenced.add(1)
                _log.info("memory is in other hands", memory=str(item.item_id))
                return False
        return False

    async def _take(self, item: WorkItem) -> _State | None:
        async with self._database.transaction(item.tenant_id) as tx:
            held = await memories.claim(tx, item.session_key, item.item_id)
            if held is None:
                return None
            rows = await memories.read_prism(tx, held.session_key, held.memory_id, held.revision)
            paid = await calls.find_occasion(
                tx, held.session_key, held.memory_id, f"revise:{held.revision + 1}:"
            )
        assert rows is not None, "the cursor's foreign key holds the revision"
        spec = PrismSpec.from_json(held.spec)
        memory = PrismMemory.load(
            parse_source(spec.schema_source),
            base_json=rows.base,
            base_revision=rows.base_revision,
            amendments=rows.amendments,
        )
        return _State(
            tenant_id=item.tenant_id,
            held=held,
            spec=spec,
            memory=memory,
            paid_position=None if paid is None else int(paid.rpartition(":")[2]),
        )

    async def _advance(self, state: _State) -> _State | None:
        """One committed change; None when there is nothing more to do now."""
        if should_fold(state.memory, state.spec.fold_tokens):
            return await self._fold(state)
        if not state.pending:
            state = replace(state, pending=await self._read(state))
        if not state.pending:
            return await self._rest(state)
        group = _next_group(state)
        with self._span("palimpsest.step", state) as span:
            span.set_attribute("palimpsest.to_position", group[-1].position)
            try:
                return await self._step(state, group)
            except (Fenced, StorageError):
                raise
            except Exception as error:
                # A poisoned chunk must stall its memory, not kill its worker.
                span.record_exception(error)
                return await self._failed(state, group, error)

    async def _read(self, state: _State) -> Sequence[LoggedChunk]:
        held = state.held
        async with self._database.transaction(state.tenant_id) as tx:
            return await log.read(tx, held.session_key, held.applied_position, READ_CHUNKS)

    async def _step(self, state: _State, group: Sequence[LoggedChunk]) -> _State | None:
        revision = await self._think(state, group)
        number = state.held.revision + 1
        memory = state.memory.apply(number, revision.amendments)
        new = NewRevision(
            kind="step",
            to_position=group[-1].position,
            digest=_digest(memory),
            amendments=revision.amendments,
            rejections=revision.rejections,
            value=memory.value_json if revision.amendments else None,
        )
        has_work = await self._commit(state, new, may_rest=len(group) == len(state.pending))
        return state.moved(number, new.to_position, memory) if has_work else None

    async def _think(self, state: _State, group: Sequence[LoggedChunk]) -> Revision:
        held = state.held
        scope = CallScope(
            tenant_id=state.tenant_id,
            session_key=held.session_key,
            memory_id=held.memory_id,
            occasion=f"revise:{held.revision + 1}:{group[-1].position}",
        )
        flow = prism.revise(
            state.spec,
            state.memory,
            group,
            marker_key=self._marker_key,
            rules=Rules(max_memory_bytes=self._config.limits.max_memory_bytes),
        )
        model = state.spec.model or self._config.model
        return await drive(flow, lambda ask: self._gateway.call(ask, model=model, scope=scope))

    async def _fold(self, state: _State) -> _State:
        number = state.held.revision + 1
        memory = state.memory.fold(number)
        new = NewRevision(
            kind="fold",
            to_position=state.held.applied_position,
            digest=_digest(memory),
            base=memory.base_json,
        )
        await self._commit(state, new, may_rest=False)
        return state.moved(number, new.to_position, memory)

    async def _commit(self, state: _State, new: NewRevision, *, may_rest: bool) -> bool:
        """Writes a revision. With `may_rest` it looks whether that was the last chunk.

        Returns whether there is more to do.
        """
        held = state.held
        with self._span("palimpsest.commit", state):
            async with self._database.transaction(state.tenant_id) as tx:
                has_work = True
                if may_rest:
                    has_work = await _locked_head(tx, held) > new.to_position
                await memories.commit_revision(tx, held, new, has_work=has_work)
        self._steps.add(1, {"kind": new.kind})
        return has_work

    async def _rest(self, state: _State) -> _State | None:
        """Leaves a memory that is at the head, unless a chunk came just now."""
        async with self._database.transaction(state.tenant_id) as tx:
            if await _locked_head(tx, state.held) > state.held.applied_position:
                return state
            await memories.clear_work(tx, state.held)
        return None

    async def _failed(
        self, state: _State, group: Sequence[LoggedChunk], error: Exception
    ) -> _State | None:
        held = state.held
        self._failures.add(1)
        cause = _cause(error)
        known = isinstance(error, ModelFailure | FailedPrecondition)
        _log.warning(
            "step failed",
            memory=str(held.memory_id),
            after_position=held.applied_position,
            attempt=held.attempts + 1,
            cause=cause,
            exc_info=None if known else error,
        )
        final = isinstance(error, ModelFailure) and not error.retryable
        if not final and held.attempts + 1 < self._config.step_tries:
            seconds = min(self._config.step_backoff_seconds * 2**held.attempts, MAX_BACKOFF_SECONDS)
            async with self._database.transaction(state.tenant_id) as tx:
                await memories.back_off(tx, held, seconds)
            return None
        if state.spec.on_failure is OnFailure.SKIP:
            return await self._skip(state, group, cause)
        async with self._database.transaction(state.tenant_id) as tx:
            await memories.stall(tx, held)
            await memories.add_dead_letter(
                tx, held, to_position=group[-1].position, cause=cause, resolution=None
            )
        return None

    async def _skip(self, state: _State, group: Sequence[LoggedChunk], cause: str) -> _State:
        new = NewRevision(kind="skip", to_position=group[-1].position, digest=_digest(state.memory))
        async with self._database.transaction(state.tenant_id) as tx:
            number = await memories.commit_revision(tx, state.held, new, has_work=True)
            await memories.add_dead_letter(
                tx, state.held, to_position=new.to_position, cause=cause, resolution="skipped"
            )
        self._steps.add(1, {"kind": "skip"})
        return state.moved(number, new.to_position, state.memory)

    def _span(self, name: str, state: _State) -> AbstractContextManager[Span]:
        return tracer().start_as_current_span(
            name,
            attributes={
                "palimpsest.memory_id": str(state.held.memory_id),
                "palimpsest.revision": state.held.revision,
                "palimpsest.from_position": state.held.applied_position,
            },
        )


def _next_group(state: _State) -> Sequence[LoggedChunk]:
    """The chunks of the next step.

    A step that was paid for, by a worker that died before the commit, is made again
    with the same chunks, though more have come since: then its reply is in the journal.
    """
    paid = [chunk for chunk in state.pending if chunk.position <= (state.paid_position or 0)]
    if paid and paid[-1].position == state.paid_position:
        return paid
    return prism.read_group(state.pending, state.spec.chunk_tokens)


async def _locked_head(tx: Transaction, held: Claim) -> int:
    stored = await sessions.lock_head(tx, held.session_key)
    assert stored is not None, "a memory's foreign key holds its session"
    return stored.head


def _digest(memory: PrismMemory) -> bytes:
    return hashlib.sha256(memory.value_json.encode()).digest()


def _cause(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:500]
