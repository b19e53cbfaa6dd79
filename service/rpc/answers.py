"""AnswerService."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from palimpsest.v1 import answers_pb2, answers_pb2_grpc
from service.domain.telling import TextPiece
from service.domain.trajectory import (
    Event,
)
from service.rpc import browsing, convert, navigations
from service.rpc.deadlines import deadline_of
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.usecases.ask import Answered, Asker, Reading, Told, Waiting
from service.usecases.questions import Question
from service.usecases.shaping import check_response_schema


class AnswerService(answers_pb2_grpc.AnswerServiceServicer):
    """See answers.proto."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def Ask(  # noqa: N802 - named by the proto
        self, request: answers_pb2.AskRequest, context: Context
    ) -> AsyncIterator[answers_pb2.AskResponse]:
        """Asks a session, or a memory."""
        events = self._asker.ask(
            current_tenant(), _question(request), deadline=deadline_of(context)
        )
        async with aclosing(events):
            async for event in events:
                yield _response(event)

    async def GetAnswer(  # noqa: N802
        self, request: answers_pb2.GetAnswerRequest, context: Context
    ) -> answers_pb2.GetAnswerResponse:
        """Reads a stored answer."""
        answered = await self._asker.get(
            current_tenant(), request.session, convert.uuid(request.answer_id)
        )
        return answers_pb2.GetAnswerResponse(answer=convert.answer(answered))

    async def AskMany(  # noqa: N802
        self, request: answers_pb2.AskManyRequest, context: Context
    ) -> AsyncIterator[answers_pb2.AskManyResponse]:
        """Asks several questions at once."""
        raise NotImplementedError(request, context)
        yield  # type: ignore[unreachable]

    async def ResumeAnswer(  # noqa: N802
        self, request: answers_pb2.ResumeAnswerRequest, context: Context
    ) -> AsyncIterator[answers_pb2.ResumeAnswerResponse]:
        """Goes on with the stream of an answer."""
        raise NotImplementedError(request, context)
        yield  # type: ignore[unreachable]

    async def CancelAnswer(  # noqa: N802
        self, request: answers_pb2.CancelAnswerRequest, context: Context
    ) -> answers_pb2.CancelAnswerResponse:
        """Cancels an answer."""
        raise NotImplementedError

    async def ListAnswers(  # noqa: N802
        self, request: answers_pb2.ListAnswersRequest, context: Context
    ) -> answers_pb2.ListAnswersResponse:
        """Lists the answers of a session."""
        raise NotImplementedError

    async def RateAnswer(  # noqa: N802
        self, request: answers_pb2.RateAnswerRequest, context: Context
    ) -> answers_pb2.RateAnswerResponse:
        """Rates an answer."""
        raise NotImplementedError


def _question(request: answers_pb2.AskRequest) -> Question:
    """Raises InvalidInput."""
    asked = request.HasField
    return Question(
        session=request.session,
        memory=request.memory,
        query=request.query,
        consistency=convert.consistency(request.consistency),
        navigation=navigations.request(request.navigation) if asked("navigation") else None,
        reader=browsing.reader(request.reader),
        browsing=browsing.request(request.browsing) if asked("browsing") else None,
        response_schema=check_response_schema(request.response_schema)
        if request.response_schema
        else None,
        tells_text=request.stream_text,
        model=request.model,
    )


def _response(event: Told) -> answers_pb2.AskResponse:
    match event:
        case Waiting():
            return answers_pb2.AskResponse(
                waiting=answers_pb2.AskResponse.Waiting(
                    applied_position=event.applied_position, wanted_position=event.wanted_position
                )
            )
        case Reading():
            return answers_pb2.AskResponse(
                reading=answers_pb2.AskResponse.Reading(
                    answer_id=str(event.answer_id),
                    revision=event.revision,
                    applied_position=event.applied_position,
                )
            )
        case Event():
            return answers_pb2.AskResponse(trajectory_event=navigations.event(event))
        case TextPiece():
            return answers_pb2.AskResponse(
                text=answers_pb2.TextPiece(
                    ordinal=event.ordinal, text=event.text, restarts=event.restarts
                )
            )
        case Answered():
            return answers_pb2.AskResponse(answer=convert.answer(event))
