"""Questions to the service, and what comes of them for an evaluation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpc import aio

import palimpsest
from evaluation.datasets import Question
from evaluation.sessions import spent_of
from evaluation.strategies import CitedSpan, Failed, Outcome, Walk
from palimpsest import TrajectoryEvent, _convert_answers
from palimpsest._convert import value_of
from palimpsest._errors import from_rpc
from palimpsest.v1 import answer_service_pb2, answer_service_pb2_grpc, common_pb2

#: What the service is given beyond the time that an answer may take.
SLACK_SECONDS = 5.0
#: Events whose text the model read, among those that look at a part of the log.
_READ = frozenset({"leaf", "piece"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A complete answer, and the events of its reader."""

    answer: answer_service_pb2.Answer
    events: Sequence[TrajectoryEvent]

    @property
    def shown(self) -> frozenset[int] | None:
        """Positions of the leaves and the pieces that the model read; None where not all say."""
        read = [one for one in self.events if one.kind in _READ]
        placed = {one.node for one in read} | {one.node for one in self.answer.citations}
        if not self._pieces <= placed:
            return None
        cited = [one for one in self.answer.citations if one.node in self._pieces]
        return _positions(read) | _positions(cited)

    @property
    def pieces(self) -> int:
        """Pieces that browsing read, each counted once."""
        return len(self._pieces)

    @property
    def _pieces(self) -> frozenset[str]:
        """Those that were looked at one by one, and those that one prompt had together."""
        one_by_one = {one.node for one in self.events if one.kind == "piece"}
        together = (one.shown for one in self.events if one.kind == "aggregation")
        return frozenset(one_by_one.union(*together))

    @property
    def cited(self) -> frozenset[int]:
        """Positions of the chunks that the answer names."""
        return frozenset(one.position for one in self.answer.citations if one.position)

    @property
    def covered(self) -> frozenset[int]:
        """Positions of what the answer cites, with all the text under its nodes."""
        return self.cited | _positions(self.answer.citations)

    @property
    def spans(self) -> tuple[CitedSpan, ...]:
        """Characters that the answer cites."""
        return tuple(
            CitedSpan(
                position=one.position,
                from_character=one.characters.start,
                to_character=one.characters.end,
            )
            for one in self.answer.citations
            if one.HasField("characters")
        )

    def outcome(
        self,
        *,
        seen: frozenset[int] | None,
        cited: frozenset[int],
        pieces: int | None = None,
        chosen: str = "",
    ) -> Outcome:
        """Returns what came of the question."""
        read = _convert_answers.answer(self.answer)
        counts = read.statistics
        return Outcome(
            text="" if read.no_answer else read.text,
            no_answer=read.no_answer or "",
            guessed=read.guessed,
            model=read.model,
            spent=spent_of(read.usage),
            seen=seen,
            cited=cited,
            spans=self.spans,
            answer_id=read.id,
            walk=None
            if counts is None
            else Walk(
                valid_actions=counts.valid_actions,
                invalid_actions=counts.invalid_actions,
                reverts=counts.reverts,
                leaves_read=counts.leaves_read,
                tokens=counts.tokens,
                text_tokens=counts.text_tokens,
            ),
            pieces=pieces,
            chosen=chosen,
        )


async def ask(
    client: palimpsest.Client, request: answer_service_pb2.AskRequest, timeout_seconds: float
) -> Asked:
    """Asks, and waits for the answer. Raises Failed when there is none."""
    stub = answer_service_pb2_grpc.AnswerServiceStub(client.channel)
    events: list[TrajectoryEvent] = []
    try:
        async for response in stub.Ask(request, timeout=timeout_seconds + SLACK_SECONDS):
            match response.WhichOneof("event"):
                case "trajectory_event":
                    events.append(value_of(TrajectoryEvent, response.trajectory_event))
                case "answer":
                    return _complete(response.answer, events)
    except aio.AioRpcError as error:
        raise Failed(str(from_rpc(error, client.address))) from error
    raise Failed("the service ended the call without an answer")


def request_of(question: Question, **asked: Any) -> answer_service_pb2.AskRequest:
    """Returns a question as any reader is asked it."""
    return answer_service_pb2.AskRequest(query=question.text, options=question.options, **asked)


def _complete(answer: answer_service_pb2.Answer, events: Sequence[TrajectoryEvent]) -> Asked:
    if answer.state != common_pb2.OPERATION_STATE_DONE:
        raise Failed(answer.error.message or answer.cause or "the answer was not made")
    return Asked(answer=answer, events=events)


def _positions(nodes: Iterable[TrajectoryEvent | answer_service_pb2.Citation]) -> frozenset[int]:
    return frozenset(
        position
        for node in nodes
        if node.positions
        for position in range(node.positions.first, node.positions.last + 1)
    )
