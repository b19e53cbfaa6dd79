"""Telling an answer's text while a model writes it, to whoever waits for the answer.

The model call never waits for this: what is written meanwhile is stored by a task of its
own, a few times a second. Where that fails the answer is made all the same, and its text
is told when it is complete.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import structlog

from service.domain.telling import following, text_of
from service.llm.telling import OnText
from storage import answer_texts
from storage.database import Database
from storage.errors import StorageError
from storage.trajectories import AnswerKey

_log = structlog.get_logger("palimpsest.answering")

#: Between two pieces.
TELL_SECONDS = 0.1
#: Between two looks at a reply of which nothing was told yet.
LOOK_SECONDS = 0.02


@asynccontextmanager
async def telling_text(
    database: Database, tenant_id: UUID, key: AnswerKey, telling: Callable[[str], str]
) -> AsyncIterator[OnText]:
    """Tells what `telling` finds in a reply, of which the OnText gets what is written.

    All that was found is told when this ends. Where somebody who died told the beginning,
    it goes on behind that, or begins anew when the text is another one.
    """
    teller = _Teller(database, tenant_id, key, telling)
    writing = asyncio.create_task(teller.run())
    try:
        yield teller.on_text
    except BaseException:
        # Nobody can use the rest: the model is asked anew, or never.
        writing.cancel()
        raise
    finally:
        teller.end()
        await asyncio.wait((writing,))


class _TakenOver(Exception):
    """The answer has ended, or somebody else tells its text."""


class _Teller:
    """Writes the text of one answer, for one model call."""

    def __init__(
        self, database: Database, tenant_id: UUID, key: AnswerKey, telling: Callable[[str], str]
    ) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._key = key
        self._telling = telling
        self._reply = ""
        self._written = asyncio.Event()
        self._ended = asyncio.Event()
        #: The last piece, and the text up to there; None: not known yet.
        self._told: tuple[int, str] | None = None

    def on_text(self, text: str, restarts: bool) -> None:
        """Takes what the model wrote."""
        self._reply = text if restarts else self._reply + text
        self._written.set()

    def end(self) -> None:
        """Nothing more is written."""
        self._ended.set()
        self._written.set()

    async def run(self) -> None:
        """Writes pieces until the end, or until somebody else tells the text."""
        try:
            goes_on = True
            while goes_on:
                # What is written while this tells is told the next time.
                goes_on = not self._ended.is_set()
                await self._tell()
                if goes_on:
                    await self._pause()
        except _TakenOver:
            return
        except StorageError as error:
            _log.warning("an answer's text is told when it is complete", cause=str(error))
        except Exception:
            # Who waits for the answer shall get it, whatever a reply does to this.
            _log.exception("telling broke; the text is told when it is complete")

    async def _pause(self) -> None:
        """Waits for more, and some time, unless the end comes first."""
        await self._written.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS if self._told is None else TELL_SECONDS):
                await self._ended.wait()

    async def _tell(self) -> None:
        """Tells what is new. Raises _TakenOver when nothing more can be told."""
        self._written.clear()
        wanted = self._telling(self._reply)
        if not wanted or (self._told is not None and self._told[1].startswith(wanted)):
            return
        async with self._database.transaction(self._tenant_id, name="answer") as tx:
            if self._told is None:
                pieces = await answer_texts.read(tx, self._key)
                self._told = (pieces[-1].ordinal if pieces else 0, text_of(pieces))
            last, told = self._told
            # Text that another one told, and that the model writes again, is not told twice.
            if told.startswith(wanted):
                return
            rest = following(last, told, wanted)
            if not await answer_texts.append(tx, self._key, rest):
                # Those that were written would stand behind somebody else's.
                raise _TakenOver
        self._told = (rest[-1].ordinal, wanted)
