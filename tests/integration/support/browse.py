"""Logs that are browsed by tests, in pieces of so many characters."""

from collections.abc import Callable, Collection, Iterable, Sequence

from service.domain.answers.browse.packing import PiecePacker
from service.domain.answers.browse.pieces import Frame
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.usecases.answers.readers.log_range import LogRange
from storage.engine.database import Database
from storage.log import sessions
from tests.integration.support.writing import append_chunks

KEY = session_key(DEFAULT_TENANT, "s")


async def write(database: Database, contents: Sequence[str | Chunk]) -> None:
    """The session `s` with these chunks."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    chunks = [
        one if isinstance(one, Chunk) else Chunk(kind=ChunkKind.TEXT, text=one) for one in contents
    ]
    await append_chunks(database, "s", chunks)


def held(database: Database, up_to: int) -> LogRange:
    """Returns the log of the session `s`."""
    return LogRange(database=database, tenant_id=DEFAULT_TENANT, session_key=KEY, up_to=up_to)


class _Characters(PiecePacker):
    """Packs pieces of exactly so many characters; the last one has what is left."""

    def __init__(self, characters: int) -> None:
        super().__init__(characters, count=len, cut=lambda text, limit: limit)
        self._start: tuple[int, int] | None = None
        self._end = (0, 0)

    def feed(
        self, texts: Iterable[tuple[int, str]], unverified: Collection[int] = ()
    ) -> list[Frame]:
        frames: list[Frame] = []
        for position, text in texts:
            at = 0
            while at < len(text):
                self._start = self._start or (position, at)
                taken = min(self._tokens - self._size, len(text) - at)
                at, self._size, self._end = at + taken, self._size + taken, (position, at + taken)
                if self._size == self._tokens:
                    frames += self.finish()
        return frames

    def finish(self) -> list[Frame]:
        if self._start is None:
            return []
        self._number += 1
        frame = Frame(
            number=self._number,
            from_position=self._start[0],
            from_character=self._start[1],
            to_position=self._end[0],
            to_character=self._end[1],
            tokens=self._size,
        )
        self._start, self._size = None, 0
        return [frame]


def pack(characters: int) -> Callable[[], PiecePacker]:
    """Pieces of exactly so many characters; the last one has what is left."""
    return lambda: _Characters(characters)
