"""Logs that are browsed by tests, in pieces of so many characters."""

from collections.abc import Callable, Iterator, Sequence

from service.domain.answers.browse.pieces import Frame
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.usecases.answers.readers.browsed_log import Texts
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
    """The log of the session `s`."""
    return LogRange(database=database, tenant_id=DEFAULT_TENANT, session_key=KEY, up_to=up_to)


def pack(characters: int) -> Callable[[Texts], Iterator[Frame]]:
    """Pieces of exactly so many characters; the last one has what is left."""

    def frames(texts: Texts) -> Iterator[Frame]:
        start, room, end, number = None, characters, (0, 0), 1
        for position, text in texts:
            at = 0
            while at < len(text):
                start = start or (position, at)
                taken = min(room, len(text) - at)
                at, room, end = at + taken, room - taken, (position, at + taken)
                if room == 0:
                    yield _frame(number, start, end, characters)
                    number, start, room = number + 1, None, characters
        if start is not None:
            yield _frame(number, start, end, characters - room)

    return frames


def _frame(number: int, start: tuple[int, int], end: tuple[int, int], tokens: int) -> Frame:
    return Frame(
        number=number,
        from_position=start[0],
        from_character=start[1],
        to_position=end[0],
        to_character=end[1],
        tokens=tokens,
    )
