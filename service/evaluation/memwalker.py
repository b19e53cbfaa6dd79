"""MemWalker through the service itself: what any client does, and nothing else."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpc import aio

import palimpsest
from palimpsest.errors import from_rpc
from palimpsest.v1 import (
    answers_pb2,
    answers_pb2_grpc,
    memories_pb2,
    memories_pb2_grpc,
    reading_pb2,
    trees_pb2,
    trees_pb2_grpc,
)
from service.domain.chunks import ChunkKind
from service.evaluation.datasets import Document, Question
from service.evaluation.strategies import Failed, Outcome, Prepared, Spent, Walk, added

MEMORY = "tree"
PRODUCER = "eval"
#: How often a tree that is being built is looked after.
LOOK_SECONDS = 0.2

_Memory = memories_pb2.Memory
_Event = answers_pb2.TrajectoryEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSettings:
    """How trees are built and navigated; 0 and empty mean the service's defaults."""

    segment_tokens: int = 0
    max_children: int = 0
    summary_tokens: int = 0
    reasoning: bool = True
    hybrid_leaves: int = 0
    beam: int = 0
    max_calls: int = 0
    #: As provider/name.
    model: str = ""

    def spec(self) -> memories_pb2.TreeSpec:
        """The spec of a tree."""
        spec = memories_pb2.TreeSpec
        return spec(
            segment_tokens=self.segment_tokens,
            max_children=self.max_children,
            summary_tokens=self.summary_tokens,
            reasoning=spec.REASONING_ON if self.reasoning else spec.REASONING_OFF,
            model=self.model,
        )

    def navigation(self, options: Sequence[str]) -> answers_pb2.NavigationRequest:
        """How a question is to be answered."""
        return answers_pb2.NavigationRequest(
            options=options,
            hybrid_leaves=self.hybrid_leaves,
            beam=self.beam,
            max_calls=self.max_calls,
        )


class MemWalkerStrategy:
    """Streams a document into a session, seals its tree, and asks it."""

    def __init__(
        self,
        client: palimpsest.Client,
        settings: TreeSettings,
        *,
        timeout_seconds: float,
        session_of: Callable[[Document], str],
    ) -> None:
        self._client = client
        self._settings = settings
        self._timeout = timeout_seconds
        self._session_of = session_of
        self._answers = answers_pb2_grpc.AnswerServiceStub(client.channel)
        self._memories = memories_pb2_grpc.MemoryServiceStub(client.channel)
        self._trees = trees_pb2_grpc.TreeServiceStub(client.channel)

    async def prepare(self, document: Document) -> Prepared:
        """Appends the document and builds its tree; one that is there already is kept."""
        name = self._session_of(document)
        try:
            session = await self._client.create_session(name, exist_ok=True)
            await self._create_tree(name)
            await _append(session, document)
            await self._client.call(
                self._trees.SealTree, trees_pb2.SealTreeRequest(session=name, memory=MEMORY)
            )
            await self._wait_sealed(name)
            report = await session.usage(MEMORY)
        except palimpsest.PalimpsestError as error:
            raise Failed(f"the tree was not built: {error}") from error
        building = [line.usage for line in report.lines if line.purpose == "summarize"]
        return Prepared(session=name, spent=added(_spent(one) for one in building))

    async def _create_tree(self, name: str) -> None:
        request = memories_pb2.CreateMemoryRequest(
            session=name, name=MEMORY, tree=self._settings.spec()
        )
        try:
            await self._client.call(self._memories.CreateMemory, request, retry=False)
        except palimpsest.PalimpsestError as error:
            if error.reason != "MEMORY_EXISTS":
                raise

    async def _wait_sealed(self, name: str) -> None:
        """Waits until the tree is closed; gives up when nothing happens for the timeout."""
        loop = asyncio.get_running_loop()
        revision, until = -1, 0.0
        request = memories_pb2.ListMemoriesRequest(session=name)
        while True:
            listed = await self._client.call(self._memories.ListMemories, request)
            (memory,) = (one for one in listed.memories if one.name == MEMORY)
            if memory.status == _Memory.STATUS_SEALED:
                return
            if memory.status == _Memory.STATUS_STALLED:
                raise Failed(f"the tree was not built: {memory.stall.cause}")
            if memory.HasField("held_reason"):
                raise Failed(f"the tree was not built: {memory.held_reason}")
            if memory.revision != revision:
                revision, until = memory.revision, loop.time() + self._timeout
            elif loop.time() > until:
                raise Failed(f"the tree did not grow for {self._timeout:g} s")
            await asyncio.sleep(LOOK_SECONDS)

    async def ask(self, document: Document, prepared: Prepared, question: Question) -> Outcome:
        """The answer that the navigation found, with the leaves that it read."""
        request = answers_pb2.AskRequest(
            session=prepared.session,
            memory=MEMORY,
            query=question.text,
            consistency=reading_pb2.ReadConsistency(minimize_latency=True),
            navigation=self._settings.navigation(question.options),
        )
        events: list[Any] = []
        try:
            async for response in self._answers.Ask(request, timeout=self._timeout):
                kind = response.WhichOneof("event")
                if kind == "trajectory_event":
                    events.append(response.trajectory_event)
                elif kind == "answer":
                    return _outcome(response.answer, events)
        except aio.AioRpcError as error:
            raise Failed(str(from_rpc(error, self._client.address))) from error
        raise Failed("the service ended the call without an answer")


async def _append(session: palimpsest.Session, document: Document) -> None:
    async with session.producer(PRODUCER) as producer:
        # A run that goes on finds what an earlier one appended.
        for chunk in document.chunks[producer.last_acked_sequence :]:
            match chunk.kind:
                case ChunkKind.TEXT:
                    await producer.append(chunk.text)
                case ChunkKind.MESSAGE:
                    await producer.append_message(chunk.role, chunk.text)
                case ChunkKind.STEP:
                    await producer.append_step(
                        observation=chunk.observation,
                        thought=chunk.thought,
                        action=chunk.action,
                    )
        await producer.flush()


def _outcome(answer: Any, events: Sequence[Any]) -> Outcome:
    if answer.status != answers_pb2.Answer.STATUS_COMPLETE:
        raise Failed(answer.failure or "the answer was not made")
    reason = answers_pb2.NoAnswer.Name(answer.no_answer).removeprefix("NO_ANSWER_").lower()
    found = not answer.no_answer
    leaves = (event for event in events if event.kind == _Event.KIND_LEAF)
    counts = answer.statistics
    return Outcome(
        text=answer.text if found else "",
        no_answer="" if found else reason,
        model=answer.model,
        spent=_spent(answer.usage),
        seen=frozenset(at for one in leaves for at in _covered(one)),
        cited=frozenset(at for one in answer.citations for at in _covered(one)),
        answer_id=answer.answer_id,
        walk=Walk(
            valid_actions=counts.valid_actions,
            invalid_actions=counts.invalid_actions,
            reverts=counts.reverts,
            leaves_read=counts.leaves_read,
            tokens=counts.tokens,
            text_tokens=counts.text_tokens,
        ),
    )


def _covered(node: Any) -> range:
    return range(node.from_position, node.to_position + 1)


def _spent(used: Any) -> Spent:
    """From the proto's sums, or the client's."""
    cost = used.cost_micro_usd
    if isinstance(used, reading_pb2.Usage) and not used.HasField("cost_micro_usd"):
        cost = None
    return Spent(
        calls=used.calls,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cost_micro_usd=cost,
    )
