"""A campaign: a whole deployment under load, with everything in it failing all the time.

Two API servers, three workers and two callers as real processes, PostgreSQL and Valkey
behind a proxy, a model server, and clients that write down what they sent and heard.
Faults come by a schedule that its seed makes. When the time is up everything is healed,
the memories read what is left, and what is there is checked against what was heard.
"""

import heapq
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from service.domain.fail_points import FailPoint
from tests.chaos import history
from tests.chaos.checker import check
from tests.chaos.clients import OVER, Plan
from tests.chaos.deployment import Deployment
from tests.chaos.gather import Gathered, gather
from tests.chaos.history import Event, Violation
from tests.chaos.promises import Report
from tests.chaos.schedule import RATE, Fault, Kind, schedule

#: Processes of clients, and lanes of each.
CLIENTS = 2
LANES = 3
#: How long clients may take to come to their end once time is up.
CLIENTS_SECONDS = 90.0
#: Between two looks at what is due.
TICK_SECONDS = 0.02
#: A run is valid when it acked so many chunks a second, and made this share of its faults.
CHUNKS_A_SECOND = 50
FAULTS_SHARE = 0.5
#: Violations that a result shows.
SHOWN_VIOLATIONS = 20
#: In the log of a process that was told to fail.
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
    `keep`, or where a violation was found in a new folder.
    """
    folder = keep or Path(tempfile.mkdtemp(prefix="palimpsest-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    faults = schedule(seed, seconds, [point.value for point in FailPoint], rate)
    result = _Campaign(folder, faults, seed, seconds, chunks).run()
    if keep is None and not result["wrong"]:
        _remove(folder)
    else:
        result["folder"] = str(folder)
    return result


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


class _Campaign:
    def __init__(
        self, folder: Path, faults: Sequence[Fault], seed: int, seconds: float, chunks: int
    ) -> None:
        self._folder = folder
        self._faults = faults
        self._seed = seed
        self._seconds = seconds
        self._floor = chunks or round(seconds * CHUNKS_A_SECOND)

    def run(self) -> dict[str, Any]:
        with Deployment.started(self._folder, self._seed) as deployment:
            clients = self._start_clients(deployment)
            started = time.monotonic()
            self._wait_for_traffic()
            self._break(deployment, time.monotonic())
            (self._folder / OVER).touch()
            ran = time.monotonic() - started
            healed = deployment.heal()
            self._wait_for_clients(deployment, clients)
            address = deployment.addresses[0]
            gathered = gather(address, deployment.superuser_url, self._folder, self._seed)
            exits = deployment.exits()
        report = check(self._events(), gathered.final, drained=not gathered.undrained)
        return self._result(deployment, gathered, report, exits, ran) | healed

    def _start_clients(self, deployment: Deployment) -> list[str]:
        names = [f"client-{number}" for number in range(CLIENTS)]
        for number, name in enumerate(names):
            plan = Plan(
                name=name,
                addresses=deployment.addresses,
                folder=str(self._folder),
                seed=self._seed,
                lanes=list(range(number, CLIENTS * LANES, CLIENTS)),
            )
            deployment.start_client(name, plan.to_json())
        return names

    def _wait_for_traffic(self) -> None:
        """Faults before the first ack would show nothing."""
        until = time.monotonic() + CLIENTS_SECONDS
        while not any(isinstance(event, history.Acked) for event in self._events()):
            if time.monotonic() > until:
                raise RuntimeError(f"nothing is acked without any fault; see {self._folder}")
            time.sleep(0.1)

    def _break(self, deployment: Deployment, started: float) -> None:
        """Makes each fault happen when it is due, or as soon after as it can be.

        The schedule stands still while PostgreSQL starts again, which a busy machine takes
        seconds for.
        """
        due: list[tuple[float, int, Fault | str]] = [
            (fault.at_seconds, number, fault) for number, fault in enumerate(self._faults)
        ]
        heapq.heapify(due)
        told = 0
        while True:
            now = time.monotonic() - started - sum(deployment.postgres_seconds)
            if now >= self._seconds:
                return
            if not due or due[0][0] > now:
                time.sleep(TICK_SECONDS)
                continue
            _, number, what = heapq.heappop(due)
            if isinstance(what, str):
                deployment.go_on(what)
                continue
            deployment.do(what)
            if what.kind is Kind.STOP:
                heapq.heappush(due, (now + what.seconds, number, what.target))
            if now // 30 > told:
                told = int(now // 30)
                print(f"{now:.0f} s: {deployment.done.total()} faults", file=sys.stderr)

    def _wait_for_clients(self, deployment: Deployment, names: Sequence[str]) -> None:
        until = time.monotonic() + CLIENTS_SECONDS
        while any(deployment.is_running(name) for name in names):
            if time.monotonic() > until:
                raise RuntimeError(f"clients do not come to an end; see {self._folder}")
            time.sleep(0.1)

    def _events(self) -> Iterable[Event]:
        return history.read(sorted(self._folder.glob("history-*.jsonl")))

    def _odd(self) -> Iterable[Violation]:
        """What the service said and may not say, but for what it was told to fail at."""
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

    def _result(
        self,
        deployment: Deployment,
        gathered: Gathered,
        report: Report,
        exits: dict[str, tuple[int, ...]],
        ran: float,
    ) -> dict[str, Any]:
        acked, calls = _acked(self._events()), _calls(self._events())
        faults = deployment.done.total()
        refusals = Counter[str]()
        for path in self._folder.glob("refusals-*.json"):
            refusals.update(json.loads(path.read_text()))
        violations = [*report.violations, *self._odd()]
        wrong = [f"{one.promise}: {one.what}" for one in violations]
        wrong += [f"drained: {one}" for one in gathered.undrained]
        if acked < self._floor:
            wrong.append(f"invalid: {acked} chunks acked, a run needs {self._floor}")
        if faults < FAULTS_SHARE * len(self._faults):
            wrong.append(f"invalid: {faults} faults made of {len(self._faults)}")
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
            **calls,
            "sessions": len(gathered.final.sessions),
            "refusals": dict(refusals.most_common()),
            "retries": gathered.retries,
            "gather_seconds": round(gathered.seconds, 1),
            "checked": dict(sorted(report.counts.items())),
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


def _calls(events: Iterable[Event]) -> dict[str, Any]:
    paid: Counter[str] = Counter()
    calls = 0
    for event in events:
        if isinstance(event, history.ModelCalled):
            calls += 1
            paid[event.prompt] += event.is_paid
    twice = sum(times - 1 for times in paid.values() if times > 1)
    return {"model_calls": calls, "calls_paid": paid.total(), "calls_paid_twice": twice}
