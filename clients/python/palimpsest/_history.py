"""What was done to memories: revisions, amendments, differences, and edits by hand."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from palimpsest._convert import message_of, value_of
from palimpsest._memories import MemoryInfo, memory
from palimpsest._values_common import PositionRange, ReadPoint
from palimpsest._values_log import Chunk, SourceTrust
from palimpsest.v1 import memory_service_pb2

#: What an amendment does at its path; "unknown" only where the service is newer.
Op = Literal["add", "update", "remove", "unknown"]
#: What caused a revision.
RevisionKind = Literal[
    "create",
    "step",
    "skip",
    "fold",
    "edit",
    "rollback",
    "consolidation",
    "schema",
    "build",
    "seal",
    "episode",
    "redaction",
    "quarantine",
    "unknown",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Amendment:
    """One change of a memory."""

    revision: int
    ordinal: int
    #: The chunks that were read for it; None when it read none.
    positions: PositionRange | None
    op: Op
    #: An RFC 9535 normalized path.
    path: str
    #: None when it is removed.
    value: Any
    #: The model said the other op; the path decided.
    op_corrected: bool
    #: What caused the revision.
    kind: RevisionKind
    created_at: datetime
    #: That of the least trusted of those chunks, now.
    trust: SourceTrust = "trusted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """What a model proposed and the schema refused."""

    revision: int
    ordinal: int
    #: The chunks that the model was shown.
    positions: PositionRange | None
    proposal: str
    reason: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """A committed change of a memory."""

    revision: int
    kind: RevisionKind
    #: The chunks that were read for it; None when it read none.
    positions: PositionRange | None
    #: The comment of an edit or a rollback.
    comment: str
    #: For a rollback: the revision whose state it restored.
    restored_revision: int | None
    #: For a change of the schema: the new schema as class source; else empty.
    schema_source: str
    #: How many amendments it has, and how many proposals were rejected.
    amendment_count: int
    rejection_count: int
    #: SHA-256 of the value after it, as canonical JSON; 32 bytes.
    value_digest: bytes
    created_at: datetime
    #: Its state has expired: a later one of the same day is kept.
    expired: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A revision that a watch yields."""

    revision: Revision
    #: Its amendments, in order.
    amendments: tuple[Amendment, ...]
    #: There are more; `Memory.amendments` has them all.
    amendments_truncated: bool
    #: `Memory.watch` continues after this revision with it.
    resume_token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenanceEntry:
    """An amendment that touched a path, and what it was derived from."""

    amendment: Amendment
    #: The revision that has it.
    revision: Revision
    #: No later amendment has replaced it as a whole.
    in_effect: bool
    #: It first set the value that the path has now.
    origin: bool
    #: Position of the chunk that says it most clearly; 0 when none was read.
    best_position: int
    #: The chunks that were read for it, cut at 256 KiB.
    chunks: tuple[Chunk, ...]
    #: Some are missing; `Session.chunks` has them.
    chunks_truncated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A place where two states differ."""

    #: How the old side becomes the new one there.
    op: Op
    #: An RFC 9535 normalized path.
    path: str
    #: What the old side has there; None also when nothing ("add").
    old: Any
    #: What the new side has there; None also when nothing ("remove").
    new: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """Where two states differ; what is not listed is equal."""

    #: What was read of the old side, and of the new one.
    read_point: ReadPoint
    other_read_point: ReadPoint
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change; made by `put`, `add`, `update` or `remove`.

    A path is $['topics']['museum'][0], $.'topics'.'museum'[0] or /topics/museum/0.
    """

    op: Literal["put", "add", "update", "remove"]
    path: str
    #: What JSON can say, and the schema allows there; None for "remove".
    value: Any

    @classmethod
    def put(cls, path: str, value: Any) -> "Edit":
        """Sets the value of the path, whether there was one or not."""
        return cls("put", path, value)

    @classmethod
    def add(cls, path: str, value: Any) -> "Edit":
        """Does as `put`; the amendment is marked as corrected when the path had a value."""
        return cls("add", path, value)

    @classmethod
    def update(cls, path: str, value: Any) -> "Edit":
        """Does as `put`; the amendment is marked as corrected when the path had no value."""
        return cls("update", path, value)

    @classmethod
    def remove(cls, path: str) -> "Edit":
        """Removes the path; later elements of a list move up."""
        return cls("remove", path, None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Edited:
    """The result of edits."""

    #: The memory after them.
    info: MemoryInfo
    #: What was made of them, in order.
    amendments: tuple[Amendment, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Folded:
    """The result of a fold."""

    info: MemoryInfo
    #: Whether there was something to fold.
    folded: bool


def edit_message(edit: Edit) -> memory_service_pb2.Edit:
    """Returns an edit as the proto has it. Raises ValueError for a value that is no JSON."""
    message = message_of(memory_service_pb2.Edit, op=edit.op, path=edit.path)
    if edit.op != "remove":
        try:
            _check_keys(edit.value)
            message.value_json = json.dumps(edit.value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the value for {edit.path} is no JSON: {error}") from error
    return message


def _check_keys(value: Any) -> None:
    """Refuses keys that `json` would turn into texts: two of them could become one."""
    if isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no text")
            _check_keys(child)
    elif isinstance(value, list | tuple):
        for child in value:
            _check_keys(child)


def diff(pages: list[memory_service_pb2.DiffMemoriesResponse]) -> Diff:
    """Returns where two states differ, from all pages of a list."""
    differences = tuple(_difference(one) for page in pages for one in page.differences)
    return value_of(Diff, pages[-1], differences=differences)


def _difference(message: memory_service_pb2.DiffMemoriesResponse.Difference) -> Difference:
    was, is_there = message.HasField("old_json"), message.HasField("new_json")
    op: Op = "update" if was and is_there else "remove" if was else "add"
    return value_of(Difference, message, op=op)


def edited(message: memory_service_pb2.EditMemoryResponse) -> Edited:
    """Returns what edits changed."""
    return value_of(Edited, message, info=memory(message.memory))


def folded(message: memory_service_pb2.FoldMemoryResponse) -> Folded:
    """Returns what a fold changed."""
    return value_of(Folded, message, info=memory(message.memory))
