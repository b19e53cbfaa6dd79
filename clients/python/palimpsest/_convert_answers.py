"""Questions, answers and trajectories, to and from the proto's messages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palimpsest._convert import consistency, message_of, numbers_of, value_of
from palimpsest._schemas import Schema, schema_fields
from palimpsest._spend import Usage
from palimpsest._values_answers import (
    Answer,
    AskEvent,
    BrowseAction,
    BrowseOrder,
    BrowseSettings,
    BrowseStrategy,
    Question,
    Rating,
    Reader,
    Reading,
    TextPiece,
    TrainingExample,
    TrajectoryEvent,
    Waiting,
)
from palimpsest.v1 import answer_service_pb2, chunks_pb2, common_pb2

_Browse = answer_service_pb2.BrowsingOptions

_READERS: dict[Reader | None, Any] = {None: 0, **numbers_of(answer_service_pb2.Reader, "READER_")}
_STRATEGIES: dict[BrowseStrategy, Any] = numbers_of(_Browse.Strategy, "STRATEGY_", "auto")
_ACTIONS: dict[BrowseAction, Any] = numbers_of(_Browse.Action, "ACTION_")
_ORDERS: dict[BrowseOrder, Any] = numbers_of(_Browse.Order, "ORDER_", "auto")


#: How an answer is rated, by whether it is good; None: it is not.
VERDICTS = {
    None: answer_service_pb2.Rating.VERDICT_UNSPECIFIED,
    True: answer_service_pb2.Rating.VERDICT_GOOD,
    False: answer_service_pb2.Rating.VERDICT_BAD,
}


def question_of(asked: str | Question, others: Mapping[str, Any]) -> Question:
    """Returns a question with `others`. Raises TypeError for an unknown name or type."""
    question = Question(query=asked) if isinstance(asked, str) else asked
    if not isinstance(question, Question):
        raise TypeError(f"a question is a text or a palimpsest.Question, not {asked!r}")
    return replace(question, **others)


def request_of(session: str, question: Question) -> answer_service_pb2.AskRequest:
    """The question as it is sent. Raises ValueError or TypeError for what cannot be sent."""
    if question.reader not in _READERS:
        raise ValueError(f"reader must be one of {_listed(_READERS)}")
    return message_of(
        answer_service_pb2.AskRequest,
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
        filter=_filter(question),
        browsing=None if question.browsing is None else browsing(question.browsing),
        response_schema=response_schema(question.response_schema),
        stream_text=question.stream,
        model=question.model,
        options=options(question.options),
        unattended=question.unattended,
    )


def _filter(question: Question) -> chunks_pb2.ChunkFilter | None:
    """Returns which chunks may be cited; None: all. Raises ValueError for one text as a list."""
    ids = {name: getattr(question, name) for name in ("threads", "excluded_threads", "sources")}
    for name, given in ids.items():
        if isinstance(given, str):
            raise ValueError(f"{name} must be a list of texts, not one text")
    times = question.occurred_since, question.occurred_until
    if not any(ids.values()) and times == (None, None) and not question.metadata:
        return None
    message = message_of(chunks_pb2.ChunkFilter, **ids, metadata=question.metadata or {})
    if times[0] is not None:
        message.occurred.start.FromDatetime(times[0])
    if times[1] is not None:
        message.occurred.end.FromDatetime(times[1])
    return message


def browsing(settings: BrowseSettings) -> answer_service_pb2.BrowsingOptions:
    """How a log is to be browsed. Raises ValueError for what cannot be sent."""
    actions = settings.actions
    if isinstance(actions, str):
        raise ValueError("actions must be a list of actions, not one text")
    if settings.strategy not in _STRATEGIES:
        raise ValueError(f"strategy must be one of {_listed(_STRATEGIES)}")
    if settings.order not in _ORDERS:
        raise ValueError(f"order must be one of {_listed(_ORDERS)}")
    if not set(actions) <= set(_ACTIONS):
        raise ValueError(f"actions must be of {_listed(_ACTIONS)}")
    return message_of(
        answer_service_pb2.BrowsingOptions,
        strategy=_STRATEGIES[settings.strategy],
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
) -> answer_service_pb2.NavigationOptions | None:
    """How a memory is to be navigated; None when the caller does not say.

    Raises ValueError for what cannot be sent.
    """
    if not (navigate or hybrid_leaves or beam or max_calls):
        return None
    return message_of(
        answer_service_pb2.NavigationOptions,
        hybrid_leaves=hybrid_leaves,
        beam=beam,
        max_calls=max_calls,
    )


def _listed(names: Iterable[str | None]) -> str:
    return ", ".join(name for name in names if name is not None)


def answer(message: answer_service_pb2.Answer) -> Answer:
    """Returns a stored answer."""
    return value_of(
        Answer,
        message,
        usage=_usage(message.usage),
        has_value=bool(message.value_json),
        rating=_rating(message),
    )


def _usage(message: common_pb2.Usage) -> Usage:
    reported = message.calls > message.unreported_calls
    priced = message.calls > message.unpriced_calls
    return value_of(
        Usage,
        message,
        reported_cached_tokens=message.reported_cached_tokens if reported else None,
        cost_micro_usd=message.cost_micro_usd if priced else None,
    )


def _rating(rated: answer_service_pb2.Answer | answer_service_pb2.TrainingExample) -> Rating | None:
    """Returns what a user thinks of an answer; None where it is not rated."""
    if not rated.HasField("rating"):
        return None
    good = rated.rating.verdict == answer_service_pb2.Rating.VERDICT_GOOD
    return value_of(Rating, rated.rating, good=good)


@dataclass(slots=True)
class AnswerProgress:
    """How much of an answer was received."""

    #: Empty until the answer is begun.
    answer_id: str = ""
    #: Ordinals of the last event and the last piece of text.
    event: int = 0
    piece: int = 0

    def resume_request(self, session: str) -> answer_service_pb2.ResumeAnswerRequest:
        """Returns the request of what was not received."""
        return answer_service_pb2.ResumeAnswerRequest(
            session=session,
            answer=self.answer_id,
            after_event=self.event,
            after_text=self.piece,
        )

    def new_event(self, response: answer_service_pb2.AskEvent) -> AskEvent | Answer | None:
        """Returns the event or the answer; None for one that is known, or of a newer service."""
        match response.WhichOneof("event"):
            case "waiting":
                return value_of(Waiting, response.waiting)
            case "reading" if not self.answer_id:
                self.answer_id = response.reading.answer
                return value_of(Reading, response.reading)
            case "trajectory_event" if response.trajectory_event.ordinal > self.event:
                self.event = response.trajectory_event.ordinal
                return value_of(TrajectoryEvent, response.trajectory_event)
            case "text" if response.text.ordinal > self.piece:
                self.piece = response.text.ordinal
                return value_of(TextPiece, response.text)
            case "answer":
                return answer(response.answer)
        return None


def training_example(message: answer_service_pb2.TrainingExample) -> TrainingExample:
    """Returns a move of a navigation or a browsing, to train a model with."""
    return value_of(TrainingExample, message, rating=_rating(message))
