"""Stores questions and their answers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from pydantic import TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    bindparam,
    func,
    null,
    select,
    update,
)

from service.domain.answers.browse.spec import BrowseRequest
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.answers.options import worded
from service.domain.answers.trajectory import (
    NoAnswer,
)
from service.domain.memories.specs import spec_from_json
from service.domain.tree.recording import Statistics
from service.domain.values.memory_specs import MemorySpec, ReaderName
from service.domain.values.work_items import WorkKind
from storage.answers.headings import HEADINGS, Heading, heading_of
from storage.answers.ratings import GOOD, StoredRating
from storage.calls import calls
from storage.calls.calls import UsageLine
from storage.engine.database import Transaction, value
from storage.engine.ready import Ready
from storage.memories import job_results
from storage.tables import answer, answer_rating, memory, session


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCitation:
    """A place in the log that supports an answer."""

    position: int
    #: The value at the path, or the text of the chunk, cut.
    excerpt: str
    #: Normalized path of the memory.
    path: str = ""
    #: The revision that wrote it; 0 for an answer from the log itself.
    revision: int = 0
    #: For an answer from a tree: the leaf, and the positions that it covers.
    node_id: str = ""
    from_position: int = 0
    to_position: int = 0
    #: Characters of the chunk's text (`Chunk.as_text()`), the last one excluded; both 0: the
    #: chunk as a whole.
    from_character: int = 0
    to_character: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What the automatic reader chose."""

    reader: ReaderName
    #: None: the log itself is read.
    memory_id: UUID | None
    memory_name: str
    #: Where the memory is read.
    revision: int
    applied_position: int
    #: One sentence.
    reason: str
    #: Expected tokens of prompts and replies.
    expected_tokens: int
    #: As in `StoredAnswer`; None for other readers.
    navigation: NavigationRequest | None = None
    browsing: BrowseRequest | None = None
    #: Events of the answer up to the one with this choice; those of the reader follow.
    events: int = 1
    #: What is read where this has no answer; None: for a memory the log, for the log nothing.
    otherwise: "Chosen | None" = None


#: Its JSON form in the column `chosen`.
_CHOSEN = TypeAdapter(Chosen)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """An answer's row."""

    session_key: UUID
    #: The session's.
    incarnation: int
    answer_id: UUID
    #: The memory to read; None: the log is read, or the automatic reader chooses.
    asked_memory: UUID | None
    session_name: str
    #: Empty without a memory.
    memory_name: str
    query: str
    #: "pending", "complete", "failed", "cancelled" or "abandoned".
    status: str
    #: Whether a pending one has a worker, or waits for its model or a budget.
    is_running: bool
    revision: int
    applied_position: int
    text: str
    citations: Sequence[StoredCitation]
    #: Headings of cited chunks that have one, by position; read with the answer.
    headings: Mapping[int, Heading]
    model: str
    #: Why it failed, or why there is no answer: one sentence.
    failure: str
    attempts: int
    created_at: datetime
    #: How the tree is to be navigated; None for other readers.
    navigation: NavigationRequest | None
    #: Why there is no answer; None when there is one, or none yet.
    no_answer: NoAnswer | None
    #: Totals of the navigation; None until it is complete, and for other readers.
    statistics: Statistics | None
    #: The memory's spec, with the schema as it is now; None without a memory.
    asked_spec: MemorySpec | None
    #: None: the default reader of that kind of memory.
    reader: ReaderName | None
    #: How the log is to be browsed; None for other readers.
    browsing: BrowseRequest | None
    #: The model where no memory's spec names one; empty: the service's.
    wanted_model: str
    #: JSON Schema of the answer, and the answer in this form; None where none is requested. With
    #: `has_value` None is the answer.
    response_schema: Mapping[str, Any] | None
    value: Any
    #: What the automatic reader chose; None for others, and before it has.
    chosen: Chosen | None
    #: Whether the text is streamed.
    tells_text: bool
    #: A chosen memory must have applied the log up to here; 0: any may be chosen.
    wanted_position: int = 0
    #: Which chunks may be cited, and are read where the log is read; None: all.
    chunk_filter: Mapping[str, Any] | None = None
    #: Options of a multiple-choice question; the answer is one of them, word for word.
    options: tuple[str, ...] = ()
    #: Whether the answer is an option without support in what was read.
    guessed: bool = False
    #: Whether the text was cut off at its limit.
    truncated: bool = False
    #: The first and the last chunk of what the reader left out, since the log exceeds its limit;
    #: None: nothing.
    left_out: tuple[int, int] | None = None
    #: None as long as it is not rated.
    rating: StoredRating | None = None
    #: What the memory has lost by now: see `service.domain.prism.losses`.
    losses: Mapping[str, Any] | None = None
    #: Until when it is made without a waiting client; None: for ever.
    wanted_until: datetime | None = None
    #: Whether `wanted_until` has passed; None: it never does.
    is_unwanted: bool | None = None
    #: Whether it failed because a budget does not allow a call.
    over_budget: bool = False
    #: The server process whose client began to wait last; None: all clients left, or it is made in
    #: any case.
    waiter: UUID | None = None

    @property
    def is_left(self) -> bool:
        """Whether all waiting clients have left."""
        return self.wanted_until is not None and self.waiter is None

    @property
    def worded(self) -> str:
        """The question with its options, for readers without support for options."""
        return worded(self.query, self.options)

    @property
    def has_value(self) -> bool:
        """Whether there is an answer in the form of the schema.

        JSON's null may be one, and is stored like none.
        """
        is_answered = self.status == "complete" and self.no_answer is None
        return self.value is not None or (is_answered and self.response_schema is not None)

    @property
    def memory_id(self) -> UUID:
        """The memory of an answer that has one."""
        assert self.asked_memory is not None, "the caller looked for a memory"
        return self.asked_memory

    @property
    def spec(self) -> MemorySpec:
        """The memory's spec of an answer that has one."""
        assert self.asked_spec is not None, "the caller looked for a memory"
        return self.asked_spec


_FIELDS = frozenset(StoredAnswer.__dataclass_fields__)

#: Writes nothing when as many are pending as may be.
_CREATE = """
INSERT INTO answer (
    session_key, answer_id, tenant_id, memory_id, query, revision, applied_position, navigation,
    reader, browsing, wanted_model, response_schema, tells_text, wanted_position, options,
    chunk_filter, waiter, wanted_until
)
SELECT %(session_key)s::uuid, %(answer_id)s::uuid, %(tenant_id)s::uuid, %(memory_id)s::uuid,
    %(query)s::text, %(revision)s::int8, %(applied_position)s::int8, %(navigation)s::jsonb,
    %(reader)s::text, %(browsing)s::jsonb, %(wanted_model)s::text, %(response_schema)s::jsonb,
    %(tells_text)s::bool, %(wanted_position)s::int8, %(options)s::jsonb,
    %(chunk_filter)s::jsonb, %(waiter)s::uuid,
    now() + make_interval(secs => %(wanted_seconds)s::float8)
WHERE %(max_pending)s::int IS NULL
    OR count_pending_answer(%(tenant_id)s::uuid, %(max_pending)s::int) < %(max_pending)s::int
RETURNING true
"""


async def create(
    tx: Transaction,
    *,
    session_key: UUID,
    answer_id: UUID,
    memory_id: UUID | None,
    query: str,
    revision: int,
    applied_position: int,
    navigation: NavigationRequest | None = None,
    reader: ReaderName | None = None,
    browsing: BrowseRequest | None = None,
    model: str = "",
    response_schema: Mapping[str, Any] | None = None,
    tells_text: bool = False,
    wanted_position: int = 0,
    options: Sequence[str] = (),
    chunk_filter: Mapping[str, Any] | None = None,
    waiter: UUID | None = None,
    wanted_seconds: float | None = None,
    max_pending: int | None = None,
) -> bool:
    """Stores a question, to be answered from the memory as of `revision`.

    Without a memory it is answered from the log up to `applied_position`, and `revision` is 0. A
    client of the process `waiter` waits for it, for `wanted_seconds`; without them it is made in
    any case. The other arguments are as in `StoredAnswer`. False when `max_pending` of the tenant's
    are pending.
    """
    values: dict[str, object] = {
        "session_key": session_key,
        "answer_id": answer_id,
        "tenant_id": tx.tenant_id,
        "memory_id": memory_id,
        "query": query,
        "revision": revision,
        "applied_position": applied_position,
        "navigation": None if navigation is None else Jsonb(navigation.to_json()),
        "reader": None if reader is None else reader.value,
        "browsing": None if browsing is None else Jsonb(browsing.to_json()),
        "wanted_model": model,
        "response_schema": None if response_schema is None else Jsonb(dict(response_schema)),
        "tells_text": tells_text,
        "wanted_position": wanted_position,
        "options": Jsonb(list(options)),
        "chunk_filter": None if chunk_filter is None else Jsonb(dict(chunk_filter)),
        "waiter": waiter,
        "wanted_seconds": wanted_seconds,
        "max_pending": max_pending,
    }
    return bool(await tx.fetch(_CREATE, values))


async def get(tx: Transaction, session_key: UUID, answer_id: UUID) -> StoredAnswer | None:
    """Reads an answer; None when there is none."""
    rows = await tx.fetch(_GET, {"session": session_key, "answer": answer_id})
    return _stored(dict(zip(_COLUMNS, rows[0], strict=True))) if rows else None


async def read(
    tx: Transaction, session_key: UUID, answer_id: UUID, occasion: str
) -> tuple[StoredAnswer, tuple[UsageLine, ...]] | None:
    """Reads an answer and the costs of its calls, which have that occasion, in one round trip.

    None when there is none.
    """
    keys = {"session": session_key, "answer": answer_id}
    values = _GET.values({**keys, "occasion": occasion})
    rows, usage = await tx.pipeline((_GET.text, calls.USAGE_OF_ANSWER), values, snapshot=True)
    if not rows:
        return None
    return _stored(dict(zip(_COLUMNS, rows[0], strict=True))), calls.lines(usage)


async def status(tx: Transaction, session_key: UUID, answer_id: UUID) -> str | None:
    """Returns the status of an answer; None when there is none."""
    statement = select(answer.c.status).where(
        answer.c.session_key == session_key, answer.c.answer_id == answer_id
    )
    found: str | None = value(await tx.fetch(statement))
    return found


#: Whether a pending answer has a worker, or waits for its model or a budget.
IS_RUNNING: ColumnElement[bool] = (answer.c.status == "pending") & (
    answer.c.waiting_model.is_not(None)
    | func.is_claimed(answer.c.session_key, answer.c.answer_id, WorkKind.ANSWER.value)
)


def select_answers() -> Select[Any]:
    """Returns the statement that reads answers, for `from_row`."""
    return (
        select(
            answer,
            IS_RUNNING.label("is_running"),
            HEADINGS.label("headings"),
            (answer.c.wanted_until <= func.now()).label("is_unwanted"),
            session.c.name.label("session_name"),
            session.c.incarnation,
            func.coalesce(memory.c.name, "").label("memory_name"),
            memory.c.kind,
            memory.c.spec,
            memory.c.schema_source,
            memory.c.losses,
            answer_rating.c.rating.label("rated"),
            answer_rating.c.comment,
            answer_rating.c.expected,
            answer_rating.c.rated_at,
        )
        .join(session, session.c.session_key == answer.c.session_key)
        .outerjoin(
            memory,
            (memory.c.session_key == answer.c.session_key)
            & (memory.c.memory_id == answer.c.memory_id),
        )
        .outerjoin(
            answer_rating,
            (answer_rating.c.session_key == answer.c.session_key)
            & (answer_rating.c.answer_id == answer.c.answer_id),
        )
    )


_SELECT = select_answers()
#: The columns of its rows.
_COLUMNS = tuple(_SELECT.selected_columns.keys())
_GET = Ready(
    _SELECT.where(
        answer.c.session_key == bindparam("session"), answer.c.answer_id == bindparam("answer")
    )
)


def from_row(row: Row[Any]) -> StoredAnswer:
    """Returns an answer from a row of `select_answers`."""
    return _stored(dict(row._asdict()))


def _stored(row: Mapping[str, Any]) -> StoredAnswer:
    values = {name: value for name, value in row.items() if name in _FIELDS}
    values["asked_memory"] = row["memory_id"]
    values["asked_spec"] = None
    if row["memory_id"] is not None:
        values["asked_spec"] = spec_from_json(row["kind"], row["spec"], row["schema_source"])
    values["options"] = tuple(row["options"])
    values["citations"] = tuple(StoredCitation(**one) for one in row["citations"])
    headings = row["headings"] or {}
    values["headings"] = {int(position): heading_of(*one) for position, one in headings.items()}
    if row["navigation"] is not None:
        values["navigation"] = NavigationRequest.from_json(row["navigation"])
    if row["no_answer"] is not None:
        values["no_answer"] = NoAnswer(row["no_answer"])
    if row["statistics"] is not None:
        values["statistics"] = Statistics(**row["statistics"])
    if row["reader"] is not None:
        values["reader"] = ReaderName(row["reader"])
    if row["browsing"] is not None:
        values["browsing"] = BrowseRequest.from_json(row["browsing"])
    if row["chosen"] is not None:
        values["chosen"] = _CHOSEN.validate_python(row["chosen"])
    if row["left_out"] is not None:
        values["left_out"] = tuple(row["left_out"])
    if row["rated"] is not None:
        values["rating"] = StoredRating(
            good=row["rated"] == GOOD,
            comment=row["comment"],
            expected=row["expected"],
            rated_at=row["rated_at"],
        )
    return StoredAnswer(**values)


async def complete(
    tx: Transaction,
    session_key: UUID,
    answer_id: UUID,
    *,
    text: str,
    citations: Sequence[StoredCitation],
    model: str,
    no_answer: NoAnswer | None = None,
    failure: str = "",
    statistics: Statistics | None = None,
    value: Any = None,
    guessed: bool = False,
    truncated: bool = False,
    left_out: tuple[int, int] | None = None,
) -> bool:
    """Stores the answer; False when it is there already.

    Without one the text is empty, and `failure` says why.
    """
    return await job_results.store(
        tx,
        WorkKind.ANSWER,
        session_key,
        answer_id,
        status="complete",
        text=text,
        citations=[asdict(one) for one in citations],
        model=model,
        no_answer=no_answer,
        failure=failure,
        statistics=null() if statistics is None else asdict(statistics),
        value=null() if value is None else value,
        guessed=guessed,
        truncated=truncated,
        left_out=null() if left_out is None else list(left_out),
    )


async def choose(tx: Transaction, session_key: UUID, answer_id: UUID, chosen: Chosen) -> Chosen:
    """Stores what the automatic reader chose; returns the first choice, which stays."""
    statement = (
        update(answer)
        .where(
            answer.c.session_key == session_key,
            answer.c.answer_id == answer_id,
            answer.c.chosen.is_(None),
        )
        .values(chosen=_CHOSEN.dump_python(chosen, mode="json"))
    )
    if await tx.execute(statement) == 1:
        return chosen
    stored = await get(tx, session_key, answer_id)
    assert stored is not None, "answers are never deleted"
    assert stored.chosen is not None, "another worker chose"
    return stored.chosen
