"""What a memory must be after any history: a small model to check stored ones against."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from service.domain.prism import pacing
from service.domain.prism.amending import MISSING, amend, value_at
from service.domain.prism.amendments import Amendment
from service.domain.prism.focus import focused
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import StepBounds
from service.domain.prism.prompts import revise_task
from service.domain.prism.schemas.tree import Schema
from service.domain.prism.spec import Encoding, PrismSpec, StepScope
from service.domain.prompting.flows import ModelRequest, Segment, SegmentKind
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.json_values import Json, canonical, parse
from service.domain.values.paths import Path
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.answers.readers.citing import cite
from service.usecases.memories.history import History
from service.usecases.memories.memories import Memories
from service.usecases.memories.watch import Committed
from storage.engine.database import Database
from storage.log import chunks as log
from storage.memories import history
from storage.memories.history import StoredRevision
from storage.memories.memories import StoredMemory
from storage.prism import amendment_log, states
from storage.prism.amendment_log import LoggedAmendment
from tests.support.contents import ConsolidateContent, ReviseContent, content_of

#: The window of `scripted.prism_method`.
WINDOW = 32_768
#: More than any test makes.
ALL = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change by hand that was acked."""

    revision: int
    kind: str
    comment: str
    restored_revision: int | None = None


@dataclass(kw_only=True, slots=True)
class Expected:
    """What is known of a memory from outside."""

    acked: list[Change] = field(default_factory=list)
    #: Revisions as watches streamed them, over all consecutive watches.
    told: list[Committed] = field(default_factory=list)
    #: Ends of revise prompts of this memory, and the prompts.
    asked: dict[tuple[int, ...], list[ModelRequest]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """A memory with all that is stored of its history."""

    stored: StoredMemory
    revisions: Sequence[StoredRevision]
    amendments: dict[int, list[LoggedAmendment]]
    #: The state after each revision, as the model has it.
    values: Sequence[Json]

    @property
    def key(self) -> tuple[UUID, UUID]:
        return self.stored.session_key, self.stored.memory_id

    @property
    def schema(self) -> Schema:
        return PrismSpec.of(self.stored).schema()


async def read_past(database: Database, stored: StoredMemory) -> Past:
    """Reads the logs, and derives the states from amendments, rollbacks and the order of folds."""
    key = stored.session_key, stored.memory_id
    async with database.transaction(DEFAULT_TENANT) as tx:
        revisions = await history.list_revisions(tx, *key, -1, stored.revision + 1)
        logged = await amendment_log.list_amendments(tx, *key, after=(0, 0), limit=ALL)
        rows = await tx.fetch(
            "SELECT revision, value FROM prism_base WHERE memory_id = %(memory)s",
            {"memory": stored.memory_id},
        )
    bases = {row.revision: parse(row.value) for row in rows}
    by_revision: dict[int, list[LoggedAmendment]] = {}
    for amendment in logged:
        by_revision.setdefault(amendment.revision, []).append(amendment)
    values: list[Json] = [{}]
    for one in revisions[1:]:
        if one.restored_revision is not None:
            values.append(values[one.restored_revision])
            continue
        made = [
            Amendment(path=Path.parse(a.path), op=a.op, value=parse(a.value))
            for a in by_revision.get(one.revision, [])
        ]
        value = amend(PrismSpec.of(stored).schema(), values[-1], made)
        if one.kind == "fold" and one.revision in bases:
            # A fold may put the keys in another order, and changes nothing else.
            assert bases[one.revision] == value, one
            value = bases[one.revision]
        values.append(value)
    return Past(stored=stored, revisions=revisions, amendments=by_revision, values=values)


def check_chain(past: Past) -> None:
    """Revisions have no gap, and each chunk up to the cursor was read once, in order."""
    numbers = [one.revision for one in past.revisions]
    assert numbers == list(range(past.stored.revision + 1))
    reached = 0
    for one in past.revisions:
        assert one.from_position == reached, (one, "a step begins where the one before ended")
        assert (one.to_position > reached) == (one.kind in ("step", "skip"))
        reached = one.to_position
        named = [a.path for a in past.amendments.get(one.revision, []) if "['log']" in a.path]
        if one.kind == "step":
            read = range(one.from_position + 1, one.to_position + 1)
            assert named == [f"$['log']['p{position}']" for position in read]
    assert reached == past.stored.applied_position


async def check_states(database: Database, memories: Memories, past: Past) -> None:
    """Any revision is read as the model has it, and its bytes have the stored digest."""
    for one, value in zip(past.revisions, past.values, strict=True):
        text = canonical(value)
        assert hashlib.sha256(text.encode()).digest() == one.digest, one
        reading = await memories.read_revision(DEFAULT_TENANT, "s", past.stored.name, one.revision)
        assert reading.value_json == text, one
        assert reading.applied_position == one.to_position
    async with database.transaction(DEFAULT_TENANT) as tx:
        for table in ("prism_base", "prism_snapshot", "prism_value"):
            rows = await tx.fetch(
                f"SELECT revision, value FROM {table} WHERE memory_id = %(memory)s",
                {"memory": past.stored.memory_id},
            )
            for row in rows:
                if row.revision <= past.stored.revision:
                    assert row.value == canonical(past.values[row.revision]), (table, row.revision)


async def check_prompts(database: Database, past: Past, expected: Expected) -> None:
    """Checks that the prompt of a committed step follows from the stored rows."""
    for one in past.revisions:
        if one.kind != "step":
            continue
        async with database.transaction(DEFAULT_TENANT) as tx:
            rows = await states.read_shown(tx, *past.key, one.revision - 1)
        assert rows is not None
        memory = PrismMemory.load(
            past.schema,
            base_json=rows.base,
            amendments=rows.amendments,
            encoding=PrismSpec.of(past.stored).encoding,
        )
        read = tuple(range(one.from_position + 1, one.to_position + 1))
        asked = expected.asked.get(read, [])
        due = [[s.text for s in _due(PrismSpec.of(past.stored), memory, ask)] for ask in asked]
        assert any(_memory_shown(ask) == texts for ask, texts in zip(asked, due, strict=True)), one


def _due(spec: PrismSpec, memory: PrismMemory, ask: ModelRequest) -> Sequence[Segment]:
    """Returns what a prompt over the same texts shows of the memory."""
    rules = spec.rules(Limits().max_memory_bytes)
    task = revise_task(spec, rules, is_focused=spec.steps is StepScope.FOCUSED)
    bounds = StepBounds.of(WINDOW, estimate_tokens(task), rules.max_memory_bytes)
    focus = pacing.focus_tokens(spec, memory, bounds)
    if focus is None:
        return memory.segments()
    assert isinstance(content_of(ask), ReviseContent)
    return focused(memory, "\n".join(content_of(ask).texts), focus).segments


def _memory_shown(ask: ModelRequest) -> list[str]:
    kinds = (SegmentKind.BASE, SegmentKind.AMENDMENTS)
    return [segment.text for segment in ask.segments if segment.kind in kinds]


def check_acked(past: Past, expected: Expected) -> None:
    """Checks that what was acked is there once, where the ack said, under its own name."""
    comments = [one.comment for one in past.revisions if one.comment]
    assert len(comments) == len(set(comments)), "nothing is applied twice"
    for change in expected.acked:
        if change.revision > past.stored.revision:
            continue
        one = past.revisions[change.revision]
        assert (one.kind, one.comment) == (change.kind, change.comment)
        assert one.restored_revision == change.restored_revision


def check_told(past: Past, told: Sequence[Committed], *, complete: bool) -> None:
    """Checks that a watch streamed each revision once, in order, with its changes."""
    assert [one.revision.revision for one in told] == list(range(1, len(told) + 1))
    if complete:
        assert len(told) == past.stored.revision
    for one in told:
        if one.revision.revision <= past.stored.revision:
            assert one.revision == past.revisions[one.revision.revision]
            made = past.amendments.get(one.revision.revision, [])
            assert list(one.amendments) == made


def lineage(past: Past, at: int) -> list[int]:
    """Returns the revisions that made a state, newest first."""
    found: list[int] = []
    while at > 0:
        restored = past.revisions[at].restored_revision
        if restored is not None:
            at = restored
            continue
        found.append(at)
        at -= 1
    return found


def writers(past: Past, text: str, at: int) -> list[int]:
    """Returns the revisions behind a state that wrote a value with this text in it."""
    return [
        number
        for number in lineage(past, at)
        if any(text in one.value for one in past.amendments.get(number, []))
    ]


async def check_provenance(
    database: Database, look: History, past: Past, at: int, texts: Sequence[str]
) -> None:
    """Checks that each text of a state is traced to its first revision, and its chunk."""
    for path, value in _texts(past.values[at]):
        found = await look.provenance(
            DEFAULT_TENANT, "s", past.stored.name, str(path), revision=at, before=None, limit=ALL
        )
        assert found.value == canonical(value)
        (origin,) = [one for one in found.entries if one.origin]
        assert origin.amendment.revision == writers(past, canonical(value), at)[-1], (path, value)
        numbers = [one.amendment.revision for one in found.entries]
        assert numbers == sorted(numbers, reverse=True)
        assert set(numbers) <= set(lineage(past, at))
        assert found.entries[0].in_effect
        if value in texts and origin.revision.kind == "step":
            assert origin.best_position == texts.index(value) + 1
            await _check_citation(database, past, at, path, origin.best_position)


async def _check_citation(
    database: Database, past: Past, at: int, path: Path, position: int
) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await states.read_nearest(tx, *past.key, at)
        assert rows is not None
        memory = PrismMemory.load(
            past.schema,
            base_json=rows.base,
            amendments=rows.amendments,
            encoding=Encoding.IN_PLACE,
        )
        (cited,) = await cite(tx, past.key, memory, [path], at)
    assert cited.position == position


def _texts(value: Json, at: Path | None = None) -> Iterable[tuple[Path, str]]:
    at = at or Path()
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _texts(child, at / key)
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _texts(child, at / number)


async def check_log(database: Database, key: UUID, texts: Sequence[str]) -> None:
    """The log holds each text that was sent once."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        chunks = await log.read(tx, key, 0, ALL)
    assert [one.position for one in chunks] == list(range(1, len(chunks) + 1))
    assert sorted(one.chunk.text for one in chunks) == sorted(texts)


def reply(ask: ModelRequest, number: int, texts: Sequence[str]) -> str:
    """Returns what the scripted model says: a line for each chunk of a log, and a list that grows.

    A consolidation merges two lines and takes one of them and a list item away.
    """
    if isinstance(content_of(ask), ConsolidateContent):
        value = content_of(ask).value
        lines = value_at(value, Path(("log",)))
        removals, updates = [], {}
        if isinstance(lines, dict) and len(lines) > 1:
            first, second, *_ = lines
            updates[f"$.'log'.'{first}'"] = {"update": f"merged {number}"}
            removals.append(f"$.'log'.'{second}'")
        if value_at(value, Path(("items", 0))) is not MISSING:
            removals.append("$.'items'[0]")
        changes = f"[OBJECTS FOR UPDATE]\n{json.dumps(updates)}\n"
        return changes + "[OBJECTS FOR REMOVE]\n" + "\n".join(removals)
    assert isinstance(content_of(ask), ReviseContent)
    added: dict[str, dict[str, str]] = {}
    for text in content_of(ask).texts:
        added[f"$.'log'.'p{texts.index(text) + 1}'"] = {"add": text}
    added["$.'items'[-]"] = {"add": f"item {number}"}
    return "[OBJECTS FOR ADD]\n" + json.dumps(added)
