"""Converts answers, their events and their trajectories to messages."""

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2

from palimpsest.v1 import answer_service_pb2, common_pb2
from service.domain.answers.answer_updates import TextPiece
from service.domain.answers.trajectory import Event, NoAnswer
from service.domain.log.read_tokens import ReadToken
from service.domain.prism.losses import losses_of
from service.domain.values.errors import PalimpsestError
from service.rpc.convert import common
from service.rpc.convert.memories import loss
from service.rpc.convert.questions import READER_MESSAGES, STRATEGY_MESSAGES
from service.rpc.errors import error_status
from service.usecases.answers.ask import AskDone, AskEvent, AskStarted, AskWaiting, failure_of
from service.usecases.answers.trajectories import TrainingExample
from service.usecases.log.database_words import unavailable
from storage.answers.answers import Chosen, StoredAnswer, StoredCitation
from storage.answers.headings import Heading
from storage.answers.ratings import StoredRating
from storage.answers.trajectories import NavigationTotals
from storage.engine.errors import StorageError

#: Levels of lists and objects of `Answer.value`. Each takes up to three of a message, and
#: clients read no message of more than 100.
VALUE_LEVELS = 24

_Rating = answer_service_pb2.Rating
_STATES = {
    "complete": common_pb2.OPERATION_STATE_DONE,
    "failed": common_pb2.OPERATION_STATE_FAILED,
    "cancelled": common_pb2.OPERATION_STATE_CANCELLED,
    "abandoned": common_pb2.OPERATION_STATE_ABANDONED,
}
#: The status that storage has, and whether a pending answer is running; None: either.
STATUS_OF: Mapping[common_pb2.OperationState.ValueType, tuple[str | None, bool | None]] = {
    common_pb2.OPERATION_STATE_UNSPECIFIED: (None, None),
    common_pb2.OPERATION_STATE_PENDING: ("pending", False),
    common_pb2.OPERATION_STATE_RUNNING: ("pending", True),
    **{state: (status, None) for status, state in _STATES.items()},
}
#: Why there is no answer, as the proto has it.
_NO_ANSWERS: dict[Any, Any] = {
    None: 0,
    **common.numbers_of(NoAnswer, answer_service_pb2.NoAnswer, "NO_ANSWER_"),
}
#: What a verdict means; None: none was given.
IS_GOOD = {
    _Rating.VERDICT_UNSPECIFIED: None,
    _Rating.VERDICT_GOOD: True,
    _Rating.VERDICT_BAD: False,
}


class AnswerMessages:
    """Converts answers and their events; read points have tokens signed with `token_key`."""

    def __init__(self, token_key: bytes) -> None:
        self._token_key = token_key

    def answer(self, answered: AskDone) -> answer_service_pb2.Answer:
        """Returns a stored answer."""
        stored = answered.answer
        message = answer_service_pb2.Answer(
            id=str(stored.answer_id),
            session=stored.session_name,
            memory=stored.memory_name,
            query=stored.query,
            state=_state(stored),
            text=stored.text,
            citations=[_citation(cited, stored.headings) for cited in stored.citations],
            no_answer=_NO_ANSWERS[stored.no_answer],
            guessed=stored.guessed,
            truncated=stored.truncated,
            read_point=self._read_point(stored),
            reader=READER_MESSAGES[stored.reader],
            choice=None if stored.chosen is None else _choice(stored.chosen),
            model=stored.model,
            usage=common.usage(answered.usage),
            statistics=_statistics_of(stored),
            left_out=None if stored.left_out is None else common.positions(*stored.left_out),
            losses=[loss(one) for one in losses_of(stored.losses)],
            rating=None if stored.rating is None else rating(stored.rating),
            created_at=common.timestamp(stored.created_at),
        )
        if stored.status == "failed":
            message.error.CopyFrom(error_status(failure_of(stored)))
        else:
            message.cause = stored.failure
        if stored.has_value:
            message.value_json = json.dumps(stored.value, ensure_ascii=False)
            if _levels_fit(stored.value, VALUE_LEVELS):
                message.value.CopyFrom(json_format.ParseDict(stored.value, struct_pb2.Value()))
        return message

    def event(self, event: AskEvent, index: int = 0) -> answer_service_pb2.AskEvent:
        """Returns an event of a question."""
        message = answer_service_pb2.AskEvent(index=index)
        match event:
            case AskWaiting():
                message.waiting.applied_position = event.applied_position
                message.waiting.position = event.wanted_position
            case AskStarted():
                message.reading.answer = str(event.answer_id)
                message.reading.read_point.CopyFrom(self._read_point(event))
            case Event():
                message.trajectory_event.CopyFrom(trajectory_event(event))
            case TextPiece():
                message.text.ordinal = event.ordinal
                message.text.text = event.text
                message.text.restarts = event.restarts
            case AskDone():
                message.answer.CopyFrom(self.answer(event))
        return message

    def event_or_error(
        self, event: AskEvent | PalimpsestError | StorageError, index: int
    ) -> answer_service_pb2.AskEvent:
        """Returns an event of one of several questions, or why it failed."""
        if isinstance(event, StorageError):
            event = unavailable(event)
        if isinstance(event, PalimpsestError):
            return answer_service_pb2.AskEvent(index=index, error=error_status(event))
        return self.event(event, index)

    def _read_point(self, read: StoredAnswer | AskStarted) -> common_pb2.ReadPoint:
        token = ReadToken(
            session_key=read.session_key,
            incarnation=read.incarnation,
            position=read.applied_position,
        )
        return common.read_point(read.revision, read.applied_position, token.sign(self._token_key))


def _state(stored: StoredAnswer) -> common_pb2.OperationState.ValueType:
    if stored.status == "pending":
        running = common_pb2.OPERATION_STATE_RUNNING
        return running if stored.is_running else common_pb2.OPERATION_STATE_PENDING
    return _STATES[stored.status]


def _levels_fit(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_levels_fit(one, levels - 1) for one in parts)


def _citation(
    cited: StoredCitation, headings: Mapping[int, Heading]
) -> answer_service_pb2.Citation:
    message = answer_service_pb2.Citation(
        position=cited.position,
        characters=common.characters(cited.from_character, cited.to_character),
        excerpt=cited.excerpt,
        path=cited.path,
        revision=cited.revision,
        node=cited.node_id,
        positions=common.positions(cited.from_position, cited.to_position),
    )
    heading = headings.get(cited.position)
    if heading is not None:
        message.thread = heading.thread
        message.source = heading.source
        if heading.occurred_at is not None:
            common.write_timestamp(heading.occurred_at, message.occurred_at)
        message.trust = common.trust_number(heading.trust)
    return message


def _choice(chosen: Chosen) -> answer_service_pb2.Answer.Choice:
    strategy = None if chosen.browsing is None else chosen.browsing.option
    return answer_service_pb2.Answer.Choice(
        reader=READER_MESSAGES[chosen.reader],
        memory=chosen.memory_name,
        strategy=STRATEGY_MESSAGES[strategy],
        reason=chosen.reason,
        expected_tokens=chosen.expected_tokens,
    )


def rating(stored: StoredRating) -> answer_service_pb2.Rating:
    """Returns a client's opinion of an answer."""
    return answer_service_pb2.Rating(
        verdict=_Rating.VERDICT_GOOD if stored.good else _Rating.VERDICT_BAD,
        comment=stored.comment,
        expected=stored.expected,
        created_at=common.timestamp(stored.rated_at),
    )


def training_example(example: TrainingExample) -> answer_service_pb2.TrainingExample:
    """Returns a move of a reader, to train a model with."""
    return answer_service_pb2.TrainingExample(
        answer=str(example.answer_id),
        ordinal=example.ordinal,
        template=example.template,
        messages=[
            common_pb2.ChatMessage(role="user", content=example.prompt),
            common_pb2.ChatMessage(role="assistant", content=example.reply),
        ],
        rating=None if example.rating is None else rating(example.rating),
    )


def trajectory_event(told: Event) -> answer_service_pb2.TrajectoryEvent:
    """Returns an event, without what the model replied."""
    return common.message_of(
        answer_service_pb2.TrajectoryEvent,
        told,
        node=told.node_id,
        positions=common.positions(told.from_position, told.to_position),
    )


def _statistics_of(stored: StoredAnswer) -> answer_service_pb2.NavigationStatistics | None:
    """Returns the sums of a navigation; None of other readers, and until it is done."""
    if stored.statistics is None:
        return None
    answered = stored.no_answer is None and not stored.guessed
    return statistics(
        NavigationTotals.of_one(stored.statistics, answered=answered, guessed=stored.guessed)
    )


def statistics(summed: NavigationTotals) -> answer_service_pb2.NavigationStatistics:
    """Returns the sums of navigations."""
    return common.message_of(
        answer_service_pb2.NavigationStatistics,
        summed.statistics,
        navigations=summed.navigations,
        answered=summed.answered,
        guessed=summed.guessed,
        stray=summed.stray,
        stray_answered=summed.stray_answered,
    )
