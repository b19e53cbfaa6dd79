"""Checks the records of an import as the calls are checked that make the same."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from service.domain.log.chunks import Chunk
from service.domain.operations import retention
from service.domain.operations.transfer.blocks import FileInvalid
from service.domain.values.memory_specs import DefaultMemory, MemorySpec
from storage.operations import imports

#: Pairs of metadata, and characters of a key and of a value: chunks.proto, session_service.proto.
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportAmounts:
    """What a block adds to a tenant."""

    chunks: int
    memories: int
    #: As it was sent.
    size_bytes: int


def _accept(spec: MemorySpec) -> None:
    """Accepts each spec."""


async def _do_not_wait(tenant_id: UUID, amounts: ImportAmounts) -> None:
    """Accepts each block at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportRules:
    """What the API server demands of an import besides."""

    #: Raises InvalidInput for a spec that no memory can be created with.
    check_spec: Callable[[MemorySpec], None] = _accept
    #: Waits until the quotas of a tenant allow a block. Raises Exhausted.
    pace: Callable[[UUID, ImportAmounts], Awaitable[None]] = _do_not_wait


def check_session(number: int, row: Mapping[str, Any]) -> None:
    """Raises FileInvalid for a session that no call could create."""
    if row["default_memory"] not in [one.value for one in DefaultMemory]:
        raise FileInvalid(number, "its default memory is none that this release knows")
    days = json.loads(row["retention"])
    if not isinstance(days, dict) or not all(
        name in retention.NAMES and type(value) is int and 0 <= value <= retention.MAX_DAYS
        for name, value in days.items()
    ):
        raise FileInvalid(number, "its retention is none that this release knows")
    if not _is_metadata(json.loads(row["metadata"])):
        raise FileInvalid(number, "its metadata is not that of a session")


def checked_chunk(number: int, row: Mapping[str, Any], max_bytes: int) -> Chunk:
    """Returns the chunk of a record. Raises FileInvalid for one that no call could append."""
    try:
        chunk = imports.chunk_of(row)
    except (ValueError, TypeError) as error:
        raise FileInvalid(number, "it is no chunk") from error
    if not _is_metadata(chunk.metadata):
        raise FileInvalid(number, "its metadata is not that of a chunk")
    if chunk.content_bytes() > max_bytes:
        raise FileInvalid(number, f"the chunk is larger than {max_bytes:,} bytes")
    return chunk


def check_answer(number: int, row: Mapping[str, Any]) -> None:
    """Raises FileInvalid for an answer that workers would still answer."""
    if row["status"] == "pending":
        raise FileInvalid(number, "the answer is pending, and only complete ones are imported")


def _is_metadata(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_PAIRS
        and all(
            isinstance(one, str) and 1 <= len(key) <= MAX_KEY and len(one) <= MAX_VALUE
            for key, one in value.items()
        )
    )
