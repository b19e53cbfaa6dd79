"""Trajectories, to their messages."""

from typing import Any

from palimpsest.v1 import answer_service_pb2
from service.domain.answers.trajectory import Event, NoAnswer
from service.rpc.convert.common import message_of, numbers_of, positions
from storage.answers.answers import StoredAnswer
from storage.answers.trajectories import NavigationTotals

#: Why there is no answer, as the proto has it.
NO_ANSWER: dict[Any, Any] = {
    None: answer_service_pb2.NO_ANSWER_UNSPECIFIED,
    **numbers_of(NoAnswer, answer_service_pb2.NoAnswer, "NO_ANSWER_"),
}


def trajectory_event(told: Event) -> answer_service_pb2.TrajectoryEvent:
    """Returns an event, without what the model replied."""
    return message_of(
        answer_service_pb2.TrajectoryEvent,
        told,
        node=told.node_id,
        positions=positions(told.from_position, told.to_position),
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
    return message_of(
        answer_service_pb2.NavigationStatistics,
        summed.statistics,
        navigations=summed.navigations,
        answered=summed.answered,
        guessed=summed.guessed,
        stray=summed.stray,
        stray_answered=summed.stray_answered,
    )
