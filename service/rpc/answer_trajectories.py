"""What AnswerService does with trajectories."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from palimpsest.v1 import answer_service_pb2
from service.rpc.convert import common
from service.rpc.convert.answers import IS_GOOD, training_example
from service.rpc.convert.trajectories import statistics, trajectory_event
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.rpc.streams import until_stopped
from service.usecases.answers.trajectories import Trajectories


class AnswerTrajectories:
    """The methods of AnswerService about what readers did."""

    _trajectories: Trajectories
    _pages: Pages
    _stopping: asyncio.Event

    async def ListTrajectoryEvents(  # noqa: N802 - named by the proto
        self, request: answer_service_pb2.ListTrajectoryEventsRequest, context: Context
    ) -> answer_service_pb2.ListTrajectoryEventsResponse:
        """Lists what a reader read and did."""
        answer_id = common.uuid(request.answer)
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
            [common.uuid(one) for one in request.answers],
            good=IS_GOOD[request.verdict],
        )
        async with aclosing(until_stopped(examples, self._stopping)) as found:
            async for example in found:
                yield training_example(example)
