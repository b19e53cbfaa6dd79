"""What an attack is, and how all of them are found and run."""

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tests.support.harness import Servers
from verification import attacks

#: Modules of the package that hold no attack.
_TOOLS = frozenset({"__main__", "attack"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What an attack is run on: it starts its own processes by `tests.support.harness`."""

    servers: Servers
    #: Whether it is to be small: the same attack with fewer peers, in seconds.
    short: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of an attack."""

    #: Whether the service withstood it.
    held: bool
    #: What was measured, in words and figures.
    found: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """One attack. Its module has it as `ATTACK`."""

    name: str
    #: The finding that it repeats, for example "core 5".
    finding: str
    #: What it does, in one line.
    summary: str
    #: What has to be true for the service to have withstood it.
    goal: str
    #: What was found before it was fixed.
    before: str
    run: Callable[[Stage], Awaitable[Outcome]]


def load() -> Sequence[Attack]:
    """Returns all attacks, in the order of their names."""
    names = {module.name for module in pkgutil.iter_modules(attacks.__path__)} - _TOOLS
    found: list[Attack] = [
        importlib.import_module(f"{attacks.__name__}.{name}").ATTACK for name in names
    ]
    return sorted(found, key=lambda attack: attack.name)


async def run(attack: Attack, stage: Stage) -> Outcome:
    """Runs an attack. One that breaks did not show that the service holds."""
    try:
        return await attack.run(stage)
    except Exception as error:
        return Outcome(held=False, found=f"the attack broke: {type(error).__name__}: {error}")
