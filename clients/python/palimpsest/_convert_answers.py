"""Questions, answers and trajectories, to and from the proto's messages."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from palimpsest._convert import consistency, message_of, value_of
from palimpsest._convert_chunks import chunk_filter
from palimpsest._schemas import Schema, schema_fields
from palimpsest._values_answers import (
    Answer,
    AskEvent,
    BrowseSettings,
    Question,
    Rating,
    Reading,
    TextPiece,
    TrainingExample,
    TrajectoryEvent,
    Waiting,
)
from palimpsest.v1 import answer_service_pb2, chunks_pb2


def verdict(good: bool | None) -> str | None:
    """Returns the verdict of a rating; None for None. Raises TypeError for what is no bool."""
    if good not in (None, True, False):
        raise TypeError(f"good must be True or False, not {good!r}")
    return None if good is None else "good" if good else "bad"


def question_of(asked: str | Question, others: Mapping[str, Any]) -> Question:
    """Returns a question with `others`. Raises TypeError for an unknown name or type."""
    question = Question(query=asked) if isinstance(asked, str) else asked
    if not isinstance(question, Question):
        raise TypeError(f"a question is a text or a palimpsest.Question, not {asked!r}")
    return replace(question, **others)


def request_of(session: str, question: Question) -> answer_service_pb2.AskRequest:
    """Returns the request of an answer. Raises ValueError or TypeError for what cannot be sent."""
    return message_of(
        answer_service_pb2.AskRequest,
        session=session,
        memory=question.memory,
        query=question.query,
        consistency=consistency(question.after, question.fully_applied),
        navigation=_navigation(question),
        reader=question.reader,
        filter=_filter(question),
        browsing=None if question.browsing is None else browsing(question.browsing),
        response_schema=response_schema(question.response_schema),
        stream_text=question.stream,
        model=question.model,
        options=question.options,
        unattended=question.unattended,
    )


def _filter(question: Question) -> chunks_pb2.ChunkFilter | None:
    """Returns which chunks may be cited; None: all."""
    labels = ("threads", "excluded_threads", "sources", "metadata", "min_trust")
    names = (*labels, "occurred_since", "occurred_until")
    wanted = chunk_filter(**{name: getattr(question, name) for name in names})
    return wanted if wanted.ByteSize() else None


def browsing(settings: BrowseSettings) -> answer_service_pb2.BrowsingOptions:
    """Returns how to browse a log. Raises ValueError for what cannot be sent."""
    given = {one.name: getattr(settings, one.name) for one in fields(settings)}
    return message_of(answer_service_pb2.BrowsingOptions, **given)


def response_schema(schema: Schema | None) -> str:
    """Returns the JSON Schema as a text; empty without one. Raises TypeError or ValueError."""
    if schema is None:
        return ""
    if isinstance(schema, str):
        if not schema.strip():
            # An empty one would ask for nothing.
            raise ValueError("response_schema is empty")
        return schema
    return schema_fields(schema)["json_schema"]


def _navigation(question: Question) -> answer_service_pb2.NavigationOptions | None:
    """Returns how to navigate a memory; None when the caller does not say."""
    given = {name: getattr(question, name) for name in ("hybrid_leaves", "beam", "max_calls")}
    if not (question.navigate or any(given.values())):
        return None
    return message_of(answer_service_pb2.NavigationOptions, **given)


def answer(message: answer_service_pb2.Answer) -> Answer:
    """Returns a stored answer."""
    return value_of(
        Answer,
        message,
        has_value=bool(message.value_json),
        rating=_rating(message),
    )


def _rating(rated: answer_service_pb2.Answer | answer_service_pb2.TrainingExample) -> Rating | None:
    """Returns what a user thinks of an answer; None where it is not rated."""
    if not rated.HasField("rating"):
        return None
    good = rated.rating.verdict == answer_service_pb2.Rating.VERDICT_GOOD
    return value_of(Rating, rated.rating, good=good)


@dataclass(slots=True)
class AnswerProgress:
    """How much of an answer has been received."""

    #: Empty until the answer is begun.
    answer_id: str = ""
    #: Ordinals of the last event and the last piece of text.
    event: int = 0
    piece: int = 0

    def resume_request(self, session: str) -> answer_service_pb2.ResumeAnswerRequest:
        """Returns the request of the rest."""
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
