"""Measures whether a backlog starves or slows other clients.

`--sessions` sessions with a memory each, copies of some that were made over gRPC; all is
analyzed once, while nothing has work, and never again. Then `--behind` memories are behind,
one worker with its defaults works on them, and a client appends a message to an idle session
and reads what came of it, again and again: alone, while `--asks` questions come at once, while
others append `RATE` chunks a second, and while another tenant has as much waiting. `value` is
the p95 of that client behind the backlog, in milliseconds; `goals` has it and all others. The
model is the offline one. What is not applied within a minute counts with that.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import psycopg

import palimpsest
from service.domain.values.tenancy import DEFAULT_TENANT
from tests.support.cloning import Copy, put_behind
from tests.support.harness import Process
from verification.benchmarks import backlog_clients as clients
from verification.benchmarks.backlog_clients import Waits, crowd
from verification.benchmarks.backlog_fetch import Fetcher, fetcher
from verification.benchmarks.backlog_rows import (
    OTHER_TENANT,
    Backlog,
    are_applied,
    clock,
    copy_sessions,
    count_unindexed,
    freeze_statistics,
    steps_by_tenant,
    steps_since,
)
from verification.benchmarks.load_meters import load_average, percentiles
from verification.benchmarks.load_stack import (
    Stack,
    count_behind,
    stack,
    wait_until,
    wait_until_idle,
)

#: Sessions that are made over gRPC: what is copied, and where the client appends.
MADE = 200
#: Appends that are counted with nothing behind, and with the backlog; of fewer sessions fewer.
APPENDS = 2000
#: Memories of a backlog that is none.
FEW = 200
#: How often these are worked off.
FEW_TIMES = 3
#: How often a fetch is repeated.
FETCHES = 200
#: Chunks a second that others append.
RATE = 620.0
#: Work that is deferred, and for how long.
DEFERRED, DEFERRED_SECONDS = 5, 5.0
#: Between two looks at how many memories are behind.
BEHIND_LOOK_SECONDS = 2.0
#: A few memories are applied by then, unless something is wrong.
MAX_SECONDS = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the sizes."""
    parser.add_argument("--sessions", type=int, default=100_000, help="with a memory each")
    parser.add_argument("--behind", type=int, default=20_000, help="memories of the backlog")
    parser.add_argument("--runnable", type=int, default=50_000, help="while work is deferred")
    parser.add_argument("--asks", type=int, default=500, help="questions at once")


def run(seconds: float, *, sessions: int, behind: int, runnable: int, asks: int) -> dict[str, Any]:
    """Measures, each part for `seconds`; see the module."""
    before = load_average()
    with (
        asyncio.Runner() as runner,
        stack(0, model_seconds=0, PALIMPSEST_MODEL="offline/extractive") as made,
        made.connect() as connection,
        fetcher(made.url) as fetching,
    ):
        measuring = _Measuring(
            made, runner, connection, fetching, seconds=seconds, sessions=sessions, behind=behind
        )
        found = measuring.run(runnable=runnable, asks=asks)
    return {**found, "load_average": [before, load_average()]}


class _Measuring:
    """The parts, in the order in which they are measured."""

    def __init__(
        self,
        made: Stack,
        runner: asyncio.Runner,
        connection: psycopg.Connection[Any],
        fetching: Fetcher,
        *,
        seconds: float,
        sessions: int,
        behind: int,
    ) -> None:
        self._made = made
        self._runner = runner
        self._connection = connection
        self._fetching = fetching
        self._seconds = seconds
        self._sessions = sessions
        self._behind = behind
        self._names = [f"made-{number}" for number in range(MADE)]
        #: Each is applied again when its next turn comes.
        self._idle = cycle(self._names[DEFERRED:])
        self._began = time.monotonic()

    def run(self, *, runnable: int, asks: int) -> dict[str, Any]:
        """Returns all of it."""
        self._prepare()
        fetch = {"0": self._fetch()}
        quick = self._append("nothing behind")
        worker = self._start()
        few = self._drain_few()
        self._work_off()
        quiet = self._alone("nothing behind")
        worker.stop()
        fetch[str(self._fill(self._behind))] = self._fetch()
        slow = self._append("the backlog")
        self._start()
        many = self._drain_many()
        alone = self._alone("the backlog")
        unseen = self._unseen()
        asked = self._runner.run(self._beside_asks(asks))
        loaded = self._runner.run(self._beside_appends())
        shared = self._beside_others()
        late = self._defer(min(runnable, self._sessions))
        self._made.workers[-1].stop()
        fetch[str(self._fill(self._sessions))] = self._fetch()
        medians = [each["p50_ms"] for each in fetch.values()]
        # A look that takes less than that is within the noise of a round trip.
        growth = max(medians) / max(medians[0], 0.3)
        goals = {
            "interactive_p95_ms": _at_most(1000, alone["p95_ms"]),
            "interactive_unseen_p95_ms": _at_most(1000, unseen["p95_ms"]),
            "interactive_beside_asks_p95_ms": _at_most(2000, asked["interactive"]["p95_ms"]),
            "interactive_beside_appends_p95_ms": _at_most(1000, loaded["interactive"]["p95_ms"]),
            "interactive_beside_tenant_p95_ms": _at_most(1000, shared["interactive"]["p95_ms"]),
            "put_off_late_s": _at_most(3, late["max_s"]),
            "fetch_ms": _at_most(2, max(medians)),
            "fetch_growth": _at_most(2, round(growth, 2)),
            "append_kept": _at_least(0.8, round(slow["per_second"] / quick["per_second"], 2)),
            "drain_kept": _at_least(0.9, round(many / few, 2)),
            "turns_of_another_tenant": _at_least(0.4, shared["share"]),
        }
        return {
            "value": alone["p95_ms"],
            "goal": "<= 1000",
            "goals": goals,
            "sessions": self._sessions,
            "behind": self._behind,
            "fetch": fetch,
            "append": {"empty": quick, "behind": slow},
            "drained_per_second": {"few": round(few, 1), "many": round(many, 1)},
            "interactive": {"quiet": quiet, "behind": alone, "behind_unseen": unseen},
            "asks": asked,
            "appends": loaded,
            "another_tenant": shared,
            "put_off": late,
        }

    def _say(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {line}", file=sys.stderr, flush=True)

    def _client(self, does: Callable[[palimpsest.Client], Any]) -> Any:
        async def connected() -> Any:
            async with palimpsest.connect(self._made.address) as client:
                return await does(client)

        return self._runner.run(connected())

    def _start(self) -> Process:
        return self._made.add_worker()

    def _prepare(self) -> None:
        worker = self._start()
        self._client(lambda client: clients.make(client, self._names))
        self._say(f"{MADE} sessions made over gRPC")
        wait_until_idle(worker)
        worker.stop()
        # Appended to while nothing, and while much is behind; in no backlog.
        self._appends = min(APPENDS, self._sessions // 16)
        self._free = self._copied(2 * self._appends, "free")
        self._backlog = Backlog(self._connection, self._copied(self._sessions, "copy"))
        freeze_statistics(self._connection)
        self._say("analyzed for the last time")

    def _copied(self, count: int, name: str) -> Sequence[Copy]:
        return copy_sessions(
            self._connection, self._names, count, self._say, name=name, tenant_id=DEFAULT_TENANT
        )

    def _fetch(self) -> dict[str, float]:
        figures = percentiles(self._fetching.times(FETCHES))
        self._say(f"fetch: {figures}")
        return figures

    def _fill(self, count: int) -> int:
        now = self._backlog.fill(count)
        self._say(f"{now} memories are behind")
        return now

    def _append(self, what: str) -> dict[str, float]:
        some, self._free = self._free[: self._appends], self._free[self._appends :]
        names = [copy.name for copy in some]
        began = time.monotonic()
        took = self._client(lambda client: clients.append_all(client, names))
        rate = len(took) / (time.monotonic() - began)
        figures = {"per_second": round(rate), **percentiles(took)}
        self._say(f"appends with {what}: {figures}")
        return figures

    def _work_off(self) -> None:
        """Waits until nothing has work."""
        while count_behind(self._connection) or count_unindexed(self._connection):
            # It counts all sessions, which is not for free.
            time.sleep(BEHIND_LOOK_SECONDS)
        wait_until_idle(self._made.workers[-1])

    def _drain_few(self) -> float:
        """Memories a second of a backlog that is none, of several the median."""
        self._work_off()
        rates: list[float] = []
        for _ in range(FEW_TIMES):
            since = clock(self._connection)
            some = self._backlog.add(FEW)
            wait_until("few are applied", partial(are_applied, self._connection, some), MAX_SECONDS)
            count, took = steps_since(self._connection, since, some)
            rates.append((count - 1) / took)
        self._say(f"drained a second of {FEW}: {rates}")
        return statistics.median(rates)

    def _drain_many(self) -> float:
        since = clock(self._connection)
        wait_until("a step", lambda: steps_since(self._connection, since)[0] > 0, MAX_SECONDS)
        since = clock(self._connection)
        time.sleep(self._seconds)
        rate = steps_since(self._connection, since)[0] / self._seconds
        self._say(f"drained a second of {self._behind}: {rate}")
        return rate

    def _alone(self, what: str) -> dict[str, float]:
        waits = Waits()
        self._client(lambda client: clients.converse(client, self._idle, self._seconds, waits))
        self._say(f"interactive with {what}: {waits.figures()}")
        return waits.figures()

    def _unseen(self) -> dict[str, float]:
        self._fill(self._behind)
        waits = Waits()
        self._client(lambda client: clients.look_on(client, self._idle, self._seconds, waits))
        self._say(f"interactive, nobody waits: {waits.figures()}")
        return waits.figures()

    async def _beside(self, of: clients.Crowd, *values: object) -> dict[str, Any]:
        """Measures the client beside a crowd, until that is done."""
        waits = Waits()
        async with (
            palimpsest.connect(self._made.address) as client,
            crowd(of, self._made.address, *values) as done,
        ):
            while not done.done():
                await clients.converse(client, self._idle, 0.1, waits)
            found = await done
        return {"interactive": waits.figures(), **found}

    async def _beside_asks(self, asks: int) -> dict[str, Any]:
        self._fill(self._behind)
        names = [self._names[number % MADE] for number in range(asks)]
        found = await self._beside(clients.ask_all, names)
        self._say(f"beside {asks} asks: {found}")
        return found

    async def _beside_appends(self) -> dict[str, Any]:
        self._fill(self._behind)
        names = [copy.name for copy in self._backlog.copies]
        found = await self._beside(clients.append_steadily, names, RATE, self._seconds)
        self._say(f"beside {RATE} appends a second: {found}")
        return found

    def _beside_others(self) -> dict[str, Any]:
        """Measures beside a second tenant's equal backlog: how many turns each gets."""
        theirs = copy_sessions(
            self._connection,
            self._names,
            self._behind,
            self._say,
            name="theirs",
            tenant_id=OTHER_TENANT,
        )
        self._fill(self._behind)
        Backlog(self._connection, theirs).add(self._behind)
        since = clock(self._connection)
        waits = Waits()
        self._client(lambda client: clients.converse(client, self._idle, self._seconds, waits))
        steps = steps_by_tenant(self._connection, since)
        share = steps.get(OTHER_TENANT, 0) / max(sum(steps.values()), 1)
        found = {"interactive": waits.figures(), "share": round(share, 2)}
        self._say(f"beside another tenant: {found}")
        return found

    def _defer(self, runnable: int) -> dict[str, float]:
        """Returns how late work begins that was deferred, and that no wake-up announces."""
        self._fill(runnable)
        some = [Copy(name=name) for name in self._names[:DEFERRED]]
        since = clock(self._connection)
        put_behind(self._connection, some, ready_in_seconds=DEFERRED_SECONDS)
        due = time.monotonic() + DEFERRED_SECONDS
        late: list[float] = []
        for _ in _until(due + clients.MAX_SECONDS):
            applied = sum(steps_since(self._connection, since, [copy])[0] for copy in some)
            late += [time.monotonic() - due] * (applied - len(late))
            if len(late) == len(some):
                break
        last = late[-1] if len(late) == len(some) else clients.MAX_SECONDS
        found = {"max_s": round(last, 2), "applied": len(late), "of": len(some)}
        self._say(f"late behind {runnable}: {found}")
        return found


def _until(end: float) -> Iterator[None]:
    """Looks twenty times a second, and once more."""
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
    yield


def _at_most(goal: float, value: float) -> dict[str, Any]:
    return {"value": value, "goal": f"<= {goal:g}", "met": value <= goal}


def _at_least(goal: float, value: float) -> dict[str, Any]:
    return {"value": value, "goal": f">= {goal:g}", "met": value >= goal}
