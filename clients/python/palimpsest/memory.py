"""A memory: reading it, and asking it."""

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from grpc import aio

from palimpsest import convert, values
from palimpsest.connection import CALL_SECONDS, SLACK_SECONDS, Connection
from palimpsest.errors import PalimpsestError, from_rpc
from palimpsest.v1 import (
    answers_pb2,
    answers_pb2_grpc,
    memories_pb2,
    memories_pb2_grpc,
    reading_pb2,
)

if TYPE_CHECKING:
    from palimpsest.client import Session

#: How long a question may take when the caller does not say.
ASK_SECONDS = 60.0

Event = values.Waiting | values.Reading


class Memory:
    """A memory, by its name."""

    def __init__(self, client: Connection, session: "Session", name: str) -> None:
        self.name = name
        self.session = session
        self._client = client
        self._memories = memories_pb2_grpc.MemoryServiceStub(client.channel)
        self._answers = answers_pb2_grpc.AnswerServiceStub(client.channel)

    async def get(
        self,
        *,
        revision: int | None = None,
        after: str = "",
        fully_applied: bool = False,
        timeout: float = CALL_SECONDS,
    ) -> values.MemoryState:
        """Reads the memory: now, at a revision, or once it is fresh enough.

        `after` is a token of an ack or a write that must be applied; `fully_applied`
        asks for everything in the log now. Raises DeadlineExceeded, whose metadata
        says how far the memory is, FailedPrecondition when it stalled, OutOfRange for
        a revision that is not there.
        """
        request = memories_pb2.GetMemoryRequest(
            session=self.session.name,
            memory=self.name,
            revision=revision,
            consistency=_consistency(after, fully_applied),
        )
        response = await self._client.call(self._memories.GetMemory, request, timeout=timeout)
        return convert.state(response)

    async def amendments(self) -> AsyncIterator[values.Amendment]:
        """Every change that made the memory, oldest first."""
        request = memories_pb2.ListAmendmentsRequest(
            session=self.session.name, memory=self.name, page_size=1000
        )
        async for page in self._client.pages(self._memories.ListAmendments, request):
            for message in page.amendments:
                yield convert.amendment(message)

    async def rejections(self) -> AsyncIterator[values.Rejection]:
        """Everything the model proposed and the schema refused, oldest first."""
        request = memories_pb2.ListRejectionsRequest(
            session=self.session.name, memory=self.name, page_size=1000
        )
        async for page in self._client.pages(self._memories.ListRejections, request):
            for message in page.rejections:
                yield convert.rejection(message)

    async def retry(self) -> values.MemoryInfo:
        """Lets a stalled memory try again from where it is stuck."""
        request = memories_pb2.RetryMemoryRequest(session=self.session.name, memory=self.name)
        response = await self._client.call(self._memories.RetryMemory, request)
        return convert.memory(response.memory)

    async def ask(
        self,
        query: str,
        *,
        after: str = "",
        fully_applied: bool = False,
        timeout: float = ASK_SECONDS,
        on_event: Callable[[Event], None] | None = None,
    ) -> values.Answer:
        """Asks the memory; the answer with its citations.

        Freshness and errors as in `get`. `on_event` hears how far the memory is while
        the call waits, and where it reads. An answer that comes too late is stored all
        the same: the error's metadata names it for `Session.answer`.
        """
        request = answers_pb2.AskRequest(
            session=self.session.name,
            memory=self.name,
            query=query,
            consistency=_consistency(after, fully_applied),
        )
        try:
            async for response in self._answers.Ask(request, timeout=timeout + SLACK_SECONDS):
                kind = response.WhichOneof("event")
                if kind == "answer":
                    return convert.answer(response.answer)
                if on_event is not None:
                    on_event(_event(response))
        except aio.AioRpcError as error:
            raise from_rpc(error, self._client.address) from error
        raise PalimpsestError("the service ended the call without an answer")


def _event(response: answers_pb2.AskResponse) -> Event:
    if response.WhichOneof("event") == "waiting":
        return values.Waiting(
            applied_position=response.waiting.applied_position,
            wanted_position=response.waiting.wanted_position,
        )
    return values.Reading(
        answer_id=response.reading.answer_id,
        revision=response.reading.revision,
        applied_position=response.reading.applied_position,
    )


def _consistency(after: str, fully_applied: bool) -> reading_pb2.ReadConsistency | None:
    if fully_applied:
        return reading_pb2.ReadConsistency(fully_applied=True)
    return reading_pb2.ReadConsistency(at_least=after) if after else None
