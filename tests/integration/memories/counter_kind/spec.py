"""The spec of a counter."""

from dataclasses import dataclass

from service.domain.values.memory_specs import MemorySpec


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterSpec(MemorySpec):
    """How the chunks of a log are counted."""

    kind = "counter"

    #: Chunks that one step counts, at most.
    step_chunks: int = 2
