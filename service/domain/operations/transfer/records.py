"""Defines the records of an exported session: their fields, and the JSON of each field.

docs/reference/export.md describes the format. A new record or field needs a new VERSION.
"""

import binascii
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from service.domain.values.json_values import check_text, checked

#: The format, and the version that this release writes. It reads versions up to this one.
FORMAT = "palimpsest-session"
VERSION = 2

#: Values within one JSON field.
MAX_NODES = 200_000
#: Key of a line that names its kind.
RECORD = "record"

_INTEGERS = {"integer": 2**31, "bigint": 2**63}


class RecordInvalid(ValueError):
    """A line that is no record of this format; the message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordField:
    """A field of a record."""

    name: str
    #: The type of its column in PostgreSQL.
    type: str
    #: What is not written, and is read where nothing is written; None: NULL.
    default: Any = None
    #: Whether a record without it is refused.
    is_required: bool = False
    #: Whether it is an id that a client chose: rules.proto.
    is_id: bool = False

    def to_json(self, value: Any) -> Any:
        """Returns the JSON of what the column has; of `jsonb` that is JSON as text."""
        match value:
            case datetime():
                return value.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
            case bytes():
                return value.hex()
            case UUID() | date():
                return str(value)
            case str() if self.type == "jsonb":
                return json.loads(value)
        return value

    def from_json(self, value: Any) -> Any:
        """Returns what PostgreSQL casts to the column's type. Raises RecordInvalid."""
        try:
            return self._checked(value)
        except (ValueError, TypeError, OverflowError, binascii.Error) as error:
            raise RecordInvalid(f"field {self.name}: {error}") from error

    def _checked(self, value: Any) -> Any:
        if self.type == "jsonb":
            return json.dumps(checked(value, max_nodes=MAX_NODES), ensure_ascii=False)
        if value is None:
            if self.is_required or self.default is not None:
                raise ValueError("it must not be null")
            return None
        if self.type in _INTEGERS:
            return _integer(value, _INTEGERS[self.type])
        if self.type == "boolean":
            return _of(bool, value)
        if self.type == "bigint[]":
            return [_integer(one, 2**63) for one in _of(list, value)]
        if self.type == "text[]":
            return [check_text(_of(str, one)) for one in _of(list, value)]
        text = check_text(_of(str, value))
        if self.is_id and text:
            _check_id(text)
        if self.type == "timestamptz":
            return moment_of(text).isoformat()
        if self.type == "date":
            # PostgreSQL does not read weeks.
            return date.fromisoformat(text).isoformat()
        if self.type == "uuid":
            return str(UUID(text))
        if self.type == "bytea":
            return "\\x" + bytes.fromhex(text).hex()
        return text


def _check_id(text: str) -> None:
    kinds = [unicodedata.category(one) for one in text if one not in "\u200c\u200d"]
    is_plain = not {"Cc", "Cf", "Zl", "Zp"}.intersection(kinds) and "/" not in text
    ends = unicodedata.category(text[0])[0] + unicodedata.category(text[-1])[0]
    if not is_plain or "Z" in ends or text in (".", "..") or len(text.encode()) > 256:
        raise ValueError("it is no id")


def _of(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"it is no {kind.__name__}")
    return value


def _integer(value: Any, end: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -end <= value < end:
        raise ValueError("it is no whole number of its column's range")
    return value


def moment_of(text: str) -> datetime:
    """Returns a time that has a zone. Raises ValueError, TypeError, OverflowError."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("the time has no zone")
    return at.astimezone(UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordKind:
    """A kind of record: the rows of a table, or a part of them."""

    name: str
    table: str
    fields: tuple[RecordField, ...]
    #: The columns that order its rows.
    keys: tuple[str, ...]
    #: Whether it belongs to a memory, which each line names then.
    of_memory: bool = False
    #: Rows that are read at once.
    page: int = 500
    #: The first version of the format that has it.
    since: int = 1

    def field(self, name: str) -> RecordField:
        """Returns the field of that name."""
        return next(one for one in self.fields if one.name == name)

    def to_json(self, row: Mapping[str, Any], memory: str = "") -> dict[str, Any]:
        """Returns the record of a row."""
        line: dict[str, Any] = {RECORD: self.name}
        if self.of_memory:
            line["memory"] = memory
        for field in self.fields:
            value = row[field.name]
            if value is not None and (field.is_required or value != field.default):
                line[field.name] = field.to_json(value)
        return line

    def from_json(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of a record by field. Raises RecordInvalid."""
        known = {RECORD, *(field.name for field in self.fields)}
        if self.of_memory:
            known.add("memory")
        unknown = sorted(line.keys() - known)
        if unknown:
            raise RecordInvalid(f"a {self.name} has no field {unknown[0][:60]!r}")
        row: dict[str, Any] = {}
        for field in self.fields:
            if field.name in line:
                row[field.name] = field.from_json(line[field.name])
            elif field.is_required:
                raise RecordInvalid(f"a {self.name} needs the field {field.name!r}")
            else:
                row[field.name] = field.default
        return row


def _text(name: str, default: str | None = "") -> RecordField:
    return RecordField(name=name, type="text", default=default)


def _need(names: str, of: str = "bigint") -> tuple[RecordField, ...]:
    return tuple(RecordField(name=name, type=of, is_required=True) for name in names.split())


def _maybe(names: str, of: str) -> tuple[RecordField, ...]:
    return tuple(RecordField(name=name, type=of) for name in names.split())


def _id(name: str, default: str | None = None, *, is_required: bool = False) -> RecordField:
    return RecordField(name=name, type="text", default=default, is_required=is_required, is_id=True)


_CREATED = _need("created_at", "timestamptz")

SESSION = RecordKind(
    name="session",
    table="session",
    fields=(
        *_need("language", "text"),
        *_need("metadata", "jsonb"),
        *_need("default_memory", "text"),
        *_CREATED,
        *_need("retention", "jsonb"),
        *_maybe("trajectories_expired_at", "timestamptz"),
        RecordField(name="expired_position", type="bigint", default=0),
    ),
    keys=(),
)
#: Rules of the session and of its tenant, as rules of the session.
SOURCE_RULE = RecordKind(
    name="source_rule",
    table="source_trust",
    fields=(
        _id("source", is_required=True),
        *_need("trust", "text"),
        # Of a quarantine: the level before it, or `none`.
        _text("trust_before", None),
        *_need("updated_at", "timestamptz"),
    ),
    keys=("source",),
    since=2,
)
PRODUCER = RecordKind(
    name="producer",
    table="producer",
    fields=(_id("producer_id", is_required=True), *_need("epoch last_sequence")),
    keys=("producer_id",),
)
CHUNK = RecordKind(
    name="chunk",
    table="chunk",
    fields=(
        *_need("position"),
        _id("producer_id", ""),
        *_need("producer_sequence"),
        *_need("kind", "text"),
        *(_text(name) for name in ("role", "text", "observation", "thought", "action")),
        *_maybe("observed_first", "boolean"),
        *_maybe("metadata", "jsonb"),
        _id("thread"),
        _id("source"),
        *_maybe("occurred_at", "timestamptz"),
        *_CREATED,
        # The redaction of a tombstone, and the keyed digest of the content that it had.
        *_maybe("redaction_id", "uuid"),
        *_maybe("digest", "bytea"),
    ),
    keys=("position",),
    # Each has 256 KiB at most.
    page=64,
)
REQUEST = RecordKind(
    name="request",
    table="request",
    fields=(
        *_need("request_id", "text"),
        *_need("first_position last_position"),
        *_CREATED,
        # With tombstones among its chunks: the keyed digest.
        *_maybe("digest", "bytea"),
    ),
    keys=("last_position",),
)
REDACTION = RecordKind(
    name="redaction",
    table="redaction",
    fields=(
        *_need("redaction_id", "uuid"),
        *_need("cause principal reason", "text"),
        *_need("chunks"),
        *_CREATED,
        *_maybe("ended_at", "timestamptz"),
        *_need("removed", "jsonb"),
    ),
    keys=("redaction_id",),
)
MEMORY = RecordKind(
    name="memory",
    table="memory",
    fields=(
        _id("name", is_required=True),
        *_need("kind", "text"),
        *_need("spec", "jsonb"),
        *_need("digest", "bytea"),
        *_CREATED,
        _text("rebuilt_from", None),
    ),
    keys=("name",),
)
REVISION = RecordKind(
    name="revision",
    table="revision",
    fields=(
        *_need("revision from_position to_position"),
        *_need("kind", "text"),
        *_need("digest", "bytea"),
        *_CREATED,
        _text("comment"),
        *_maybe("restored_revision", "bigint"),
        _text("schema_source", None),
        # Of a quarantine, and of a step that reads again.
        *_maybe("undone read_positions", "bigint[]"),
        RecordField(name="set_aside", type="boolean", default=False),
        # Its state has expired.
        RecordField(name="expired", type="boolean", default=False),
    ),
    keys=("revision",),
    of_memory=True,
)
AMENDMENT = RecordKind(
    name="amendment",
    table="amendment",
    fields=(
        *_need("revision"),
        *_need("ordinal", "integer"),
        *_need("path op value", "text"),
        RecordField(name="op_corrected", type="boolean", default=False),
    ),
    keys=("revision", "ordinal"),
    of_memory=True,
    # Their values may be large.
    page=100,
)
REJECTION = RecordKind(
    name="rejection",
    table="rejection",
    fields=(
        *_need("revision"),
        *_need("ordinal", "integer"),
        *_need("proposal reason", "text"),
    ),
    keys=("revision", "ordinal"),
    of_memory=True,
    page=100,
)
# One at a time, since each may have a megabyte.
BASE = RecordKind(
    name="base",
    table="prism_base",
    fields=(*_need("revision"), *_need("value", "text")),
    keys=("revision",),
    of_memory=True,
    page=4,
)
SNAPSHOT = RecordKind(
    name="snapshot",
    table="prism_snapshot",
    fields=BASE.fields,
    keys=("revision",),
    of_memory=True,
    page=4,
)
NODE = RecordKind(
    name="node",
    table="tree_node",
    fields=(
        *_need("level", "integer"),
        *_need("number revision first_child"),
        *_need("children", "integer"),
        *_need("start_position start_offset end_position end_offset"),
        *_need("summary made", "text"),
        *_need("text_tokens summary_tokens"),
        *_CREATED,
    ),
    keys=("level", "number"),
    of_memory=True,
)
VECTOR = RecordKind(
    name="vector",
    table="state_vector",
    fields=(
        *_need("revision"),
        *_need("level", "integer"),
        *_need("text", "text"),
        *_need("tokens"),
        *_need("made", "text"),
        *_need("after_position from_position to_position"),
        *_need("children", "bigint[]"),
        *_need("replies", "integer"),
        *_need("appended", "text[]"),
        *_CREATED,
    ),
    keys=("revision",),
    of_memory=True,
    page=100,
)
LEVELS = RecordKind(
    name="levels",
    table="state_levels",
    fields=(*_need("revision"), *_need("runs", "jsonb")),
    keys=("revision",),
    of_memory=True,
)
LETTER = RecordKind(
    name="dead_letter",
    table="dead_letter",
    fields=(
        *_need("letter_id", "uuid"),
        *_need("from_position to_position"),
        *_need("attempts", "integer"),
        *_need("cause", "text"),
        _text("resolution", None),
        *_CREATED,
    ),
    keys=("letter_id",),
    of_memory=True,
)
CURSOR = RecordKind(
    name="cursor",
    table="memory",
    fields=(
        *_need("revision applied_position"),
        *_need("status", "text"),
        RecordField(name="consolidated_tokens", type="bigint", default=0),
        *_maybe("fold_state losses", "jsonb"),
        *_maybe("seal_position", "bigint"),
        *_maybe("reread_positions", "bigint[]"),
        RecordField(name="thinned_revision", type="bigint", default=0),
    ),
    keys=(),
    of_memory=True,
)
ANSWER = RecordKind(
    name="answer",
    table="answer",
    fields=(
        *_need("answer_id", "uuid"),
        _text("memory", None),
        *_need("query status", "text"),
        *_need("revision applied_position"),
        _text("text"),
        *_need("citations", "jsonb"),
        _text("model"),
        _text("failure"),
        *_CREATED,
        *_maybe("navigation", "jsonb"),
        _text("no_answer", None),
        *_maybe("statistics", "jsonb"),
        _text("reader", None),
        *_maybe("browsing", "jsonb"),
        _text("wanted_model"),
        *_maybe("response_schema value chosen chunk_filter", "jsonb"),
        *_need("options", "jsonb"),
        RecordField(name="guessed", type="boolean", default=False),
        RecordField(name="truncated", type="boolean", default=False),
        *_maybe("left_out", "bigint[]"),
        RecordField(name="wanted_position", type="bigint", default=0),
    ),
    keys=("answer_id",),
    # Each is read with its whole trajectory.
    page=4,
)
EVENT = RecordKind(
    name="event",
    table="trajectory_event",
    fields=(
        *_need("answer_id", "uuid"),
        *_need("ordinal", "integer"),
        *_need("event", "jsonb"),
        *_CREATED,
    ),
    keys=("answer_id", "ordinal"),
)
RATING = RecordKind(
    name="rating",
    table="answer_rating",
    fields=(
        *_need("answer_id", "uuid"),
        *_need("rating", "integer"),
        _text("comment"),
        _text("expected"),
        *_need("rated_at", "timestamptz"),
    ),
    keys=("answer_id",),
)
BUDGET = RecordKind(
    name="budget",
    table="budget",
    fields=(
        _text("memory"),
        *_need("period", "text"),
        *_maybe("limit_tokens limit_micro_usd", "bigint"),
    ),
    keys=("memory", "period"),
)
FIGURES = (
    "calls",
    "input_tokens",
    "predicted_cached_tokens",
    "reported_cached_tokens",
    "reported_calls",
    "cached_tokens",
    "cache_write_tokens",
    "output_tokens",
    "cost_micro_usd",
    "priced_calls",
)
USAGE = RecordKind(
    name="usage",
    table="imported_usage",
    fields=(
        _text("memory"),
        *_need("day", "date"),
        *_need("purpose model", "text"),
        _text("residual"),
        RecordField(name="failed", type="boolean", default=False),
        *_need(" ".join(FIGURES)),
    ),
    keys=("memory", "day", "purpose", "model", "residual", "failed"),
)

#: In the order of an export. Those that belong to a memory are repeated for each.
BEFORE_MEMORIES = (SESSION, SOURCE_RULE, PRODUCER, CHUNK, REQUEST, REDACTION)
PER_MEMORY: tuple[RecordKind, ...] = (
    MEMORY,
    REVISION,
    AMENDMENT,
    REJECTION,
    BASE,
    SNAPSHOT,
    NODE,
    VECTOR,
    LEVELS,
    LETTER,
    CURSOR,
)
AFTER_MEMORIES = (ANSWER, EVENT, RATING, BUDGET, USAGE)
KINDS: Mapping[str, RecordKind] = {
    kind.name: kind for kind in (*BEFORE_MEMORIES, *PER_MEMORY, *AFTER_MEMORIES)
}
#: Which kinds of records a memory of each kind has.
ONLY_OF: Mapping[str, Sequence[RecordKind]] = {
    "prism": (AMENDMENT, REJECTION, BASE, SNAPSHOT),
    "tree": (NODE,),
    "state": (VECTOR, LEVELS),
}
