"""What goes wrong when, in a campaign: the same seed, the same schedule."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from verification.chaos.model_server import ModelFault
from verification.chaos.points import skipped

#: Faults a second, on average: as many as leave memories time to read in between.
RATE = 2.2
#: How long a stopped process is suspended, at least and at most: about and past the leases of
#: `campaign.QUICK`, which are two seconds.
STOP_SECONDS = (0.5, 4.0)
#: How long nothing passes a proxy, and how long everything is late.
STALL_SECONDS = (0.2, 3.0)
DELAY_SECONDS = (0.5, 3.0)
#: By how much each piece is late then.
EACH_SECONDS = (0.005, 0.1)
#: How long a process pauses at a fail point.
SLEEP_SECONDS = (0.1, 4.0)
#: Seconds between two losses of PostgreSQL at least: it has to recover in between.
POSTGRES_SECONDS = 25.0

PROCESSES = ("api-1", "api-2", "worker-1", "worker-2", "worker-3", "executor-1", "executor-2")
CLIENTS = ("client-0", "client-1")
WAYS = ("postgres", "valkey")


class Kind(StrEnum):
    """What is done."""

    #: SIGKILL to a process of ours.
    KILL = "kill"
    #: SIGTERM: it stops as in a rolling upgrade.
    TERMINATE = "terminate"
    #: SIGSTOP, and SIGCONT after `seconds`.
    STOP = "stop"
    #: SIGKILL to a process of clients; another one continues from what is durable.
    CLIENT_KILL = "client_kill"
    #: The postmaster is killed, or stopped without a checkpoint.
    POSTGRES_KILL = "postgres_kill"
    POSTGRES_IMMEDIATE = "postgres_immediate"
    VALKEY_KILL = "valkey_kill"
    #: Connections of ours are ended by PostgreSQL.
    BACKENDS = "backends"
    #: At the proxy.
    CUT = "cut"
    STALL = "stall"
    DELAY = "delay"
    SWALLOW = "swallow"
    #: At the model server.
    MODEL = "model"
    #: At a fail point.
    RAISE = "raise"
    SLEEP = "sleep"
    POINT_KILL = "point_kill"


#: How often each comes, to the others.
WEIGHTS = {
    Kind.KILL: 7,
    Kind.TERMINATE: 2,
    Kind.STOP: 5,
    Kind.CLIENT_KILL: 3,
    Kind.POSTGRES_KILL: 0.3,
    Kind.POSTGRES_IMMEDIATE: 0.3,
    Kind.VALKEY_KILL: 1,
    Kind.BACKENDS: 10,
    Kind.CUT: 10,
    Kind.STALL: 3,
    Kind.DELAY: 8,
    Kind.SWALLOW: 18,
    Kind.MODEL: 37,
    Kind.RAISE: 10,
    Kind.SLEEP: 6,
    Kind.POINT_KILL: 6,
}
_POSTGRES = (Kind.POSTGRES_KILL, Kind.POSTGRES_IMMEDIATE)
_AT_POINTS = (Kind.RAISE, Kind.SLEEP, Kind.POINT_KILL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    #: From the beginning of the faults.
    at_seconds: float
    kind: Kind
    #: A process, a way of the proxy, a fail point, or a fault of models; empty: there is one.
    target: str = ""
    #: How long it lasts, where it does.
    seconds: float = 0.0
    #: Share of connections (cut, backends), delay of each piece in seconds, requests, or how
    #: many pass a point before one fails there.
    amount: float = 0.0


def schedule(seed: int, seconds: float, points: Sequence[str], rate: float = RATE) -> list[Fault]:
    """Returns the faults of a run, in their order: each kind once at least, then by its weight."""
    rng = random.Random(seed)
    kinds = [kind for kind in Kind if points or kind not in _AT_POINTS]
    if not rate:
        return []
    count = max(round(seconds * rate), len(kinds))
    weights = [WEIGHTS[kind] for kind in kinds]
    chosen = kinds + rng.choices(kinds, weights, k=count - len(kinds))
    rng.shuffle(chosen)
    times = sorted(rng.uniform(0, seconds) for _ in chosen)
    faults: list[Fault] = []
    lost_at = dict.fromkeys(_POSTGRES, -POSTGRES_SECONDS)
    for at, kind in zip(times, chosen, strict=True):
        if kind in _POSTGRES:
            if at - lost_at[kind] < POSTGRES_SECONDS:
                kind = Kind.BACKENDS
            else:
                lost_at[kind] = at
        faults.append(_fault(rng, round(at, 3), kind, points))
    return faults


def _fault(rng: random.Random, at: float, kind: Kind, points: Sequence[str]) -> Fault:
    def between(ends: tuple[float, float]) -> float:
        return round(rng.uniform(*ends), 3)

    match kind:
        case Kind.KILL | Kind.TERMINATE:
            return Fault(at_seconds=at, kind=kind, target=rng.choice(PROCESSES))
        case Kind.CLIENT_KILL:
            return Fault(at_seconds=at, kind=kind, target=rng.choice(CLIENTS))
        case Kind.STOP:
            target = rng.choice(PROCESSES)
            return Fault(at_seconds=at, kind=kind, target=target, seconds=between(STOP_SECONDS))
        case Kind.BACKENDS:
            return Fault(at_seconds=at, kind=kind, amount=between((0.05, 0.5)))
        case Kind.CUT:
            share = rng.choice((0.2, 0.5, 1.0))
            return Fault(at_seconds=at, kind=kind, target=rng.choice(WAYS), amount=share)
        case Kind.STALL:
            seconds = between(STALL_SECONDS)
            return Fault(at_seconds=at, kind=kind, target=rng.choice(WAYS), seconds=seconds)
        case Kind.DELAY:
            return Fault(
                at_seconds=at,
                kind=kind,
                target=rng.choice(WAYS),
                seconds=between(DELAY_SECONDS),
                amount=between(EACH_SECONDS),
            )
        case Kind.SWALLOW:
            return Fault(at_seconds=at, kind=kind, target="postgres")
        case Kind.MODEL:
            fault = rng.choice(list(ModelFault))
            return Fault(at_seconds=at, kind=kind, target=fault.value, amount=rng.randint(1, 4))
        case Kind.RAISE | Kind.POINT_KILL:
            return _at_point(rng, at, kind, points)
        case Kind.SLEEP:
            seconds = between(SLEEP_SECONDS)
            return _at_point(rng, at, kind, points, seconds)
    return Fault(at_seconds=at, kind=kind)


def _at_point(
    rng: random.Random, at: float, kind: Kind, points: Sequence[str], seconds: float = 0.0
) -> Fault:
    target = rng.choice(points)
    skip = skipped(rng, target)
    return Fault(at_seconds=at, kind=kind, target=target, seconds=seconds, amount=skip)
