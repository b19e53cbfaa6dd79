"""The specs of memories of every kind."""

from enum import StrEnum
from typing import Any

from service.domain.prism.spec import PrismSpec
from service.domain.tree.spec import TreeSpec


class MemoryKind(StrEnum):
    """What a memory is."""

    PRISM = "prism"
    TREE = "tree"


MemorySpec = PrismSpec | TreeSpec


def kind_of(spec: MemorySpec) -> MemoryKind:
    """The kind of memory that a spec is for."""
    return MemoryKind.PRISM if isinstance(spec, PrismSpec) else MemoryKind.TREE


def spec_from_json(kind: str, value: dict[str, Any], schema_source: str | None) -> MemorySpec:
    """The spec from its `to_json`; `schema_source`, if given, in place of a PRISM spec's own.

    Raises ValueError for what it does not know.
    """
    if MemoryKind(kind) is MemoryKind.TREE:
        return TreeSpec.from_json(value)
    return PrismSpec.from_json(value, schema_source)
