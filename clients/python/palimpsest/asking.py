"""Questions to memories, and what the navigations of trees did."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from grpc import aio

from palimpsest import answer_convert, convert, values
from palimpsest.answer_convert import event as event
from palimpsest.answer_values import Event as Event
from palimpsest.answers import ASK_SECONDS as ASK_SECONDS
from palimpsest.connection import Connection
from palimpsest.errors import PalimpsestError, from_rpc
from palimpsest.navigation_values import (
    NavigationStatistics,
    TrainingExample,
    TrajectoryEvent,
    Turn,
)
from palimpsest.v1 import (
    answers_pb2,
    trajectories_pb2,
    trajectories_pb2_grpc,
)

_VERDICTS = {
    None: answers_pb2.Rating.VERDICT_UNSPECIFIED,
    True: answers_pb2.Rating.VERDICT_GOOD,
    False: answers_pb2.Rating.VERDICT_BAD,
}
#: Questions that are under way at once when the caller does not say.
ASK_CONCURRENCY = 8


class Asking:
    """What questions to one memory came to."""

    def __init__(self, client: Connection, session: str, memory: str) -> None:
        self._client = client
        self._trajectories = trajectories_pb2_grpc.TrajectoryServiceStub(client.channel)
        self._named: dict[str, Any] = {"session": session, "memory": memory}

    async def statistics(self) -> NavigationStatistics:
        """See `palimpsest.memory.Memory.navigation_statistics`."""
        request = trajectories_pb2.GetNavigationStatisticsRequest(**self._named)
        response = await self._client.call(self._trajectories.GetNavigationStatistics, request)
        return convert.navigation_statistics(response.statistics)

    async def export(
        self, answer_ids: Iterable[str], good: bool | None = None
    ) -> AsyncIterator[TrainingExample]:
        """See `palimpsest.memory.Memory.export_trajectories`."""
        request = trajectories_pb2.ExportTrajectoriesRequest(
            **self._named, answer_ids=list(answer_ids), verdict=_VERDICTS[good]
        )
        try:
            exported = self._client.responses(self._trajectories.ExportTrajectories, request)
            async for message in exported:
                yield TrainingExample(
                    answer_id=message.answer_id,
                    ordinal=message.ordinal,
                    template=message.template,
                    turns=tuple(
                        Turn(role=turn.role, content=turn.content) for turn in message.turns
                    ),
                    rating=answer_convert.rating(message.rating)
                    if message.HasField("rating")
                    else None,
                )
        except aio.AioRpcError as error:
            raise from_rpc(error, self._client.address) from error


async def trajectory(
    client: Connection, session: str, answer_id: str
) -> AsyncIterator[TrajectoryEvent]:
    """What a navigation did, in order. Raises NotFound, FailedPrecondition (no tree)."""
    stub = trajectories_pb2_grpc.TrajectoryServiceStub(client.channel)
    request = trajectories_pb2.ListTrajectoryEventsRequest(
        session=session, answer_id=answer_id, page_size=1000
    )
    async for page in client.pages(stub.ListTrajectoryEvents, request):
        for message in page.events:
            yield event(message)


async def ask_all(
    ask: Callable[[str], Any], queries: Iterable[str], concurrency: int
) -> Sequence[values.Answer | PalimpsestError]:
    """What `ask` says to each query, or refuses, in their order.

    Raises ValueError for a concurrency below 1.
    """
    if concurrency < 1:
        raise ValueError("concurrency must be 1 or more")
    places = asyncio.Semaphore(concurrency)

    async def one(query: str) -> values.Answer | PalimpsestError:
        async with places:
            try:
                answer: values.Answer = await ask(query)
            except PalimpsestError as error:
                # It is of this question; the others go on.
                return error
            return answer

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(query)) for query in queries]
    return [task.result() for task in tasks]
