"""How a PRISM memory is kept: what its creator decides."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar

from service.domain.prism.amendments import Rules
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Schema, render
from service.domain.values.memory_specs import MemorySpec, ReaderName, ReplyFormat, Way

#: Schemas that a process keeps: reading one takes longer than most reads of a memory.
KEPT_SCHEMAS = 256
#: Defaults of `fold_tokens`: for memories that are folded by size, and for adaptive
#: ones. Those fold long before that unless prompts cost more for it; it bounds what has
#: to be read and replayed when a worker takes the memory.
FOLD_TOKENS = 8000
ADAPTIVE_FOLD_TOKENS = 100_000
#: `memory_tokens` of a memory that is made without saying any: decision record 0053.
MEMORY_TOKENS = 6000
#: The default of `linger_ms`: while all that waits is messages, a step waits as long as the
#: service's setting says. The release before takes it for no wait at all.
SERVICE_LINGER_MS = -1


class Encoding(StrEnum):
    """How a memory is written into prompts (section 3.3)."""

    #: A base, then one line for each amendment since; folded as the model's prices say.
    ADAPTIVE = "adaptive"
    #: The same, folded by size only.
    AMENDMENTS = "amendments"
    #: The memory as one object, changed where it is.
    IN_PLACE = "in_place"


class Operations(StrEnum):
    """What the model may do to the memory."""

    ADD_AND_UPDATE = "add_and_update"
    ADD_ONLY = "add_only"


class Coercion(StrEnum):
    """What happens to a value whose type is not the schema's."""

    REFUSE = "refuse"
    #: It is converted if nothing is lost by it.
    LOSSLESS = "lossless"


class StepScope(StrEnum):
    """What a step is shown of a memory that is larger than `memory_tokens`."""

    #: All of it; and the memory is consolidated, so that it becomes smaller.
    WHOLE = "whole"
    #: What fits the step's text, within `memory_tokens`; and the memory may grow.
    FOCUSED = "focused"


def default_fold_tokens(encoding: Encoding) -> int:
    """Returns the default of `fold_tokens`."""
    return ADAPTIVE_FOLD_TOKENS if encoding is Encoding.ADAPTIVE else FOLD_TOKENS


@dataclass(frozen=True, kw_only=True, slots=True)
class PrismSpec(MemorySpec):
    """How a PRISM memory is kept. It never changes, but for the schema's new fields."""

    kind = "prism"
    ways: ClassVar = {Way.PRISM: ReaderName.PRISM}
    has_states = True
    parsers: ClassVar = {
        **MemorySpec.parsers,
        "encoding": Encoding,
        "operations": Operations,
        "coercion": Coercion,
        "reply_format": ReplyFormat,
        "steps": StepScope,
    }

    #: The shape of the memory, as class source.
    schema_source: str
    #: What the memory is for; may be empty.
    task: str = ""
    #: The question it serves; may be empty.
    question: str = ""
    encoding: Encoding = Encoding.ADAPTIVE
    #: Chunks are taken together up to this many tokens a step; 1 to 100,000.
    chunk_tokens: int = 2000
    #: Amendments are folded when they pass this many tokens, at the latest; 1 to 1,000,000.
    fold_tokens: int = ADAPTIVE_FOLD_TOKENS
    operations: Operations = Operations.ADD_AND_UPDATE
    coercion: Coercion = Coercion.REFUSE
    reply_format: ReplyFormat = ReplyFormat.AUTO
    #: The memory is consolidated when it passes this, or its steps are focused; 0, in memories of
    #: earlier releases: half of the model's window.
    memory_tokens: int = 0
    #: How long a step waits for more chunks, in milliseconds; 0 to 3,600,000, or
    #: SERVICE_LINGER_MS. Memories of earlier releases that say nothing do not wait.
    linger_ms: int = 0
    #: How answers are to be: their form, length, language; empty: in full sentences.
    final_task: str = ""
    #: What steps are shown of a memory that is larger than `memory_tokens`.
    steps: StepScope = StepScope.WHOLE

    @property
    def lingers(self) -> bool:
        """Whether steps may wait for more chunks."""
        return self.linger_ms != 0

    def schema(self) -> Schema:
        """Returns the schema. Raises SchemaInvalid."""
        return _schema(self.schema_source)

    def shown_schema(self) -> str:
        """Returns the schema as the model is shown it. Raises SchemaInvalid."""
        return _shown(self.schema_source)

    def rules(self, max_memory_bytes: int) -> Rules:
        """Returns what the model's revisions of this memory may do."""
        return Rules(
            max_memory_bytes=max_memory_bytes,
            add_only=self.operations is Operations.ADD_ONLY,
            coerce=self.coercion is Coercion.LOSSLESS,
        )

    def changed(self, changes: Mapping[str, Any]) -> "PrismSpec":
        """Returns the spec with other fields; a default belongs to the encoding it is for.

        `fold_tokens` of 0 is the default.
        """
        new = replace(self, **changes)
        is_default = self.fold_tokens == default_fold_tokens(self.encoding)
        if not new.fold_tokens or (is_default and "fold_tokens" not in changes):
            new = replace(new, fold_tokens=default_fold_tokens(new.encoding))
        return new

    def to_json(self) -> dict[str, Any]:
        """Returns the spec as plain JSON.

        What is as it always was is left out: the release before, which may still run,
        knows no more than that.
        """
        # `asdict` would copy each value, and none of them can change.
        values = ((name, getattr(self, name)) for name in _DEFAULTS)
        return {name: value for name, value in values if name in _FIRST or value != _DEFAULTS[name]}


@lru_cache(maxsize=KEPT_SCHEMAS)
def _schema(source: str) -> Schema:
    return parse_source(source)


@lru_cache(maxsize=KEPT_SCHEMAS)
def _shown(source: str) -> str:
    return render(_schema(source))


_DEFAULTS = {field.name: field.default for field in fields(PrismSpec)}
#: What the first release wants to find in every spec.
_FIRST = {
    "schema_source",
    "task",
    "question",
    "encoding",
    "chunk_tokens",
    "model",
    "on_failure",
    "fold_tokens",
}
