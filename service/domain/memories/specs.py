"""The specs of memories of every kind."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
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
    """What a memory that is rebuilt from another has otherwise."""

    #: Fields of its spec, for each kind of memory that they are for.
    fields: Mapping[MemoryKind, Mapping[str, Any]]

    def kinds(self) -> Collection[MemoryKind]:
        """Returns the kinds of memories that have what is to change."""
        return self.fields.keys()

    def made(self, spec: MemorySpec) -> MemorySpec:
        """Returns the spec with the changes, which are all for its kind."""
        kind = kind_of(spec)
        assert all(one is kind for one in self.fields), "the caller checked the kinds"
        return spec.changed(self.fields.get(kind, {}))


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
