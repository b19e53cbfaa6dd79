"""The working context: the vectors in use and the steps since, M + R (section 3.1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from service.domain.access.trust import Trust
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep, due
from service.domain.state.vectors import STEPS_LEVEL, State, StateVector, VectorSource
from service.domain.values.json_values import Json

#: What stands between two parts of the text, and above the recent steps.
_BREAK = "\n\n"
_RECENT = "Recent steps:"
#: A line before a recent step whose source is not verified.
UNVERIFIED = "(unverified source)\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkingContext:
    """What an agent reads before a step. Every chunk of the log is in it exactly once.

    After a rollback those that were compressed since the restored revision are not in it.
    """

    state: State
    #: All that is not compressed, in the order of the log: the positions after
    #: `state.applied_position`.
    recent: Sequence[SizedStep]

    @property
    def head(self) -> int:
        """The last position that is in it."""
        return self.recent[-1].position if self.recent else self.state.applied_position

    @property
    def memory_tokens(self) -> int:
        """Tokens of the vectors, as their models count."""
        return sum(vector.tokens for vector in self.state.stack)

    @property
    def recent_tokens(self) -> int:
        """Tokens of the recent steps, by `estimate_tokens`."""
        return sum(step.tokens for step in self.recent)

    @property
    def known(self) -> str:
        """The text of the vectors in use, as `triggers.due` takes it."""
        return "\n".join(vector.text for vector in self.state.stack)


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message for a chat model."""

    #: "system", "user", "assistant", or the role of a message chunk.
    role: str
    content: str


def is_due(
    spec: StateSpec,
    context: WorkingContext,
    *,
    flush_position: int = 0,
    now: datetime | None = None,
) -> bool:
    """Returns whether there is something to compress, steps or vectors; arguments as of `due`."""
    if context.state.levels.full_level(spec.episode_vectors) is not None:
        return True
    return (
        due(spec, context.known, context.recent, flush_position=flush_position, now=now) is not None
    )


def as_text(context: WorkingContext) -> str:
    """Returns all of it for a prompt: the vectors, then the recent steps, word for word.

    Another step only makes it longer at its end, until the next compression.
    """
    parts = _vectors(context)
    recent = [f"{_level(step)}{step.text}" for step in context.recent if step.logged.is_read]
    if recent:
        parts += (_RECENT, *recent)
    return _BREAK.join(parts)


def as_messages(context: WorkingContext) -> Sequence[Message]:
    """Returns all of it for a chat model: the vectors as one message, then the recent steps.

    Another step only adds messages, until the next compression.
    """
    messages: list[Message] = []
    vectors = _vectors(context)
    if vectors:
        messages.append(Message(role="system", content=_BREAK.join(vectors)))
    for step in context.recent:
        if step.logged.is_read:
            said = _said(step.logged.chunk)
            messages += (replace(one, content=_level(step) + one.content) for one in said)
    return messages


def as_value(context: WorkingContext) -> Json:
    """Returns all of it as a JSON value, which a read of the memory has."""
    vectors: list[Json] = [
        {
            "revision": vector.revision,
            "level": vector.level,
            "text": vector.text,
            "from_position": vector.from_position,
            "to_position": vector.to_position,
        }
        for vector in context.state.stack
    ]
    recent: list[Json] = [
        {"position": step.position, "text": step.text, **_trust(step)}
        for step in context.recent
        if step.logged.is_read
    ]
    return {"vectors": vectors, "recent": recent}


def by_level(state: State) -> Json:
    """Returns the vectors in use as a JSON value in which two states are compared."""
    levels: dict[str, Json] = {str(vector.level): vector.text for vector in state.stack}
    return {"levels": levels}


def _level(step: SizedStep) -> str:
    """Returns what is before the text of a source that is not verified; else nothing."""
    return "" if step.logged.trust is Trust.TRUSTED else UNVERIFIED


def _trust(step: SizedStep) -> dict[str, Json]:
    level = step.logged.trust
    return {} if level is Trust.TRUSTED else {"trust": level.value}


def _vectors(context: WorkingContext) -> list[str]:
    """Returns the vectors that say something, each below its heading."""
    return [f"{_heading(one)}\n{one.text}" for one in context.state.stack if one.text]


def _heading(vector: StateVector) -> str:
    if vector.made is VectorSource.TASK:
        return "Task:"
    return "Memory:" if vector.level == STEPS_LEVEL else f"Memory, level {vector.level}:"


def _said(chunk: Chunk) -> Iterator[Message]:
    """Yields a chunk's messages: what an agent did, then what it saw (algorithm 1, steps 3, 4).

    Of one that observed first the other way round.
    """
    if chunk.kind is ChunkKind.MESSAGE:
        yield Message(role=chunk.role, content=chunk.text)
    elif chunk.kind is ChunkKind.TEXT:
        yield Message(role="user", content=chunk.text)
    else:
        named = (("Thought", chunk.thought), ("Action", chunk.action))
        done = "\n".join(f"{name}: {part}" for name, part in named if part)
        seen = f"Observation: {chunk.observation}" if chunk.observation else ""
        parts = [Message(role="assistant", content=done), Message(role="user", content=seen)]
        if chunk.observed_first:
            parts.reverse()
        yield from (part for part in parts if part.content)
