"""AnswerService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from uuid import UUID

from google.protobuf.empty_pb2 import Empty

from palimpsest.v1 import answer_service_pb2, answer_service_pb2_grpc
from service.llm.gateway.allowed import AllowedModels
from service.rpc.convert import common, questions
from service.rpc.convert.answers import (
    IS_GOOD,
    STATUS_OF,
    AnswerMessages,
    statistics,
    training_example,
    trajectory_event,
)
from service.rpc.convert.chunks import chunk_filter
from service.rpc.interceptors.base import Context, deadline_of
from service.rpc.interceptors.idempotency import reply
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.rpc.streams import until_stopped, until_stopped_behind
from service.settings.config import Limits
from service.usecases.answers import stored_answers
from service.usecases.answers.ask import Asker, AskStarted
from service.usecases.answers.ask_many import ask_many
from service.usecases.answers.questions import Question, naming
from service.usecases.answers.shaping import check_response_schema
from service.usecases.answers.trajectories import Trajectories
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.operations.deleting import Deleter
from storage.engine.database import Database


class AnswerService(answer_service_pb2_grpc.AnswerServiceServicer):
    """See answer_service.proto."""

    def __init__(
        self,
        asker: Asker,
        deleter: Deleter,
        trajectories: Trajectories,
        waiting: ConcurrencyLimiter,
        database: Database,
        pages: Pages,
        stopping: asyncio.Event,
        models: AllowedModels,
        limits: Limits,
        token_key: bytes,
    ) -> None:
        self._asker = asker
        self._deleter = deleter
        self._trajectories = trajectories
        self._models = models
        self._stopping = stopping
        self._waiting = waiting
        self._database = database
        self._pages = pages
        self._limits = limits
        self._messages = AnswerMessages(token_key)

    async def Ask(  # noqa: N802 - named by the proto
        self, request: answer_service_pb2.AskRequest, context: Context
    ) -> AsyncIterator[answer_service_pb2.AskEvent]:
        """Asks a session, or a memory."""
        self._models.check(request.model, "model")
        events = self._asker.ask(
            current_tenant(),
            await question_of(request, self._limits),
            deadline=deadline_of(context),
        )
        # Before `reading` no client knows of an answer that another server could continue.
        told = until_stopped_behind(events, self._stopping, lambda one: isinstance(one, AskStarted))
        async with aclosing(told):
            async for event in told:
                yield self._messages.event(event)

    async def GetAnswer(  # noqa: N802
        self, request: answer_service_pb2.GetAnswerRequest, context: Context
    ) -> answer_service_pb2.Answer:
        """Reads a stored answer."""
        answered = await self._asker.look_up(
            current_tenant(), request.session, UUID(request.answer)
        )
        return self._messages.answer(answered)

    async def AskMany(  # noqa: N802
        self, request: answer_service_pb2.AskManyRequest, context: Context
    ) -> AsyncIterator[answer_service_pb2.AskEvent]:
        """Asks several questions at once."""
        questions = []
        for number, one in enumerate(request.questions):
            with naming(number, of=len(request.questions)):
                self._models.check(one.model, "model")
                questions.append(await question_of(one, self._limits))
        events = ask_many(
            self._asker,
            self._waiting,
            current_tenant(),
            questions,
            deadline=deadline_of(context),
        )
        async with aclosing(events):
            async for number, event in events:
                yield self._messages.event_or_error(event, number)

    async def ResumeAnswer(  # noqa: N802
        self, request: answer_service_pb2.ResumeAnswerRequest, context: Context
    ) -> AsyncIterator[answer_service_pb2.AskEvent]:
        """Continues the stream of an answer."""
        events = self._asker.resume(
            current_tenant(),
            request.session,
            UUID(request.answer),
            after_event=request.after_event,
            after_piece=request.after_text,
            deadline=deadline_of(context),
        )
        told = until_stopped(events, self._stopping)
        async with aclosing(told):
            async for event in told:
                yield self._messages.event(event)

    async def CancelAnswer(  # noqa: N802
        self, request: answer_service_pb2.CancelAnswerRequest, context: Context
    ) -> answer_service_pb2.Answer:
        """Cancels an answer."""
        answer_id = UUID(request.answer)
        return await reply(
            stored_answers.cancel(self._database, current_tenant(), request.session, answer_id),
            self._messages.answer,
        )

    async def DeleteAnswer(  # noqa: N802
        self, request: answer_service_pb2.DeleteAnswerRequest, context: Context
    ) -> Empty:
        """Deletes an answer."""
        deleted = self._deleter.delete_answer(
            current_tenant(),
            request.session,
            UUID(request.answer),
            allow_missing=request.allow_missing,
        )
        return await reply(deleted, lambda _: Empty())

    async def ListAnswers(  # noqa: N802
        self, request: answer_service_pb2.ListAnswersRequest, context: Context
    ) -> answer_service_pb2.ListAnswersResponse:
        """Lists the answers of a session."""
        scope = f"answers/{request.session}/{request.memory}/{request.state}"
        status, is_running = STATUS_OF[request.state]
        found = await stored_answers.list_answers(
            self._database,
            current_tenant(),
            request.session,
            memory=request.memory,
            status=status,
            is_running=is_running,
            before=self._pages.created_before(scope, request.page_token),
            limit=self._pages.size(request.page_size),
            max_bytes=self._pages.max_bytes,
        )
        times = {str(one.answer.answer_id): one.answer.created_at for one in found.items}
        page, token = self._pages.cut(
            [self._messages.answer(one) for one in found.items],
            scope,
            lambda one: f"{times[one.id].isoformat()} {one.id}",
            more=found.more,
        )
        return answer_service_pb2.ListAnswersResponse(answers=page, next_page_token=token)

    async def RateAnswer(  # noqa: N802
        self, request: answer_service_pb2.RateAnswerRequest, context: Context
    ) -> answer_service_pb2.Answer:
        """Rates an answer."""
        said = request.rating
        rated = stored_answers.rate(
            self._database,
            current_tenant(),
            request.session,
            UUID(request.answer),
            good=IS_GOOD[said.verdict] is True,
            comment=said.comment,
            expected=said.expected,
        )
        return await reply(rated, self._messages.answer)

    async def ListTrajectoryEvents(  # noqa: N802
        self, request: answer_service_pb2.ListTrajectoryEventsRequest, context: Context
    ) -> answer_service_pb2.ListTrajectoryEventsResponse:
        """Lists what a reader read and did."""
        answer_id = UUID(request.answer)
        scope = f"trajectory/{request.session}/{answer_id}"
        found = await self._trajectories.events(
            current_tenant(),
            request.session,
            answer_id,
            after=int(self._pages.cursor(scope, request.page_token, first="0")),
            limit=self._pages.size(request.page_size),
            max_bytes=self._pages.max_bytes,
        )
        page, token = self._pages.cut(
            [trajectory_event(one) for one in found.items],
            scope,
            lambda one: str(one.ordinal),
            more=found.more,
        )
        return answer_service_pb2.ListTrajectoryEventsResponse(events=page, next_page_token=token)

    async def GetNavigationStatistics(  # noqa: N802
        self, request: answer_service_pb2.GetNavigationStatisticsRequest, context: Context
    ) -> answer_service_pb2.NavigationStatistics:
        """Returns the sums over the navigations of a memory."""
        sums = await self._trajectories.statistics(
            current_tenant(), request.session, request.memory
        )
        return statistics(sums)

    async def ExportTrajectories(  # noqa: N802
        self, request: answer_service_pb2.ExportTrajectoriesRequest, context: Context
    ) -> AsyncIterator[answer_service_pb2.TrainingExample]:
        """Exports the moves of navigations or browsings that found an answer."""
        examples = self._trajectories.export(
            current_tenant(),
            request.session,
            request.memory,
            [UUID(one) for one in request.answers],
            good=IS_GOOD[request.verdict],
        )
        async with aclosing(until_stopped(examples, self._stopping)) as found:
            async for example in found:
                yield training_example(example)


async def question_of(request: answer_service_pb2.AskRequest, limits: Limits) -> Question:
    """Returns what is asked. Raises InvalidInput."""
    asked = request.HasField
    form = None
    if request.response_schema:
        # Checking a hostile one takes a third of a second, in which all others would wait.
        form = await asyncio.to_thread(check_response_schema, request.response_schema)
    return Question(
        session=request.session,
        memory=request.memory,
        query=request.query,
        consistency=common.consistency(request.consistency),
        navigation=questions.navigation(request.navigation) if asked("navigation") else None,
        reader=questions.reader(request.reader),
        browsing=questions.browsing(request.browsing) if asked("browsing") else None,
        filter=chunk_filter(request.filter, limits) if asked("filter") else None,
        response_schema=form,
        tells_text=request.stream_text,
        model=request.model,
        options=tuple(request.options),
        unattended=request.unattended,
    )
