"""Every fail point with every action, in a deployment under traffic: nothing lost, or twice.

Real PostgreSQL, Valkey and processes: an API, two workers, the caller that they share, a
model server, and traffic that reaches every point. Some switches are set at a time; as
soon as one has fired the next of the schedule is set. Who is killed is started again. In
the end everything comes to rest and is looked at. The same seed makes the same schedule.
"""

import argparse
import asyncio
import math
import random
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from service.domain.fail_points import FailPoint
from service.embedded.processes import free_port
from service.fail_points import Action, Switches
from tests.chaos import sweep_checks
from tests.chaos.sweep_traffic import Traffic
from tests.chaos.zygote import Zygote
from tests.harness import Servers

#: Leases so short that a process that stands still for SLEEP_SECONDS has lost all of them.
QUICK = {
    "PALIMPSEST_HEARTBEAT_SECONDS": "0.2",
    "PALIMPSEST_DEAD_AFTER_SECONDS": "0.8",
    "PALIMPSEST_SWEEP_SECONDS": "0.25",
    "PALIMPSEST_RECONCILE_SECONDS": "0.25",
    "PALIMPSEST_CALL_LEASE_SECONDS": "0.4",
    "PALIMPSEST_STEP_BACKOFF_SECONDS": "0.05",
    "PALIMPSEST_STEP_TRIES": "1000",
    "PALIMPSEST_MODEL_TRIES": "1",
    "PALIMPSEST_STOP_SECONDS": "2",
    "PALIMPSEST_POOL_SIZE": "4",
    "PALIMPSEST_LOG_LEVEL": "warning",
    "PALIMPSEST_MODEL": "openai/chaos",
    "PALIMPSEST_EMBEDDING_MODEL": "openai/words",
    "PALIMPSEST_EMBEDDING_DIMENSIONS": "8",
}
SLEEP_SECONDS = 1.0
#: Before one that died is started again.
RESTART_SECONDS = 0.05
#: Switches that are set at a time.
AT_ONCE = 12
#: Sessions that the traffic has at a time.
LANES = 8
#: How often it is looked which switches have fired.
LOOK_SECONDS = 0.02
#: A point that nobody comes to for so long is an error.
REACH_SECONDS = 60.0
#: How often progress is said.
SAY_SECONDS = 30.0
#: Calls that the caller may have with the model when it dies, and loses.
AT_THE_MODEL = 8
#: What is known by these names may be chosen.
ACTIONS = {one.name.lower(): one for one in Action if one is not Action.NOTHING}

_PROCESSES = ("api", "worker-1", "worker-2", "caller")


def run(
    seed: int,
    *,
    times: int = 100,
    points: Sequence[FailPoint] = tuple(FailPoint),
    actions: Sequence[Action] = tuple(ACTIONS.values()),
    one_each: bool = False,
    reach_seconds: float = REACH_SECONDS,
    seconds: float = math.inf,
    keep: Path | None = None,
) -> dict[str, Any]:
    """Fires each point so many times with each action; what it found, `wrong` as sentences.

    With `one_each` a point fires with one of the actions, which the seed chooses. Behind
    `seconds` no more are set. `keep` is a folder that is there, where all logs stay.
    """
    schedule = _schedule(random.Random(seed), times, points, actions, one_each=one_each)
    with _Deployment.started(keep) as deployment:
        return asyncio.run(_Sweep(deployment, schedule, seed, reach_seconds).run(seconds))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `python -m tests.chaos sweep` takes."""
    parser.add_argument("--times", type=int, default=100, help="each point with each action")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule")
    parser.add_argument("--points", help="their names, with commas; all")
    parser.add_argument("--actions", default=",".join(ACTIONS), help="of raise, sleep and kill")
    parser.add_argument("--one-each", action="store_true", help="an action for each point")
    parser.add_argument(
        "--reach-seconds", type=float, default=REACH_SECONDS, help="until a point is given up"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="it ends then, unfinished")
    parser.add_argument("--keep", type=Path, help="where the logs of all processes stay")


def run_given(given: argparse.Namespace) -> dict[str, Any]:
    """Runs what the arguments say. Raises ValueError for a point that is none."""
    points = [FailPoint(name) for name in given.points.split(",")] if given.points else FailPoint
    if given.keep is not None:
        given.keep.mkdir(parents=True)
    return run(
        given.seed,
        times=given.times,
        points=tuple(points),
        actions=tuple(ACTIONS[name] for name in given.actions.split(",")),
        one_each=given.one_each,
        reach_seconds=given.reach_seconds,
        seconds=given.seconds,
        keep=given.keep,
    )


def _schedule(
    chosen: random.Random,
    times: int,
    points: Sequence[FailPoint],
    actions: Sequence[Action],
    *,
    one_each: bool,
) -> list[tuple[FailPoint, Action]]:
    # In rounds, so that of a sweep that is ended early each point has had its share.
    schedule: list[tuple[FailPoint, Action]] = []
    for _ in range(times):
        wanted = [
            (point, action)
            for point in points
            for action in ([chosen.choice(actions)] if one_each else actions)
        ]
        chosen.shuffle(wanted)
        schedule += wanted
    return schedule


class _Deployment:
    """The processes of a sweep."""

    def __init__(self, servers: Servers, zygote: Zygote, folder: Path) -> None:
        self._zygote = zygote
        self.url = servers.new_database()
        self.superuser_url = servers.as_superuser(self.url)
        self.switches = Switches(folder / "switches")
        self.paid = folder / "paid"
        self.address = f"127.0.0.1:{free_port()}"
        port = free_port()
        model = f"http://127.0.0.1:{port}/v1"
        command = ["run", "tests.chaos.sweep_model:main", str(port), str(self.paid)]
        zygote.start("model", command, {}, restart_seconds=None)
        zygote.wait_ready("model")
        environment = {
            **QUICK,
            "PALIMPSEST_DATABASE_URL": self.url,
            "PALIMPSEST_REDIS_URL": servers.valkey.url,
            "PALIMPSEST_LISTEN": self.address,
            "PALIMPSEST_MODEL_BASE_URL": model,
            "PALIMPSEST_MODEL_API_KEY": "none",
            "PALIMPSEST_EMBEDDING_BASE_URL": model,
            "PALIMPSEST_EMBEDDING_API_KEY": "none",
            "PALIMPSEST_CALLER_SOCKET": str(folder / "caller"),
            "PALIMPSEST_FAIL_POINTS": str(folder / "switches"),
        }
        commands = (["serve"], ["work"], ["work"], ["caller", "--socket", str(folder / "caller")])
        for name, words in zip(_PROCESSES, commands, strict=True):
            zygote.start(name, words, environment, restart_seconds=RESTART_SECONDS)
        for name in _PROCESSES:
            zygote.wait_ready(name)

    @classmethod
    @contextmanager
    def started(cls, keep: Path | None) -> Iterator["_Deployment"]:
        """One that is ended with everything in it."""
        with ExitStack() as stack:
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="sweep-"))
            folder = keep or Path(temporary)
            servers = stack.enter_context(Servers.started())
            zygote = stack.enter_context(Zygote.started(folder))
            yield cls(servers, zygote, folder)

    def exits(self) -> Counter[str]:
        """How often the processes ended: by the kill that was meant, or otherwise."""
        found: Counter[str] = Counter()
        for name in _PROCESSES:
            for code in self._zygote.status(name).exits:
                found["killed" if code == -9 else f"{name} ended with {code}"] += 1
        return found


class _Sweep:
    def __init__(
        self,
        deployment: _Deployment,
        schedule: Sequence[tuple[FailPoint, Action]],
        seed: int,
        reach_seconds: float,
    ) -> None:
        self._reach_seconds = reach_seconds
        self._deployment = deployment
        self._switches = deployment.switches
        self._waiting = deque(schedule)
        self._all = len(schedule)
        #: Switches that are set, and since when.
        self._set: dict[FailPoint, tuple[Action, float]] = {}
        self._fired: dict[FailPoint, Counter[str]] = {}
        self._unreached = 0
        self._wrong: list[str] = []
        self._traffic = Traffic(deployment.address, seed)

    async def run(self, most_seconds: float) -> dict[str, Any]:
        lanes = [asyncio.create_task(self._traffic.run(lane)) for lane in range(LANES)]
        began = time.monotonic()
        await self._fire_all(lanes, began + most_seconds)
        seconds = time.monotonic() - began
        self._traffic.is_over = True
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(ended, BaseException):
                self._wrong.append(f"traffic ended with {type(ended).__name__}: {ended}")
        return await asyncio.to_thread(self._result, seconds)

    async def _fire_all(self, lanes: Sequence[asyncio.Task[None]], until: float) -> None:
        said = time.monotonic()
        while self._waiting or self._set:
            self._take_fired()
            self._set_more()
            if any(lane.done() for lane in lanes) or time.monotonic() > until:
                # Without traffic nobody comes to a point any more; why is told in the end.
                self._unset_all()
                return
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                done = self._all - len(self._waiting) - len(self._set)
                waits = ", ".join(point.value for point in self._set)
                print(f"{done} of {self._all} fired; waiting at {waits}", file=sys.stderr)
            await asyncio.sleep(LOOK_SECONDS)

    def _take_fired(self) -> None:
        now = time.monotonic()
        for point, (action, since) in list(self._set.items()):
            if not self._switches.is_set(point):
                del self._set[point]
                self._fired.setdefault(point, Counter())[action.name.lower()] += 1
            elif now - since > self._reach_seconds:
                self._switches.set(point, Action.NOTHING)
                del self._set[point]
                self._unreached += 1
                name = f"{point.value} ({action.name.lower()})"
                self._wrong.append(f"nobody came to {name} in {self._reach_seconds:.0f} s")

    def _set_more(self) -> None:
        # Those that are set already come later in the schedule once more.
        for _ in range(len(self._waiting)):
            if len(self._set) >= AT_ONCE:
                return
            point, action = self._waiting.popleft()
            if point in self._set:
                self._waiting.append((point, action))
                continue
            self._switches.set(point, action, seconds=SLEEP_SECONDS)
            self._set[point] = (action, time.monotonic())

    def _unset_all(self) -> None:
        for point in FailPoint:
            self._switches.set(point, Action.NOTHING)
        self._waiting.clear()
        self._set.clear()

    def _result(self, seconds: float) -> dict[str, Any]:
        deployment = self._deployment
        left = sweep_checks.drained(deployment.superuser_url)
        self._wrong += [f"{number} {name} are left" for name, number in left.items()]
        self._wrong += sweep_checks.wrongs(deployment.superuser_url, self._traffic.told)
        spent = sweep_checks.spent(deployment.superuser_url, deployment.paid)
        exits = deployment.exits()
        self._wrong += [f"{one}: {number} times" for one, number in exits.items() if " " in one]
        repeated = spent.paid - spent.recorded
        if repeated > (most := self._repeats_explained()):
            self._wrong.append(f"{repeated} calls were paid again; faults explain {most}")
        fired = sum(sum(one.values()) for one in self._fired.values())
        return {
            "value": len(self._wrong),
            "goal": "0",
            "seconds": round(seconds, 1),
            "points": len(self._fired),
            "fired": fired,
            "not_set": self._all - fired - self._unreached,
            "seconds_a_firing": round(seconds / max(fired, 1), 3),
            "killed": exits["killed"],
            "sessions": len(self._traffic.told),
            "chunks_acked": sum(len(one.acked) for one in self._traffic.told),
            "answers": self._traffic.answers,
            "calls_paid": spent.paid,
            "calls_repeated": repeated,
            "repeats_explained": most,
            "intents_left": spent.intents_left,
            "fired_by_point": {
                point.value: dict(sorted(self._fired[point].items()))
                for point in FailPoint
                if point in self._fired
            },
            "wrong": self._wrong,
        }

    def _repeats_explained(self) -> int:
        """How many replies faults may have cost: those that were paid and not yet stored."""
        killed = sum(
            self._fired.get(point, Counter())["kill"] for point in (*_AT_THE_CALLER, *_UNSTORED)
        )
        raised = sum(self._fired.get(point, Counter())["raise"] for point in _UNSTORED)
        return AT_THE_MODEL * killed + AT_THE_MODEL * raised


#: Points of the caller's process between the model's reply and the row in the ledger: what
#: fails there has cost its reply, and with it those that shared its transaction.
_UNSTORED = (FailPoint.MODEL_REPLIED, FailPoint.CALL_MADE, FailPoint.RECORD_BEFORE)
#: The other points of its process: who is killed there loses what it has with the model.
_AT_THE_CALLER = (
    FailPoint.ORDER_RECEIVED,
    FailPoint.OUTCOME_BEFORE,
    FailPoint.OUTCOME_SENT,
    FailPoint.MODEL_BEFORE,
    FailPoint.RECORD_WRITTEN,
    FailPoint.CALL_RECORDED,
    FailPoint.CALL_COPIED,
    FailPoint.RENEWAL_BEFORE,
    FailPoint.RENEWED,
)
