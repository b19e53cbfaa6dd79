"""A campaign: a whole deployment under load, with everything in it failing all the time.

Two API servers, three workers and two executors as real processes, PostgreSQL and Valkey
behind a proxy, a model server, and clients that write down what they sent and heard.
Faults come by a schedule that its seed makes. When the time is up everything is healed,
the memories read what is left, and what is there is checked against what was heard.
"""

import heapq
import json
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from palimpsest import PalimpsestError
from verification.chaos import history
from verification.chaos.checker import check
from verification.chaos.clients import OVER, Plan
from verification.chaos.deployment import QUICK, Deployment
from verification.chaos.final_from_api import Gathered, gather
from verification.chaos.history import Event, Violation
from verification.chaos.log_looking import Looked, look
from verification.chaos.paid_calls import Judge, Spending
from verification.chaos.points import points
from verification.chaos.progress_printer import ProgressPrinter
from verification.chaos.promises import Report
from verification.chaos.schedule import CLIENTS, RATE, Fault, Kind, schedule

#: Lanes of each process of clients.
LANES = 5
#: How long clients may take to end once time is up.
CLIENTS_SECONDS = 90.0
#: The lease of a model's call.
LEASE_SECONDS = float(QUICK["PALIMPSEST_CALL_LEASE_SECONDS"])
#: Between two looks at what is due.
TICK_SECONDS = 0.02
#: A run is valid when it acked so many chunks a second, and made this share of its faults.
CHUNKS_A_SECOND = 50
FAULTS_SHARE = 0.5
#: Violations that a result shows.
SHOWN_VIOLATIONS = 20
#: In the log of a process that failed on purpose.
ON_PURPOSE = "FailedOnPurpose"


def run(
    seed: int,
    seconds: float,
    *,
    chunks: int = 0,
    rate: float = RATE,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Runs a campaign; its result, with `wrong` a list of sentences.

    `rate` faults come a second. It must ack `chunks` at least. What it wrote stays in
    `keep`, or where a violation was found in a new folder. SIGINT and SIGTERM end the faults
    before their time: what there is by then is gathered and checked.
    """
    folder = keep or Path(tempfile.mkdtemp(prefix="palimpsest-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    faults = schedule(seed, seconds, points(), rate)
    one = _Campaign(folder, faults, seed, seconds, chunks)
    try:
        result = one.run()
    except (RuntimeError, OSError, PalimpsestError, psycopg.Error) as error:
        # After half an hour even a run that broke has to say how far it came.
        traceback.print_exc()
        result = one.broken_off(error)
    if keep is None and not result["wrong"]:
        _remove(folder)
    else:
        result["folder"] = str(folder)
    return result


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found wrong, by whom."""

    report: Report
    spending: Spending
    looked: Looked
    odd: list[Violation]
    #: Highest resident memory of our own process, in MB.
    own_mb: int

    @property
    def violations(self) -> list[Violation]:
        """All of it."""
        return [
            *self.report.violations,
            *self.odd,
            *self.spending.violations,
            *self.looked.violations,
        ]


class _Campaign:
    def __init__(
        self, folder: Path, faults: Sequence[Fault], seed: int, seconds: float, chunks: int
    ) -> None:
        self._folder = folder
        self._faults = faults
        self._seed = seed
        self._seconds = seconds
        self._floor = chunks or round(seconds * CHUNKS_A_SECOND)
        #: What became of the run itself, where that was not what it should.
        self._broken: list[str] = []
        self._is_stopped = False

    def run(self) -> dict[str, Any]:
        with Deployment.started(self._folder, self._seed) as deployment, self._stoppable():
            progress = ProgressPrinter(self._folder)
            self._start_clients(deployment)
            started = time.monotonic()
            self._wait_for_traffic()
            self._break(deployment, progress, time.monotonic())
            ran = time.monotonic() - started
            progress.say("no more faults")
            for name in CLIENTS:
                deployment.end_client(name)
            (self._folder / OVER).touch()
            healed = deployment.heal()
            self._wait_for_clients(deployment)
            progress.say("the clients have ended")
            address = deployment.addresses[0]
            gathered = gather(address, deployment.superuser_url, self._folder, self._seed)
            progress.say("gathered")
            exits = deployment.exits()
            judge = Judge(deployment.harms, deployment.ends(), LEASE_SECONDS)
        report = check(self._events(), gathered.final, drained=not gathered.undrained)
        spending = judge.spending(self._events(), gathered.final.ledger)
        progress.say("checked")
        found = _Found(report, spending, look(self._folder), [*self._odd()], progress.own_mb)
        return self._result(deployment, gathered, found, exits, ran) | healed

    def broken_off(self, error: Exception) -> dict[str, Any]:
        """Returns the result of a run that did not end."""
        return {
            "seed": self._seed,
            "chunks_acked": _acked(self._events()),
            "violations": 1,
            "wrong": [f"invalid: the run broke, {type(error).__name__}: {error}"],
        }

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Ends the faults at a first signal, and everything at a second one."""

        def stop(number: int, _: object) -> None:
            self._is_stopped = True
            for one, handler in before.items():
                signal.signal(one, handler)

        before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _start_clients(self, deployment: Deployment) -> None:
        for number, name in enumerate(CLIENTS):
            plan = Plan(
                name=name,
                addresses=deployment.addresses,
                folder=str(self._folder),
                seed=self._seed,
                lanes=list(range(number, len(CLIENTS) * LANES, len(CLIENTS))),
            )
            deployment.start_client(name, plan.to_json())

    def _wait_for_traffic(self) -> None:
        """Faults before the first ack would show nothing."""
        until = time.monotonic() + CLIENTS_SECONDS
        while not any(isinstance(event, history.Acked) for event in self._events()):
            if time.monotonic() > until:
                raise RuntimeError(f"nothing is acked without any fault; see {self._folder}")
            time.sleep(0.1)

    def _break(self, deployment: Deployment, progress: ProgressPrinter, started: float) -> None:
        """Makes each fault happen when it is due, or as soon after as it can be."""
        due: list[tuple[float, int, Fault | str]] = [
            (fault.at_seconds, number, fault) for number, fault in enumerate(self._faults)
        ]
        heapq.heapify(due)
        while not self._is_stopped:
            now = time.monotonic() - started
            if now >= self._seconds:
                return
            deployment.look_at_points()
            progress.look(deployment)
            if not due or due[0][0] > now:
                deployment.rest(TICK_SECONDS)
                continue
            _, number, what = heapq.heappop(due)
            if isinstance(what, str):
                deployment.go_on(what)
                continue
            deployment.do(what)
            if what.kind is Kind.STOP:
                heapq.heappush(due, (now + what.seconds, number, what.target))

    def _wait_for_clients(self, deployment: Deployment) -> None:
        until = time.monotonic() + CLIENTS_SECONDS
        running = list(CLIENTS)
        while running and time.monotonic() < until:
            time.sleep(0.1)
            running = [name for name in running if deployment.is_running(name)]
        for name in running:
            self._broken.append(f"invalid: {name} does not come to an end")
            deployment.kill(name)

    def _events(self) -> Iterable[Event]:
        return history.read(sorted(self._folder.glob("history-*.jsonl")))

    def _odd(self) -> Iterable[Violation]:
        """Finds log lines that the service may not write, but for those that a fault explains."""
        purposes = [
            line
            for path in self._folder.glob("api-*.log")
            for line in path.read_text(errors="replace").splitlines()
            if ON_PURPOSE in line
        ]
        for path in sorted(self._folder.glob("odd-*.jsonl")):
            for line in path.read_text().splitlines():
                said = json.loads(line)
                incident = said["incident"]
                if not (incident and any(incident in one for one in purposes)):
                    what = f"{said['what']}: {said['error']} {said['reason']}: {said['message']}"
                    yield Violation(promise="errors", what=what[:500])

    def _invalid(self, acked: int, faults: int, ran: float) -> Iterator[str]:
        """Yields why the run itself shows too little."""
        yield from self._broken
        if acked < self._floor:
            yield f"invalid: {acked} chunks acked, a run needs {self._floor}"
        if self._is_stopped:
            yield f"invalid: stopped after {ran:.0f} of {self._seconds:.0f} s"
        elif faults < FAULTS_SHARE * len(self._faults):
            yield f"invalid: {faults} faults made of {len(self._faults)}"

    def _result(
        self,
        deployment: Deployment,
        gathered: Gathered,
        found: "_Found",
        exits: dict[str, tuple[int, ...]],
        ran: float,
    ) -> dict[str, Any]:
        acked, faults = _acked(self._events()), deployment.done.total()
        refusals = Counter[str]()
        for path in self._folder.glob("refusals-*.json"):
            refusals.update(json.loads(path.read_text()))
        wrong = [f"{one.promise}: {one.what}" for one in found.violations]
        wrong += [f"drained: {one}" for one in gathered.undrained]
        wrong += self._invalid(acked, faults, ran)
        return {
            "seed": self._seed,
            "seconds": round(ran, 1),
            "chunks_acked": acked,
            "chunks_a_second": round(acked / ran),
            "faults": faults,
            "faults_by_kind": dict(sorted(deployment.done.items())),
            "faults_missed": dict(sorted(deployment.missed.items())),
            "postgres_seconds": deployment.postgres_seconds,
            "exits": {
                name: dict(Counter(map(str, codes))) for name, codes in sorted(exits.items())
            },
            "model_calls": found.report.counts.get("calls", 0),
            **found.spending.told(),
            "logs_explained": found.looked.explained,
            "sessions": len(gathered.final.sessions),
            "refusals": dict(refusals.most_common()),
            "retries": gathered.retries,
            "drain_seconds": round(gathered.drain_seconds, 1),
            "gather_seconds": round(gathered.seconds, 1),
            "own_mb": found.own_mb,
            "checked": dict(sorted(found.report.counts.items())),
            "violations": len(wrong),
            "wrong": wrong[:SHOWN_VIOLATIONS],
        }


def _acked(events: Iterable[Event]) -> int:
    highest: dict[tuple[str, str], int] = {}
    for event in events:
        if isinstance(event, history.Acked):
            key = event.session, event.producer
            highest[key] = max(highest.get(key, 0), event.sequence)
    return sum(highest.values())
