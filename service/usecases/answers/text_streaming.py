"""Streams an answer's text while a model writes it, to the clients that wait for the answer.

The model call never waits for this: a task of its own stores what is written meanwhile, a
few times a second. Where that fails the answer is made all the same, and its text is sent when
it is complete.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import structlog

from service.domain.answers.answer_updates import following, text_of
from service.llm.providers.streamed_reply import OnText
from storage.answers import texts
from storage.answers.trajectories import AnswerKey
from storage.engine.database import Database
from storage.engine.errors import StorageError

_log = structlog.get_logger("palimpsest.answering")

#: Between two pieces.
PIECE_SECONDS = 0.1
#: Between two looks at a reply of which nothing was streamed yet.
LOOK_SECONDS = 0.02


@asynccontextmanager
async def stream_text(
    database: Database, tenant_id: UUID, key: AnswerKey, find_text: Callable[[str], str]
) -> AsyncIterator[OnText]:
    """Streams what `find_text` finds in a reply that is passed to the OnText as it is written.

    All that was found is streamed when this ends. Where a worker that died streamed the beginning,
    this goes on after that, or begins anew when the text is another one.
    """
    writer = _TextWriter(database, tenant_id, key, find_text)
    writing = asyncio.create_task(writer.run())
    try:
        yield writer.on_text
    except BaseException:
        # The rest is of no use: the model is asked anew, or never.
        writing.cancel()
        raise
    finally:
        writer.end()
        await asyncio.wait((writing,))


class _TakenOver(Exception):
    """The answer has ended, or another worker streams its text."""


class _TextWriter:
    """Writes the text of one answer, for one model call."""

    def __init__(
        self, database: Database, tenant_id: UUID, key: AnswerKey, find_text: Callable[[str], str]
    ) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._key = key
        self._find_text = find_text
        self._reply = ""
        self._written = asyncio.Event()
        self._ended = asyncio.Event()
        #: The last piece, and the text up to there; None: not known yet.
        self._streamed: tuple[int, str] | None = None

    def on_text(self, text: str, restarts: bool) -> None:
        """Accepts what the model wrote."""
        self._reply = text if restarts else self._reply + text
        self._written.set()

    def end(self) -> None:
        """Marks the end: nothing more is written."""
        self._ended.set()
        self._written.set()

    async def run(self) -> None:
        """Writes pieces until the end, or until another worker streams the text."""
        try:
            goes_on = True
            while goes_on:
                # What is written while this streams is streamed the next time.
                goes_on = not self._ended.is_set()
                await self._stream()
                if goes_on:
                    await self._pause()
        except _TakenOver:
            return
        except StorageError as error:
            _log.warning("an answer's text is sent when it is complete", cause=str(error))
        except Exception:
            # The answer must be made, whatever a reply does to its streaming.
            _log.exception("streaming failed; the text is sent when it is complete")

    async def _pause(self) -> None:
        """Waits for more text, and some time, unless the end is first."""
        await self._written.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS if self._streamed is None else PIECE_SECONDS):
                await self._ended.wait()

    async def _stream(self) -> None:
        """Streams what is new. Raises _TakenOver when nothing more can be streamed."""
        self._written.clear()
        wanted = self._find_text(self._reply)
        if not wanted or (self._streamed is not None and self._streamed[1].startswith(wanted)):
            return
        async with self._database.transaction(self._tenant_id, name="answer") as tx:
            if self._streamed is None:
                pieces = await texts.read(tx, self._key)
                self._streamed = (pieces[-1].ordinal if pieces else 0, text_of(pieces))
            last, streamed = self._streamed
            # Text that another worker streamed, and that the model writes again, is not sent twice.
            if streamed.startswith(wanted):
                return
            rest = following(last, streamed, wanted)
            if not await texts.append(tx, self._key, rest):
                # Those that were written would follow those of another worker.
                raise _TakenOver
        self._streamed = (rest[-1].ordinal, wanted)
