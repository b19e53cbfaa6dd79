"""Writes and reads the lines of an exported session: header, blocks of records, end.

A block is a run of records and the check after it. Its SHA-256 covers the digest of the block
before, the bytes of its lines and the check itself, so that a file is verified block by block,
and continued at any of them. Nothing here does I/O.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from service.domain.operations.transfer.records import (
    FORMAT,
    KINDS,
    RECORD,
    VERSION,
    RecordInvalid,
    moment_of,
)
from service.domain.operations.transfer.shapes import (
    MAX_BLOCK_VALUES,
    ShapeRefused,
    count_values,
)
from service.domain.values.json_values import check_text

#: A block is closed once its records have this size, in bytes.
BLOCK_BYTES = 512 * 1024
#: Records of a block.
BLOCK_RECORDS = 1000
#: A line, in bytes with its end.
MAX_LINE_BYTES = 16 * 1024 * 1024
#: The header, in bytes.
MAX_HEADER_BYTES = 16 * 1024
#: A check, in bytes.
MAX_CHECK_BYTES = 8 * 1024

HEADER, CHECK, END = "header", "check", "end"
_SHA = "sha256"


class FileInvalid(ValueError):
    """A line that cannot be imported; `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def line_of(value: Mapping[str, Any]) -> bytes:
    """Returns the one line of a record."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def _sealed(value: dict[str, Any], *before: bytes) -> bytes:
    """Returns the line with its SHA-256, over what comes before and the line without it."""
    digest = hashlib.sha256(b"".join((*before, line_of(value)))).hexdigest()
    return line_of({**value, _SHA: digest})


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The first line of an export."""

    session: str
    export_id: UUID
    exported_at: datetime
    #: Position of the last chunk in it.
    head: int
    #: How many memories it has.
    memories: int
    #: The version of the format.
    version: int = VERSION

    def to_line(self) -> bytes:
        """Returns the line."""
        value = {
            RECORD: HEADER,
            "format": FORMAT,
            "version": self.version,
            "session": self.session,
            "export_id": str(self.export_id),
            "exported_at": self.exported_at.isoformat(),
            "head": self.head,
            "memories": self.memories,
        }
        return _sealed(value)

    @classmethod
    def from_line(cls, line: bytes) -> "Header":
        """Reads the line. Raises FileInvalid."""
        if len(line) > MAX_HEADER_BYTES:
            raise FileInvalid(1, "its first line is too long for the header of an export")
        value = parsed(line, 1)
        if value.get("format") != FORMAT:
            raise FileInvalid(1, "it is no export of a session; other formats need --from")
        version = value.get("version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise FileInvalid(1, "its header has no version")
        if version > VERSION:
            raise FileInvalid(
                1,
                f"it is of format version {version}, and this release reads up to {VERSION}:"
                " import it with the release that wrote it, or a newer one",
            )
        _check_seal(value, 1)
        try:
            found = cls(
                session=check_text(value["session"]),
                export_id=UUID(value["export_id"]),
                exported_at=moment_of(value["exported_at"]),
                head=_count(value["head"]),
                memories=_count(value["memories"]),
                version=version,
            )
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise FileInvalid(1, "its header is incomplete") from error
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportPlace:
    """Where an export continues: after the record of `kind` with these keys."""

    kind: str
    memory: str = ""
    keys: tuple[Any, ...] = ()

    def to_json(self) -> list[Any]:
        """Returns it as in a check."""
        return [self.kind, self.memory, *self.keys]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The last line of a block, and how far it is."""

    #: Its number; the header is line 1.
    line: int
    digest: bytes
    #: Records up to here, by kind.
    counts: Mapping[str, int]
    place: ExportPlace

    @classmethod
    def from_line(cls, line: bytes) -> "Check":
        """Reads a line by itself; only the next block verifies it. Raises FileInvalid."""
        return cls.of(parsed(line, 0), 0)

    @classmethod
    def of(cls, value: Mapping[str, Any], number: int) -> "Check":
        """Returns the check of a line. Raises FileInvalid."""
        try:
            kind, memory, *keys = value["after"]
            counts = {str(KINDS[name].name): _count(n) for name, n in value["counts"].items()}
            found = cls(
                line=_count(value["line"]),
                digest=bytes.fromhex(value[_SHA]),
                counts=counts,
                place=ExportPlace(
                    kind=KINDS[kind].name, memory=check_text(memory), keys=tuple(keys)
                ),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise FileInvalid(number, "it is no check of an export") from error
        if len(found.digest) != hashlib.sha256().digest_size or found.line < 2:
            raise FileInvalid(number, "it is no check of an export")
        return found


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("it is no count")
    return value


class BlockWriter:
    """Collects records, and closes blocks of them."""

    def __init__(self, after: Check | None = None) -> None:
        """`after`: the check of the block before; None: the header is before."""
        self._digest = after.digest if after else b""
        self._line = after.line if after else 1
        self._counts: Counter[str] = Counter(after.counts if after else ())
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds a record."""
        line = line_of(record)
        self._lines.append(line)
        self._size += len(line)
        self._counts[record[RECORD]] += 1

    def is_full(self) -> bool:
        """Returns whether the block is to be closed."""
        return self._size >= BLOCK_BYTES or len(self._lines) >= BLOCK_RECORDS

    def is_empty(self) -> bool:
        """Returns whether no record was added since the last block."""
        return not self._lines

    def close(self, place: ExportPlace) -> bytes:
        """Returns the block, with its check; the next one continues after `place`."""
        value = {RECORD: CHECK, **self._totals(len(self._lines) + 1), "after": place.to_json()}
        return self._closed(value)

    def end(self) -> bytes:
        """Returns the last line."""
        return self._closed({RECORD: END, **self._totals(1)})

    def _totals(self, lines: int) -> dict[str, Any]:
        self._line += lines
        return {"line": self._line, "counts": dict(sorted(self._counts.items()))}

    def _closed(self, value: dict[str, Any]) -> bytes:
        block = b"".join(self._lines)
        check = _sealed(value, self._digest, block)
        self._digest = bytes.fromhex(json.loads(check)[_SHA])
        self._lines, self._size = [], 0
        return block + check


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Records that were verified together."""

    #: Number of the first line.
    first_line: int
    records: Sequence[Mapping[str, Any]]
    #: None: it is the end of the file.
    check: Check | None
    #: Of their lines.
    size_bytes: int


@dataclass(kw_only=True, slots=True)
class BlockReader:
    """Reads bytes as they come, and returns the blocks that are complete and verified."""

    #: Digest, number and counts of the last line that was verified.
    digest: bytes = b""
    line: int = 1
    counts: Counter[str] = field(default_factory=Counter)
    is_ended: bool = False
    #: The lines of a block, in bytes: an answer and its trajectory are in one block.
    max_block_bytes: int
    _left: bytearray = field(default_factory=bytearray)
    _block: list[bytes] = field(default_factory=list)
    _size: int = 0
    _values: int = 0

    def feed(self, data: bytes) -> Iterator[Block]:
        """Yields the blocks that `data` completes. Raises FileInvalid."""
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            self._left += data[begin : end + 1]
            begin = end + 1
            if block := self._add(bytes(self._left)):
                yield block
            self._left.clear()
        self._left += data[begin:]
        self._bound(self._left)

    def finish(self) -> None:
        """Raises FileInvalid unless the file has its end."""
        if not self.is_ended:
            said = "the file ends too early: export the session again, or continue the export"
            raise FileInvalid(self._number(), said)

    def _number(self) -> int:
        """Returns the number of the line that is read."""
        return self.line + len(self._block) + 1

    def _bound(self, line: bytes | bytearray) -> None:
        if len(line) > MAX_LINE_BYTES:
            raise FileInvalid(self._number(), f"it is longer than {MAX_LINE_BYTES:,} bytes")
        if self._size + len(line) > self.max_block_bytes:
            said = f"no check comes within {self.max_block_bytes:,} bytes"
            raise FileInvalid(self._number(), said)

    def _add(self, line: bytes) -> Block | None:
        if self.is_ended:
            raise FileInvalid(self.line + 1, "there is more after the end of the export")
        self._bound(line)
        # Only a check begins so, since a record begins with its kind.
        if line.startswith((b'{"record":"check"', b'{"record":"end"')):
            return self._close(line)
        self._values += _values_of(line, self._number())
        if self._values > MAX_BLOCK_VALUES:
            raise FileInvalid(
                self._number(), f"its block has more than {MAX_BLOCK_VALUES:,} values"
            )
        self._block.append(line)
        self._size += len(line)
        return None

    def _close(self, line: bytes) -> Block:
        number = self._number()
        if len(line) > MAX_CHECK_BYTES:
            raise FileInvalid(number, "it is too long for a check")
        value = parsed(line, number)
        _check_seal(value, number, self.digest, *self._block)
        if value.get("line") != number:
            raise FileInvalid(number, f"it says that it is line {str(value.get('line'))[:20]}")
        is_end = value[RECORD] == END
        if is_end and self._block:
            raise FileInvalid(number, "records before the end have no check")
        records = [parsed(one, self.line + at) for at, one in enumerate(self._block, 1)]
        self.counts.update(self._kind(one, at) for at, one in enumerate(records, 1))
        if value.get("counts") != dict(self.counts):
            raise FileInvalid(number, "its counts are not those of the records")
        block = Block(
            first_line=self.line + 1,
            records=records,
            check=None if is_end else Check.of(value, number),
            size_bytes=self._size,
        )
        self.digest, self.line = bytes.fromhex(value[_SHA]), number
        self._block, self._size, self._values, self.is_ended = [], 0, 0, is_end
        return block

    def _kind(self, record: Mapping[str, Any], at: int) -> str:
        kind = record.get(RECORD)
        if not isinstance(kind, str) or kind not in KINDS:
            raise FileInvalid(self.line + at, f"it is a record of no known kind: {str(kind)[:60]}")
        return kind


def parsed(line: bytes, number: int) -> dict[str, Any]:
    """Returns the JSON object of a line. Raises FileInvalid."""
    _values_of(line, number)
    try:
        value = json.loads(line.decode(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise FileInvalid(number, "it is not UTF-8") from error
    except ValueError as error:
        raise FileInvalid(number, "it is no JSON") from error
    if not isinstance(value, dict):
        raise FileInvalid(number, "it is no JSON object")
    return value


def _values_of(line: bytes, number: int) -> int:
    try:
        return count_values(line)
    except ShapeRefused as error:
        raise FileInvalid(number, str(error)) from error


def _refuse(name: str) -> None:
    raise ValueError(name)


def _check_seal(value: Mapping[str, Any], number: int, *before: bytes) -> None:
    """Raises FileInvalid unless the SHA-256 of a line is right."""
    rest = {key: one for key, one in value.items() if key != _SHA}
    try:
        line = line_of(rest)
    except ValueError as error:
        raise FileInvalid(number, "it is no check of an export") from error
    digest = hashlib.sha256()
    for one in (*before, line):
        digest.update(one)
    if value.get(_SHA) != digest.hexdigest():
        said = "the checksum is wrong: something before or in it was altered, or is missing"
        raise FileInvalid(number, f"{said}; export the session again")


def values_of(record: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Returns the values of a record by field. Raises FileInvalid."""
    try:
        return KINDS[record[RECORD]].from_json(record)
    except RecordInvalid as error:
        raise FileInvalid(number, str(error)) from error
