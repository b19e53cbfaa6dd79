"""Writing to the log without a server, for tests of what comes behind it."""

import asyncio
from collections.abc import Sequence

from service.config import Limits
from service.domain.appending import Submission, SubmittedChunk
from service.domain.chunks import Chunk, ChunkKind
from service.domain.tenancy import DEFAULT_TENANT, session_key
from service.usecases.append import Appended, Appender
from service.usecases.hints import Hints
from storage.database import Database


async def drop_hints(_: object) -> None:
    """A dispatcher's `hint` that loses everything."""


def text_chunk(sequence: int, text: str) -> SubmittedChunk:
    """A text chunk as a producer sends it."""
    chunk = Chunk(kind=ChunkKind.TEXT, text=text)
    return SubmittedChunk(
        sequence=sequence, chunk=chunk, digest=chunk.digest(), content_bytes=len(text.encode())
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
    """A batch of text chunks with sequences from `first` on."""
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
    appender = Appender(database, Hints(drop_hints), b"token-key", Limits())
    running = asyncio.create_task(appender.run())
    try:
        last: Appended | None = None
        for start in range(0, len(texts), 256):
            part = texts[start : start + 256]
            last = await appender.submit(
                DEFAULT_TENANT, submission(session, part, first=first + start)
            )
        assert last is not None, "there is something to append"
        return last
    finally:
        running.cancel()
