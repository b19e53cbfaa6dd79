"""Bytes in the metadata of chunks, which is neither indexed nor shown to a model."""

import base64
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

from palimpsest._values_log import Chunk

#: Characters of a value of a chunk's metadata.
VALUE_CHARACTERS = 1024
#: Chunks of one append, so that they fit a message of the service.
APPEND_CHUNKS = 128


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How one kind of data is in the metadata of one or more chunks."""

    #: The key with the id of the data, by which its chunks belong together.
    mark: str
    #: How many values of a chunk have bytes.
    values: int
    #: Bytes at most, compressed and decompressed.
    max_bytes: int

    @property
    def keys(self) -> frozenset[str]:
        """The keys of metadata that it uses."""
        return frozenset((self.mark, "part", "parts", *map(self._value, range(self.values))))

    def pieces(self, data: bytes, what: str) -> Iterator[dict[str, str]]:
        """Yields the metadata of each chunk. Raises ValueError that names `what` for too much."""
        packed = zlib.compress(data)
        if max(len(packed), len(data)) > self.max_bytes:
            raise ValueError(f"{what} has more than {self.max_bytes} bytes")
        text = base64.b64encode(packed).decode()
        size = self.values * VALUE_CHARACTERS
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        name = uuid4().hex
        for number, piece in enumerate(pieces):
            marks = {self.mark: name, "part": str(number), "parts": str(len(pieces))}
            for at in range(0, len(piece), VALUE_CHARACTERS):
                marks[self._value(at // VALUE_CHARACTERS)] = piece[at : at + VALUE_CHARACTERS]
            yield marks

    def whole(self, chunks: Iterable[Chunk]) -> Iterator[tuple[bytes, Sequence[Chunk]]]:
        """Yields the data of which all chunks are there, with them in order; oldest first.

        Raises ValueError for what is damaged.
        """
        found: dict[str, dict[int, Chunk]] = {}
        for chunk in chunks:
            if not chunk.redaction and self.mark in chunk.metadata:
                parts = found.setdefault(chunk.metadata[self.mark], {})
                parts[int(chunk.metadata["part"])] = chunk
        for parts in found.values():
            first = parts.get(0)
            if first is not None and len(parts) == int(first.metadata["parts"]):
                ordered = [parts[number] for number in range(len(parts))]
                yield self._data(ordered), ordered

    def _data(self, chunks: Sequence[Chunk]) -> bytes:
        names = [self._value(number) for number in range(self.values)]
        text = "".join(chunk.metadata.get(name, "") for chunk in chunks for name in names)
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(text, validate=True), self.max_bytes)
        if not reader.eof:
            raise ValueError(f"what is at position {chunks[0].position} is damaged or too large")
        return data

    @staticmethod
    def _value(number: int) -> str:
        return f"v{number}"
