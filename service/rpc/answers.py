"""AnswerService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from uuid import UUID

from palimpsest.v1alpha1 import answers_pb2, answers_pb2_grpc
from service.domain.answers.reply_streaming import TextPiece
from service.domain.answers.trajectory import (
    Event,
)
from service.domain.values.errors import PalimpsestError
from service.llm.gateway.allowed import AllowedModels
from service.rpc import browse, navigations
from service.rpc.convert import v1alpha1 as convert
from service.rpc.deadlines import deadline_of
from service.rpc.errors import code_of, shortened
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.rpc.streams import until_stopped, until_stopped_behind
from service.usecases.answers import answer_list, cancelling, rating
from service.usecases.answers.ask import AskDone, Asker, AskEvent, AskStarted, AskWaiting
from service.usecases.answers.ask_many import ask_many
from service.usecases.answers.questions import Question, naming
from service.usecases.answers.shaping import check_response_schema
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.database_words import unavailable
from service.usecases.operations.deleting import Deleter
from storage.answers.listing import PageCursor
from storage.engine.database import Database
from storage.engine.errors import StorageError


class AnswerService(answers_pb2_grpc.AnswerServiceServicer):
    """See answers.proto."""

    def __init__(
        self,
        asker: Asker,
        deleter: Deleter,
        waiting: ConcurrencyLimiter,
        database: Database,
        pages: Pages,
        stopping: asyncio.Event,
        models: AllowedModels,
    ) -> None:
        self._asker = asker
        self._deleter = deleter
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
        told = until_stopped_behind(events, self._stopping, lambda one: isinstance(one, AskStarted))
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
        answer_id = convert.uuid(request.answer_id)
        return await reply(
            cancelling.cancel(self._database, current_tenant(), request.session, answer_id),
            lambda answered: answers_pb2.CancelAnswerResponse(answer=convert.answer(answered)),
        )

    async def DeleteAnswer(  # noqa: N802
        self, request: answers_pb2.DeleteAnswerRequest, context: Context
    ) -> answers_pb2.DeleteAnswerResponse:
        """Deletes an answer."""
        deleted = self._deleter.delete_answer(
            current_tenant(),
            request.session,
            convert.uuid(request.answer_id),
            allow_missing=request.allow_missing,
        )
        return await reply(deleted, lambda _: answers_pb2.DeleteAnswerResponse())

    async def ListAnswers(  # noqa: N802
        self, request: answers_pb2.ListAnswersRequest, context: Context
    ) -> answers_pb2.ListAnswersResponse:
        """Lists the answers of a session."""
        scope = f"answers/{request.session}/{request.memory}/{request.status}"
        found = await answer_list.list_answers(
            self._database,
            current_tenant(),
            request.session,
            memory=request.memory,
            status=convert.answer_status(request.status),
            before=_cursor(self._pages.cursor(scope, request.page_token, first="")),
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
        rated = rating.rate(
            self._database,
            current_tenant(),
            request.session,
            convert.uuid(request.answer_id),
            good=said.verdict == answers_pb2.Rating.VERDICT_GOOD,
            comment=said.comment,
            expected=said.expected,
        )
        return await reply(
            rated, lambda stored: answers_pb2.RateAnswerResponse(rating=convert.rating(stored))
        )


def _cursor(text: str) -> PageCursor | None:
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
        reader=browse.reader(request.reader),
        browsing=browse.request(request.browsing) if asked("browsing") else None,
        response_schema=form,
        tells_text=request.stream_text,
        model=request.model,
        options=tuple(request.options or request.navigation.options),
        unattended=request.unattended,
    )


def _response_of(
    number: int, event: AskEvent | PalimpsestError | StorageError
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


def _response(event: AskEvent) -> answers_pb2.AskResponse:
    match event:
        case AskWaiting():
            return answers_pb2.AskResponse(
                waiting=answers_pb2.AskResponse.Waiting(
                    applied_position=event.applied_position, wanted_position=event.wanted_position
                )
            )
        case AskStarted():
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
        case AskDone():
            return answers_pb2.AskResponse(answer=convert.answer(event))
