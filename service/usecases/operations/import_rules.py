"""Sorts the records of an import, and checks them as the calls are checked that make the same."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from service.domain.access.merging import merge_rules
from service.domain.access.trust import ANY_END, Trust
from service.domain.log.chunks import Chunk
from service.domain.operations import retention
from service.domain.operations.transfer import records
from service.domain.operations.transfer.blocks import Block, FileInvalid, values_of
from service.domain.operations.transfer.records import RecordKind
from service.domain.tree.spec import TreeSpec
from service.domain.values.errors import Exhausted
from service.domain.values.memory_specs import DefaultMemory, MemorySpec, MemoryStatus
from service.domain.values.reasons import Reason
from service.usecases.log.room import FindRoom, find_unlimited
from storage.access import source_trust
from storage.engine.database import Transaction
from storage.operations import imports

#: Pairs of metadata, and characters of a key and of a value: chunks.proto, session_service.proto.
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 1024
#: Rules for sources in a file: of a session, and of its tenant.
MAX_SOURCE_RULES = 2 * source_trust.MAX_RULES


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportAmounts:
    """What a block adds to a tenant."""

    chunks: int
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
    #: Waits until the rates of a tenant allow a block. Raises Exhausted.
    pace: Callable[[UUID, ImportAmounts], Awaitable[None]] = _do_not_wait
    #: Check that a tenant may have the session, and the memories of a block.
    session_room: FindRoom = find_unlimited
    memory_room: FindRoom = find_unlimited


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordRun:
    """Records of one kind and of one memory, which are written together."""

    kind: RecordKind
    memory: str
    #: Numbers of their lines.
    numbers: Sequence[int]
    rows: Sequence[dict[str, Any]]

    def numbered(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields each row with the number of its line."""
        return zip(self.numbers, self.rows, strict=True)


def runs_of(block: Block) -> list[RecordRun]:
    """Returns the records of a block, checked by themselves. Raises FileInvalid."""
    lines = enumerate(block.records, block.first_line)
    runs: list[RecordRun] = []
    for (kind, memory), together in groupby(lines, key=_kind_and_memory):
        numbered = list(together)
        numbers = [number for number, _ in numbered]
        rows = [values_of(record, number) for number, record in numbered]
        runs.append(RecordRun(kind=records.KINDS[kind], memory=memory, numbers=numbers, rows=rows))
    return runs


def _kind_and_memory(line: tuple[int, Mapping[str, Any]]) -> tuple[str, str]:
    number, record = line
    memory = record.get("memory", "")
    kind = records.KINDS[record[records.RECORD]]
    if not kind.of_memory:
        return kind.name, ""
    if not isinstance(memory, str) or not memory:
        raise FileInvalid(number, f"a {kind.name} needs the field 'memory'")
    return kind.name, memory


def amounts_of(block: Block) -> ImportAmounts:
    """Returns what a block adds."""
    counts = Counter(one[records.RECORD] for one in block.records)
    return ImportAmounts(chunks=counts["chunk"], size_bytes=block.size_bytes)


def check_kinds(counts: Mapping[str, int], line: int, version: int) -> None:
    """Raises FileInvalid for records that the version of a file does not have, or too many."""
    newer = [
        one.name for one in records.KINDS.values() if counts.get(one.name) and one.since > version
    ]
    if newer:
        raise FileInvalid(line, f"a file of version {version} has no records {newer[0]!r}")
    if counts.get(records.SOURCE_RULE.name, 0) > MAX_SOURCE_RULES:
        raise FileInvalid(line, f"a session has at most {MAX_SOURCE_RULES} rules for sources")


def check_source_rule(number: int, row: Mapping[str, Any]) -> None:
    """Raises FileInvalid for a rule that no call could set."""
    source, level, before = row["source"], row["trust"], row["trust_before"]
    levels = [one.value for one in Trust]
    if ANY_END in source.removesuffix(ANY_END):
        raise FileInvalid(number, "its source is none, and no beginning of several")
    if level not in levels or before not in (None, source_trust.NONE, *levels):
        raise FileInvalid(number, "its level of trust is none that this release knows")
    if before is not None and level != Trust.BLOCKED:
        raise FileInvalid(number, "a source that is quarantined is blocked")


async def take_over_rules(tx: Transaction, key: UUID) -> int:
    """Replaces the rules of a file by those that raise no source above the tenant's own.

    Returns how many there are. Raises Exhausted (too many rules).
    """
    found = await source_trust.list_rules(tx, key)
    own = [one for one in found if not one.is_tenant_wide]
    if not own:
        return 0
    merged = merge_rules(own, [one for one in found if one.is_tenant_wide])
    if len(merged) > source_trust.MAX_RULES:
        raise Exhausted(
            Reason.TOO_MANY_SOURCE_RULES,
            f"with the rules of the tenant the session has {len(merged)} rules for sources, and at"
            f" most {source_trust.MAX_RULES}: remove some where it is, and export it again",
            {"limit": source_trust.MAX_RULES},
        )
    await source_trust.replace_rules(tx, key, merged)
    return len(merged)


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


def check_row(kind: RecordKind, number: int, row: Mapping[str, Any]) -> None:
    """Raises FileInvalid for a row of a kind that has a check of its own."""
    if kind is records.ANSWER:
        check_answer(number, row)
    elif kind is records.SOURCE_RULE:
        check_source_rule(number, row)


def check_answer(number: int, row: Mapping[str, Any]) -> None:
    """Raises FileInvalid for an answer that workers would still answer."""
    if row["status"] == "pending":
        raise FileInvalid(number, "the answer is pending, and only complete ones are imported")


def check_cursor(number: int, row: Mapping[str, Any], kind: str, head: int) -> None:
    """Raises FileInvalid for a cursor that no memory of the kind can have in a log of `head`."""
    closed, again = row["seal_position"], row["reread_positions"] or []
    is_sealed = row["status"] == MemoryStatus.SEALED
    if kind != TreeSpec.kind and (closed is not None or is_sealed):
        raise FileInvalid(number, "only a tree is closed")
    if (is_sealed and closed is None) or (closed is not None and not 0 <= closed <= head):
        raise FileInvalid(number, "it is closed at no position of the log")
    if again != sorted(set(again)) or not all(1 <= one <= head for one in again):
        raise FileInvalid(number, "what it is to read again is no list of positions")


def _is_metadata(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_PAIRS
        and all(
            isinstance(one, str) and 1 <= len(key) <= MAX_KEY and len(one) <= MAX_VALUE
            for key, one in value.items()
        )
    )
