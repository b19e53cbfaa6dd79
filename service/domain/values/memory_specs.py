"""Defines what all kinds of memories share: the base of their specs, statuses and readers."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, Self


class ReaderName(StrEnum):
    """A reader of questions."""

    #: The final answer of a PRISM memory.
    PRISM = "prism"
    #: Navigates a tree, or the levels of a state memory.
    MEMWALKER = "memwalker"
    #: The working context of a state memory.
    PCC = "pcc"
    #: Browses the log by its action loop.
    DCISO = "dciso"
    #: Reads the whole log in one prompt.
    WHOLE = "whole"
    #: Chooses one of these.
    AUTO = "auto"


class Way(StrEnum):
    """A way to read."""

    PRISM = "prism"
    CONTEXT = "context"
    TREE = "tree"
    #: The levels of a state memory.
    LEVELS = "levels"
    #: Browsing: what retrieval names; all of it; newest first until one answers.
    RANK = "rank"
    ALL = "all"
    SCAN = "scan"


class MemoryStatus(StrEnum):
    """What a memory is doing, as the API reports it."""

    ACTIVE = "active"
    #: It stopped and waits for RetryMemory.
    STALLED = "stalled"
    #: A tree that is complete.
    SEALED = "sealed"
    #: Its model gives no reply; it tries again by itself.
    WAITING = "waiting"
    #: A budget does not allow its next call.
    OVER_BUDGET = "over_budget"


class ReplyFormat(StrEnum):
    """How the model writes its replies."""

    #: Structured where the model is known to offer it.
    AUTO = "auto"
    #: The method's own form.
    TEXT = "text"
    #: One JSON object, held to a JSON schema by the provider.
    STRUCTURED = "structured"


class OnFailure(StrEnum):
    """What follows when a step has failed for good."""

    STALL = "stall"
    SKIP = "skip"


class DefaultMemory(StrEnum):
    """Which memory the first append to a session makes, if the session has none by then."""

    NONE = "none"
    #: That of `service.domain.prism.default_memory`.
    GENERAL = "general"


class HasSpec(Protocol):
    """A memory, or what stands for one."""

    @property
    def spec(self) -> "MemorySpec":
        """How it is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySpec:
    """How a memory is kept. It never changes. Each kind of memory has its own subclass."""

    #: The name of the kind, in rows, metrics and the API.
    kind: ClassVar[str]
    #: How memories of this kind are read, with the reader of each way, the default one first.
    #: Empty: only by a reader that has no name.
    ways: ClassVar[Mapping[Way, ReaderName]] = {}
    #: Readers have the whole log at any time, so a lag is normal.
    has_whole_log: ClassVar[bool] = False
    #: A revision is a state of its own, which can be compared with another and restored.
    has_states: ClassVar[bool] = False
    #: Fields that name models.
    model_fields: ClassVar[tuple[str, ...]] = ("model",)
    #: What makes a field from its JSON, where that is not the same.
    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"on_failure": OnFailure}

    #: Model as provider/name; empty means the service's default.
    model: str = ""
    #: What follows when a step has failed for good.
    on_failure: OnFailure = OnFailure.STALL

    @property
    def lingers(self) -> bool:
        """Whether steps may wait for more chunks. Such a spec has a field `linger_ms`."""
        return False

    def check(self, *, backlog_chunks: int) -> None:
        """Raises InvalidInput for what does not fit together.

        `backlog_chunks`: chunks that a session may have ahead of its memories.
        """

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Returns the spec with other fields."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Returns the spec as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], schema_source: str | None = None) -> Self:
        """Returns the spec from `to_json`, with `schema_source` in place of its own if given.

        Raises ValueError for what it does not know.
        """
        unknown = value.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"a spec of a newer release: {', '.join(sorted(unknown))}")
        known = {
            name: cls.parsers[name](held) if name in cls.parsers else held
            for name, held in value.items()
        }
        return cls(**known if schema_source is None else {**known, "schema_source": schema_source})

    @classmethod
    def of(cls, memory: HasSpec) -> Self:
        """Returns the spec of a memory that is known to be of this kind."""
        assert isinstance(memory.spec, cls), "the caller checked the kind"
        return memory.spec
