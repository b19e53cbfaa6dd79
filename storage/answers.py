"""Answers: asked, made by a worker, kept."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, Select, insert, null, select, tuple_

from service.domain.prism.spec import PrismSpec
from service.domain.specs import MemorySpec, spec_from_json
from service.domain.state.spec import StateSpec
from service.domain.trajectory import (
    NoAnswer,
)
from service.domain.tree.asked import NavigationRequest
from service.domain.tree.spec import TreeSpec
from service.domain.tree.trajectory import Statistics
from service.domain.work import WorkKind
from storage import settling
from storage.database import Transaction
from storage.tables import answer, memory, session


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCitation:
    """A place in the log that an answer rests on."""

    position: int
    #: Normalized path of the memory.
    path: str
    #: The revision that wrote it.
    revision: int
    #: The value at the path, or the text of the chunk, cut.
    excerpt: str
    #: Of an answer from a tree: the leaf, and the positions that it covers.
    node_id: str = ""
    from_position: int = 0
    to_position: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """An answer's row."""

    session_key: UUID
    answer_id: UUID
    memory_id: UUID
    session_name: str
    memory_name: str
    query: str
    #: "pending", "complete" or "failed".
    status: str
    revision: int
    applied_position: int
    text: str
    citations: Sequence[StoredCitation]
    model: str
    failure: str
    attempts: int
    created_at: datetime
    #: How the tree is to be navigated; None for other readers.
    navigation: NavigationRequest | None
    #: Why there is no answer; None when there is one, or none yet.
    no_answer: NoAnswer | None
    #: What the navigation came to; None until it is complete, and for other readers.
    statistics: Statistics | None
    #: The memory's spec, with the schema as it is now.
    spec: MemorySpec

    @property
    def prism(self) -> PrismSpec:
        """The spec of a memory that is known to be a PRISM memory."""
        assert isinstance(self.spec, PrismSpec), "the caller looked at the kind"
        return self.spec

    @property
    def tree(self) -> TreeSpec:
        """The spec of a memory that is known to be a tree."""
        assert isinstance(self.spec, TreeSpec), "the caller looked at the kind"
        return self.spec

    @property
    def state(self) -> StateSpec:
        """The spec of a memory that is known to be a state memory."""
        assert isinstance(self.spec, StateSpec), "the caller looked at the kind"
        return self.spec


async def create(
    tx: Transaction,
    *,
    session_key: UUID,
    answer_id: UUID,
    memory_id: UUID,
    query: str,
    revision: int,
    applied_position: int,
    navigation: NavigationRequest | None = None,
) -> None:
    """Stores a question, to be answered from the memory as of `revision`.

    `navigation` says how, of a tree; None for other readers.
    """
    await tx.connection.execute(
        insert(answer).values(
            session_key=session_key,
            answer_id=answer_id,
            tenant_id=tx.tenant_id,
            memory_id=memory_id,
            query=query,
            revision=revision,
            applied_position=applied_position,
            # None would be written as JSON's null.
            navigation=null() if navigation is None else navigation.to_json(),
        )
    )


async def get(tx: Transaction, session_key: UUID, answer_id: UUID) -> StoredAnswer | None:
    """Reads an answer; None when there is none."""
    statement = _select().where(
        answer.c.session_key == session_key, answer.c.answer_id == answer_id
    )
    row = (await tx.connection.execute(statement)).one_or_none()
    return None if row is None else _stored(row)


async def list_answered(
    tx: Transaction,
    session_key: UUID,
    memory_id: UUID,
    *,
    after: tuple[datetime, UUID] | None,
    limit: int,
    ids: Sequence[UUID] = (),
) -> Sequence[StoredAnswer]:
    """Complete answers of a tree that say something, oldest first, behind `after`.

    Only those with one of the `ids`, if there are any.
    """
    statement = (
        _select()
        .where(
            answer.c.session_key == session_key,
            answer.c.memory_id == memory_id,
            answer.c.status == "complete",
            answer.c.navigation.is_not(None),
            answer.c.no_answer.is_(None),
            *(() if not ids else (answer.c.answer_id.in_(ids),)),
            *(
                ()
                if after is None
                else (tuple_(answer.c.created_at, answer.c.answer_id) > tuple_(*after),)
            ),
        )
        .order_by(answer.c.created_at, answer.c.answer_id)
        .limit(limit)
    )
    return [_stored(row) for row in await tx.connection.execute(statement)]


def _select() -> Select[Any]:
    return (
        select(
            answer,
            session.c.name.label("session_name"),
            memory.c.name.label("memory_name"),
            memory.c.kind,
            memory.c.spec,
            memory.c.schema_source,
        )
        .join(session, session.c.session_key == answer.c.session_key)
        .join(
            memory,
            (memory.c.session_key == answer.c.session_key)
            & (memory.c.memory_id == answer.c.memory_id),
        )
    )


def _stored(row: Row[Any]) -> StoredAnswer:
    names = StoredAnswer.__dataclass_fields__
    values = {name: value for name, value in row._mapping.items() if name in names}
    values["spec"] = spec_from_json(row.kind, row.spec, row.schema_source)
    values["citations"] = tuple(StoredCitation(**one) for one in row.citations)
    if row.navigation is not None:
        values["navigation"] = NavigationRequest.from_json(row.navigation)
    if row.no_answer is not None:
        values["no_answer"] = NoAnswer(row.no_answer)
    if row.statistics is not None:
        values["statistics"] = Statistics(**row.statistics)
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
    statistics: Statistics | None = None,
) -> bool:
    """Stores the answer's text; False when it is there already."""
    return await settling.settle(
        tx,
        WorkKind.ANSWER,
        session_key,
        answer_id,
        status="complete",
        text=text,
        citations=[asdict(one) for one in citations],
        model=model,
        no_answer=no_answer,
        statistics=null() if statistics is None else asdict(statistics),
    )
