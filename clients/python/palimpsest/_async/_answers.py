"""A session's answers: asking, following, listing, rating."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack
from uuid import uuid4

from palimpsest import _convert_answers as convert
from palimpsest._async._listening import (
    MANY_QUESTIONS,
    AnswerStream,
    Listening,
    ManyQuestions,
    OnEvent,
    OnManyEvents,
    last,
)
from palimpsest._async._remember import SessionMessages
from palimpsest._convert import message_of, value_of
from palimpsest._errors import PalimpsestError
from palimpsest._transport import ASK_SECONDS
from palimpsest._values_answers import (
    Answer,
    AskOptions,
    Question,
    TrainingExample,
    TrajectoryEvent,
)
from palimpsest._values_common import OperationState
from palimpsest.v1 import answer_service_pb2


class SessionAnswers(SessionMessages):
    """The part of `Session` that is about its answers."""

    def _listening(self, timeout: float | None) -> Listening:
        seconds = self._connection.seconds(timeout, ASK_SECONDS)
        return Listening(self._connection, self.id, seconds)

    async def ask(
        self,
        query: str | Question,
        *,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[AskOptions],
    ) -> Answer:
        """Asks the session; returns the answer with its citations.

        `options` are the fields of `palimpsest.Question` besides the words. Without a memory the
        named reader reads the log, or the automatic reader chooses. `on_event` receives what is
        read and each event as it happens, once also when the connection is lost. A late answer
        is not lost: the error's metadata names it for `resume_answer`. The service works on it
        for another minute, or to its end if it is `unattended`.

        Raises ValueError, TypeError, InvalidArgument, NotFound, FailedPrecondition (stalled;
        another kind; no answer could be made), Cancelled, DeadlineExceeded, ResourceExhausted.
        """
        request = convert.request_of(self.id, convert.question_of(query, options))
        return await last(self._listening(timeout).ask(request), on_event)

    def stream_ask(
        self,
        query: str | Question,
        *,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
        **options: Unpack[AskOptions],
    ) -> AnswerStream:
        """Asks as `ask` does; iterate over the text as it is written, then read `answer`."""
        question = replace(convert.question_of(query, options), stream=True)
        request = convert.request_of(self.id, question)
        return AnswerStream(self._listening(timeout).ask(request), on_event)

    async def ask_all(
        self,
        queries: Iterable[str | Question],
        *,
        timeout: float | None = None,
        on_event: OnManyEvents | None = None,
        **options: Unpack[AskOptions],
    ) -> Sequence[Answer | PalimpsestError]:
        """Asks many questions, 32 at once; returns their answers in the same order.

        32 are stored together, or none of them when one is invalid. A question that fails has
        its error in place of the answer, and the others continue. `on_event` receives the number
        of the question (0, 1, 2 …) and each of its events. `timeout` is that of 32.
        """
        asked = [convert.question_of(one, options) for one in queries]
        seconds = self._connection.seconds(timeout, ASK_SECONDS)
        ended: list[Answer | PalimpsestError] = []
        for start in range(0, len(asked), MANY_QUESTIONS):
            part = asked[start : start + MANY_QUESTIONS]
            many = ManyQuestions(self._connection, self.id, part, start, seconds)
            ended += await many.ask(on_event)
        return ended

    async def resume_answer(
        self,
        answer_id: str,
        *,
        after_event: int = 0,
        after_text: int = 0,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
    ) -> Answer:
        """Waits for an answer; receives what follows an event and a piece of text.

        An abandoned answer continues from its last model call. Raises NotFound, and as `ask`.
        """
        progress = convert.AnswerProgress(answer_id=answer_id, event=after_event, piece=after_text)
        return await last(self._listening(timeout).resume(progress), on_event)

    async def answer(self, answer_id: str) -> Answer:
        """Reads a stored answer; a pending one continues for a while. Raises NotFound."""
        request = answer_service_pb2.GetAnswerRequest(session=self.id, answer=answer_id)
        method = self._connection.answers.GetAnswer
        return convert.answer(await self._connection.call(method, request))

    def answers(
        self, *, memory: str = "", state: OperationState | None = None
    ) -> AsyncIterator[Answer]:
        """Yields the stored answers that match, newest first. Raises NotFound."""
        request = message_of(
            answer_service_pb2.ListAnswersRequest,
            session=self.id,
            memory=memory,
            state=state,
            page_size=1000,
        )
        method = self._connection.answers.ListAnswers
        return self._connection.all_of(method, request, "answers", convert.answer)

    async def cancel_answer(self, answer_id: str, *, request_id: str = "") -> Answer:
        """Ends the work on an answer, if it has not ended; returns it. Raises NotFound."""
        request = answer_service_pb2.CancelAnswerRequest(
            session=self.id, answer=answer_id, request_id=request_id
        )
        method = self._connection.answers.CancelAnswer
        return convert.answer(await self._connection.call(method, request))

    async def delete_answer(
        self, answer_id: str, *, missing_ok: bool = False, request_id: str = ""
    ) -> None:
        """Deletes an answer; its usage stays. Raises NotFound, unless `missing_ok`."""
        request = answer_service_pb2.DeleteAnswerRequest(
            session=self.id,
            answer=answer_id,
            allow_missing=missing_ok,
            request_id=request_id or uuid4().hex,
        )
        await self._connection.call(self._connection.answers.DeleteAnswer, request, broken=True)

    async def rate(
        self,
        answer_id: str,
        *,
        good: bool,
        comment: str = "",
        expected: str = "",
        request_id: str = "",
    ) -> Answer:
        """Rates an answer that is done; returns it. The last rating counts.

        `expected` is what would have been right. Raises NotFound, FailedPrecondition.
        """
        rating = message_of(
            answer_service_pb2.Rating,
            verdict=convert.verdict(good),
            comment=comment,
            expected=expected,
        )
        request = answer_service_pb2.RateAnswerRequest(
            session=self.id, answer=answer_id, rating=rating, request_id=request_id
        )
        method = self._connection.answers.RateAnswer
        return convert.answer(await self._connection.call(method, request))

    def trajectory(self, answer_id: str) -> AsyncIterator[TrajectoryEvent]:
        """Yields what the reader of an answer did, in order. Raises NotFound."""
        request = answer_service_pb2.ListTrajectoryEventsRequest(
            session=self.id, answer=answer_id, page_size=1000
        )
        method, event = self._connection.answers.ListTrajectoryEvents, TrajectoryEvent
        return self._connection.all_of(method, request, "events", partial(value_of, event))

    def export_trajectories(
        self, answer_ids: Iterable[str] = (), *, good: bool | None = None
    ) -> AsyncIterator[TrainingExample]:
        """Yields the moves of browsings of the log that found an answer, for training.

        `Memory.export_trajectories` yields those of navigations. Raises NotFound.
        """
        return self._export("", answer_ids, good)

    async def _export(
        self, memory: str, answer_ids: Iterable[str], good: bool | None
    ) -> AsyncIterator[TrainingExample]:
        request = message_of(
            answer_service_pb2.ExportTrajectoriesRequest,
            session=self.id,
            memory=memory,
            answers=list(answer_ids),
            verdict=convert.verdict(good),
        )
        method = self._connection.answers.ExportTrajectories
        async for message in self._connection.stream(method, request):
            yield convert.training_example(message)
