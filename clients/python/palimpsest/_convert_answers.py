"""Questions, answers and trajectories, to and from the proto's messages."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from palimpsest._convert import if_set, known_name, message_of, moment, value_of
from palimpsest._convert_spend import usage
from palimpsest._schemas import Schema, schema_fields
from palimpsest._values_answers import (
    Answer,
    AnswerStatus,
    AskEvent,
    BrowseAction,
    BrowseOption,
    BrowseOrder,
    BrowseSettings,
    Choice,
    Citation,
    EventAction,
    EventKind,
    Loss,
    LossKind,
    NavigationStatistics,
    NoAnswer,
    Question,
    Rating,
    Reader,
    Reading,
    TextPiece,
    TrainingExample,
    TrajectoryEvent,
    Turn,
    Waiting,
)
from palimpsest.v1alpha1 import answers_pb2, reading_pb2, trajectories_pb2

_Browse = answers_pb2.BrowseRequest
_Event = answers_pb2.TrajectoryEvent

_READERS: dict[Reader | None, answers_pb2.Reader.ValueType] = {
    None: answers_pb2.READER_UNSPECIFIED,
    "prism": answers_pb2.READER_PRISM,
    "memwalker": answers_pb2.READER_MEMWALKER,
    "pcc": answers_pb2.READER_PCC,
    "dciso": answers_pb2.READER_DCISO,
    "whole": answers_pb2.READER_WHOLE,
    "auto": answers_pb2.READER_AUTO,
}
_OPTIONS: dict[BrowseOption, answers_pb2.BrowseRequest.Option.ValueType] = {
    "auto": _Browse.OPTION_UNSPECIFIED,
    "dynamic": _Browse.OPTION_DYNAMIC,
    "rank": _Browse.OPTION_RANK,
    "carry": _Browse.OPTION_CARRY,
    "independent": _Browse.OPTION_INDEPENDENT,
    "scan": _Browse.OPTION_SCAN,
    "random": _Browse.OPTION_RANDOM,
}
_ACTIONS: dict[BrowseAction, answers_pb2.BrowseRequest.Action.ValueType] = {
    "task_understanding": _Browse.ACTION_TASK_UNDERSTANDING,
    "retrieve": _Browse.ACTION_RETRIEVE,
    "move": _Browse.ACTION_MOVE,
    "append": _Browse.ACTION_APPEND,
    "merge": _Browse.ACTION_MERGE,
    "answer": _Browse.ACTION_ANSWER,
    "aggregation": _Browse.ACTION_AGGREGATION,
}
_ORDERS: dict[BrowseOrder, answers_pb2.BrowseRequest.Order.ValueType] = {
    "auto": _Browse.ORDER_UNSPECIFIED,
    "forward": _Browse.ORDER_FORWARD,
    "backward": _Browse.ORDER_BACKWARD,
}


_STATUSES: dict[AnswerStatus, Any] = {
    "pending": answers_pb2.Answer.STATUS_PENDING,
    "complete": answers_pb2.Answer.STATUS_COMPLETE,
    "failed": answers_pb2.Answer.STATUS_FAILED,
    "cancelled": answers_pb2.Answer.STATUS_CANCELLED,
    "abandoned": answers_pb2.Answer.STATUS_ABANDONED,
}
_NO_ANSWERS: dict[NoAnswer, Any] = {
    "unreadable": answers_pb2.NO_ANSWER_UNREADABLE,
    "not_found": answers_pb2.NO_ANSWER_NOT_FOUND,
    "step_limit": answers_pb2.NO_ANSWER_STEP_LIMIT,
    "empty": answers_pb2.NO_ANSWER_EMPTY,
}
_EVENT_KINDS: dict[EventKind, Any] = {
    "retrieval": _Event.KIND_RETRIEVAL,
    "triage": _Event.KIND_TRIAGE,
    "leaf": _Event.KIND_LEAF,
    "working_memory": _Event.KIND_WORKING_MEMORY,
    "merge": _Event.KIND_MERGE,
    "choice": _Event.KIND_CHOICE,
    "understanding": _Event.KIND_UNDERSTANDING,
    "piece": _Event.KIND_PIECE,
    "aggregation": _Event.KIND_AGGREGATION,
    "shaping": _Event.KIND_SHAPING,
    "end": _Event.KIND_END,
}
_EVENT_ACTIONS: dict[EventAction, Any] = {
    "enter": _Event.ACTION_ENTER,
    "revert": _Event.ACTION_REVERT,
    "answer": _Event.ACTION_ANSWER,
    "append": _Event.ACTION_APPEND,
    "merge": _Event.ACTION_MERGE,
    "move": _Event.ACTION_MOVE,
    "retrieve": _Event.ACTION_RETRIEVE,
    "aggregate": _Event.ACTION_AGGREGATE,
    "invalid": _Event.ACTION_INVALID,
    "none": _Event.ACTION_NONE,
}
_LOSS_KINDS: dict[int, LossKind] = {
    reading_pb2.Loss.KIND_NO_ROOM: "no_room",
    reading_pb2.Loss.KIND_INVALID: "invalid",
}
_VERDICTS = {
    None: answers_pb2.Rating.VERDICT_UNSPECIFIED,
    True: answers_pb2.Rating.VERDICT_GOOD,
    False: answers_pb2.Rating.VERDICT_BAD,
}


def question_of(asked: str | Question, others: Mapping[str, Any]) -> Question:
    """Returns a question with what is said besides. Raises TypeError for an unknown name."""
    question = Question(query=asked) if isinstance(asked, str) else asked
    return replace(question, **others)


def request_of(session: str, question: Question) -> answers_pb2.AskRequest:
    """The question as it is sent. Raises ValueError or TypeError for what cannot be sent."""
    if question.reader not in _READERS:
        raise ValueError(f"reader must be one of {_listed(_READERS)}")
    return message_of(
        answers_pb2.AskRequest,
        session=session,
        memory=question.memory,
        query=question.query,
        consistency=consistency(question.after, question.fully_applied),
        navigation=navigation(
            question.hybrid_leaves,
            question.beam,
            question.max_calls,
            question.navigate,
        ),
        reader=_READERS[question.reader],
        browsing=None if question.browsing is None else browsing(question.browsing),
        response_schema=response_schema(question.response_schema),
        stream_text=question.stream,
        model=question.model,
        options=options(question.options),
        unattended=question.unattended,
    )


def browsing(settings: BrowseSettings) -> answers_pb2.BrowseRequest:
    """How a log is to be browsed. Raises ValueError for what cannot be sent."""
    actions = settings.actions
    if isinstance(actions, str):
        raise ValueError("actions must be a list of actions, not one text")
    if settings.option not in _OPTIONS:
        raise ValueError(f"option must be one of {_listed(_OPTIONS)}")
    if settings.order not in _ORDERS:
        raise ValueError(f"order must be one of {_listed(_ORDERS)}")
    if not set(actions) <= set(_ACTIONS):
        raise ValueError(f"actions must be of {_listed(_ACTIONS)}")
    return message_of(
        answers_pb2.BrowseRequest,
        option=_OPTIONS[settings.option],
        actions=[_ACTIONS[one] for one in actions],
        order=_ORDERS[settings.order],
        window_tokens=settings.window_tokens,
        pieces=settings.pieces,
        max_calls=settings.max_calls,
        rerank=settings.rerank,
    )


def response_schema(schema: Schema | None) -> str:
    """The JSON Schema as a text; empty without one. Raises TypeError or ValueError."""
    if schema is None:
        return ""
    if isinstance(schema, str):
        if not schema.strip():
            # Sent as nothing it would ask for nothing.
            raise ValueError("response_schema is empty")
        return schema
    return schema_fields(schema)["json_schema"]


def options(given: Sequence[str]) -> Sequence[str]:
    """The options of a question. Raises ValueError for what cannot be sent."""
    if isinstance(given, str):
        raise ValueError("options must be a list of texts, not one text")
    return given


def navigation(
    hybrid_leaves: int,
    beam: int,
    max_calls: int,
    navigate: bool = False,
) -> answers_pb2.NavigationRequest | None:
    """How a memory is to be navigated; None when the caller does not say.

    Raises ValueError for what cannot be sent.
    """
    if not (navigate or hybrid_leaves or beam or max_calls):
        return None
    return message_of(
        answers_pb2.NavigationRequest,
        hybrid_leaves=hybrid_leaves,
        beam=beam,
        max_calls=max_calls,
    )


def consistency(after: str, fully_applied: bool) -> reading_pb2.ReadConsistency | None:
    """How fresh what is read must be; None when the caller does not say."""
    if fully_applied:
        return reading_pb2.ReadConsistency(fully_applied=True)
    return reading_pb2.ReadConsistency(at_least=after) if after else None


def _listed(names: Iterable[str | None]) -> str:
    return ", ".join(name for name in names if name is not None)


def rate_request(
    session: str, answer_id: str, *, good: bool, comment: str, expected: str
) -> answers_pb2.RateAnswerRequest:
    """Returns the request of a rating."""
    rated = answers_pb2.Rating(verdict=_VERDICTS[good], comment=comment, expected=expected)
    return answers_pb2.RateAnswerRequest(session=session, answer_id=answer_id, rating=rated)


def answers_request(
    session: str, memory: str, status: AnswerStatus | None
) -> answers_pb2.ListAnswersRequest:
    """Returns the request of a list. Raises ValueError for an unknown status."""
    if status is not None and status not in _STATUSES:
        raise ValueError(f"status must be one of {', '.join(_STATUSES)}")
    return answers_pb2.ListAnswersRequest(
        session=session,
        memory=memory,
        status=_STATUSES[status] if status else answers_pb2.Answer.STATUS_UNSPECIFIED,
        page_size=1000,
    )


def export_request(
    session: str, memory: str, answer_ids: Iterable[str], good: bool | None
) -> trajectories_pb2.ExportTrajectoriesRequest:
    """Returns the request of an export of training examples."""
    return trajectories_pb2.ExportTrajectoriesRequest(
        session=session, memory=memory, answer_ids=list(answer_ids), verdict=_VERDICTS[good]
    )


def answer(message: answers_pb2.Answer) -> Answer:
    """Returns a stored answer."""
    no_answer = known_name(_NO_ANSWERS, message.no_answer) if message.no_answer else None
    return value_of(
        Answer,
        message,
        status=known_name(_STATUSES, message.status),
        citations=tuple(value_of(Citation, one) for one in message.citations),
        usage=usage(message.usage),
        created_at=moment(message.create_time),
        no_answer=no_answer,
        statistics=if_set(message, "statistics", navigation_statistics),
        reader=known_name(_READERS, message.reader) if message.reader else None,
        choice=if_set(message, "choice", _choice),
        value=json.loads(message.value_json) if message.value_json else None,
        has_value=bool(message.value_json),
        rating=if_set(message, "rating", rating),
        losses=losses(message.losses),
        left_out=if_set(message, "left_out", lambda one: (one.from_position, one.to_position)),
    )


def _choice(message: answers_pb2.Answer.Choice) -> Choice:
    return value_of(
        Choice,
        message,
        reader=known_name(_READERS, message.reader),
        option=known_name(_OPTIONS, message.option) if message.option else None,
    )


def rating(message: answers_pb2.Rating) -> Rating:
    """Returns what a user thinks of an answer."""
    good = message.verdict == answers_pb2.Rating.VERDICT_GOOD
    return value_of(Rating, message, good=good, rated_at=moment(message.rate_time))


def navigation_statistics(message: answers_pb2.NavigationStatistics) -> NavigationStatistics:
    """Returns the counts of navigations."""
    return value_of(NavigationStatistics, message)


def progress(response: answers_pb2.AskResponse) -> AskEvent | Answer | None:
    """Returns what a response says: an event, the answer, or None for what is newer."""
    match response.WhichOneof("event"):
        case "waiting":
            return value_of(Waiting, response.waiting)
        case "reading":
            return value_of(Reading, response.reading)
        case "trajectory_event":
            return event(response.trajectory_event)
        case "text":
            return value_of(TextPiece, response.text)
        case "answer":
            return answer(response.answer)
    return None


def event(message: answers_pb2.TrajectoryEvent) -> TrajectoryEvent:
    """Returns an event of a trajectory."""
    return value_of(
        TrajectoryEvent,
        message,
        kind=known_name(_EVENT_KINDS, message.kind),
        action=known_name(_EVENT_ACTIONS, message.action),
    )


def training_example(message: trajectories_pb2.ExportTrajectoriesResponse) -> TrainingExample:
    """Returns a move of a navigation or a browsing, to train a model with."""
    return value_of(
        TrainingExample,
        message,
        turns=tuple(value_of(Turn, one) for one in message.turns),
        rating=if_set(message, "rating", rating),
    )


def losses(messages: Iterable[Any]) -> tuple[Loss, ...]:
    """Returns what a memory lost."""
    return tuple(value_of(Loss, one, kind=_LOSS_KINDS.get(one.kind, "")) for one in messages)
