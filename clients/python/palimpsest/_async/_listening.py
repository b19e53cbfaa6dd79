"""Following answers across lost connections until they have ended."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from palimpsest._async._connection import Connection
from palimpsest._async._runtime import RpcError, gather, sleep
from palimpsest._convert import error_of
from palimpsest._convert_answers import AnswerProgress, request_of
from palimpsest._errors import PalimpsestError, from_rpc
from palimpsest._transport import BACKOFF_SECONDS, Backoff, may_resume
from palimpsest._values_answers import Answer, AskEvent, Question, TextPiece
from palimpsest.v1 import answer_service_pb2

#: Questions of one call; more are asked in several, one after the other.
MANY_QUESTIONS = 32

#: Receives the events of one question.
OnEvent = Callable[[AskEvent], None]
#: Receives the events of many: the number of the question (0, 1, 2 …), and the event.
OnManyEvents = Callable[[int, AskEvent], None]


class AnswerStream:
    """The text of an answer as it is written; `answer` is there after the last piece.

    A piece that `restarts` voids those before it.
    """

    def __init__(self, events: AsyncIterator[AskEvent | Answer], on_event: OnEvent | None) -> None:
        self._events = events
        self._on_event = on_event
        self._answer: Answer | None = None

    @property
    def answer(self) -> Answer:
        """The whole answer. Raises ValueError before the last piece."""
        if self._answer is None:
            raise ValueError("the answer is not there yet: iterate to the end first")
        return self._answer

    def __aiter__(self) -> "AnswerStream":
        return self

    async def __anext__(self) -> TextPiece:
        async for event in self._events:
            if isinstance(event, Answer):
                self._answer = event
            elif self._on_event is not None:
                self._on_event(event)
            if isinstance(event, TextPiece):
                return event
        raise StopAsyncIteration


class Listening:
    """Follows an answer until it has ended or the time is up.

    After a lost connection it requests the rest, so that each event is received once.
    """

    def __init__(self, connection: Connection, session: str, seconds: float) -> None:
        self._connection = connection
        self._session = session
        self._seconds = seconds
        #: The time counts from the first call, which a stream makes when iteration begins.
        self._until: float | None = None
        self._backoff = Backoff(BACKOFF_SECONDS)
        #: Whether the last call was lost, and another can be made.
        self._lost = False

    async def ask(self, request: answer_service_pb2.AskRequest) -> AsyncIterator[AskEvent | Answer]:
        """Yields the events of a question; the answer is the last. Raises PalimpsestError."""
        progress = AnswerProgress()
        async for event in self._events(self._connection.answers.Ask, request, progress):
            yield event
            if isinstance(event, Answer):
                return
        async for event in self.resume(progress):
            yield event

    async def resume(self, progress: AnswerProgress) -> AsyncIterator[AskEvent | Answer]:
        """Yields the rest of an answer. Raises PalimpsestError."""
        self._lost = bool(progress.answer_id)
        while self._lost:
            self._lost = False
            request = progress.resume_request(self._session)
            method = self._connection.answers.ResumeAnswer
            async for event in self._events(method, request, progress):
                yield event
                if isinstance(event, Answer):
                    return
        raise PalimpsestError("the service ended the call without an answer")

    async def _events(
        self, method: Callable[..., Any], request: Any, progress: AnswerProgress
    ) -> AsyncIterator[AskEvent | Answer]:
        """Yields the new events of one call; after a lost one it ends with a pause."""
        left = self._left()
        try:
            async for response in self._connection.responses(method, request, timeout=left):
                event = progress.new_event(response)
                if event is not None:
                    self._backoff.restart()
                    yield event
        except RpcError as error:
            await self._pause(error, progress)
            self._lost = True

    def _left(self) -> float:
        """Returns the seconds that are left."""
        if self._until is None:
            self._until = time.monotonic() + self._seconds
        return max(self._until - time.monotonic(), 0.001)

    async def _pause(self, error: RpcError, progress: AnswerProgress) -> None:
        """Waits before the next try. Raises PalimpsestError where there is none."""
        known = from_rpc(error, self._connection.address)
        pause = self._backoff.pause_seconds(known)
        time_is_up = pause > self._left()
        if not progress.answer_id or time_is_up or not may_resume(known, error.code()):
            raise known from error
        await sleep(pause)


class ManyQuestions:
    """The questions of one call, and how far each of them is."""

    def __init__(
        self,
        connection: Connection,
        session: str,
        asked: Sequence[Question],
        start: int,
        seconds: float,
    ) -> None:
        """`start` is the number of the first question, for the receiver of events."""
        self._connection = connection
        self._session = session
        self._start = start
        self._seconds = seconds
        self._request = answer_service_pb2.AskManyRequest(
            questions=[request_of(session, one) for one in asked]
        )
        self._progress = [AnswerProgress() for _ in asked]
        self._ended: dict[int, Answer | PalimpsestError] = {}

    async def ask(self, on_event: OnManyEvents | None) -> Sequence[Answer | PalimpsestError]:
        """Returns how each of them ended. Raises PalimpsestError for what ends them all."""
        until = time.monotonic() + self._seconds
        lost: PalimpsestError | None = None
        method = self._connection.answers.AskMany
        try:
            async for response in self._connection.responses(
                method, self._request, timeout=self._seconds
            ):
                self._take(response, on_event)
        except RpcError as error:
            lost = from_rpc(error, self._connection.address)
            if not self._ended and not any(one.answer_id for one in self._progress):
                # Refused as a whole, or it is unknown whether it was accepted.
                raise lost from error
        left = max(until - time.monotonic(), 0.001)
        numbers = range(len(self._progress))
        missing = [number for number in numbers if number not in self._ended]
        resumed = [partial(self._resume, number, left, lost, on_event) for number in missing]
        await gather(resumed, limit=MANY_QUESTIONS)
        return [self._ended[number] for number in numbers]

    def _take(self, response: answer_service_pb2.AskEvent, on_event: OnManyEvents | None) -> None:
        number = response.index
        if response.WhichOneof("event") == "error":
            self._ended[number] = error_of(response.error)
            return
        event = self._progress[number].new_event(response)
        if isinstance(event, Answer):
            self._ended[number] = event
        elif event is not None and on_event is not None:
            on_event(self._start + number, event)

    async def _resume(
        self,
        number: int,
        seconds: float,
        lost: PalimpsestError | None,
        on_event: OnManyEvents | None,
    ) -> None:
        """Follows one answer by itself, where the call of all was lost."""
        progress = self._progress[number]
        if not progress.answer_id:
            ended = "the service ended the call without an answer"
            self._ended[number] = lost or PalimpsestError(ended)
            return
        listening = Listening(self._connection, self._session, seconds)
        receive = None if on_event is None else partial(on_event, self._start + number)
        try:
            self._ended[number] = await last(listening.resume(progress), receive)
        except PalimpsestError as error:
            # It is of this question; the others continue.
            self._ended[number] = error


async def last(events: AsyncIterator[AskEvent | Answer], on_event: OnEvent | None) -> Answer:
    """Returns the answer, which comes after all events."""
    async for event in events:
        if isinstance(event, Answer):
            return event
        if on_event is not None:
            on_event(event)
    raise PalimpsestError("the service ended the call without an answer")
