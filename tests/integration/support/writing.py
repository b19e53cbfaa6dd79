"""Writing to the log without a server, for tests of what comes after it."""

import asyncio
from collections.abc import Sequence

from service.domain.log.appending import Submission, SubmittedChunk
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.submissions import Appended
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database


async def drop_wake_ups(_: object) -> None:
    """A dispatcher's `wake-up` that loses everything."""


def text_chunk(sequence: int, text: str) -> SubmittedChunk:
    """Returns a text chunk as a producer sends it."""
    return submitted(sequence, Chunk(kind=ChunkKind.TEXT, text=text))


def submitted(sequence: int, chunk: Chunk) -> SubmittedChunk:
    """Returns a chunk as a producer sends it."""
    return SubmittedChunk(
        sequence=sequence, chunk=chunk, digest=chunk.digest(), size_bytes=chunk.size_bytes()
    )


def submission(
    session: str,
    texts: Sequence[str],
    *,
    first: int = 1,
    producer: str = "p",
    epoch: int = 0,
    expected_head: int | None = None,
) -> Submission:
    """Returns a batch of text chunks with sequences from `first` on."""
    return Submission(
        session=session,
        session_key=session_key(DEFAULT_TENANT, session),
        producer_id=producer,
        epoch=epoch,
        expected_head=expected_head,
        chunks=tuple(text_chunk(first + n, text) for n, text in enumerate(texts)),
    )


async def append_texts(
    database: Database, session: str, texts: Sequence[str], *, first: int = 1
) -> Appended:
    """Appends texts through a group commit of its own; the last ack."""
    chunks = [Chunk(kind=ChunkKind.TEXT, text=text) for text in texts]
    return await append_chunks(database, session, chunks, first=first)


async def append_chunks(
    database: Database,
    session: str,
    chunks: Sequence[Chunk],
    *,
    first: int = 1,
    producer: str = "p",
) -> Appended:
    """Appends chunks through a group commit of its own; the last ack.

    `first`: the producer's sequence of the first one.
    """
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    try:
        last: Appended | None = None
        for start in range(0, len(chunks), 256):
            part = enumerate(chunks[start : start + 256], start=first + start)
            last = await appender.submit(
                DEFAULT_TENANT,
                Submission(
                    session=session,
                    session_key=session_key(DEFAULT_TENANT, session),
                    producer_id=producer,
                    epoch=0,
                    expected_head=None,
                    chunks=tuple(submitted(sequence, chunk) for sequence, chunk in part),
                ),
            )
        assert last is not None, "there is something to append"
        return last
    finally:
        running.cancel()
