"""Running mutants: each guard alone, with those above it, and with all that are beneath it."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.gathered import final_from
from tests.chaos.mutants import looking
from tests.chaos.mutants.changes import Body, Change, Drop, alter, changed, in_database
from tests.chaos.mutants.mutant import Chain, Layer, changes_of
from tests.chaos.mutants.world import World, counting
from tests.harness import Servers


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a scenario."""

    counted: Counter[str]
    #: Broken promises, in sentences.
    violations: tuple[str, ...]
    seconds: float


class Runs:
    """Scenarios in worlds of their own; worlds with the same schema share a database."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._urls: dict[tuple[Drop | Body, ...], str] = {}
        self._number = 0

    async def run(self, chain: Chain, gone: Sequence[Layer]) -> Outcome:
        """The chain's scenario without these guards."""
        return await self._run(chain, (*chain.defect, *changes_of(tuple(gone))))

    async def _run(self, chain: Chain, changes: tuple[Change, ...]) -> Outcome:
        began = time.monotonic()
        url = self._database(in_database(changes))
        self._number += 1
        world = World(url, self._servers.as_superuser(url), f"{chain.name} {self._number}")
        with counting(world.counted):
            try:
                with changed(changes):
                    await chain.scenario(world)
                    await world.settle()
                await world.look()
                reader = world.database("reader")
                final = await final_from(world.superuser_url, reader, world.session)
            finally:
                await world.end()
        return Outcome(
            counted=world.counted,
            violations=tuple(looking.violations(world, final)),
            seconds=time.monotonic() - began,
        )

    def _database(self, changes: tuple[Drop | Body, ...]) -> str:
        if changes not in self._urls:
            url = self._servers.new_database()
            alter(self._servers.as_superuser(url), changes)
            self._urls[changes] = url
        return self._urls[changes]
