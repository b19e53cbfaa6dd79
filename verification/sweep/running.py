"""Fires every point with every action in deployments under traffic: nothing lost, or twice.

PostgreSQL, Valkey and the processes are real. Deployments run side by side, each with an API
server, two workers, the executor that they share, a model server, and traffic that reaches every
point. Many switches are set at a time; when one has fired, the next is set, from those that have
fired least. A killed process is started again. In the end all work is finished and checked. The
seed chooses among pairs that have fired equally often, and what the traffic does.
"""

import argparse
import asyncio
import math
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verification.chaos.checker import check
from verification.chaos.final_from_api import gather
from verification.chaos.history import read
from verification.chaos.points import Point, points, skipped
from verification.chaos.switches import Action
from verification.sweep import checks
from verification.sweep.book import ACTIONS, Book, Pair, pairs_of
from verification.sweep.deployment import Deployment, deployments
from verification.sweep.traffic import Traffic

#: Deployments, and of each: switches that are set at a time, and sessions.
DEPLOYMENTS = 2
AT_ONCE = 32
LANES = 8
#: How often fired switches are looked for.
LOOK_SECONDS = 0.02
#: Each session is to reach each point. A point that so many whole sessions do not reach is an
#: error, however long they take.
REACH_SESSIONS = 50
#: How often progress is printed, and the book saved.
SAY_SECONDS = 30.0
#: So many pairs are named that waited longest until they fired.
SLOWEST = 8


def run(
    seed: int,
    book: Book,
    *,
    count: int = DEPLOYMENTS,
    slowness: float = 1.0,
    at_once: int = AT_ONCE,
    lanes: int = LANES,
    reach_sessions: int = REACH_SESSIONS,
    seconds: float = math.inf,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Fires what the book wants; what it found, `wrong` as sentences.

    After `seconds`, or Ctrl-C, no more is set, and what has fired is judged. `keep` is a
    folder that is there, where all logs stay.

    On a machine that many share, leases are to be `slowness` times as long: one that gets no
    processor for so long loses them all the time, and makes no progress.
    """
    with deployments(count, slowness, keep) as made:
        sites = [
            _Site(
                one,
                book,
                Traffic(one.address, seed, one.name, one.history),
                at_once,
                # Those that were under way when a switch was set do not count.
                lanes + reach_sessions,
            )
            for one in made
        ]
        began, busy = time.monotonic(), _busy_seconds()
        try:
            unfinished = asyncio.run(_Sweep(sites, book, lanes).run(seconds))
        finally:
            book.save()
        firing_seconds = time.monotonic() - began
        result = _result(sites, book, firing_seconds, unfinished)
    return {**result, "cpu_seconds": round(_busy_seconds() - busy, 1)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m verification.chaos sweep`."""
    parser.add_argument("--times", type=int, default=100, help="each point with each action")
    parser.add_argument("--seed", type=int, default=1, help="of the order, and of the traffic")
    parser.add_argument("--points", help="their names, separated by commas; default: all")
    parser.add_argument(
        "--actions", default=",".join(ACTIONS), help="some of raise, sleep and kill"
    )
    parser.add_argument("--one-each", action="store_true", help="an action for each point")
    parser.add_argument("--book", type=Path, help="a file that counts over several runs")
    parser.add_argument("--deployments", type=int, default=DEPLOYMENTS, help="side by side")
    parser.add_argument(
        "--slowness", type=float, default=1.0, help="makes leases so many times as long"
    )
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE, help="switches set at a time in each deployment"
    )
    parser.add_argument(
        "--lanes", type=int, default=LANES, help="sessions at a time in each deployment"
    )
    parser.add_argument(
        "--reach-sessions", type=int, default=REACH_SESSIONS, help="until a point is given up"
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="ends after so long, unfinished"
    )
    parser.add_argument("--keep", type=Path, help="a folder that keeps the logs of all processes")


def run_given(given: argparse.Namespace) -> dict[str, Any]:
    """Runs what the arguments say. Raises ValueError for a point that is none."""
    chosen = given.points.split(",") if given.points else points()
    if unknown := sorted(set(chosen) - set(points())):
        raise ValueError(f"there is no point {unknown[0]}")
    actions = [ACTIONS[name] for name in given.actions.split(",")]
    if given.keep is not None:
        given.keep.mkdir(parents=True)
    pairs = pairs_of(given.seed, tuple(chosen), actions, one_each=given.one_each)
    return run(
        given.seed,
        Book(pairs, given.times, given.book),
        count=given.deployments,
        slowness=given.slowness,
        at_once=given.at_once,
        lanes=given.lanes,
        reach_sessions=given.reach_sessions,
        seconds=given.seconds,
        keep=given.keep,
    )


def _busy_seconds() -> float:
    """Returns the CPU seconds of this process, and of its children that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@dataclass(frozen=True, slots=True)
class _Set:
    """A switch that is set."""

    action: Action
    #: When it was set, and how many sessions were done then.
    at: float
    done: int


class _Site:
    """A deployment with its traffic, and what is set in it."""

    def __init__(
        self,
        deployment: Deployment,
        book: Book,
        traffic: Traffic,
        at_once: int,
        most_sessions: int,
    ) -> None:
        self.deployment = deployment
        self.traffic = traffic
        self.wrong: list[str] = []
        self._switches = deployment.switches
        self._book = book
        self._at_once = at_once
        self._most_sessions = most_sessions
        self._set: dict[Point, _Set] = {}
        self._firings = 0
        self._chosen = random.Random(0)
        #: How long each pair waited in all until it fired, and how often it fired.
        self.waited: defaultdict[Pair, float] = defaultdict(float)
        self.fired: Counter[Pair] = Counter()
        #: Replies that were paid and lost, by what explains it.
        self.repeats: Counter[str] = Counter()

    def look(self) -> None:
        """Records what has fired, gives up points that nothing reaches, and sets more switches."""
        self._take_fired()
        self._give_up()
        while len(self._set) < self._at_once:
            pair = self._book.next(self._set)
            if pair is None:
                return
            point, action = pair
            skip = skipped(self._chosen, point)
            seconds = self.deployment.sleep_seconds
            self._switches.set(point, action, seconds=seconds, skip=skip)
            self._set[point] = _Set(action, time.monotonic(), self.traffic.done)
            self._book.set(pair)

    def unset_all(self) -> None:
        """Nothing fires any more."""
        for point in points():
            self._switches.set(point, Action.NOTHING)
        self._take_fired()
        for point, one in self._set.items():
            self._book.unset((point, one.action))
        self._set.clear()

    def _take_fired(self) -> None:
        for one in self._switches.firings(self._firings):
            self._firings += 1
            pair = one.point, one.action
            self.waited[pair] += max(one.at - self._set.pop(one.point).at, 0.0)
            self.fired[pair] += 1
            self._book.fired(pair)

    def _give_up(self) -> None:
        late = self.traffic.done - self._most_sessions
        for point in [point for point, one in self._set.items() if one.done < late]:
            self._switches.set(point, Action.NOTHING)
            self._take_fired()
            if point not in self._set:
                continue
            one = self._set.pop(point)
            pair = point, one.action
            self._book.unset(pair)
            self._book.give_up(pair)
            self.wrong.append(
                f"nobody came to {point} ({one.action.name.lower()}) in"
                f" {self.traffic.done - one.done} sessions and {time.monotonic() - one.at:.0f} s;"
                f" before that {self._switches.counts(point).reached} times"
            )


class _Sweep:
    """Runs all sites, until the book is done or the run is ended."""

    def __init__(self, sites: Sequence[_Site], book: Book, lanes: int) -> None:
        self._sites = sites
        self._book = book
        self._lanes = lanes
        self._ended = False

    async def run(self, most_seconds: float) -> bool:
        """Returns whether it was ended before its time."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        lanes = [
            asyncio.create_task(site.traffic.run(lane))
            for site in self._sites
            for lane in range(self._lanes)
        ]
        await self._fire_all(lanes, time.monotonic() + most_seconds)
        for site in self._sites:
            site.unset_all()
            site.traffic.is_over = True
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(ended, BaseException):
                found = f"traffic ended with {type(ended).__name__}: {ended}"
                self._sites[0].wrong.append(found)
        return not self._book.is_done()

    def _end(self) -> None:
        self._ended = True

    async def _fire_all(self, lanes: Sequence[asyncio.Task[None]], until: float) -> None:
        said = time.monotonic()
        while not self._book.is_done() and not self._ended and time.monotonic() < until:
            for site in self._sites:
                site.look()
            if any(lane.done() for lane in lanes):
                # Without traffic no point is reached any more; the result says why it ended.
                return
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                self._say()
            await asyncio.sleep(LOOK_SECONDS)

    def _say(self) -> None:
        self._book.save()
        name, times = self._book.least()
        print(
            f"{self._book.run.total()} fired, {self._book.missing()} are missing; "
            f"least of all {name}: {times}",
            file=sys.stderr,
        )


def _result(sites: Sequence[_Site], book: Book, seconds: float, unfinished: bool) -> dict[str, Any]:
    wrong: list[str] = []
    exits: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for site in sites:
        found = _judge(site)
        wrong += [f"{site.deployment.name}: {one}" for one in site.wrong]
        exits += site.deployment.exits()
        totals += found
    wrong += [f"{one}: {number} times" for one, number in exits.items() if " " in one]
    fired = book.run.total()
    least, times = book.least()
    return {
        "value": len(wrong),
        "goal": "0",
        "seconds": round(seconds, 1),
        "is_ended_early": unfinished,
        "points": len(book.table()),
        "fired": fired,
        "missing": book.missing(),
        "least_fired": least,
        "least_times": times,
        "fired_in_all_runs": book.total(),
        "seconds_a_firing": round(seconds / max(fired, 1), 3),
        "killed": exits["killed"],
        **{name: totals[name] for name in _TOTALS},
        "repeated_share": round(totals["calls_repeated"] / max(totals["calls_paid"], 1), 4),
        "repeats_by_cause": dict(sum((site.repeats for site in sites), Counter()).most_common()),
        "slowest_seconds": _slowest(sites),
        "fired_by_point": book.table(),
        "wrong": wrong,
    }


_TOTALS = (
    "sessions",
    "chunks_acked",
    "answers",
    "calls_paid",
    "calls_repeated",
    "repeats_unexplained",
    "intents_left",
)


def _judge(site: _Site) -> Counter[str]:
    """Looks at what is there; counts, and what is wrong goes to the site."""
    deployment, records = site.deployment, site.traffic.records
    left = checks.drained(deployment.superuser_url)
    site.wrong += [f"{number} {name} are left" for name, number in left.items()]
    site.wrong += checks.wrongs(deployment.superuser_url, records)
    site.wrong += _violations(deployment)
    spent = checks.spent(
        deployment.superuser_url,
        deployment.paid,
        deployment.switches.firings(),
        deployment.sleep_seconds,
    )
    site.repeats = spent.repeats.causes
    site.wrong += spent.repeats.unexplained
    return Counter(
        sessions=len(records),
        chunks_acked=sum(len(one.acked) for one in records),
        answers=site.traffic.answers,
        calls_paid=spent.repeats.paid,
        calls_repeated=spent.repeats.count,
        repeats_unexplained=len(spent.repeats.unexplained),
        intents_left=spent.intents_left,
    )


def _violations(deployment: Deployment) -> list[str]:
    """Returns what the checker of histories finds."""
    found = gather(deployment.address, deployment.superuser_url, deployment.folder, seed=0)
    events = read([deployment.history, deployment.paid])
    report = check(events, found.final, drained=not found.undrained)
    return [f"{one.promise}: {one.what}" for one in report.violations]


def _slowest(sites: Sequence[_Site]) -> dict[str, float]:
    """Returns how long the pairs that waited longest did so, on average."""
    fired = sum((site.fired for site in sites), Counter[Pair]())
    mean = {pair: sum(site.waited[pair] for site in sites) / fired[pair] for pair in fired}
    slowest = sorted(mean, key=lambda pair: -mean[pair])[:SLOWEST]
    return {f"{one[0]} ({one[1].name.lower()})": round(mean[one], 1) for one in slowest}
