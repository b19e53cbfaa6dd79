"""Questions to memories, and what the navigations of trees did."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from grpc import aio

from palimpsest import convert, values
from palimpsest.connection import SLACK_SECONDS, Connection
from palimpsest.errors import PalimpsestError, from_rpc
from palimpsest.navigation_values import (
    EventAction,
    EventKind,
    NavigationStatistics,
    TrainingExample,
    TrajectoryEvent,
    Turn,
)
from palimpsest.v1 import (
    answers_pb2,
    answers_pb2_grpc,
    reading_pb2,
    trajectories_pb2,
    trajectories_pb2_grpc,
)

#: How long a question may take when the caller does not say.
ASK_SECONDS = 60.0
#: Questions that are under way at once when the caller does not say.
ASK_CONCURRENCY = 8

#: What a caller hears while a question is under way.
Event = values.Waiting | values.Reading | TrajectoryEvent


class Asking:
    """Asks one memory."""

    def __init__(self, client: Connection, session: str, memory: str) -> None:
        self._client = client
        self._answers = answers_pb2_grpc.AnswerServiceStub(client.channel)
        self._trajectories = trajectories_pb2_grpc.TrajectoryServiceStub(client.channel)
        self._named: dict[str, Any] = {"session": session, "memory": memory}

    async def ask(
        self,
        query: str,
        *,
        consistency: reading_pb2.ReadConsistency | None,
        navigation: answers_pb2.NavigationRequest | None,
        timeout: float,
        on_event: Callable[[Event], None] | None,
    ) -> values.Answer:
        """See `palimpsest.memory.Memory.ask`."""
        request = answers_pb2.AskRequest(
            **self._named, query=query, consistency=consistency, navigation=navigation
        )
        try:
            async for response in self._answers.Ask(request, timeout=timeout + SLACK_SECONDS):
                kind = response.WhichOneof("event")
                if kind == "answer":
                    return convert.answer(response.answer)
                event = _heard(response)
                if on_event is not None and event is not None:
                    on_event(event)
        except aio.AioRpcError as error:
            raise from_rpc(error, self._client.address) from error
        raise PalimpsestError("the service ended the call without an answer")

    async def statistics(self) -> NavigationStatistics:
        """See `palimpsest.memory.Memory.navigation_statistics`."""
        request = trajectories_pb2.GetNavigationStatisticsRequest(**self._named)
        response = await self._client.call(self._trajectories.GetNavigationStatistics, request)
        return convert.navigation_statistics(response.statistics)

    async def export(self, answer_ids: Iterable[str]) -> AsyncIterator[TrainingExample]:
        """See `palimpsest.memory.Memory.export_trajectories`."""
        request = trajectories_pb2.ExportTrajectoriesRequest(
            **self._named, answer_ids=list(answer_ids)
        )
        try:
            async for message in self._trajectories.ExportTrajectories(request):
                yield TrainingExample(
                    answer_id=message.answer_id,
                    ordinal=message.ordinal,
                    template=message.template,
                    turns=tuple(
                        Turn(role=turn.role, content=turn.content) for turn in message.turns
                    ),
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


def navigation(
    options: Sequence[str],
    hybrid_leaves: int,
    beam: int,
    max_calls: int,
    navigate: bool = False,
) -> answers_pb2.NavigationRequest | None:
    """How a memory is to be navigated; None when the caller does not say.

    Raises ValueError for what cannot be sent.
    """
    if isinstance(options, str):
        raise ValueError("options must be a list of texts, not one text")
    if not (navigate or options or hybrid_leaves or beam or max_calls):
        return None
    return answers_pb2.NavigationRequest(
        options=options, hybrid_leaves=hybrid_leaves, beam=beam, max_calls=max_calls
    )


def _heard(response: answers_pb2.AskResponse) -> Event | None:
    """What a response tells; None for what only a newer client knows."""
    match response.WhichOneof("event"):
        case "waiting":
            return values.Waiting(
                applied_position=response.waiting.applied_position,
                wanted_position=response.waiting.wanted_position,
            )
        case "reading":
            return values.Reading(
                answer_id=response.reading.answer_id,
                revision=response.reading.revision,
                applied_position=response.reading.applied_position,
            )
        case "trajectory_event":
            return event(response.trajectory_event)
    return None


_KINDS: dict[int, EventKind] = {
    answers_pb2.TrajectoryEvent.KIND_RETRIEVAL: "retrieval",
    answers_pb2.TrajectoryEvent.KIND_TRIAGE: "triage",
    answers_pb2.TrajectoryEvent.KIND_LEAF: "leaf",
    answers_pb2.TrajectoryEvent.KIND_WORKING_MEMORY: "working_memory",
    answers_pb2.TrajectoryEvent.KIND_MERGE: "merge",
    answers_pb2.TrajectoryEvent.KIND_CHOICE: "choice",
    answers_pb2.TrajectoryEvent.KIND_UNDERSTANDING: "understanding",
    answers_pb2.TrajectoryEvent.KIND_PIECE: "piece",
    answers_pb2.TrajectoryEvent.KIND_AGGREGATION: "aggregation",
    answers_pb2.TrajectoryEvent.KIND_SHAPING: "shaping",
    answers_pb2.TrajectoryEvent.KIND_END: "end",
}
_ACTIONS: dict[int, EventAction] = {
    answers_pb2.TrajectoryEvent.ACTION_ENTER: "enter",
    answers_pb2.TrajectoryEvent.ACTION_REVERT: "revert",
    answers_pb2.TrajectoryEvent.ACTION_ANSWER: "answer",
    answers_pb2.TrajectoryEvent.ACTION_APPEND: "append",
    answers_pb2.TrajectoryEvent.ACTION_MERGE: "merge",
    answers_pb2.TrajectoryEvent.ACTION_MOVE: "move",
    answers_pb2.TrajectoryEvent.ACTION_RETRIEVE: "retrieve",
    answers_pb2.TrajectoryEvent.ACTION_AGGREGATE: "aggregate",
    answers_pb2.TrajectoryEvent.ACTION_INVALID: "invalid",
    answers_pb2.TrajectoryEvent.ACTION_NONE: "none",
}


def event(message: answers_pb2.TrajectoryEvent) -> TrajectoryEvent:
    """An event of a navigation."""
    cached = message.HasField("cached_tokens")
    return TrajectoryEvent(
        ordinal=message.ordinal,
        kind=_KINDS.get(message.kind, "unknown"),
        action=_ACTIONS.get(message.action, "unknown"),
        node_id=message.node_id,
        level=message.level,
        from_position=message.from_position,
        to_position=message.to_position,
        depth=message.depth,
        attempt=message.attempt,
        shown_ids=tuple(message.shown_ids),
        target_ids=tuple(message.target_ids),
        reasoning=message.reasoning,
        text=message.text,
        input_tokens=message.input_tokens,
        cached_tokens=message.cached_tokens if cached else None,
        output_tokens=message.output_tokens,
    )
