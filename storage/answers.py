"""Answers: asked, made by a worker, kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import insert, select

from service.domain.prism.spec import PrismSpec
from service.domain.specs import MemorySpec, spec_from_json
from service.domain.tree.spec import TreeSpec
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
    #: The value at the path, cut.
    excerpt: str


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


async def create(
    tx: Transaction,
    *,
    session_key: UUID,
    answer_id: UUID,
    memory_id: UUID,
    query: str,
    revision: int,
    applied_position: int,
) -> None:
    """Stores a question, to be answered from the memory as of `revision`."""
    await tx.connection.execute(
        insert(answer).values(
            session_key=session_key,
            answer_id=answer_id,
            tenant_id=tx.tenant_id,
            memory_id=memory_id,
            query=query,
            revision=revision,
            applied_position=applied_position,
        )
    )


async def get(tx: Transaction, session_key: UUID, answer_id: UUID) -> StoredAnswer | None:
    """Reads an answer; None when there is none."""
    statement = (
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
        .where(answer.c.session_key == session_key, answer.c.answer_id == answer_id)
    )
    row = (await tx.connection.execute(statement)).one_or_none()
    if row is None:
        return None
    names = StoredAnswer.__dataclass_fields__
    values = {name: value for name, value in row._mapping.items() if name in names}
    values["spec"] = spec_from_json(row.kind, row.spec, row.schema_source)
    values["citations"] = tuple(StoredCitation(**one) for one in row.citations)
    return StoredAnswer(**values)


async def complete(
    tx: Transaction,
    session_key: UUID,
    answer_id: UUID,
    *,
    text: str,
    citations: Sequence[StoredCitation],
    model: str,
) -> bool:
    """Stores the answer's text; False when it is there already."""
    cited = [
        {"position": c.position, "path": c.path, "revision": c.revision, "excerpt": c.excerpt}
        for c in citations
    ]
    return await settling.settle(
        tx,
        WorkKind.ANSWER,
        session_key,
        answer_id,
        status="complete",
        text=text,
        citations=cited,
        model=model,
    )
