"""TrajectoryService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from palimpsest.v1alpha1 import answers_pb2, trajectories_pb2, trajectories_pb2_grpc
from service.rpc import navigations
from service.rpc.convert import v1alpha1 as convert
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages
from service.rpc.streams import until_stopped
from service.usecases.answers.trajectories import TrainingExample, Trajectories

_Turn = trajectories_pb2.ExportTrajectoriesResponse.Turn
_GOOD = {
    answers_pb2.Rating.VERDICT_UNSPECIFIED: None,
    answers_pb2.Rating.VERDICT_GOOD: True,
    answers_pb2.Rating.VERDICT_BAD: False,
}


class TrajectoryService(trajectories_pb2_grpc.TrajectoryServiceServicer):
    """See trajectories.proto."""

    def __init__(self, trajectories: Trajectories, pages: Pages, stopping: asyncio.Event) -> None:
        self._trajectories = trajectories
        self._pages = pages
        self._stopping = stopping

    async def ListTrajectoryEvents(  # noqa: N802 - named by the proto
        self, request: trajectories_pb2.ListTrajectoryEventsRequest, context: Context
    ) -> trajectories_pb2.ListTrajectoryEventsResponse:
        """Lists what a reader did."""
        answer_id = convert.uuid(request.answer_id)
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
            [navigations.event(one) for one in found.items],
            scope,
            lambda one: str(one.ordinal),
            more=found.more,
        )
        return trajectories_pb2.ListTrajectoryEventsResponse(events=page, next_page_token=token)

    async def GetNavigationStatistics(  # noqa: N802
        self, request: trajectories_pb2.GetNavigationStatisticsRequest, context: Context
    ) -> trajectories_pb2.GetNavigationStatisticsResponse:
        """Sums what all navigations of a tree came to."""
        sums = await self._trajectories.statistics(
            current_tenant(), request.session, request.memory
        )
        return trajectories_pb2.GetNavigationStatisticsResponse(statistics=navigations.sums(sums))

    async def ExportTrajectories(  # noqa: N802
        self, request: trajectories_pb2.ExportTrajectoriesRequest, context: Context
    ) -> AsyncIterator[trajectories_pb2.ExportTrajectoriesResponse]:
        """Exports the moves of navigations or browsings that found an answer."""
        examples = self._trajectories.export(
            current_tenant(),
            request.session,
            request.memory,
            [convert.uuid(one) for one in request.answer_ids],
            good=_GOOD[request.verdict],
        )
        async with aclosing(until_stopped(examples, self._stopping)) as found:
            async for example in found:
                yield _response(example)


def _response(example: TrainingExample) -> trajectories_pb2.ExportTrajectoriesResponse:
    return trajectories_pb2.ExportTrajectoriesResponse(
        answer_id=str(example.answer_id),
        ordinal=example.ordinal,
        template=example.template,
        turns=[
            _Turn(role="user", content=example.prompt),
            _Turn(role="assistant", content=example.reply),
        ],
        rating=None if example.rating is None else convert.rating(example.rating),
    )
