"""The specs of memories of every kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.domain.prism.spec import PrismSpec
from service.domain.state.spec import StateSpec
from service.domain.tree.spec import TreeSpec
from service.domain.values.memory_kinds import MemoryKind

MemorySpec = PrismSpec | TreeSpec | StateSpec

_KINDS: dict[type[MemorySpec], MemoryKind] = {
    PrismSpec: MemoryKind.PRISM,
    TreeSpec: MemoryKind.TREE,
    StateSpec: MemoryKind.STATE,
}


def kind_of(spec: MemorySpec) -> MemoryKind:
    """The kind of memory that a spec is for."""
    return _KINDS[type(spec)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecChanges:
    """What a memory that is made from another has otherwise."""

    #: The whole spec of a tree; None leaves it.
    tree: TreeSpec | None = None
    #: The whole spec of a state memory; None leaves it.
    state: StateSpec | None = None
    #: Fields of a PrismSpec.
    prism: Mapping[str, Any] = field(default_factory=dict)
    #: Model as provider/name; empty means the service's default, None leaves it.
    model: str | None = None

    def kinds(self) -> set[MemoryKind]:
        """The kinds of memories that have what is to change."""
        kinds = {MemoryKind.PRISM} if self.prism else set()
        return kinds | {kind_of(spec) for spec in (self.tree, self.state) if spec is not None}

    def made(self, spec: MemorySpec) -> MemorySpec:
        """The spec with the changes, which are all for its kind."""
        assert self.kinds() <= {kind_of(spec)}, "the caller looked at the kinds"
        model = {} if self.model is None else {"model": self.model}
        return (self.tree or self.state or spec).changed({**self.prism, **model})


def spec_from_json(kind: str, value: dict[str, Any], schema_source: str | None) -> MemorySpec:
    """The spec from its `to_json`; `schema_source`, if given, in place of a PRISM spec's own.

    Raises ValueError for what it does not know.
    """
    match MemoryKind(kind):
        case MemoryKind.TREE:
            return TreeSpec.from_json(value)
        case MemoryKind.STATE:
            return StateSpec.from_json(value)
        case MemoryKind.PRISM:
            return PrismSpec.from_json(value, schema_source)
