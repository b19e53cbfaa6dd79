"""Binary records in the log of a session, for frameworks that store data of their own.

A record is one or more chunks with one `thread`, by which the service's index finds it. Its bytes
are in the chunks' metadata, which is neither indexed nor shown to a model; the text of each chunk
says in words what it is. Sessions of records have no memory, so that nothing reads them.
"""

import base64
import hashlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from palimpsest._errors import NotFound
from palimpsest._values_log import Chunk, Retention
from palimpsest.sync import Client, Session

#: Characters of a value of a chunk's metadata, and how many values have bytes.
VALUE_CHARACTERS = 1024
VALUES = 9
CHUNK_CHARACTERS = VALUE_CHARACTERS * VALUES
#: Chunks of one append, so that they fit a message of the service.
APPEND_CHUNKS = 128
#: Threads of one read.
READ_THREADS = 64
#: Bytes of a record, compressed and decompressed.
MAX_BYTES = 64 * 1024 * 1024
#: Ranges of one removal.
FORGET_RANGES = 1000


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record."""

    #: What finds it: see `key`.
    key: str
    #: What it is, in words.
    text: str
    #: At most four values of at most 1,024 characters, which a scan sees without the bytes.
    head: Mapping[str, str] = field(default_factory=dict)
    data: bytes = b""
    #: Where its chunks are; empty before it is stored.
    positions: Sequence[int] = ()


def key(*parts: object) -> str:
    """Returns the id of what has these parts: a digest, since ids are short and plain."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:40]


class Records:
    """The records of one session."""

    def __init__(self, client: Client, session: str, retention: Retention | None) -> None:
        """The session is made by the first append."""
        self._session: Session = client.session(session)
        self._retention = retention

    def append(self, records: Iterable[Record], metadata: Mapping[str, str]) -> None:
        """Stores records, in order: each is there as a whole, or is not read at all.

        `metadata` is that of the session, if it does not exist yet.
        """
        chunks = [chunk for record in records for chunk in _chunks(record)]
        for start in range(0, len(chunks), APPEND_CHUNKS):
            part, request = chunks[start : start + APPEND_CHUNKS], uuid4().hex
            try:
                self._session.append(part, request_id=request)
            except NotFound as error:
                if error.reason != "SESSION_NOT_FOUND":
                    raise
                self._session.create(
                    exist_ok=True,
                    default_memory=False,
                    metadata=metadata,
                    retention=self._retention,
                )
                self._session.append(part, request_id=request)

    def read(self, keys: Collection[str]) -> list[Record]:
        """Returns all records of some keys, oldest first."""
        wanted, found = list(keys), list[Record]()
        for start in range(0, len(wanted), READ_THREADS):
            found += self._whole(threads=wanted[start : start + READ_THREADS])
        return sorted(found, key=lambda record: record.positions[0])

    def scan(self) -> list[Record]:
        """Returns all records, oldest first."""
        return self._whole()

    def newest(self, head: Mapping[str, str]) -> Iterator[Chunk]:
        """Yields the first chunks of records with this head, newest first; without their bytes."""
        try:
            last = self._session.info().head
        except NotFound:
            return
        size = READ_THREADS
        while last > 0:
            first = max(1, last - size + 1)
            wanted = {**head, "part": "0"}
            found = self._session.chunks(from_position=first, to_position=last, metadata=wanted)
            yield from reversed([chunk for chunk in found if not chunk.redaction])
            last, size = first - 1, min(size * 4, 8192)

    def remove(self, records: Iterable[Record], reason: str) -> None:
        """Removes the content of records for good."""
        positions = sorted({one for record in records for one in record.positions})
        ranges = list(_ranges(positions))
        for start in range(0, len(ranges), FORGET_RANGES):
            self._session.forget(positions=ranges[start : start + FORGET_RANGES], reason=reason)

    def delete(self) -> None:
        """Deletes the session."""
        self._session.delete(missing_ok=True)

    def _whole(self, threads: Collection[str] = ()) -> list[Record]:
        """Returns the records of which all chunks are there."""
        parts: dict[str, list[Chunk]] = {}
        try:
            for chunk in self._session.chunks(threads=threads):
                if not chunk.redaction and "record" in chunk.metadata:
                    parts.setdefault(chunk.metadata["record"], []).append(chunk)
        except NotFound as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise
        records = [_record(chunks) for chunks in parts.values()]
        return [record for record in records if record is not None]


def _chunks(record: Record) -> Iterator[Chunk]:
    packed = zlib.compress(record.data)
    if max(len(packed), len(record.data)) > MAX_BYTES:
        raise ValueError(f"{record.text} has more than {MAX_BYTES} bytes")
    text = base64.b64encode(packed).decode()
    pieces = [text[at : at + CHUNK_CHARACTERS] for at in range(0, len(text), CHUNK_CHARACTERS)]
    name = uuid4().hex
    for number, piece in enumerate(pieces):
        values = range(0, len(piece), VALUE_CHARACTERS)
        yield Chunk(
            kind="text",
            text=record.text,
            thread=record.key,
            metadata={
                **record.head,
                "record": name,
                "part": str(number),
                "parts": str(len(pieces)),
                **{f"v{i}": piece[at : at + VALUE_CHARACTERS] for i, at in enumerate(values)},
            },
        )


def _record(chunks: Sequence[Chunk]) -> Record | None:
    """Returns the record of its chunks; None when some are missing."""
    by_part = {int(chunk.metadata["part"]): chunk for chunk in chunks}
    first = by_part.get(0)
    if first is None or len(by_part) != int(first.metadata["parts"]):
        return None
    text = "".join(
        by_part[part].metadata.get(f"v{number}", "")
        for part in range(len(by_part))
        for number in range(VALUES)
    )
    reader = zlib.decompressobj()
    data = reader.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
    if not reader.eof:
        raise ValueError(f"the record at position {first.position} is damaged or too large")
    known = {"record", "part", "parts", *(f"v{number}" for number in range(VALUES))}
    return Record(
        key=first.thread,
        text=first.text,
        head={name: value for name, value in first.metadata.items() if name not in known},
        data=data,
        positions=tuple(by_part[part].position for part in range(len(by_part))),
    )


def _ranges(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = previous = 0
    for position in positions:
        if start and position != previous + 1:
            yield start, previous
            start = 0
        start = start or position
        previous = position
    if start:
        yield start, previous
