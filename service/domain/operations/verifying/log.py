"""The log of a session against its digests, its producers and its head."""

from collections.abc import Iterator, Mapping

from service.domain.log.chunks import LoggedChunk
from service.domain.operations.verifying.chain import Difference


class LogCheck:
    """Checks every chunk in order of position, then the session and its producers."""

    def __init__(self) -> None:
        #: The position that was seen last.
        self.position = 0
        #: Bytes of content, and of metadata.
        self._bytes = 0
        self._metadata_bytes = 0
        #: The last sequence of each producer.
        self._sequences: dict[str, int] = {}

    def chunk(self, logged: LoggedChunk, digest: bytes) -> Iterator[Difference]:
        """Checks the next chunk, with its stored digest."""
        place = f"position {logged.position}"
        if logged.position != self.position + 1:
            yield _missing(self.position + 1, logged.position - 1)
        self.position = logged.position
        self._bytes += logged.chunk.content_bytes()
        if logged.redaction_id is not None:
            if not logged.chunk.is_empty() or logged.chunk.metadata or logged.chunk.has_heading():
                said = "it is redacted, and has content"
                yield Difference(name="chunk.redaction", place=place, said=said)
        elif not all(isinstance(value, str) for value in logged.chunk.metadata.values()):
            said = "its metadata holds something else than strings"
            yield Difference(name="chunk.metadata", place=place, said=said)
        else:
            self._metadata_bytes += logged.chunk.metadata_bytes()
            if logged.chunk.digest() != digest:
                said = "its content has another SHA-256 than was stored with it"
                yield Difference(name="chunk.digest", place=place, said=said)
        before = self._sequences.get(logged.producer_id, 0)
        if logged.producer_sequence != before + 1:
            yield Difference(
                name="producer.sequence",
                place=place,
                said=f"producer {logged.producer_id!r} has sequence {logged.producer_sequence}"
                f" after {before}",
            )
        self._sequences[logged.producer_id] = logged.producer_sequence

    def finish(
        self, *, head: int, content_bytes: int, producers: Mapping[str, int]
    ) -> Iterator[Difference]:
        """Checks the session's row, and the last sequence of each of its producers."""
        if self.position < head:
            yield _missing(self.position + 1, head)
        if self.position > head:
            said = f"the head is {head}, and there are chunks up to {self.position}"
            yield Difference(name="session.head", place=f"position {head}", said=said)
        # Which of the chunks an older release wrote, which did not count their metadata,
        # nothing says.
        most = self._bytes + self._metadata_bytes
        if not self._bytes <= content_bytes <= most:
            sizes = f"{self._bytes}" if most == self._bytes else f"{self._bytes} to {most}"
            said = f"the chunks have {sizes} bytes, and the session says {content_bytes}"
            yield Difference(name="session.content_bytes", place="session", said=said)
        for name in sorted({*producers, *self._sequences}):
            stored, found = producers.get(name), self._sequences.get(name, 0)
            if stored != found:
                said = f"its last chunk has sequence {found}, and its row says {stored}"
                yield Difference(name="producer.last", place=f"producer {name!r}", said=said)


def _missing(first: int, last: int) -> Difference:
    place = f"position {first}" if first == last else f"positions {first} to {last}"
    return Difference(name="chunk.missing", place=place, said="the log has a gap")
