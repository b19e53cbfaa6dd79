"""Asks several questions of one session at once; when one fails the others go on."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from uuid import UUID

from service.domain.values.errors import InvalidInput, PalimpsestError, Unavailable
from service.domain.values.reasons import Reason
from service.usecases.answers.ask import AskDone, Asker, AskEvent, Begun
from service.usecases.answers.questions import Question, naming
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from storage.engine.errors import Busy, StorageError, Unreachable

#: Events of all questions of a call together that wait to be read.
MAX_UNTAKEN = 64

#: The number of a question (0, 1, 2 …), and one of its events; its answer, or the error in place
#: of that, is the last.
NumberedAskEvent = tuple[int, AskEvent | PalimpsestError | StorageError]


async def ask_many(
    asker: Asker,
    waiting: ConcurrencyLimiter,
    tenant_id: UUID,
    questions: Sequence[Question],
    *,
    deadline: float | None,
) -> AsyncGenerator[NumberedAskEvent]:
    """Yields the events of all of them, as they happen.

    Raises what is wrong with any of them before one is stored, as `Asker.ask`; and
    Unavailable, after all other events, when this server stops.
    """
    _check(questions)
    with ExitStack() as slots:
        for _ in questions:
            slots.enter_context(waiting.slot())
        begun = await asker.begin(tenant_id, questions)
        told: asyncio.Queue[tuple[int, AskEvent | Exception]] = asyncio.Queue(MAX_UNTAKEN)

        async def go_on(number: int, question: Question, one: Begun) -> None:
            try:
                async with aclosing(asker.go_on(tenant_id, question, one, deadline)) as events:
                    async for event in events:
                        await told.put((number, event))
            except Exception as error:
                # It is the last event of this question; an unexpected error is raised where it
                # is read.
                await told.put((number, error))

        tasks = [
            asyncio.create_task(go_on(number, question, one))
            for number, (question, one) in enumerate(zip(questions, begun, strict=True))
        ]
        try:
            under_way, stopping = len(tasks), None
            while under_way:
                number, event = await told.get()
                if isinstance(event, Exception) and not isinstance(event, _FORESEEN):
                    raise event
                if isinstance(event, AskDone | PalimpsestError | StorageError):
                    under_way -= 1
                if isinstance(event, Unavailable) and event.reason is Reason.SERVER_STOPPING:
                    # All of them end so: a client that has an answer's id resumes it elsewhere.
                    stopping = event
                    continue
                yield number, event
            if stopping is not None:
                raise stopping
        finally:
            for task in tasks:
                task.cancel()
            # Where the database goes away meanwhile, a cancellation becomes an error, which is
            # queued as well, and never read: it needs room.
            while not told.empty():
                told.get_nowait()
            await asyncio.gather(*tasks, return_exceptions=True)


_FORESEEN = (PalimpsestError, Unreachable, Busy)


def _check(questions: Sequence[Question]) -> None:
    for number, question in enumerate(questions):
        with naming(number, of=len(questions)):
            if question.session != questions[0].session:
                raise InvalidInput(
                    Reason.FIELD_INVALID,
                    "session: all questions must be of one session",
                    field="session",
                )
            question.check()
