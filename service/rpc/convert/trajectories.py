"""Trajectories, to their messages."""

from typing import Any

from palimpsest.v1 import answer_service_pb2
from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer
from service.rpc.convert.common import numbers_of, positions
from storage.answers.answers import StoredAnswer
from storage.answers.trajectories import NavigationTotals

_KINDS = numbers_of(EventKind, answer_service_pb2.TrajectoryEvent.Kind, "KIND_")
_ACTIONS = numbers_of(Action, answer_service_pb2.TrajectoryEvent.Action, "ACTION_")
#: Why there is no answer, as the proto has it.
NO_ANSWER: dict[Any, Any] = {
    None: answer_service_pb2.NO_ANSWER_UNSPECIFIED,
    **numbers_of(NoAnswer, answer_service_pb2.NoAnswer, "NO_ANSWER_"),
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
