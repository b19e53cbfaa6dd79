"""AnswerService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from uuid import UUID

from palimpsest.v1 import answers_pb2, answers_pb2_grpc
from service.domain.errors import PalimpsestError
from service.domain.telling import TextPiece
from service.domain.trajectory import (
    Event,
)
from service.llm.allowed import AllowedModels
from service.rpc import browsing, convert, navigations
from service.rpc.deadlines import deadline_of
from service.rpc.errors import code_of, shortened
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.rpc.streams import until_stopped, until_stopped_behind
from service.usecases import answer_list, cancelling, rating
from service.usecases.ask import Answered, Asker, Reading, Told, Waiting
from service.usecases.ask_many import ask_many
from service.usecases.database_words import unavailable
from service.usecases.questions import Question, naming
from service.usecases.shaping import check_response_schema
from service.usecases.waiting import WaitingRoom
from storage.answer_list import Place
from storage.database import Database
from storage.errors import StorageError


class AnswerService(answers_pb2_grpc.AnswerServiceServicer):
    """See answers.proto."""

    def __init__(
        self,
        asker: Asker,
        waiting: WaitingRoom,
        database: Database,
        pages: Pages,
        stopping: asyncio.Event,
        models: AllowedModels,
    ) -> None:
        self._asker = asker
        self._models = models
        self._stopping = stopping
        self._waiting = waiting
        self._database = database
        self._pages = pages

    async def Ask(  # noqa: N802 - named by the proto
        self, request: answers_pb2.AskRequest, context: Context
    ) -> AsyncIterator[answers_pb2.AskResponse]:
        """Asks a session, or a memory."""
        self._models.check(request.model, "model")
        events = self._asker.ask(
            current_tenant(), await _question(request), deadline=deadline_of(context)
        )
        # Before it is read nobody knows of an answer that could be asked for elsewhere.
        told = until_stopped_behind(events, self._stopping, lambda one: isinstance(one, Reading))
        async with aclosing(told):
            async for event in told:
                yield _response(event)

    async def GetAnswer(  # noqa: N802
        self, request: answers_pb2.GetAnswerRequest, context: Context
    ) -> answers_pb2.GetAnswerResponse:
        """Reads a stored answer."""
        answered = await self._asker.look_up(
            current_tenant(), request.session, convert.uuid(request.answer_id)
        )
        return answers_pb2.GetAnswerResponse(answer=convert.answer(answered))

    async def AskMany(  # noqa: N802
        self, request: answers_pb2.AskManyRequest, context: Context
    ) -> AsyncIterator[answers_pb2.AskManyResponse]:
        """Asks several questions at once."""
        questions = []
        for number, one in enumerate(request.questions):
            with naming(number, of=len(request.questions)):
                self._models.check(one.model, "model")
                questions.append(await _question(one))
        events = ask_many(
            self._asker,
            self._waiting,
            current_tenant(),
            questions,
            deadline=deadline_of(context),
        )
        async with aclosing(events):
            async for number, event in events:
                yield _response_of(number, event)

    async def ResumeAnswer(  # noqa: N802
        self, request: answers_pb2.ResumeAnswerRequest, context: Context
    ) -> AsyncIterator[answers_pb2.ResumeAnswerResponse]:
        """Goes on with the stream of an answer."""
        events = self._asker.resume(
            current_tenant(),
            request.session,
            convert.uuid(request.answer_id),
            after_event=request.after_event,
            after_piece=request.after_text,
            deadline=deadline_of(context),
        )
        told = until_stopped(events, self._stopping)
        async with aclosing(told):
            async for event in told:
                yield answers_pb2.ResumeAnswerResponse(response=_response(event))

    async def CancelAnswer(  # noqa: N802
        self, request: answers_pb2.CancelAnswerRequest, context: Context
    ) -> answers_pb2.CancelAnswerResponse:
        """Cancels an answer."""
        answered = await cancelling.cancel(
            self._database, current_tenant(), request.session, convert.uuid(request.answer_id)
        )
        return answers_pb2.CancelAnswerResponse(answer=convert.answer(answered))

    async def ListAnswers(  # noqa: N802
        self, request: answers_pb2.ListAnswersRequest, context: Context
    ) -> answers_pb2.ListAnswersResponse:
        """Lists the answers of a session."""
        scope = f"answers:{request.session}:{request.memory}:{request.status}"
        found = await answer_list.list_answers(
            self._database,
            current_tenant(),
            request.session,
            memory=request.memory,
            status=convert.answer_status(request.status),
            before=_place(self._pages.place(scope, request.page_token, first="")),
            limit=self._pages.size(request.page_size),
            max_bytes=self._pages.max_bytes,
        )
        times = {str(one.answer.answer_id): one.answer.created_at for one in found.items}
        page, token = self._pages.cut(
            [convert.answer(one) for one in found.items],
            scope,
            lambda one: f"{times[one.answer_id].isoformat()} {one.answer_id}",
            more=found.more,
        )
        return answers_pb2.ListAnswersResponse(answers=page, next_page_token=token)

    async def RateAnswer(  # noqa: N802
        self, request: answers_pb2.RateAnswerRequest, context: Context
    ) -> answers_pb2.RateAnswerResponse:
        """Rates an answer."""
        said = request.rating
        stored = await rating.rate(
            self._database,
            current_tenant(),
            request.session,
            convert.uuid(request.answer_id),
            good=said.verdict == answers_pb2.Rating.VERDICT_GOOD,
            comment=said.comment,
            expected=said.expected,
        )
        return answers_pb2.RateAnswerResponse(rating=convert.rating(stored))


def _place(text: str) -> Place | None:
    """Where a page begins, from a token that we signed."""
    if not text:
        return None
    created_at, _, answer_id = text.partition(" ")
    return datetime.fromisoformat(created_at), UUID(answer_id)


async def _question(request: answers_pb2.AskRequest) -> Question:
    """Raises InvalidInput."""
    asked = request.HasField
    form = None
    if request.response_schema:
        # Checking a hostile one takes a third of a second, in which all others would wait.
        form = await asyncio.to_thread(check_response_schema, request.response_schema)
    return Question(
        session=request.session,
        memory=request.memory,
        query=request.query,
        consistency=convert.consistency(request.consistency),
        navigation=navigations.request(request.navigation) if asked("navigation") else None,
        reader=browsing.reader(request.reader),
        browsing=browsing.request(request.browsing) if asked("browsing") else None,
        response_schema=form,
        tells_text=request.stream_text,
        model=request.model,
        options=tuple(request.options or request.navigation.options),
        unattended=request.unattended,
    )


def _response_of(
    number: int, event: Told | PalimpsestError | StorageError
) -> answers_pb2.AskManyResponse:
    if isinstance(event, StorageError):
        event = unavailable(event)
    if not isinstance(event, PalimpsestError):
        return answers_pb2.AskManyResponse(index=number, response=_response(event))
    message, metadata = shortened(event)
    error = answers_pb2.AskManyResponse.Error(
        code=code_of(event).value[0],
        message=message,
        reason=event.reason.value,
        metadata=metadata,
    )
    return answers_pb2.AskManyResponse(index=number, error=error)


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
