"""Asking models about a PRISM memory: what they are shown, as flows.

`revise` and `answer` are the two model calls of the paper's algorithm 1 as flows;
`consolidate` is a third, for a memory that has grown too long.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.chunks import LoggedChunk
from service.domain.flows import Flow, ModelAsk, Purpose, Segment, SegmentKind
from service.domain.json_values import Json
from service.domain.paths import Path, PathError
from service.domain.prism import prompts
from service.domain.prism.amending import MISSING, settle, value_at
from service.domain.prism.amendments import Amendment, Rejection, Revision
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import CONSOLIDATION_OUTPUT_TOKENS, STEP_OUTPUT_TOKENS
from service.domain.prism.replies import read_answer, told_answer
from service.domain.prism.revisions import parse_consolidation, parse_reply
from service.domain.prism.rules import Rules
from service.domain.prism.spec import PrismSpec
from service.domain.prism.structured import reply_schema
from service.domain.schemas.tree import Mismatch, Schema

#: Tokens that a reply may have.
ANSWER_OUTPUT_TOKENS = 1024
#: Paths that an answer may rest on.
MAX_ANSWER_PATHS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviseContent:
    """What a revision's prompt says, as values."""

    schema: Schema
    task: str
    question: str
    value: Json
    #: Position and text of each chunk.
    chunks: tuple[tuple[int, str], ...]
    #: What is in the memory may not be changed.
    add_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsolidateContent:
    """What a consolidation's prompt says, as values."""

    schema: Schema
    task: str
    question: str
    value: Json
    #: The memory should have at most this many; 1 or more.
    budget_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerContent:
    """What an answer's prompt says, as values."""

    query: str
    task: str
    question: str
    schema: Schema
    value: Json


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerDraft:
    """An answer and the places of the memory that it rests on."""

    text: str
    #: Places that exist in the memory, most important first.
    paths: tuple[Path, ...]


def task_text(spec: PrismSpec, rules: Rules, *, structured: bool) -> str:
    """The part of a revision's prompt that never changes within a memory."""
    return prompts.revise_task(
        rules,
        structured=structured,
        task=spec.task,
        question=spec.question,
        schema=spec.shown_schema(),
    )


def revise_in_parts(
    spec: PrismSpec,
    memory: PrismMemory,
    parts: Sequence[Sequence[LoggedChunk]],
    *,
    number: int,
    marker_key: bytes,
    rules: Rules,
    structured: bool,
    output_tokens: int,
) -> Flow[Revision]:
    """A step whose text is too long for one prompt: a model call for each part, in order.

    Each part is read with what the parts before it brought. Together they are revision
    `number`.
    """
    amendments: list[Amendment] = []
    rejections: list[Rejection] = []
    for part in parts:
        made = yield from revise(
            spec,
            memory,
            part,
            marker_key=marker_key,
            rules=rules,
            structured=structured,
            output_tokens=output_tokens,
        )
        memory = memory.apply(number, made.amendments)
        amendments += made.amendments
        rejections += made.rejections
    return Revision(amendments=tuple(amendments), rejections=tuple(rejections))


def revise(
    spec: PrismSpec,
    memory: PrismMemory,
    chunks: Sequence[LoggedChunk],
    *,
    marker_key: bytes,
    rules: Rules,
    structured: bool = False,
    output_tokens: int = STEP_OUTPUT_TOKENS,
) -> Flow[Revision]:
    """One step: what the chunks change in the memory (algorithm 1, line 3).

    `structured` asks for a JSON reply by a schema. A reply that cannot be read is a
    revision without amendments.
    """
    texts = [logged.chunk.as_text() for logged in chunks]
    task = task_text(spec, rules, structured=structured)
    text = prompts.text_segment(texts, marker_key)
    ask = ModelAsk(
        purpose=Purpose.REVISE,
        template=prompts.REVISE_JSON if structured else prompts.REVISE,
        segments=(
            Segment(kind=SegmentKind.TASK, text=task),
            *memory.segments(),
            Segment(kind=SegmentKind.CHUNK, text=text, reusable=False),
        ),
        content=ReviseContent(
            schema=memory.schema,
            task=spec.task,
            question=spec.question,
            value=memory.value,
            chunks=tuple(
                (logged.position, text) for logged, text in zip(chunks, texts, strict=True)
            ),
            add_only=rules.add_only,
        ),
        max_output_tokens=output_tokens,
        reply_schema=reply_schema(memory.schema, rules) if structured else None,
    )
    (reply,) = yield [ask]
    return parse_reply(reply.text, memory.schema, memory.value, rules)


def consolidate(
    spec: PrismSpec,
    memory: PrismMemory,
    *,
    marker_key: bytes,
    rules: Rules,
    structured: bool = False,
    budget_tokens: int,
    output_tokens: int = CONSOLIDATION_OUTPUT_TOKENS,
) -> Flow[Revision]:
    """The same memory in fewer words: updates and removals, no additions.

    `budget_tokens` is what the memory should have at most; the model is told, and
    nothing enforces it. Of `rules`, `add_only` and `may_remove` do not count. A reply
    that cannot be read is a revision without amendments.
    """
    task = prompts.consolidate_task(
        structured=structured,
        task=spec.task,
        question=spec.question,
        schema=spec.shown_schema(),
    )
    whole = prompts.whole_memory_segment(memory.value_json, marker_key)
    size = prompts.size_segment(memory.live_tokens, budget_tokens)
    ask = ModelAsk(
        purpose=Purpose.CONSOLIDATE,
        template=prompts.CONSOLIDATE_JSON if structured else prompts.CONSOLIDATE,
        segments=(
            Segment(kind=SegmentKind.TASK, text=task),
            Segment(kind=SegmentKind.BASE, text=whole, reusable=False),
            Segment(kind=SegmentKind.QUERY, text=size, reusable=False),
        ),
        content=ConsolidateContent(
            schema=memory.schema,
            task=spec.task,
            question=spec.question,
            value=memory.value,
            budget_tokens=budget_tokens,
        ),
        max_output_tokens=output_tokens,
        reply_schema=reply_schema(memory.schema, rules, may_add=False) if structured else None,
    )
    (reply,) = yield [ask]
    return parse_consolidation(reply.text, memory.schema, memory.value, rules)


def answer(
    spec: PrismSpec, memory: PrismMemory, query: str, *, marker_key: bytes
) -> Flow[AnswerDraft]:
    """The final answer from the memory (algorithm 1, line 6)."""
    schema = spec.shown_schema()
    task = prompts.answer_task(task=spec.task, question=spec.question, schema=schema)
    ask = ModelAsk(
        purpose=Purpose.ANSWER,
        template=prompts.ANSWER,
        segments=(
            Segment(kind=SegmentKind.TASK, text=task),
            *memory.segments(),
            Segment(
                kind=SegmentKind.QUERY,
                text=prompts.query_segment(query, marker_key),
                reusable=False,
            ),
        ),
        content=AnswerContent(
            query=query,
            task=spec.task,
            question=spec.question,
            schema=memory.schema,
            value=memory.value,
        ),
        max_output_tokens=ANSWER_OUTPUT_TOKENS,
        telling=told_answer,
    )
    (reply,) = yield [ask]
    text, named = read_answer(reply.text)
    return AnswerDraft(text=text, paths=_existing(memory, named))


def _existing(memory: PrismMemory, named: Sequence[str]) -> tuple[Path, ...]:
    found: dict[Path, None] = {}
    for line in named:
        try:
            path, _ = settle(memory.schema, memory.value, Path.parse(line))
        except (PathError, Mismatch):
            continue
        if path.tokens and value_at(memory.value, path) is not MISSING:
            found[path] = None
    return tuple(found)[:MAX_ANSWER_PATHS]
