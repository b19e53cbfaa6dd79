"""Between the proto's messages and our values."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest.v1alpha1 import (
    answers_pb2,
    log_pb2,
    memories_pb2,
    reading_pb2,
)
from service.domain.log.chunks import ChunkKind, LoggedChunk
from service.domain.prism.losses import Loss, LossKind, losses_of
from service.domain.prism.spec import PrismSpec
from service.domain.state.spec import StateSpec
from service.domain.tree.spec import TreeSpec
from service.rpc import browse, navigations, specs
from service.usecases.answers.ask import AskDone
from service.usecases.memories.consistency import Consistency
from storage.answers.answers import Chosen, Heading, StoredCitation
from storage.answers.ratings import StoredRating
from storage.calls.calls import UsageLine
from storage.memories.memories import StoredMemory

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_SECONDS = 86_400


def timestamp(at: datetime) -> Timestamp:
    """A time as the proto has it."""
    message = Timestamp()
    _write_timestamp(at, message)
    return message


def _write_timestamp(at: datetime, message: Timestamp) -> None:
    # What FromDatetime does, in a fifth of its time.
    since = at - _EPOCH
    message.seconds = since.days * _DAY_SECONDS + since.seconds
    message.nanos = since.microseconds * 1000


def logged_chunk(logged: LoggedChunk) -> log_pb2.LoggedChunk:
    """A chunk of the log."""
    message = log_pb2.LoggedChunk()
    write_logged_chunk(logged, message)
    return message


def write_logged_chunk(logged: LoggedChunk, message: log_pb2.LoggedChunk) -> None:
    """A chunk of the log, into a message that has nothing yet."""
    message.position = logged.position
    message.producer_id = logged.producer_id
    message.producer_sequence = logged.producer_sequence
    _write_timestamp(logged.created_at, message.create_time)
    chunk, content = logged.chunk, message.chunk
    if chunk.metadata:
        content.metadata.update(chunk.metadata)
    if chunk.has_heading():
        content.thread = chunk.thread
        content.source = chunk.source
        if chunk.occurred_at is not None:
            _write_timestamp(chunk.occurred_at, content.occurred_at)
    if chunk.kind is ChunkKind.STEP:
        step = content.step
        step.observation = chunk.observation
        step.thought = chunk.thought
        step.action = chunk.action
        if chunk.observed_first is not None:
            step.observed_first = chunk.observed_first
    elif chunk.kind is ChunkKind.MESSAGE:
        content.message.role = chunk.role
        content.message.text = chunk.text
    else:
        content.text = chunk.text


_MEMORY_STATUS = {
    "active": memories_pb2.Memory.STATUS_ACTIVE,
    "stalled": memories_pb2.Memory.STATUS_STALLED,
    "sealed": memories_pb2.Memory.STATUS_SEALED,
}


def memory(stored: StoredMemory) -> memories_pb2.Memory:
    """A memory's row."""
    message = memories_pb2.Memory(
        session=stored.session_name,
        name=stored.name,
        prism=specs.prism_message(stored.spec) if isinstance(stored.spec, PrismSpec) else None,
        tree=specs.tree_message(stored.spec) if isinstance(stored.spec, TreeSpec) else None,
        state=specs.state_message(stored.spec) if isinstance(stored.spec, StateSpec) else None,
        revision=stored.revision,
        applied_position=stored.applied_position,
        head=stored.head,
        status=_MEMORY_STATUS[stored.status],
        create_time=timestamp(stored.created_at),
        rebuilt_from=stored.rebuilt_from or "",
        consolidate_position=stored.consolidate_position,
        held_reason=stored.held_reason,
        seal_position=stored.seal_position,
        resting=stored.is_idle and isinstance(stored.spec, StateSpec),
        waiting_cause=stored.waiting_cause,
        losses=[_loss(one) for one in losses_of(stored.losses)],
    )
    if stored.stall is not None:
        message.stall.position = stored.stall.position
        message.stall.cause = stored.stall.cause
        message.stall.attempts = stored.stall.attempts
        message.stall.time.FromDatetime(stored.stall.created_at)
    return message


def memory_status(message: memories_pb2.Memory.Status.ValueType) -> str | None:
    """Returns a status as storage has it; None for any."""
    return next((name for name, one in _MEMORY_STATUS.items() if one == message), None)


_LOSS_KINDS = {
    LossKind.NO_ROOM: reading_pb2.Loss.KIND_NO_ROOM,
    LossKind.INVALID: reading_pb2.Loss.KIND_INVALID,
}


def _loss(one: Loss) -> reading_pb2.Loss:
    return reading_pb2.Loss(
        kind=_LOSS_KINDS[one.kind],
        count=one.count,
        steps=one.steps,
        since_position=one.since_position,
        message=one.sentence(),
    )


def consistency(message: reading_pb2.ReadConsistency) -> Consistency:
    """How fresh a read must be."""
    kind = message.WhichOneof("kind")
    if kind == "at_least":
        return Consistency(at_least=message.at_least)
    return Consistency(fully_applied=kind == "fully_applied")


_ANSWER_STATUS = {
    "pending": answers_pb2.Answer.STATUS_PENDING,
    "complete": answers_pb2.Answer.STATUS_COMPLETE,
    "failed": answers_pb2.Answer.STATUS_FAILED,
    "cancelled": answers_pb2.Answer.STATUS_CANCELLED,
    "abandoned": answers_pb2.Answer.STATUS_ABANDONED,
}
_STATUS_NAMES = {message: name for name, message in _ANSWER_STATUS.items()}


def answer(answered: AskDone) -> answers_pb2.Answer:
    """A stored answer."""
    stored = answered.answer
    return answers_pb2.Answer(
        answer_id=str(stored.answer_id),
        session=stored.session_name,
        memory=stored.memory_name,
        query=stored.query,
        status=_ANSWER_STATUS[stored.status],
        text=stored.text,
        citations=[_citation(cited, stored.headings) for cited in stored.citations],
        revision=stored.revision,
        applied_position=stored.applied_position,
        model=stored.model,
        failure=stored.failure,
        usage=usage(answered.usage),
        create_time=timestamp(stored.created_at),
        no_answer=navigations.NO_ANSWER[stored.no_answer],
        statistics=navigations.of_answer(stored),
        reader=browse.READER_MESSAGES[stored.reader],
        choice=None if stored.chosen is None else _choice(stored.chosen),
        rating=None if stored.rating is None else rating(stored.rating),
        value_json=json.dumps(stored.value, ensure_ascii=False) if stored.has_value else "",
        losses=[_loss(one) for one in losses_of(stored.losses)],
        guessed=stored.guessed,
        truncated=stored.truncated,
        left_out=None if stored.left_out is None else _range(*stored.left_out),
    )


def _citation(cited: StoredCitation, headings: Mapping[int, Heading]) -> answers_pb2.Citation:
    message = answers_pb2.Citation(
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
    heading = headings.get(cited.position)
    if heading is not None:
        message.thread = heading.thread
        message.source = heading.source
        if heading.occurred_at is not None:
            _write_timestamp(heading.occurred_at, message.occurred_at)
    return message


def _range(first: int, last: int) -> answers_pb2.Answer.Range:
    return answers_pb2.Answer.Range(from_position=first, to_position=last)


def rating(stored: StoredRating) -> answers_pb2.Rating:
    """What somebody thinks of an answer."""
    verdict = answers_pb2.Rating.VERDICT_GOOD if stored.good else answers_pb2.Rating.VERDICT_BAD
    return answers_pb2.Rating(
        verdict=verdict,
        comment=stored.comment,
        expected=stored.expected,
        rate_time=timestamp(stored.rated_at),
    )


def answer_status(message: answers_pb2.Answer.Status.ValueType) -> str | None:
    """How far answers are to be; None: it does not matter."""
    return _STATUS_NAMES.get(message)


def _choice(chosen: Chosen) -> answers_pb2.Answer.Choice:
    option = None if chosen.browsing is None else chosen.browsing.option
    return answers_pb2.Answer.Choice(
        reader=browse.READER_MESSAGES[chosen.reader],
        memory=chosen.memory_name,
        option=browse.OPTION_MESSAGES[option],
        reason=chosen.reason,
        expected_tokens=chosen.expected_tokens,
    )


def usage(lines: Iterable[UsageLine]) -> reading_pb2.Usage:
    """Calls, summed; what nobody reported stays unset."""
    total = reading_pb2.Usage()
    for line in lines:
        total.calls += line.calls
        total.input_tokens += line.input_tokens
        total.predicted_cached_tokens += line.predicted_cached_tokens
        total.output_tokens += line.output_tokens
        if line.reported_cached_tokens is not None:
            total.reported_cached_tokens += line.reported_cached_tokens
        if line.cost_micro_usd is not None:
            total.cost_micro_usd += line.cost_micro_usd
    return total


def uuid(text: str) -> UUID:
    """An id whose form the proto's rules have checked."""
    return UUID(text)
