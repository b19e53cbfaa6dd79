"""TrajectoryService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from palimpsest.v1 import answers_pb2, trajectories_pb2, trajectories_pb2_grpc
from service.rpc import convert, navigations
from service.rpc.interceptors.base import Context
from service.rpc.interceptors.tenancy import current_tenant
from service.rpc.pages import Pages, fitting
from service.rpc.streams import until_stopped
from service.usecases.trajectories import Example, Trajectories

#: A page ends at so many bytes of events: it must fit a message.
PAGE_BYTES = 2 * 1024 * 1024

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
        scope = f"trajectory:{request.session}:{answer_id}"
        size = self._pages.size(request.page_size)
        after = int(self._pages.place(scope, request.page_token, first="0"))
        found = await self._trajectories.events(
            current_tenant(), request.session, answer_id, after=after, limit=size + 1
        )
        page = fitting([navigations.event(one) for one in found[:size]], PAGE_BYTES)
        response = trajectories_pb2.ListTrajectoryEventsResponse(events=page)
        if len(found) > len(page):
            response.next_page_token = self._pages.next(scope, str(page[-1].ordinal))
        return response

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


def _response(example: Example) -> trajectories_pb2.ExportTrajectoriesResponse:
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
