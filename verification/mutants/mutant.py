"""Mutants: guards, how each of them is removed, and what would show that."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from verification.mutants.changes import Change
from verification.mutants.world import World

#: Something goes wrong in a world, always in the same way; every guard stays whole.
Scenario = Callable[[World], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One of the guards that prevent the same defect, from the first on."""

    #: A short name, and what is taken away in a sentence.
    name: str
    what: str
    change: tuple[Change, ...]
    #: What is counted when it does its work: a meter of the service, the key that refused,
    #: or the error that a client got.
    counter: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """A scenario, and its guards in the order in which they meet it.

    With the first few gone the next one must hold, and be counted; with all of them gone
    the checker must see it.
    """

    name: str
    scenario: Scenario
    layers: tuple[Layer, ...]
    #: What else goes wrong here on purpose, a defect that guards are to hold up.
    defect: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One guard taken away."""

    chain: Chain
    #: Which of its chain's layers.
    number: int

    @property
    def name(self) -> str:
        """The chain and the guard."""
        return f"{self.chain.name}: {self.layer.name}"

    @property
    def layer(self) -> Layer:
        """The guard."""
        return self.chain.layers[self.number]


def changes_of(layers: Sequence[Layer]) -> tuple[Change, ...]:
    """Returns everything that takes these guards away."""
    return tuple(change for layer in layers for change in layer.change)
