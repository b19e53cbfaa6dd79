"""Requests, replies and flows: how an algorithm uses a model without knowing one.

An algorithm is a generator. It yields a batch of requests and is sent the replies in
the same order; the driver (`service.llm.gateway.driver`) runs the batch in parallel, a
test sends a list. What the generator returns is the algorithm's result.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from service.domain.prompting.ends import End


class SegmentKind(StrEnum):
    """The part of a prompt that a segment is, from most to least stable."""

    TASK = "task"
    BASE = "base"
    AMENDMENTS = "amendments"
    CHUNK = "chunk"
    QUERY = "query"


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A piece of a prompt that is reused, or not, as a whole.

    The rule for every flow, which `tests/unit/prompting/test_segments.py` checks:

    - The prompt is the segments' texts one after the other, and nothing else.
    - The most stable part comes first: what all who have the task share (instructions,
      task, schema, examples), then what grows or is rewritten, last what comes once (the
      chunk, the question). So the same values always give the same bytes: no clock, no
      counter, no order that depends on a hash.
    - A segment ends where a later prompt may go on differently, and nowhere else. What is
      appended is a segment of its own, so that two prompts share exactly the segments of
      their common beginning.
    - `reusable` is about beginnings: after a segment that is not, none is. Text that
      grows or comes once is not when it stands between marks of its own, for the mark
      comes before it and changes with it. Text that never changes keeps its marks: a
      summary or a text of a tree may stand between them.
    - How a released template is cut is part of the keys of its calls: it changes only
      with the template's version.
    """

    #: Which part of the prompt this is.
    kind: SegmentKind
    #: The exact text; the prompt is the segments' texts, one after the other.
    text: str
    #: Whether a later prompt can begin with everything up to here.
    reusable: bool = True
    #: Whether the next prompt should have it too, so that a cache may be paid for it.
    #: Advice: it changes no prompt and no key.
    lasting: bool = True


class Purpose(StrEnum):
    """What a model call is for; a column of the ledger."""

    REVISE = "revise"
    ANSWER = "answer"
    CONSOLIDATE = "consolidate"
    SCHEMA = "schema"
    #: A summary of a tree: of a text, or of summaries.
    SUMMARIZE = "summarize"
    #: A move of a navigation.
    NAVIGATE = "navigate"
    #: A state vector: of steps, or of vectors.
    COMPRESS = "compress"
    #: A move of browsing.
    BROWSE = "browse"
    #: The order of what retrieval found.
    RERANK = "rerank"
    #: Vectors of texts.
    EMBED = "embed"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """One prompt for a model."""

    purpose: Purpose
    #: Name and version of the prompt template, for example "prism.revise/1".
    template: str
    #: The prompt, most stable part first.
    segments: tuple[Segment, ...]
    #: Upper bound of the reply, in tokens; 1 or more.
    max_output_tokens: int
    #: JSON Schema of the reply, for a model that keeps to one; None when it is free text.
    reply_schema: dict[str, Any] | None = None
    #: 0 for the first try, +1 when the same prompt is asked again on purpose.
    attempt: int = 0
    #: Finds the text of an answer in an unfinished reply, for clients that read along;
    #: None: nothing of it is. It changes no prompt and no key.
    find_text: Callable[[str], str] | None = None

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "".join(segment.text for segment in self.segments)


def object_schema(parts: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema of an object with all of these parts and no others."""
    return {
        "type": "object",
        "properties": parts,
        "required": list(parts),
        "additionalProperties": False,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReply:
    """What a model answered."""

    #: The reply as it came.
    text: str
    #: The model that gave it, as provider/name.
    model: str
    #: As the provider reports them; `cached_tokens` None: it does not say.
    input_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    #: Those of them that were spent on thinking; None: the provider does not say.
    reasoning_tokens: int | None = None
    #: How it ended; only a complete one may be taken for one.
    end: End = End.COMPLETE
    #: The words of a refusal, or the provider's own name of the end; at most
    #: MAX_SAID_CHARACTERS.
    said: str = ""


class Fetch:
    """Reads something for a flow from the log or a memory, or has it stored.

    Each method has its own; the driver of a flow answers those of its method.
    """

    __slots__ = ()


FlowRequest = ModelRequest | Fetch

#: Characters that are kept of what a provider says of an end.
MAX_SAID_CHARACTERS = 300

#: How an error begins that says that the replies, which are in the ledger, were no use.
NO_USE = "the model gave no"

T = TypeVar("T")
#: A flow that asks models only.
Flow = Generator[Sequence[ModelRequest], Sequence[ModelReply], T]
#: A flow that looks things up besides: a ModelReply to a ModelRequest, to a look-up what that
#: says of itself.
FetchingFlow = Generator[Sequence[FlowRequest], Sequence[Any], T]
