# Generated from palimpsest/_async by `make sync`; do not edit.
"""Answers: asking, listening across lost connections, resuming, listing, rating."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import grpc

from palimpsest import _convert_answers as convert
from palimpsest._convert import error_of, value_of
from palimpsest._errors import (
    PalimpsestError,
    ResourceExhausted,
    Unavailable,
    from_rpc,
)
from palimpsest._sync._connection import Connection
from palimpsest._sync._runtime import RpcError, gather, sleep
from palimpsest._transport import (
    ASK_SECONDS,
    BACKOFF_SECONDS,
    MAX_BACKOFF_SECONDS,
    SLACK_SECONDS,
    headers,
    is_unbegun,
    pause_seconds,
)
from palimpsest._values_answers import (
    Answer,
    AskEvent,
    NavigationStatistics,
    Question,
    Reading,
    TextPiece,
    TrainingExample,
    TrajectoryEvent,
)
from palimpsest._values_common import OperationState
from palimpsest.v1 import answer_service_pb2

#: Questions of one call; more are asked in several, one after the other.
MANY_QUESTIONS = 32
#: Questions that run at once when the caller does not say.
ASK_CONCURRENCY = 8

#: Receives the events of one question.
OnEvent = Callable[[AskEvent], None]
#: Receives the events of many: the number of the question (0, 1, 2 …), and the event.
OnManyEvents = Callable[[int, AskEvent], None]


class AnswerStream:
    """An answer that is being written: iterate over it for its text, piece by piece.

    After the last piece `answer` is there. Where a piece says `restarts`, those before it
    are void.
    """

    def __init__(self, events: Iterator[AskEvent | Answer], on_event: OnEvent | None) -> None:
        self._events = events
        self._on_event = on_event
        self._answer: Answer | None = None

    @property
    def answer(self) -> Answer:
        """The whole answer. Raises ValueError as long as it is not there."""
        if self._answer is None:
            raise ValueError("the answer is not there yet: iterate to the end first")
        return self._answer

    def __iter__(self) -> "AnswerStream":
        return self

    def __next__(self) -> TextPiece:
        for event in self._events:
            if isinstance(event, Answer):
                self._answer = event
            elif self._on_event is not None:
                self._on_event(event)
            if isinstance(event, TextPiece):
                return event
        raise StopIteration


@dataclass(slots=True)
class _Progress:
    """How much of an answer was received."""

    #: Empty until the answer is begun.
    answer_id: str = ""
    #: Ordinals of the last event and the last piece of text.
    event: int = 0
    piece: int = 0

    def is_new(self, event: AskEvent | Answer) -> bool:
        """Returns whether the event was not received before, and notes it."""
        match event:
            case Reading():
                new, self.answer_id = not self.answer_id, event.answer
                return new
            case TrajectoryEvent():
                new, self.event = event.ordinal > self.event, max(event.ordinal, self.event)
                return new
            case TextPiece():
                new, self.piece = event.ordinal > self.piece, max(event.ordinal, self.piece)
                return new
        return True


class _Listening:
    """Follows an answer until it has ended or the time is up.

    Once the answer is begun a lost connection only interrupts it: the service is asked
    for what was not received, so that each event comes once.
    """

    def __init__(self, connection: Connection, session: str, seconds: float) -> None:
        self._connection = connection
        self._session = session
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._wait = BACKOFF_SECONDS

    def ask(self, request: answer_service_pb2.AskRequest) -> Iterator[AskEvent | Answer]:
        """Yields the events of a question; the answer comes last. Raises PalimpsestError."""
        progress = _Progress()
        responses = self._connection.responses(
            self._connection.answers.Ask, request, timeout=self._seconds
        )
        try:
            for response in responses:
                event = convert.progress(response)
                if event is not None and progress.is_new(event):
                    yield event
                if isinstance(event, Answer):
                    return
        except RpcError as error:
            self._pause(error, progress)
        for event in self.resume(progress):
            yield event

    def resume(self, progress: _Progress) -> Iterator[AskEvent | Answer]:
        """Yields what was not received yet of an answer. Raises PalimpsestError."""
        if not progress.answer_id:
            raise PalimpsestError("the service ended the call without an answer")
        while True:
            request = answer_service_pb2.ResumeAnswerRequest(
                session=self._session,
                answer=progress.answer_id,
                after_event=progress.event,
                after_text=progress.piece,
            )
            left = max(self._until - time.monotonic(), 0.001) + SLACK_SECONDS
            call = self._connection.answers.ResumeAnswer(request, timeout=left, **headers())
            try:
                for response in call:
                    event = convert.progress(response)
                    if event is not None and progress.is_new(event):
                        # It works again.
                        self._wait = BACKOFF_SECONDS
                        yield event
                    if isinstance(event, Answer):
                        return
            except RpcError as error:
                self._pause(error, progress)
                continue
            finally:
                call.cancel()
            raise PalimpsestError("the service ended the call without an answer")

    def _pause(self, error: RpcError, progress: _Progress) -> None:
        """Waits before the next try; raises where there is none."""
        known = from_rpc(error, self._connection.address)
        pause = pause_seconds(self._wait, known)
        time_is_up = time.monotonic() + pause > self._until
        if not progress.answer_id or time_is_up or not _may_resume(known, error.code()):
            raise known from error
        sleep(pause)
        self._wait = min(self._wait * 2, MAX_BACKOFF_SECONDS)


def _may_resume(error: PalimpsestError, code: grpc.StatusCode) -> bool:
    if isinstance(error, ResourceExhausted):
        # The server is full, or the answer's budget is used up.
        return is_unbegun(error)
    # A server that stops cancels what it has under way, and gives no reason.
    stopped = code is grpc.StatusCode.CANCELLED and not error.reason
    return stopped or isinstance(error, Unavailable)


class Answers:
    """The answers of one session, or of one of its memories."""

    def __init__(self, connection: Connection, session: str, memory: str = "") -> None:
        self._connection = connection
        self._session = session
        self._memory = memory

    def _listening(self, timeout: float | None) -> _Listening:
        seconds = self._connection.seconds(timeout, ASK_SECONDS)
        return _Listening(self._connection, self._session, seconds)

    def stream(
        self, question: Question, *, timeout: float | None, on_event: OnEvent | None
    ) -> AnswerStream:
        """See `Session.stream_ask`."""
        request = convert.request_of(self._session, question)
        return AnswerStream(self._listening(timeout).ask(request), on_event)

    def ask(self, question: Question, *, timeout: float | None, on_event: OnEvent | None) -> Answer:
        """See `Session.ask`."""
        request = convert.request_of(self._session, question)
        return _last(self._listening(timeout).ask(request), on_event)

    def resume(
        self,
        answer_id: str,
        *,
        after_event: int,
        after_text: int,
        timeout: float | None,
        on_event: OnEvent | None,
    ) -> Answer:
        """See `Session.resume_answer`."""
        progress = _Progress(answer_id=answer_id, event=after_event, piece=after_text)
        return _last(self._listening(timeout).resume(progress), on_event)

    def get(self, answer_id: str) -> Answer:
        """See `Session.answer`."""
        request = answer_service_pb2.GetAnswerRequest(session=self._session, answer=answer_id)
        method = self._connection.answers.GetAnswer
        return convert.answer(self._connection.call(method, request))

    def cancel(self, answer_id: str, request_id: str) -> Answer:
        """See `Session.cancel_answer`."""
        request = answer_service_pb2.CancelAnswerRequest(
            session=self._session, answer=answer_id, request_id=request_id
        )
        method = self._connection.answers.CancelAnswer
        return convert.answer(self._connection.call(method, request))

    def delete(self, answer_id: str, *, missing_ok: bool, request_id: str) -> None:
        """See `Session.delete_answer`."""
        request = answer_service_pb2.DeleteAnswerRequest(
            session=self._session,
            answer=answer_id,
            allow_missing=missing_ok,
            request_id=request_id or uuid4().hex,
        )
        self._connection.call(self._connection.answers.DeleteAnswer, request, broken=True)

    def list(self, memory: str, state: OperationState | None) -> Iterator[Answer]:
        """See `Session.answers`."""
        request = convert.answers_request(self._session, memory, state)
        method = self._connection.answers.ListAnswers
        return self._connection.all_of(method, request, "answers", convert.answer)

    def rate(
        self, answer_id: str, *, good: bool, comment: str, expected: str, request_id: str
    ) -> Answer:
        """See `Session.rate`."""
        request = convert.rate_request(
            self._session,
            answer_id,
            good=good,
            comment=comment,
            expected=expected,
            request_id=request_id,
        )
        method = self._connection.answers.RateAnswer
        return convert.answer(self._connection.call(method, request))

    def trajectory(self, answer_id: str) -> Iterator[TrajectoryEvent]:
        """See `Session.trajectory`."""
        request = answer_service_pb2.ListTrajectoryEventsRequest(
            session=self._session, answer=answer_id, page_size=1000
        )
        method = self._connection.answers.ListTrajectoryEvents
        return self._connection.all_of(
            method, request, "events", partial(value_of, TrajectoryEvent)
        )

    def export(self, answer_ids: Iterable[str], good: bool | None) -> Iterator[TrainingExample]:
        """See `Memory.export_trajectories`."""
        request = convert.export_request(self._session, self._memory, answer_ids, good)
        method = self._connection.answers.ExportTrajectories
        for message in self._connection.stream(method, request):
            yield convert.training_example(message)

    def statistics(self) -> NavigationStatistics:
        """See `Memory.navigation_statistics`."""
        request = answer_service_pb2.GetNavigationStatisticsRequest(
            session=self._session, memory=self._memory
        )
        method = self._connection.answers.GetNavigationStatistics
        return value_of(NavigationStatistics, self._connection.call(method, request))

    def ask_all(
        self, asked: Sequence[Question], *, timeout: float | None, on_event: OnManyEvents | None
    ) -> Sequence[Answer | PalimpsestError]:
        """See `Session.ask_all`."""
        seconds = self._connection.seconds(timeout, ASK_SECONDS)
        ended: list[Answer | PalimpsestError] = []
        for start in range(0, len(asked), MANY_QUESTIONS):
            part = asked[start : start + MANY_QUESTIONS]
            many = _Many(self._connection, self._session, part, seconds)
            ended += many.ask(None if on_event is None else _after(on_event, start))
        return ended

    def ask_each(
        self,
        questions: Sequence[Question],
        *,
        concurrency: int,
        timeout: float | None,
        on_event: OnEvent | None,
    ) -> Sequence[Answer | PalimpsestError]:
        """See `Memory.ask_all`. Raises ValueError for a concurrency below 1."""
        if concurrency < 1:
            raise ValueError("concurrency must be 1 or more")

        def one(question: Question) -> Answer | PalimpsestError:
            try:
                return self.ask(question, timeout=timeout, on_event=on_event)
            except PalimpsestError as error:
                # It is of this question; the others continue.
                return error

        return gather([partial(one, question) for question in questions], limit=concurrency)


class _Many:
    """The questions of one call, and how far each of them is."""

    def __init__(
        self, connection: Connection, session: str, asked: Sequence[Question], seconds: float
    ) -> None:
        self._connection = connection
        self._session = session
        self._seconds = seconds
        self._request = answer_service_pb2.AskManyRequest(
            questions=[convert.request_of(session, one) for one in asked]
        )
        self._progress = [_Progress() for _ in asked]
        self._ended: dict[int, Answer | PalimpsestError] = {}

    def ask(self, on_event: OnManyEvents | None) -> Sequence[Answer | PalimpsestError]:
        """Returns how each of them ended. Raises PalimpsestError for what ends them all."""
        until = time.monotonic() + self._seconds
        lost: PalimpsestError | None = None
        method = self._connection.answers.AskMany
        try:
            for response in self._connection.responses(
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
        gather(resumed, limit=MANY_QUESTIONS)
        return [self._ended[number] for number in numbers]

    def _take(self, response: answer_service_pb2.AskEvent, on_event: OnManyEvents | None) -> None:
        number = response.index
        if response.WhichOneof("event") == "error":
            self._ended[number] = error_of(response.error)
            return
        event = convert.progress(response)
        if isinstance(event, Answer):
            self._ended[number] = event
        elif event is not None and self._progress[number].is_new(event) and on_event is not None:
            on_event(number, event)

    def _resume(
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
        listening = _Listening(self._connection, self._session, seconds)
        receive = None if on_event is None else partial(on_event, number)
        try:
            self._ended[number] = _last(listening.resume(progress), receive)
        except PalimpsestError as error:
            # It is of this question; the others continue.
            self._ended[number] = error


def _last(events: Iterator[AskEvent | Answer], on_event: OnEvent | None) -> Answer:
    """Returns the answer, which comes after all events."""
    for event in events:
        if isinstance(event, Answer):
            return event
        if on_event is not None:
            on_event(event)
    raise PalimpsestError("the service ended the call without an answer")


def _after(on_event: OnManyEvents, start: int) -> OnManyEvents:
    return lambda number, event: on_event(number + start, event)
