"""Work items that a worker can be woken for."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class WorkKind(StrEnum):
    """What there is to do."""

    #: Advance a memory until it has no work.
    MEMORY = "memory"
    #: Make an answer.
    ANSWER = "answer"
    #: Make a schema.
    SCHEMA = "schema"
    #: Write the words and the vectors of a session's new chunks.
    INDEX = "index"
    #: Remove the rows of a session, or of a memory, that was deleted.
    REMOVAL = "removal"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkItem:
    """One thing to work on. A wake-up for it may be lost or repeated."""

    kind: WorkKind
    tenant_id: UUID
    session_key: UUID
    #: The memory's, the answer's or the schema draft's id; the session's key for INDEX, and for
    #: REMOVAL of a session.
    item_id: UUID

    @property
    def lock(self) -> str:
        """The name under which at most one worker works on it."""
        return f"{self.kind.value}:{self.session_key}:{self.item_id}"

    @property
    def log_fields(self) -> dict[str, str]:
        """What lines of the log call it: keys, never names."""
        fields = {"session": str(self.session_key)}
        if self.kind in (WorkKind.MEMORY, WorkKind.ANSWER):
            fields[self.kind.value] = str(self.item_id)
        return fields
