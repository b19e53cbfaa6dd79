"""The answers of a session: asking, hearing, cancelling, listing, rating."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from grpc import aio

from palimpsest import answer_convert, questions
from palimpsest.answer_values import (
    Answer,
    AnswerStatus,
    Event,
    Question,
    Rating,
    TextPiece,
)
from palimpsest.connection import MAX_CALL_SECONDS, Connection
from palimpsest.errors import PalimpsestError, from_parts, from_rpc
from palimpsest.listening import Heard, Listening
from palimpsest.v1 import answers_pb2, answers_pb2_grpc

#: How long a question may take when the caller does not say.
ASK_SECONDS = 60.0
#: Questions of one call; more are asked in several, one after the other.
MANY_QUESTIONS = 32

_ANY_STATUS = answers_pb2.Answer.STATUS_UNSPECIFIED

#: Hears what is told of one question.
Hears = Callable[[Event], None]
#: Hears what is told of many: the number of the question (0, 1, 2 …), and what.
HearsMany = Callable[[int, Event], None]


def question_of(asked: str | Question, said: dict[str, Any]) -> Question:
    """A question, with what is said besides. Raises TypeError for a name that it has not."""
    question = Question(query=asked) if isinstance(asked, str) else asked
    return replace(question, **said)


class AnswerStream:
    """An answer that is being written: iterate over it for its text, piece by piece.

    Behind the last piece `answer` is there. Where a piece says `restarts`, those before it
    are void.
    """

    def __init__(self, told: AsyncIterator[Event | Answer], on_event: Hears | None) -> None:
        self._told = told
        self._on_event = on_event
        self._answer: Answer | None = None

    @property
    def answer(self) -> Answer:
        """The whole answer. Raises ValueError as long as it is not there."""
        if self._answer is None:
            raise ValueError("the answer is not there yet: iterate to the end first")
        return self._answer

    def __aiter__(self) -> "AnswerStream":
        return self

    async def __anext__(self) -> TextPiece:
        async for event in self._told:
            if isinstance(event, Answer):
                self._answer = event
            elif self._on_event is not None:
                self._on_event(event)
            if isinstance(event, TextPiece):
                return event
        raise StopAsyncIteration


class Answers:
    """The answers of one session."""

    def __init__(self, client: Connection, session: str) -> None:
        self._client = client
        self._session = session
        self._stub = answers_pb2_grpc.AnswerServiceStub(client.channel)

    def told(self, question: Question, timeout: float) -> AsyncIterator[Event | Answer]:
        """What is told of a question; the answer comes last."""
        request = questions.request_of(self._session, question)
        return Listening(self._client, self._session, timeout).ask(request)

    async def ask(self, question: Question, *, timeout: float, on_event: Hears | None) -> Answer:
        """See `palimpsest.session.Session.ask`."""
        return await last(self.told(question, timeout), on_event)

    async def resume(
        self,
        answer_id: str,
        *,
        after_event: int,
        after_text: int,
        timeout: float,
        on_event: Hears | None,
    ) -> Answer:
        """See `palimpsest.session.Session.resume_answer`."""
        heard = Heard(answer_id=answer_id, event=after_event, piece=after_text)
        listening = Listening(self._client, self._session, timeout)
        return await last(listening.resume(heard), on_event)

    async def get(self, answer_id: str) -> Answer:
        """See `palimpsest.session.Session.answer`."""
        request = answers_pb2.GetAnswerRequest(session=self._session, answer_id=answer_id)
        response = await self._client.call(self._stub.GetAnswer, request)
        return answer_convert.answer(response.answer)

    async def cancel(self, answer_id: str) -> Answer:
        """See `palimpsest.session.Session.cancel_answer`."""
        request = answers_pb2.CancelAnswerRequest(session=self._session, answer_id=answer_id)
        response = await self._client.call(self._stub.CancelAnswer, request)
        return answer_convert.answer(response.answer)

    async def list(self, memory: str, status: AnswerStatus | None) -> AsyncIterator[Answer]:
        """See `palimpsest.session.Session.answers`."""
        if status is not None and status not in answer_convert.STATUSES:
            raise ValueError(f"status must be one of {', '.join(answer_convert.STATUSES)}")
        request = answers_pb2.ListAnswersRequest(
            session=self._session,
            memory=memory,
            status=answer_convert.STATUSES[status] if status else _ANY_STATUS,
            page_size=1000,
        )
        async for page in self._client.pages(self._stub.ListAnswers, request):
            for message in page.answers:
                yield answer_convert.answer(message)

    async def rate(self, answer_id: str, *, good: bool, comment: str, expected: str) -> Rating:
        """See `palimpsest.session.Session.rate`."""
        verdict = answers_pb2.Rating.VERDICT_GOOD if good else answers_pb2.Rating.VERDICT_BAD
        request = answers_pb2.RateAnswerRequest(
            session=self._session,
            answer_id=answer_id,
            rating=answers_pb2.Rating(verdict=verdict, comment=comment, expected=expected),
        )
        response = await self._client.call(self._stub.RateAnswer, request)
        return answer_convert.rating(response.rating)

    async def ask_all(
        self, asked: Sequence[Question], *, timeout: float, on_event: HearsMany | None
    ) -> Sequence[Answer | PalimpsestError]:
        """See `palimpsest.session.Session.ask_all`."""
        ended: list[Answer | PalimpsestError] = []
        for start in range(0, len(asked), MANY_QUESTIONS):
            many = _Many(
                self._client, self._session, asked[start : start + MANY_QUESTIONS], timeout
            )
            hear = None if on_event is None else _shifted(on_event, start)
            ended += await many.ask(hear)
        return ended


class _Many:
    """The questions of one call, and how far each of them is."""

    def __init__(
        self, client: Connection, session: str, asked: Sequence[Question], timeout: float
    ) -> None:
        self._client = client
        self._session = session
        self._stub = answers_pb2_grpc.AnswerServiceStub(client.channel)
        self._timeout = min(timeout, MAX_CALL_SECONDS)
        self._request = answers_pb2.AskManyRequest(
            questions=[questions.request_of(session, one) for one in asked]
        )
        self._heard = [Heard() for _ in asked]
        self._ended: dict[int, Answer | PalimpsestError] = {}

    async def ask(self, on_event: HearsMany | None) -> Sequence[Answer | PalimpsestError]:
        """How each of them ended. Raises PalimpsestError for what none of them survives."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout
        lost: PalimpsestError | None = None
        try:
            async for response in self._client.responses(
                self._stub.AskMany, self._request, timeout=self._timeout
            ):
                self._take(response, on_event)
        except aio.AioRpcError as error:
            lost = from_rpc(error, self._client.address)
            if not self._ended and not any(one.answer_id for one in self._heard):
                # Refused as a whole, or nobody knows whether it was taken.
                raise lost from error
        left = max(until - loop.time(), 0.001)
        missing = [number for number in range(len(self._heard)) if number not in self._ended]
        async with asyncio.TaskGroup() as group:
            for number in missing:
                group.create_task(self._resume(number, left, lost, on_event))
        return [self._ended[number] for number in range(len(self._heard))]

    def _take(self, response: answers_pb2.AskManyResponse, on_event: HearsMany | None) -> None:
        number = response.index
        if response.WhichOneof("event") == "error":
            error = response.error
            self._ended[number] = from_parts(
                error.code, error.message, error.reason, dict(error.metadata)
            )
            return
        told = response.response
        if told.WhichOneof("event") == "answer":
            self._ended[number] = answer_convert.answer(told.answer)
            return
        event = answer_convert.heard(told)
        if event is not None and self._heard[number].note(event) and on_event is not None:
            on_event(number, event)

    async def _resume(
        self,
        number: int,
        timeout: float,
        lost: PalimpsestError | None,
        on_event: HearsMany | None,
    ) -> None:
        """Hears on by itself, where the call of all was lost."""
        heard = self._heard[number]
        if not heard.answer_id:
            ended = "the service ended the call without an answer"
            self._ended[number] = lost or PalimpsestError(ended)
            return
        listening = Listening(self._client, self._session, timeout)
        hear = None if on_event is None else _of(on_event, number)
        try:
            self._ended[number] = await last(listening.resume(heard), hear)
        except PalimpsestError as error:
            # It is of this question; the others go on.
            self._ended[number] = error


async def last(told: AsyncIterator[Event | Answer], on_event: Hears | None) -> Answer:
    """The answer, behind all that is told before it."""
    async for event in told:
        if isinstance(event, Answer):
            return event
        if on_event is not None:
            on_event(event)
    raise PalimpsestError("the service ended the call without an answer")


def _of(on_event: HearsMany, number: int) -> Hears:
    return lambda event: on_event(number, event)


def _shifted(on_event: HearsMany, by: int) -> HearsMany:
    return lambda number, event: on_event(number + by, event)
