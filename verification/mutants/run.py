"""Runs mutants: each chain without its first guards, one more at a time, until none is left."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from storage.engine.database import Database
from tests.support.harness import Servers
from verification.chaos.final_from_tables import final_from
from verification.mutants import looking
from verification.mutants.changes import Body, Change, Drop, alter, changed, in_database
from verification.mutants.mutant import Chain, Layer, Mutant, changes_of
from verification.mutants.world import World, counting


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a scenario."""

    #: What guards did, by the names of meters, and the errors that clients got.
    counted: Counter[str]
    #: Broken promises, in sentences.
    violations: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    #: What its guard was counted as when those above it were gone.
    counter: str
    #: What was counted without it; empty where nothing is beneath.
    beneath: str
    #: The first promise that was broken without all of them.
    violation: str
    #: What is not as it has to be, in sentences; empty for a mutant that is as it should be.
    wrong: tuple[str, ...]


class Runs:
    """Scenarios in sessions of their own; those with the same schema share a database."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._urls: dict[tuple[Drop | Body, ...], str] = {}
        #: Connections to the database that nothing is gone from.
        self._pools: dict[str, Database] = {}
        self._number = 0

    async def judge(self, chain: Chain, *, alone: bool = False) -> list[Verdict]:
        """Judges all mutants of a chain, with `alone` each of them also with the others whole."""
        layers = chain.layers
        outcomes = [await self.run(chain, layers[:gone]) for gone in range(len(layers) + 1)]
        verdicts = []
        for number, layer in enumerate(layers):
            wrong = [*_held(outcomes[number], layer)]
            if alone and number:
                # Those above it hold first: it may have nothing to do at all.
                only = await self.run(chain, (layer,), may_be_idle=True)
                wrong += [f"alone: {one}" for one in only.violations]
            if not outcomes[-1].violations:
                wrong.append("the checker does not notice that all of them are gone")
            next_one = layers[number + 1].counter if number + 1 < len(layers) else ""
            verdicts.append(
                Verdict(
                    mutant=Mutant(chain=chain, number=number),
                    counter=layer.counter,
                    beneath=next_one,
                    violation=(*outcomes[-1].violations, "")[0],
                    wrong=tuple(wrong),
                )
            )
        return verdicts

    async def run(
        self, chain: Chain, gone: Sequence[Layer], *, may_be_idle: bool = False
    ) -> Outcome:
        """Runs the chain's scenario without these guards, all of which it must reach by default."""
        changes: tuple[Change, ...] = (*chain.defect, *changes_of(gone))
        altered = in_database(changes)
        url = self._database(altered)
        self._number += 1
        world = World(
            url,
            self._servers.as_superuser(url),
            f"{chain.name} {self._number}",
            pools=None if altered else self._pools,
        )
        try:
            with counting(world.counted), changed(changes, may_be_idle=may_be_idle):
                await chain.scenario(world)
                await world.settle()
            await world.look()
            final = await final_from(world.superuser_url, world.database("reader"), world.session)
        finally:
            await world.end()
        return Outcome(counted=world.counted, violations=looking.violations(world, final))

    def _database(self, changes: tuple[Drop | Body, ...]) -> str:
        if changes not in self._urls:
            url = self._servers.new_database()
            alter(self._servers.as_superuser(url), changes)
            self._urls[changes] = url
        return self._urls[changes]

    async def close(self) -> None:
        """Closes all connections."""
        for pool in self._pools.values():
            await pool.close()


def _held(outcome: Outcome, layer: Layer) -> list[str]:
    """Returns what is not as it has to be where this guard is the first one."""
    wrong = [f"nothing holds: {one}" for one in outcome.violations]
    if not outcome.counted[layer.counter]:
        wrong.append(f"{layer.counter} does not move, only {dict(outcome.counted)}")
    return wrong


@asynccontextmanager
async def running(servers: Servers) -> AsyncIterator[Runs]:
    """Runs on these servers."""
    runs = Runs(servers)
    try:
        yield runs
    finally:
        await runs.close()
