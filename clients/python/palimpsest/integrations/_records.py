"""Binary records in the log of a session, for frameworks that store data of their own.

A record is one or more chunks with one `thread`, by which the service's index finds it. Its bytes
are in the chunks' metadata, which is neither indexed nor shown to a model; the text of each chunk
says in words what it is. Sessions of records have no memory, so that nothing reads them.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from palimpsest._errors import NotFound
from palimpsest._values_log import Chunk, Retention
from palimpsest.integrations._packing import APPEND_CHUNKS, Packing
from palimpsest.sync import Client, Session

#: Head and bytes of a record fit a chunk's metadata together.
_PACKING = Packing(mark="record", values=9, max_bytes=64 * 1024 * 1024)
#: Threads of one read.
READ_THREADS = 64
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
        try:
            found = list(_PACKING.whole(self._session.chunks(threads=threads)))
        except NotFound as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise
            return []
        return [_record(data, chunks) for data, chunks in found]


def _chunks(record: Record) -> Iterator[Chunk]:
    for marks in _PACKING.pieces(record.data, record.text):
        yield Chunk(
            kind="text", text=record.text, thread=record.key, metadata={**record.head, **marks}
        )


def _record(data: bytes, chunks: Sequence[Chunk]) -> Record:
    first = chunks[0]
    return Record(
        key=first.thread,
        text=first.text,
        head={name: one for name, one in first.metadata.items() if name not in _PACKING.keys},
        data=data,
        positions=tuple(chunk.position for chunk in chunks),
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
