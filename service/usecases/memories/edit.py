"""Edits memories by hand, without a model. Each change is a revision of its own.

An edit locks the memory's row, changes the value that it has then, and commits the revision.
A worker with a step under way finds that the revision has moved, discards its result and begins
again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from service.domain.access.audit import AuditAction, AuditEntry, Detail
from service.domain.memories.specs import kinds
from service.domain.prism import entries, losses
from service.domain.prism.amendments import Amendment, Op, Proposal, Rules
from service.domain.prism.memory import PrismMemory
from service.domain.prism.revisions import InvalidEdit, edited
from service.domain.prism.schemas.tree import Incompatible, Schema, check_extends, render
from service.domain.prism.spec import Encoding, PrismSpec
from service.domain.values.errors import Conflict, FailedPrecondition, InvalidInput
from service.domain.values.json_values import parse
from service.domain.values.reasons import Reason
from service.llm.gateway.allowed import AllowedModels
from service.settings.config import Limits
from service.usecases.log import metrics
from service.usecases.log.idempotency import store_result
from service.usecases.log.lookup import (
    find_memory,
    item_key,
    lock_memory,
    refuse_other_kind,
    revision_not_found,
    session_not_found,
)
from service.usecases.memories import step_traces
from service.usecases.memories.long_operations import FoundOperation, request_consolidation
from service.usecases.memories.memories import Memories
from storage.access import audit
from storage.engine.claims import Claim
from storage.engine.database import Database, Transaction
from storage.log import sessions
from storage.memories import history, revisions, waiting
from storage.memories.memories import StoredMemory
from storage.memories.revisions import NewRevision
from storage.prism import amendment_log, states
from storage.prism.amendment_log import LoggedAmendment


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """One change as a client gives it."""

    #: None puts the value there, whether the path exists or not.
    op: Op | None
    path: str
    #: JSON; empty for REMOVE.
    value_json: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Which memory is changed, and what its newest revision must be."""

    session: str
    memory: str
    #: None takes it as it is.
    expected_revision: int | None = None
    #: A note, such as the reason.
    comment: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUpdate:
    """What changes in the spec of a live memory."""

    #: None leaves it. PRISM memories only.
    schema: Schema | None = None
    #: Names of a spec's fields, and the models that they name from now on; empty: the default.
    models: Mapping[str, str] = field(default_factory=dict)


class Editor:
    """Makes the changes that clients ask for, in one server process."""

    def __init__(self, database: Database, memories: Memories, limits: Limits) -> None:
        self._database = database
        self._memories = memories
        self._limits = limits

    async def revise(
        self, tenant_id: UUID, target: Target, edits: Sequence[Edit]
    ) -> tuple[StoredMemory, Sequence[LoggedAmendment]]:
        """Makes all edits, or none; returns the memory and the amendments that resulted.

        What changes nothing makes no amendment, and by itself no revision. Raises
        NotFound, Conflict, InvalidInput.
        """
        proposals = [_proposal(edit, number) for number, edit in enumerate(edits)]
        async with self._database.transaction(tenant_id, name="edit.change") as tx:
            held = await _lock(tx, target, PrismSpec.kind)
            before = await _load(tx, held, held.revision)
            rules = Rules(max_memory_bytes=self._limits.max_memory_bytes, may_remove=True)
            try:
                amendments = edited(proposals, before.schema, before.value, rules)
            except InvalidEdit as error:
                wrong = proposals[error.number]
                raise _edit_invalid(error.number, wrong.path, str(error)) from error
            if not amendments:
                unchanged = await find_memory(tx, target.session, target.memory)
                return await store_result(tx, (unchanged, ()))
            after = before.apply(held.revision + 1, amendments)
            new = NewRevision(
                kind="edit",
                to_position=held.applied_position,
                digest=_digest(after),
                amendments=amendments,
                value=after.value_json,
                # A line of a prompt cannot say that something is gone.
                base=after.value_json if _removes(amendments) else None,
                consolidated_tokens=0 if _removes(amendments) else None,
                comment=target.comment,
                entries=entries.entries_after(
                    before.schema,
                    before.value,
                    after.value,
                    amendments,
                    revision=held.revision + 1,
                    positions=entries.NO_POSITIONS,
                ),
                losses=losses.after_change(held.losses, after.value, rules),
            )
            stored = await self._commit(tx, target, held, new)
            logged = await amendment_log.list_amendments(
                tx, *item_key(held), after=(held.revision, 2**31 - 1), limit=len(amendments)
            )
            await _record(tx, target, AuditAction.MEMORY_EDIT, stored, edits=len(amendments))
            await store_result(tx, (stored, logged))
        self._memories.wake(tenant_id, stored)
        return stored, logged

    async def rollback(self, tenant_id: UUID, target: Target, revision: int) -> StoredMemory:
        """Restores the state of `revision`. Raises NotFound, Conflict, OutOfRange."""
        async with self._database.transaction(tenant_id, name="edit.rollback") as tx:
            held = await _lock(tx, target, *kinds(lambda spec: spec.has_states))
            if revision > held.revision:
                raise revision_not_found(target.memory, revision, held.revision)
            await _refuse_before_quarantine(tx, held, target.memory, revision)
            await self._memories.restore(tx, held, revision, comment=target.comment)
            stored = await find_memory(tx, target.session, target.memory)
            await _record(tx, target, AuditAction.MEMORY_ROLLBACK, stored, to_revision=revision)
            await store_result(tx, stored)
        self._memories.wake(tenant_id, stored)
        return stored

    async def fold(self, tenant_id: UUID, target: Target) -> tuple[StoredMemory, bool]:
        """Writes the amendments into a new base, and returns whether there were any.

        Raises NotFound.
        """
        async with self._database.transaction(tenant_id, name="edit") as tx:
            held = await _lock(tx, target, PrismSpec.kind)
            rows = await states.read_shown(tx, *item_key(held), held.revision)
            assert rows is not None, "the cursor's foreign key keeps the revision"
            if PrismSpec.of(held).encoding is Encoding.IN_PLACE or not rows.amendments:
                unchanged = await find_memory(tx, target.session, target.memory)
                return await store_result(tx, (unchanged, False))
            memory = PrismMemory.load(
                PrismSpec.of(held).schema(), base_json=rows.base, amendments=rows.amendments
            )
            new = NewRevision(
                kind="fold",
                to_position=held.applied_position,
                digest=_digest(memory),
                base=memory.value_json,
            )
            stored = await self._commit(tx, target, held, new)
            await store_result(tx, (stored, True))
        self._memories.wake(tenant_id, stored)
        return stored, True

    async def consolidate(self, tenant_id: UUID, target: Target) -> FoundOperation:
        """Requests a consolidation once what is in the log is read. Raises NotFound."""
        async with self._database.transaction(tenant_id, name="edit.consolidate") as tx:
            stored = await find_memory(tx, target.session, target.memory)
            # In the order in which a step locks them.
            session = await sessions.lock_head(tx, stored.session_key)
            if session is None:
                raise session_not_found(target.session)
            held = await _lock(tx, target, PrismSpec.kind)
            operation = await request_consolidation(tx, held, target.memory, goal=session.head)
            stored = await find_memory(tx, target.session, target.memory)
            await store_result(tx, operation)
        self._memories.wake(tenant_id, stored)
        return operation

    async def update(
        self, tenant_id: UUID, target: Target, kind: str, changes: MemoryUpdate
    ) -> StoredMemory:
        """Gives a memory of a kind a schema with more fields, other models, or both.

        Raises NotFound, FailedPrecondition (another kind), Conflict, InvalidInput.
        """
        async with self._database.transaction(tenant_id, name="edit.update") as tx:
            held = await _lock(tx, target, kind)
            if changes.schema is not None:
                await self._extend_schema(tx, target, held, changes.schema)
            if changes.models:
                # After the revision: it gives the memory another epoch.
                await waiting.change_models(tx, held, changes.models)
            stored = await find_memory(tx, target.session, target.memory)
            await store_result(tx, stored)
        self._memories.wake(tenant_id, stored)
        return stored

    async def rebuild(
        self,
        tenant_id: UUID,
        session: str,
        names: tuple[str, str],
        changes: Mapping[str, Mapping[str, Any]],
        models: AllowedModels,
        *,
        allow_expired_log: bool,
    ) -> FoundOperation:
        """Creates the second of `names` from the first, with other settings, from the whole log.

        `changes`: fields of specs, by the kind of memory that they are for.

        Raises NotFound, AlreadyExists, Exhausted, InvalidInput (schema; model that is not
        allowed), FailedPrecondition (changes for memories of another kind).
        """
        old, new = names
        source = await self._memories.get(tenant_id, session, old)
        for kind in changes:
            refuse_other_kind(old, source.spec, kind)
        spec = source.spec.changed(changes.get(source.kind, {}))
        # A model that is not named anew is taken over, and may be allowed no more.
        models.check_spec(spec, f"{source.kind}.")
        return await self._memories.rebuild(
            tenant_id, session, new, spec, old, allow_expired_log=allow_expired_log
        )

    async def _extend_schema(
        self, tx: Transaction, target: Target, held: Claim, schema: Schema
    ) -> None:
        """Commits the schema as a revision, unless the memory has it already."""
        source = render(schema)
        if PrismSpec.of(held).shown_schema() == source:
            return
        try:
            check_extends(PrismSpec.of(held).schema(), schema)
        except Incompatible as error:
            raise InvalidInput(
                Reason.SCHEMA_INCOMPATIBLE,
                f"a live memory's schema can only get more fields: {error}. A rebuild can"
                " change others",
                {"field": error.place},
                field="prism.schema_source",
            ) from error
        memory = await _load(tx, held, held.revision)
        new = NewRevision(
            kind="schema",
            to_position=held.applied_position,
            digest=_digest(memory),
            comment=target.comment,
            schema_source=source,
            losses=losses.after_schema(held.losses),
        )
        await self._commit(tx, target, held, new)

    async def _commit(
        self, tx: Transaction, target: Target, held: Claim, new: NewRevision
    ) -> StoredMemory:
        with step_traces.commit(held, new) as traced:
            await revisions.commit_revision(tx, held, traced, has_work=None)
        return await find_memory(tx, target.session, target.memory)


async def _lock(tx: Transaction, target: Target, *wanted: str) -> Claim:
    held = await lock_memory(tx, target.session, target.memory, *wanted)
    expected = target.expected_revision
    if expected is not None and expected != held.revision:
        conflict = Conflict(
            Reason.REVISION_CONFLICT,
            f"memory {target.memory!r} is at revision {held.revision}, not {expected}: read it,"
            " then decide",
            {"expected": expected, "current": held.revision},
        )
        metrics.refused(conflict)
        raise conflict
    return held


async def _refuse_before_quarantine(
    tx: Transaction, held: Claim, memory: str, revision: int
) -> None:
    """Raises FailedPrecondition where a rollback would restore what a quarantine undid."""
    last = await history.last_quarantine(tx, *item_key(held), held.revision)
    if last is not None and revision < last:
        raise FailedPrecondition(
            Reason.SOURCE_QUARANTINED,
            f"memory {memory!r} can go back to revision {last} or later: before it the quarantine"
            " of a source is missing. ReleaseSource restores what it undid",
            {"memory": memory, "revision": last},
        )


async def _record(
    tx: Transaction, target: Target, action: AuditAction, stored: StoredMemory, **details: Detail
) -> None:
    """Records an edit by hand: which revision it is, never what it says."""
    entry = AuditEntry(
        action=action,
        session=target.session,
        memory=target.memory,
        details={"revision": stored.revision, **details},
    )
    await audit.record(tx, entry)


async def _load(tx: Transaction, held: Claim, revision: int) -> PrismMemory:
    rows = await states.get_nearest(tx, *item_key(held), revision)
    return rows.memory(PrismSpec.of(held).schema())


def _proposal(edit: Edit, number: int) -> Proposal:
    try:
        value = None if edit.op is Op.REMOVE else parse(edit.value_json)
    except ValueError as error:
        raise _edit_invalid(number, edit.path, f"the value is no JSON: {error}") from error
    return Proposal(edit.path, edit.op, value)


def _edit_invalid(number: int, path: str, reason: str) -> InvalidInput:
    return InvalidInput(
        Reason.EDIT_INVALID,
        f"edit {number + 1}, {path}: {reason}",
        {"edit": number + 1, "path": path},
        field=f"edits[{number}]",
    )


def _removes(amendments: Sequence[Amendment]) -> bool:
    return any(one.op is Op.REMOVE for one in amendments)


def _digest(memory: PrismMemory) -> bytes:
    return hashlib.sha256(memory.value_json.encode()).digest()
