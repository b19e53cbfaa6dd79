"""Trajectories, to their messages."""

from palimpsest.v1 import answer_service_pb2
from service.domain.answers.trajectory import (
    Action,
    Event,
    EventKind,
    NoAnswer,
)
from service.rpc.convert.common import positions
from storage.answers.answers import StoredAnswer
from storage.answers.trajectories import NavigationTotals

_KINDS = {
    EventKind.RETRIEVAL: answer_service_pb2.TrajectoryEvent.KIND_RETRIEVAL,
    EventKind.TRIAGE: answer_service_pb2.TrajectoryEvent.KIND_TRIAGE,
    EventKind.LEAF: answer_service_pb2.TrajectoryEvent.KIND_LEAF,
    EventKind.WORKING_MEMORY: answer_service_pb2.TrajectoryEvent.KIND_WORKING_MEMORY,
    EventKind.MERGE: answer_service_pb2.TrajectoryEvent.KIND_MERGE,
    EventKind.CHOICE: answer_service_pb2.TrajectoryEvent.KIND_CHOICE,
    EventKind.UNDERSTANDING: answer_service_pb2.TrajectoryEvent.KIND_UNDERSTANDING,
    EventKind.PIECE: answer_service_pb2.TrajectoryEvent.KIND_PIECE,
    EventKind.AGGREGATION: answer_service_pb2.TrajectoryEvent.KIND_AGGREGATION,
    EventKind.SHAPING: answer_service_pb2.TrajectoryEvent.KIND_SHAPING,
    EventKind.END: answer_service_pb2.TrajectoryEvent.KIND_END,
}
_ACTIONS = {
    Action.ENTER: answer_service_pb2.TrajectoryEvent.ACTION_ENTER,
    Action.REVERT: answer_service_pb2.TrajectoryEvent.ACTION_REVERT,
    Action.ANSWER: answer_service_pb2.TrajectoryEvent.ACTION_ANSWER,
    Action.APPEND: answer_service_pb2.TrajectoryEvent.ACTION_APPEND,
    Action.MERGE: answer_service_pb2.TrajectoryEvent.ACTION_MERGE,
    Action.MOVE: answer_service_pb2.TrajectoryEvent.ACTION_MOVE,
    Action.RETRIEVE: answer_service_pb2.TrajectoryEvent.ACTION_RETRIEVE,
    Action.AGGREGATE: answer_service_pb2.TrajectoryEvent.ACTION_AGGREGATE,
    Action.INVALID: answer_service_pb2.TrajectoryEvent.ACTION_INVALID,
    Action.NONE: answer_service_pb2.TrajectoryEvent.ACTION_NONE,
}
#: Why there is no answer, as the proto has it.
NO_ANSWER = {
    None: answer_service_pb2.NO_ANSWER_UNSPECIFIED,
    NoAnswer.UNREADABLE: answer_service_pb2.NO_ANSWER_UNREADABLE,
    NoAnswer.NOT_FOUND: answer_service_pb2.NO_ANSWER_NOT_FOUND,
    NoAnswer.STEP_LIMIT: answer_service_pb2.NO_ANSWER_STEP_LIMIT,
    NoAnswer.EMPTY: answer_service_pb2.NO_ANSWER_EMPTY,
}


def trajectory_event(told: Event) -> answer_service_pb2.TrajectoryEvent:
    """Returns an event, without what the model replied."""
    return answer_service_pb2.TrajectoryEvent(
        ordinal=told.ordinal,
        kind=_KINDS[told.kind],
        action=_ACTIONS[told.action],
        node=told.node_id,
        level=told.level,
        positions=positions(told.from_position, told.to_position),
        depth=told.depth,
        attempt=told.attempt,
        shown=told.shown,
        targets=told.targets,
        reasoning=told.reasoning,
        text=told.text,
        input_tokens=told.input_tokens,
        cached_tokens=told.cached_tokens,
        output_tokens=told.output_tokens,
    )


def statistics_of(stored: StoredAnswer) -> answer_service_pb2.NavigationStatistics | None:
    """Returns the sums of a navigation; None of other readers, and until it is done."""
    if stored.statistics is None:
        return None
    answered = stored.no_answer is None and not stored.guessed
    return statistics(
        NavigationTotals.of_one(stored.statistics, answered=answered, guessed=stored.guessed)
    )


def statistics(summed: NavigationTotals) -> answer_service_pb2.NavigationStatistics:
    """Returns the sums of navigations."""
    counts = summed.statistics
    return answer_service_pb2.NavigationStatistics(
        navigations=summed.navigations,
        answered=summed.answered,
        guessed=summed.guessed,
        stray=summed.stray,
        stray_answered=summed.stray_answered,
        valid_actions=counts.valid_actions,
        invalid_actions=counts.invalid_actions,
        reverts=counts.reverts,
        leaves_read=counts.leaves_read,
        calls=counts.calls,
        tokens=counts.tokens,
        text_tokens=counts.text_tokens,
    )
