"""PRISM: structured memories, revised chunk by chunk (arXiv 2412.18914).

`revise` and `answer` are the two model calls of the paper's algorithm 1 as flows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from service.domain import prompts
from service.domain.amending import MISSING, amend, replay, settle, value_at
from service.domain.amendments import Amendment, Revision
from service.domain.chunks import LoggedChunk
from service.domain.flows import Flow, ModelAsk, Purpose, Segment, SegmentKind
from service.domain.json_values import Json, canonical, parse
from service.domain.paths import Path, PathError
from service.domain.replies import read_answer
from service.domain.revisions import parse_reply
from service.domain.rules import Rules
from service.domain.schema import Mismatch, Schema, render
from service.domain.tokens import estimate_tokens

#: Tokens that a reply may have.
REVISE_OUTPUT_TOKENS = 4096
ANSWER_OUTPUT_TOKENS = 1024
#: Paths that an answer may rest on.
MAX_ANSWER_PATHS = 20


class Encoding(StrEnum):
    """How a memory is written into prompts (section 3.3)."""

    #: A base, then one line for each amendment since.
    AMENDMENTS = "amendments"


class OnFailure(StrEnum):
    """What follows when a step has failed for good."""

    STALL = "stall"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True, slots=True)
class PrismSpec:
    """How a memory is kept. It never changes."""

    #: The shape of the memory, as class source.
    schema_source: str
    #: What the memory is for; may be empty.
    task: str
    #: The question it serves; may be empty.
    question: str
    encoding: Encoding
    #: Chunks are taken together up to this many tokens a step; 1 to 100,000.
    chunk_tokens: int
    #: Model as provider/name; empty means the service's default.
    model: str
    on_failure: OnFailure
    #: Amendments are folded when they pass this many tokens; 1 to 1,000,000.
    fold_tokens: int

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "PrismSpec":
        """The spec from `to_json`. Raises ValueError for what it does not know."""
        unknown = value.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"a spec of a newer release: {', '.join(sorted(unknown))}")
        return cls(
            **{
                **value,
                "encoding": Encoding(value["encoding"]),
                "on_failure": OnFailure(value["on_failure"]),
            }
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The amendments of one revision, as prompts show them."""

    revision: int
    #: One line an amendment.
    text: str
    #: Estimate of its tokens.
    tokens: int


@dataclass(frozen=True, kw_only=True)
class PrismMemory:
    """A memory at one revision. Its rendering is a pure function of stored rows."""

    schema: Schema
    #: Canonical JSON that the last fold (or the creation) wrote.
    base_json: str
    #: The revision that wrote it.
    base_revision: int
    #: What was amended since, oldest first.
    batches: tuple[Batch, ...]
    #: The state, with everything applied.
    value: Json

    @classmethod
    def create(cls, schema: Schema) -> "PrismMemory":
        """An empty memory, at revision 0 (algorithm 1, line 1)."""
        return cls(schema=schema, base_json="{}", base_revision=0, batches=(), value={})

    @classmethod
    def load(
        cls,
        schema: Schema,
        *,
        base_json: str,
        base_revision: int,
        amendments: Iterable[tuple[int, Sequence[Amendment]]],
    ) -> "PrismMemory":
        """A memory from its stored rows: a base, and amendments by revision."""
        # Its size was limited when it was made; a memory may hold more values than
        # one amendment may bring.
        value = parse(base_json, max_nodes=len(base_json))
        batches: list[Batch] = []
        for revision, amended in amendments:
            if amended:
                value = replay(schema, value, amended)
                batches.append(_batch(revision, amended))
        return cls(
            schema=schema,
            base_json=base_json,
            base_revision=base_revision,
            batches=tuple(batches),
            value=value,
        )

    def apply(self, revision: int, amendments: Sequence[Amendment]) -> "PrismMemory":
        """The memory after `revision` (algorithm 1, line 4); a revision may be empty."""
        if not amendments:
            return self
        return replace(
            self,
            batches=(*self.batches, _batch(revision, amendments)),
            value=amend(self.schema, self.value, amendments),
        )

    def fold(self, revision: int) -> "PrismMemory":
        """The same state with everything written into a new base."""
        return replace(self, base_json=self.value_json, base_revision=revision, batches=())

    @cached_property
    def value_json(self) -> str:
        """The state as canonical JSON."""
        return canonical(self.value)

    @cached_property
    def amendment_tokens(self) -> int:
        """Estimate of the tokens of all amendments since the base."""
        return sum(batch.tokens for batch in self.batches)

    def value_at(self, path: Path) -> Json:
        """What is at `path`; null when there is nothing."""
        held = value_at(self.value, path)
        return None if held is MISSING else held  # type: ignore[return-value]

    def segments(self) -> tuple[Segment, ...]:
        """The memory as a prompt shows it: the base, then each revision's amendments."""
        base = Segment(kind=SegmentKind.BASE, text=prompts.base_segment(self.base_json))
        return (
            base,
            *(Segment(kind=SegmentKind.AMENDMENTS, text=batch.text) for batch in self.batches),
        )


def _batch(revision: int, amendments: Sequence[Amendment]) -> Batch:
    text = "".join(canonical({str(one.path): one.value}) + "\n" for one in amendments)
    return Batch(revision=revision, text=text, tokens=estimate_tokens(text))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviseContent:
    """What a revision's prompt says, as values."""

    schema: Schema
    task: str
    question: str
    value: Json
    #: Position and text of each chunk.
    chunks: tuple[tuple[int, str], ...]


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


def read_group(chunks: Sequence[LoggedChunk], chunk_tokens: int) -> Sequence[LoggedChunk]:
    """The leading chunks that make one step: as many as fit, and at least one."""
    total = 0
    for number, logged in enumerate(chunks):
        total += estimate_tokens(logged.chunk.as_text())
        if number and total > chunk_tokens:
            return chunks[:number]
    return chunks


def revise(
    spec: PrismSpec,
    memory: PrismMemory,
    chunks: Sequence[LoggedChunk],
    *,
    marker_key: bytes,
    rules: Rules,
    structured: bool = False,
) -> Flow[Revision]:
    """One step: what the chunks change in the memory (algorithm 1, line 3).

    A reply that cannot be read is a revision without amendments.
    """
    texts = [logged.chunk.as_text() for logged in chunks]
    schema = render(memory.schema)
    task = prompts.revise_task(task=spec.task, question=spec.question, schema=schema)
    ask = ModelAsk(
        purpose=Purpose.REVISE,
        template=prompts.REVISE,
        segments=(
            Segment(kind=SegmentKind.TASK, text=task),
            *memory.segments(),
            Segment(
                kind=SegmentKind.CHUNK,
                text=prompts.text_segment(texts, marker_key),
                reusable=False,
            ),
        ),
        content=ReviseContent(
            schema=memory.schema,
            task=spec.task,
            question=spec.question,
            value=memory.value,
            chunks=tuple(
                (logged.position, text) for logged, text in zip(chunks, texts, strict=True)
            ),
        ),
        max_output_tokens=REVISE_OUTPUT_TOKENS,
    )
    (reply,) = yield [ask]
    return parse_reply(reply.text, memory.schema, memory.value, rules)


def answer(
    spec: PrismSpec, memory: PrismMemory, query: str, *, marker_key: bytes
) -> Flow[AnswerDraft]:
    """The final answer from the memory (algorithm 1, line 6)."""
    schema = render(memory.schema)
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
