"""Navigations between the proto's messages and our values."""

from palimpsest.v1alpha1 import answers_pb2
from service.domain.answers.navigation_request import DEFAULT_CALLS, NavigationRequest
from service.domain.answers.trajectory import (
    Action,
    Event,
    EventKind,
    NoAnswer,
)
from storage.answers.answers import StoredAnswer
from storage.answers.trajectories import NavigationTotals

_KINDS = {
    EventKind.RETRIEVAL: answers_pb2.TrajectoryEvent.KIND_RETRIEVAL,
    EventKind.TRIAGE: answers_pb2.TrajectoryEvent.KIND_TRIAGE,
    EventKind.LEAF: answers_pb2.TrajectoryEvent.KIND_LEAF,
    EventKind.WORKING_MEMORY: answers_pb2.TrajectoryEvent.KIND_WORKING_MEMORY,
    EventKind.MERGE: answers_pb2.TrajectoryEvent.KIND_MERGE,
    EventKind.CHOICE: answers_pb2.TrajectoryEvent.KIND_CHOICE,
    EventKind.UNDERSTANDING: answers_pb2.TrajectoryEvent.KIND_UNDERSTANDING,
    EventKind.PIECE: answers_pb2.TrajectoryEvent.KIND_PIECE,
    EventKind.AGGREGATION: answers_pb2.TrajectoryEvent.KIND_AGGREGATION,
    EventKind.SHAPING: answers_pb2.TrajectoryEvent.KIND_SHAPING,
    EventKind.END: answers_pb2.TrajectoryEvent.KIND_END,
}
_ACTIONS = {
    Action.ENTER: answers_pb2.TrajectoryEvent.ACTION_ENTER,
    Action.REVERT: answers_pb2.TrajectoryEvent.ACTION_REVERT,
    Action.ANSWER: answers_pb2.TrajectoryEvent.ACTION_ANSWER,
    Action.APPEND: answers_pb2.TrajectoryEvent.ACTION_APPEND,
    Action.MERGE: answers_pb2.TrajectoryEvent.ACTION_MERGE,
    Action.MOVE: answers_pb2.TrajectoryEvent.ACTION_MOVE,
    Action.RETRIEVE: answers_pb2.TrajectoryEvent.ACTION_RETRIEVE,
    Action.AGGREGATE: answers_pb2.TrajectoryEvent.ACTION_AGGREGATE,
    Action.INVALID: answers_pb2.TrajectoryEvent.ACTION_INVALID,
    Action.NONE: answers_pb2.TrajectoryEvent.ACTION_NONE,
}
#: Why there is no answer, as the proto has it.
NO_ANSWER = {
    None: answers_pb2.NO_ANSWER_UNSPECIFIED,
    NoAnswer.UNREADABLE: answers_pb2.NO_ANSWER_UNREADABLE,
    NoAnswer.NOT_FOUND: answers_pb2.NO_ANSWER_NOT_FOUND,
    NoAnswer.STEP_LIMIT: answers_pb2.NO_ANSWER_STEP_LIMIT,
    NoAnswer.EMPTY: answers_pb2.NO_ANSWER_EMPTY,
}


def request(message: answers_pb2.NavigationRequest) -> NavigationRequest:
    """How a tree is to be navigated; zeros are the defaults."""
    return NavigationRequest(
        hybrid_leaves=message.hybrid_leaves,
        beam=message.beam or 1,
        max_calls=message.max_calls or DEFAULT_CALLS,
    )


def event(told: Event) -> answers_pb2.TrajectoryEvent:
    """An event, without what the model replied."""
    return answers_pb2.TrajectoryEvent(
        ordinal=told.ordinal,
        kind=_KINDS[told.kind],
        action=_ACTIONS[told.action],
        node_id=told.node_id,
        level=told.level,
        from_position=told.from_position,
        to_position=told.to_position,
        depth=told.depth,
        attempt=told.attempt,
        shown_ids=told.shown,
        target_ids=told.targets,
        reasoning=told.reasoning,
        text=told.text,
        input_tokens=told.input_tokens,
        cached_tokens=told.cached_tokens,
        output_tokens=told.output_tokens,
    )


def of_answer(stored: StoredAnswer) -> answers_pb2.NavigationStatistics | None:
    """What a navigation came to; None for other readers, and until it is complete."""
    if stored.statistics is None:
        return None
    answered = stored.no_answer is None and not stored.guessed
    return sums(
        NavigationTotals.of_one(stored.statistics, answered=answered, guessed=stored.guessed)
    )


def sums(summed: NavigationTotals) -> answers_pb2.NavigationStatistics:
    """What navigations came to."""
    statistics = summed.statistics
    return answers_pb2.NavigationStatistics(
        navigations=summed.navigations,
        answered=summed.answered,
        guessed=summed.guessed,
        stray=summed.stray,
        stray_answered=summed.stray_answered,
        valid_actions=statistics.valid_actions,
        invalid_actions=statistics.invalid_actions,
        reverts=statistics.reverts,
        leaves_read=statistics.leaves_read,
        calls=statistics.calls,
        tokens=statistics.tokens,
        text_tokens=statistics.text_tokens,
    )
