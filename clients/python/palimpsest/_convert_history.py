"""Revisions, amendments, differences and edits, to and from the proto's messages."""

import json
from typing import Any

from palimpsest._convert import known_name, moment, numbers_of, positions, read_point, value_of
from palimpsest._convert_chunks import chunk
from palimpsest._convert_memories import memory
from palimpsest._values_history import (
    Amendment,
    Committed,
    Diff,
    Difference,
    Edit,
    Edited,
    Folded,
    Op,
    ProvenanceEntry,
    Rejection,
    Revision,
    RevisionKind,
)
from palimpsest.v1 import memories_pb2, memory_service_pb2

_EDIT_OPS: dict[str, Any] = numbers_of(memories_pb2.AmendmentOp, "AMENDMENT_OP_", "put")


def edit_message(edit: Edit) -> memory_service_pb2.Edit:
    """Returns an edit as the proto has it. Raises ValueError for a value that is no JSON."""
    message = memory_service_pb2.Edit(op=_EDIT_OPS[edit.op], path=edit.path)
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


_OPS: dict[Op, Any] = numbers_of(memories_pb2.AmendmentOp, "AMENDMENT_OP_")
_KINDS: dict[RevisionKind, Any] = numbers_of(memories_pb2.RevisionKind, "REVISION_KIND_")


def amendment(message: memories_pb2.Amendment) -> Amendment:
    """Returns an amendment."""
    return value_of(
        Amendment,
        message,
        op=known_name(_OPS, message.op),
        value=json.loads(message.value_json),
        kind=known_name(_KINDS, message.kind),
        positions=positions(message),
        created_at=moment(message.created_at),
    )


def rejection(message: memories_pb2.Rejection) -> Rejection:
    """Returns a rejection."""
    return value_of(
        Rejection, message, positions=positions(message), created_at=moment(message.created_at)
    )


def revision(message: memories_pb2.Revision) -> Revision:
    """Returns a revision."""
    return value_of(
        Revision,
        message,
        kind=known_name(_KINDS, message.kind),
        positions=positions(message),
        created_at=moment(message.created_at),
    )


def committed(message: memory_service_pb2.WatchMemoryResponse) -> Committed:
    """Returns a revision as a watch yields it."""
    return value_of(
        Committed,
        message,
        revision=revision(message.revision),
        amendments=tuple(amendment(one) for one in message.amendments),
    )


def provenance_entry(message: memory_service_pb2.GetProvenanceResponse.Entry) -> ProvenanceEntry:
    """Returns an amendment with what it was derived from."""
    return value_of(
        ProvenanceEntry,
        message,
        amendment=amendment(message.amendment),
        revision=revision(message.revision),
        chunks=tuple(chunk(one) for one in message.chunks),
    )


def diff(pages: list[memory_service_pb2.DiffMemoriesResponse]) -> Diff:
    """Returns where two states differ, from all pages of a list."""
    return Diff(
        read_point=read_point(pages[-1].read_point),
        other_read_point=read_point(pages[-1].other_read_point),
        differences=tuple(_difference(one) for page in pages for one in page.differences),
    )


def _difference(message: memory_service_pb2.DiffMemoriesResponse.Difference) -> Difference:
    was, is_there = message.HasField("old_json"), message.HasField("new_json")
    return Difference(
        op="update" if was and is_there else "remove" if was else "add",
        path=message.path,
        old=json.loads(message.old_json) if was else None,
        new=json.loads(message.new_json) if is_there else None,
    )


def edited(message: memory_service_pb2.EditMemoryResponse) -> Edited:
    """Returns what edits changed."""
    amendments = tuple(amendment(one) for one in message.amendments)
    return Edited(info=memory(message.memory), amendments=amendments)


def folded(message: memory_service_pb2.FoldMemoryResponse) -> Folded:
    """Returns what a fold changed."""
    return Folded(info=memory(message.memory), folded=message.folded)
