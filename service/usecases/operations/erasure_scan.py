"""Scans what is stored as raw bytes for what an erasure has removed.

Three questions of each place: does it have the text that the caller gives, in any encoding; rows
of the receipt's target; texts whose keyed digests the receipt lists. All of it is read in pieces,
the largest of which is one row of a dump.
"""

import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from service.domain.log.erasures import MIN_TEXT_BYTES, ErasureKind, digest_of
from service.domain.log.receipts import Receipt
from storage.operations.raw_scan import CannotScan, DumpedRow, rows_of

#: Bytes that are read at once.
_BLOCK = 1024 * 1024
_GZIP = b"\x1f\x8b\x08"
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_NULL = rb"\N"
#: Tables that name a target and have nothing of its content.
_RECORDS = frozenset({"erasure", "audit_event"})
_KEPT: Mapping[ErasureKind, frozenset[str]] = {
    ErasureKind.SESSION: _RECORDS,
    # Its name is in operations that were begun, for 30 days.
    ErasureKind.MEMORY: _RECORDS | {"operation"},
    ErasureKind.CHUNKS: _RECORDS,
    # The end of its audit log, and the time of workers that it has had.
    ErasureKind.TENANT: _RECORDS | {"tenant", "tenant_key", "audit_head", "tenant_turn"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannedPlace:
    """What a scan found at one place."""

    name: str
    #: Bytes that were read.
    bytes: int = 0
    #: What is left of the erased: how often, by where it is and what it is.
    left: Mapping[str, int]
    #: What looks like it and may be there: the same text of another session.
    notes: Mapping[str, int]
    #: Why the place was not scanned; empty when it was.
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was scanned, and nothing is left."""
        return not self.left and not self.skipped


def skipped(name: str, why: str) -> ScannedPlace:
    """Returns the result of a place that is not scanned."""
    return ScannedPlace(name=name, left={}, notes={}, skipped=why)


class Scanner:
    """Scans places for one receipt, and for a text in its encodings.

    Without the tenant's digest key it does not compare digests.
    """

    def __init__(
        self, receipt: Receipt, needles: Mapping[bytes, str], digest_key: bytes | None
    ) -> None:
        self._receipt = receipt
        self._needles = needles
        self._overlap = max(map(len, needles), default=1) - 1
        self._digest_key = digest_key if receipt.digests else None
        self._digests = receipt.digests

    def dump(self, name: str, dump: IO[bytes]) -> ScannedPlace:
        """Scans a plain dump of the database, row by row. Raises CannotScan when it is cut."""
        rows = _RowScan(self._receipt)
        left: Counter[str] = Counter()
        size = 0
        for row in rows_of(dump):
            size += len(row.line)
            for encoding in self._texts(row.line):
                left[f"{row.table or 'schema'}: the text as {encoding}"] += 1
            if row.table:
                rows.see(row)
                if self._digest_key is not None and self._has_digest(row):
                    rows.see_digest(row)
        own, notes = rows.judged()
        return ScannedPlace(name=name, bytes=size, left=left + own, notes=notes)

    def values(self, name: str, values: Iterable[tuple[str, bytes]]) -> ScannedPlace:
        """Scans keys and values, each with its type."""
        left: Counter[str] = Counter()
        target = _target_of(self._receipt)
        size = 0
        for kind, value in values:
            size += len(value)
            for encoding in self._texts(value):
                left[f"{kind}: the text as {encoding}"] += 1
            if any(form in value for form in target):
                left[f"{kind}: the target's id"] += 1
        return ScannedPlace(name=name, bytes=size, left=left, notes={})

    def files(self, name: str, folder: Path, paths: Iterable[Path]) -> ScannedPlace:
        """Scans files for the text; what gzip has compressed as well.

        Raises CannotScan where a file cannot be read to its end.
        """
        left: Counter[str] = Counter()
        size = 0
        for path in paths:
            try:
                for block in _blocks(path, self._overlap):
                    size += len(block)
                    for encoding in self._texts(block):
                        left[f"{path.relative_to(folder)}: the text as {encoding}"] += 1
            except FileNotFoundError:
                # The server has removed it meanwhile.
                continue
            except (OSError, EOFError, zlib.error) as error:
                raise _unreadable(path, error) from error
        return ScannedPlace(name=name, bytes=size, left=left, notes={})

    def _texts(self, data: bytes) -> set[str]:
        return {name for needle, name in self._needles.items() if needle in data}

    def _has_digest(self, row: DumpedRow) -> bool:
        assert self._digest_key is not None, "it was checked"
        return any(
            len(cell) >= MIN_TEXT_BYTES and digest_of(self._digest_key, cell) in self._digests
            for cell in map(_unescaped, row.cells())
        )


class _RowScan:
    """Judges rows of a dump by the target of a receipt."""

    def __init__(self, receipt: Receipt) -> None:
        self._kind = receipt.kind
        self._target = next(iter(_target_of(receipt)))
        self._session = str(receipt.session_key).encode()
        self._positions = frozenset(receipt.detail.get("positions", ()))
        self._rows: Counter[str] = Counter()
        self._own_digests: Counter[str] = Counter()
        self._other_digests: Counter[str] = Counter()
        #: Whether the name was used again: then rows of the target's id are of another life.
        self._lives_again = False

    def see(self, row: DumpedRow) -> None:
        """Counts a row that is of the target."""
        if self._target not in row.line or row.table in _KEPT[self._kind]:
            return
        values = dict(zip(row.columns, row.cells(), strict=False))
        if self._kind is ErasureKind.CHUNKS:
            self._see_chunk(row.table, values)
        elif row.table == self._kind.value and values.get("deleted_at") == _NULL:
            self._lives_again = True
        elif row.table != ErasureKind.SESSION.value:
            self._rows[f"{row.table}: rows"] += 1

    def _see_chunk(self, table: str, values: Mapping[str, bytes]) -> None:
        if table == "chunk" and self._is_redacted(values):
            parts = ("text", "observation", "thought", "action")
            if any(values.get(name) for name in parts):
                self._rows["chunk: content"] += 1

    def _is_redacted(self, values: Mapping[str, bytes]) -> bool:
        return int(values.get("position", b"0")) in self._positions

    def see_digest(self, row: DumpedRow) -> None:
        """Counts a row with a text that was removed."""
        values = dict(zip(row.columns, row.cells(), strict=False))
        is_own = self._target in row.line
        if self._kind is ErasureKind.CHUNKS:
            # At another position it was appended again.
            is_other = row.table == "chunk" and not self._is_redacted(values)
            is_own = self._session in row.line and not is_other
        found = self._own_digests if is_own else self._other_digests
        found[f"{row.table}: a removed text, by its digest"] += 1

    def judged(self) -> tuple[Counter[str], Counter[str]]:
        """Returns what is left, and what is noted."""
        notes = Counter({f"{name}, of others": n for name, n in self._other_digests.items()})
        if not self._lives_again:
            return self._rows + self._own_digests, notes
        again = Counter({f"{name}, of a later {self._kind}": n for name, n in self._rows.items()})
        return Counter(), notes + again


def _target_of(receipt: Receipt) -> tuple[bytes, bytes, bytes]:
    """Returns the id whose rows were removed: as text, in hexadecimal, and as bytes."""
    target = receipt.tenant_id
    if receipt.kind is ErasureKind.CHUNKS:
        target = receipt.session_key or target
    elif receipt.kind is not ErasureKind.TENANT:
        target = receipt.item_id or target
    return str(target).encode(), target.hex.encode(), target.bytes


def _unescaped(cell: bytes) -> bytes:
    if b"\\" not in cell:
        return cell
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), cell)


def _blocks(path: Path, overlap: int) -> Iterator[bytes]:
    """Yields a file in blocks, each with the end of the one before."""
    with path.open("rb") as plain:
        is_compressed = plain.read(len(_GZIP)) == _GZIP
        plain.seek(0)
        yield from _overlapping(plain, overlap)
        if is_compressed:
            plain.seek(0)
            with gzip.open(plain) as file:
                yield from _overlapping(file, overlap)


def _overlapping(file: IO[bytes] | gzip.GzipFile, overlap: int) -> Iterator[bytes]:
    end = b""
    while block := file.read(_BLOCK):
        yield end + block
        end = (end + block)[-overlap:] if overlap else b""


def _unreadable(path: Path | str, error: Exception) -> CannotScan:
    said = (getattr(error, "strerror", None) or str(error)).strip() or "it is cut"
    return CannotScan(f"cannot read {path} to its end: {said[:1].lower()}{said[1:]}")


#: The parts of a data folder of `up`, by the beginnings of their paths; the first that fits counts.
_PARTS = (
    ("write-ahead log", ("postgres/data/pg_wal",)),
    ("tables and indexes", ("postgres/data",)),
    ("logs", ("logs", "postgres", "valkey/valkey.log")),
    ("Redis's files", ("valkey",)),
    ("other files", ("",)),
)


def parts_of(folder: Path) -> Mapping[str, list[Path]]:
    """Returns the plain files of a data folder, by its parts."""
    found: dict[str, list[Path]] = {name: [] for name, _ in _PARTS}
    for path in plain_files(folder):
        found[_part_of(path.relative_to(folder).as_posix())].append(path)
    return found


def plain_files(folder: Path) -> Iterator[Path]:
    """Yields the plain files below a folder. Raises CannotScan where a folder cannot be read."""

    def refuse(error: OSError) -> None:
        # A server removes folders as well, but for the one that was named.
        if error.filename == str(folder) or not isinstance(error, FileNotFoundError):
            raise _unreadable(error.filename, error) from error

    for above, _, names in os.walk(folder, onerror=refuse):
        for one in sorted(names):
            path = Path(above) / one
            if path.is_file() and not path.is_symlink():
                yield path


def _part_of(path: str) -> str:
    for name, beginnings in _PARTS:
        if any(path.startswith(beginning) for beginning in beginnings):
            return name
    raise AssertionError("the last part has all")
