"""What state machines share: an event loop that outlives their rules, and what they count.

Hypothesis calls rules one after the other and knows nothing of event loops; connections
belong to one. So a `Bench` keeps loop and database for all examples of a machine, and each
example has sessions of its own in it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from storage.engine.database import OTHER, Database, Row, Transaction
from tests.support.harness import Servers

_T = TypeVar("_T")


@dataclass(kw_only=True)
class Bench:
    """Where the examples of a machine run."""

    runner: asyncio.Runner
    url: str
    #: The same database, for a user whom row-level security hides nothing from.
    superuser_url: str
    #: How often each rule did something.
    steps: Counter[str] = field(default_factory=Counter)
    _numbers: Iterator[int] = field(default_factory=count)

    def run(self, doing: Coroutine[Any, Any, _T]) -> _T:
        """Does it in the loop."""
        return self.runner.run(doing)

    def name(self) -> str:
        """Returns a name for a session that no other example has."""
        return f"m{next(self._numbers)}"


class Machine(RuleBasedStateMachine):
    """A machine on a bench, which `run_machine` sets."""

    bench: Bench

    def did(self, rule: str) -> None:
        """Counts a step."""
        self.bench.steps[rule] += 1


def run_machine(
    machine: type[Machine], servers: Servers, *, examples: int, steps: int, seeded: bool
) -> Counter[str]:
    """Runs so many examples of at most so many steps; how often each rule did something.

    `seeded`: the same examples each time.
    """
    url = servers.new_database()
    dbname = conninfo_to_dict(url)["dbname"]
    superuser_url = make_conninfo(servers.postgres.superuser_url, dbname=dbname)
    with asyncio.Runner() as runner:
        bench = Bench(runner=runner, url=url, superuser_url=superuser_url)
        bound = type(machine.__name__, (machine,), {"bench": bench})
        run_state_machine_as_test(
            bound,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=seeded,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    return bench.steps


class CutDatabase(Database):
    """A database whose connection is lost at the next write, on request."""

    #: "before" or "behind" the commit; empty: not at all.
    cut = ""

    @classmethod
    def made(cls, url: str, name: str) -> "CutDatabase":
        """Returns a small pool of such connections."""
        made = cls.connect(url, pool_size=2, name=name)
        assert isinstance(made, cls)
        return made

    @asynccontextmanager
    async def direct(self, tenant_id: UUID, *, name: str = OTHER) -> AsyncIterator[Transaction]:
        """Opens as `Database.direct` does, with a connection that may be lost."""
        async with super().direct(tenant_id, name=name) as tx:
            yield _CutTransaction(tenant_id=tx.tenant_id, driver=tx.driver, database=self)

    @contextmanager
    def losing(self, cut: str) -> Iterator[None]:
        """Loses the connections of the writes within."""
        self.cut = cut
        try:
            yield
        finally:
            self.cut = ""


@dataclass(frozen=True, kw_only=True)
class _CutTransaction(Transaction):
    database: CutDatabase

    async def commit(self) -> None:
        """Commits, or not."""
        await self._lose("before")
        await super().commit()
        await self._lose("behind")

    async def fetch(self, statement: Any, values: Any = None, **how: Any) -> list[Row]:
        """Runs a statement; a whole transaction of one commits, or not."""
        is_whole = not self._is_open()
        if is_whole:
            await self._lose("before")
        rows = await super().fetch(statement, values, **how)
        if is_whole:
            await self._lose("behind")
        return rows

    async def _lose(self, when: str) -> None:
        if self.database.cut == when:
            await self.driver.close()
            raise psycopg.OperationalError(f"lost {when} the commit, on purpose")
