"""Answers, and what is told of them, from the proto's messages to the client's values."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest.answer_values import (
    Answer,
    BrowseOption,
    Choice,
    Citation,
    Event,
    Loss,
    LossKind,
    Rating,
    Reader,
    Reading,
    TextPiece,
    Usage,
    Waiting,
)
from palimpsest.navigation_values import (
    EventAction,
    EventKind,
    NavigationStatistics,
    NoAnswer,
    TrajectoryEvent,
)
from palimpsest.v1 import answers_pb2, reading_pb2


def moment(message: Timestamp) -> datetime:
    """A time, in UTC."""
    return message.ToDatetime(tzinfo=UTC)


def usage(message: reading_pb2.Usage) -> Usage:
    """Model calls, summed."""
    reported = message.HasField("reported_cached_tokens")
    priced = message.HasField("cost_micro_usd")
    return Usage(
        calls=message.calls,
        input_tokens=message.input_tokens,
        predicted_cached_tokens=message.predicted_cached_tokens,
        reported_cached_tokens=message.reported_cached_tokens if reported else None,
        output_tokens=message.output_tokens,
        cost_micro_usd=message.cost_micro_usd if priced else None,
    )


_STATUS = {
    answers_pb2.Answer.STATUS_PENDING: "pending",
    answers_pb2.Answer.STATUS_COMPLETE: "complete",
    answers_pb2.Answer.STATUS_FAILED: "failed",
    answers_pb2.Answer.STATUS_CANCELLED: "cancelled",
    answers_pb2.Answer.STATUS_ABANDONED: "abandoned",
}
#: As the proto has them.
STATUSES = {name: message for message, name in _STATUS.items()}
_READERS: dict[int, Reader] = {
    answers_pb2.READER_PRISM: "prism",
    answers_pb2.READER_MEMWALKER: "memwalker",
    answers_pb2.READER_PCC: "pcc",
    answers_pb2.READER_DCISO: "dciso",
    answers_pb2.READER_WHOLE: "whole",
    answers_pb2.READER_AUTO: "auto",
}
_OPTIONS: dict[int, BrowseOption] = {
    answers_pb2.BrowseRequest.OPTION_DYNAMIC: "dynamic",
    answers_pb2.BrowseRequest.OPTION_RANK: "rank",
    answers_pb2.BrowseRequest.OPTION_CARRY: "carry",
    answers_pb2.BrowseRequest.OPTION_INDEPENDENT: "independent",
    answers_pb2.BrowseRequest.OPTION_SCAN: "scan",
    answers_pb2.BrowseRequest.OPTION_RANDOM: "random",
}


_NO_ANSWER: dict[int, NoAnswer] = {
    answers_pb2.NO_ANSWER_UNREADABLE: "unreadable",
    answers_pb2.NO_ANSWER_NOT_FOUND: "not_found",
    answers_pb2.NO_ANSWER_STEP_LIMIT: "step_limit",
    answers_pb2.NO_ANSWER_EMPTY: "empty",
}


def answer(message: answers_pb2.Answer) -> Answer:
    """A stored answer."""
    return Answer(
        answer_id=message.answer_id,
        query=message.query,
        status=_STATUS.get(message.status, "unknown"),
        text=message.text,
        citations=tuple(
            Citation(
                position=cited.position,
                path=cited.path,
                revision=cited.revision,
                excerpt=cited.excerpt,
                node_id=cited.node_id,
                from_position=cited.from_position,
                to_position=cited.to_position,
                from_character=cited.from_character,
                to_character=cited.to_character,
            )
            for cited in message.citations
        ),
        revision=message.revision,
        applied_position=message.applied_position,
        model=message.model,
        failure=message.failure,
        usage=usage(message.usage),
        created_at=moment(message.create_time),
        no_answer=_NO_ANSWER.get(message.no_answer, "unknown") if message.no_answer else None,
        statistics=navigation_statistics(message.statistics)
        if message.HasField("statistics")
        else None,
        session=message.session,
        memory=message.memory,
        reader=_READERS.get(message.reader, "unknown") if message.reader else None,
        choice=_choice(message.choice) if message.HasField("choice") else None,
        value=json.loads(message.value_json) if message.value_json else None,
        has_value=bool(message.value_json),
        rating=rating(message.rating) if message.HasField("rating") else None,
        losses=losses(message.losses),
        guessed=message.guessed,
        truncated=message.truncated,
        left_out=(message.left_out.from_position, message.left_out.to_position)
        if message.HasField("left_out")
        else None,
    )


def _choice(message: answers_pb2.Answer.Choice) -> Choice:
    return Choice(
        reader=_READERS.get(message.reader, "unknown"),
        memory=message.memory,
        option=_OPTIONS.get(message.option, "unknown") if message.option else None,
        reason=message.reason,
        expected_tokens=message.expected_tokens,
    )


def rating(message: answers_pb2.Rating) -> Rating:
    """What somebody thinks of an answer."""
    return Rating(
        good=message.verdict == answers_pb2.Rating.VERDICT_GOOD,
        comment=message.comment,
        expected=message.expected,
        rated_at=moment(message.rate_time),
    )


def navigation_statistics(
    message: answers_pb2.NavigationStatistics,
) -> NavigationStatistics:
    """What navigations came to."""
    return NavigationStatistics(
        navigations=message.navigations,
        answered=message.answered,
        stray=message.stray,
        stray_answered=message.stray_answered,
        valid_actions=message.valid_actions,
        invalid_actions=message.invalid_actions,
        reverts=message.reverts,
        leaves_read=message.leaves_read,
        calls=message.calls,
        tokens=message.tokens,
        text_tokens=message.text_tokens,
        guessed=message.guessed,
    )


def heard(response: answers_pb2.AskResponse) -> Event | None:
    """What a response tells; None for what only a newer client knows."""
    match response.WhichOneof("event"):
        case "waiting":
            return Waiting(
                applied_position=response.waiting.applied_position,
                wanted_position=response.waiting.wanted_position,
            )
        case "reading":
            return Reading(
                answer_id=response.reading.answer_id,
                revision=response.reading.revision,
                applied_position=response.reading.applied_position,
            )
        case "trajectory_event":
            return event(response.trajectory_event)
        case "text":
            piece = response.text
            return TextPiece(ordinal=piece.ordinal, text=piece.text, restarts=piece.restarts)
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


_LOSS_KINDS: dict[int, LossKind] = {
    reading_pb2.Loss.KIND_NO_ROOM: "no_room",
    reading_pb2.Loss.KIND_INVALID: "invalid",
}


def losses(messages: Iterable[reading_pb2.Loss]) -> tuple[Loss, ...]:
    """What a memory lost."""
    return tuple(
        Loss(
            kind=_LOSS_KINDS.get(one.kind, ""),
            count=one.count,
            steps=one.steps,
            since_position=one.since_position,
            message=one.message,
        )
        for one in messages
    )
