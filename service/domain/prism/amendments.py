"""Defines amendments, proposals and rejections of PRISM revisions, and their rules."""

from dataclasses import dataclass
from enum import StrEnum

from service.domain.values.json_values import Json
from service.domain.values.paths import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The rules of one memory. They bound revisions, not what is there already."""

    #: The memory as canonical JSON, in bytes; 2 or more.
    max_memory_bytes: int = 1024 * 1024
    #: The value of one amendment as canonical JSON, in bytes; 1 or more.
    max_value_bytes: int = 64 * 1024
    #: Levels of lists and dicts within one another, the memory itself the first; 1 to 32.
    max_depth: int = 32
    #: Entries of one list or dict; 1 or more.
    max_breadth: int = 10_000
    #: Updates are refused: what is there stays as it is.
    add_only: bool = False
    #: What is there may be removed.
    may_remove: bool = False
    #: A value of another kind is taken when nothing of it is lost: "3" for 3, 3 for
    #: "3", "true" for true, one value for a list of it.
    coerce: bool = False


class Op(StrEnum):
    """What an amendment does at its path."""

    #: The path is new.
    ADD = "add"
    #: The path exists and gets a new value.
    UPDATE = "update"
    #: What is at the path is taken away; only where the rules allow it.
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that a model or a person proposes. Nothing of it is checked."""

    #: Any of the ways in which a path is written.
    path: str
    #: None leaves it to the memory: add where nothing is, else update.
    op: Op | None
    #: Ignored when the op is remove.
    value: Json
    #: The value is a string with the JSON text of what is meant; where text is meant, that
    #: may stand there as it is.
    is_text: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Amendment:
    """One valid (path, op, value)."""

    path: Path
    op: Op
    #: Conforms to the schema's type at `path`; null when it is removed.
    value: Json
    #: The model said the other op; whether the path exists decided.
    op_corrected: bool = False


class RejectionCause(StrEnum):
    """What a rejection means for the memory."""

    #: The schema or the rules refuse it.
    INVALID = "invalid"
    #: The memory, or a list or dict of it, is as large as it may be.
    NO_ROOM = "no_room"
    #: It is there already: nothing is lost.
    UNCHANGED = "unchanged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """What was proposed and refused, by the schema or the rules."""

    #: The proposal as it came, cut to 2,000 characters.
    proposal: str
    #: Why, in a sentence.
    reason: str
    #: Counted, not stored.
    cause: RejectionCause = RejectionCause.INVALID


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """The amendments and rejections of one reply. Both may be empty."""

    #: In the order in which they apply.
    amendments: tuple[Amendment, ...]
    #: In the order in which they were judged: a reply's removals come last.
    rejections: tuple[Rejection, ...]
    #: Places that it would have changed, although the prompt did not show them.
    unseen: tuple[Path, ...] = ()

    @property
    def lacked_room(self) -> bool:
        """Whether a proposal was rejected for want of room."""
        return any(one.cause is RejectionCause.NO_ROOM for one in self.rejections)


#: Characters of a proposal that a rejection repeats.
MAX_PROPOSAL_CHARACTERS = 2000
#: Characters of a rejection's reason.
MAX_REASON_CHARACTERS = 1000


def rejected(
    proposal: str, reason: str, cause: RejectionCause = RejectionCause.INVALID
) -> Rejection:
    """Returns a rejection that can be stored, whatever the proposal was."""
    return Rejection(
        proposal=_storable(proposal[:MAX_PROPOSAL_CHARACTERS]),
        reason=_storable(reason[:MAX_REASON_CHARACTERS]),
        cause=cause,
    )


def _storable(text: str) -> str:
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
