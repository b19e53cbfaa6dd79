"""Registers the specs of all kinds of memories."""

from collections.abc import Callable, Sequence
from typing import Any

from service.domain.prism.spec import PrismSpec
from service.domain.state.spec import StateSpec
from service.domain.tree.spec import TreeSpec
from service.domain.values.memory_specs import MemorySpec, ReaderName

#: The spec of each kind of memory, by the kind's name.
SPECS: dict[str, type[MemorySpec]] = {one.kind: one for one in (PrismSpec, TreeSpec, StateSpec)}


def kinds(which: Callable[[type[MemorySpec]], bool]) -> Sequence[str]:
    """Returns the kinds whose memories are so."""
    return [kind for kind, spec in SPECS.items() if which(spec)]


def kinds_read_by(reader: ReaderName | None) -> Sequence[str]:
    """Returns the kinds of memories that a reader reads; none when it reads the log, or any."""
    return kinds(lambda spec: reader in spec.ways.values())


def spec_from_json(kind: str, value: dict[str, Any], schema_source: str | None) -> MemorySpec:
    """Returns the spec from its `to_json`; `schema_source`, if given, is its schema by now.

    Raises ValueError for what it does not know.
    """
    if kind not in SPECS:
        raise ValueError(f"a kind of memory of a newer release: {kind}")
    return SPECS[kind].from_json(value, schema_source)
