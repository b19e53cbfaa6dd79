"""Outages of the model, of each kind, while many memories have work: all continue by themselves."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import palimpsest
from tests.support.fake_model import FakeModel, served
from tests.support.harness import api, worker
from verification.attacks.attack import Attack, Outcome, Stage

SCHEMA = "class Notes:\n    topics: dict[str, list[str]]\n"
#: Probes come this often at the most; in the service's default every 30 s. Durations of
#: outages, and the minute within which all must be applied, are compressed alike.
PROBE_SECONDS = 3.0
COMPRESSION = 30.0 / PROBE_SECONDS


def _error(kind: str, message: str, code: str | None = None) -> str:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


#: Status, headers and body of what the model answers meanwhile, in the providers' own shapes.
OUTAGES: dict[str, tuple[int, dict[str, str], str]] = {
    "wrong key": (401, {}, _error("invalid_request_error", "Incorrect API key provided")),
    "no right": (403, {}, _error("permission_error", "Project does not have access to model")),
    "no model": (404, {}, _error("invalid_request_error", "The model `x` does not exist")),
    "same 400": (400, {}, _error("invalid_request_error", "Unsupported parameter: 'max_tokens'")),
    "rate limit": (429, {}, _error("requests", "Rate limit reached for requests")),
    "no quota": (
        429,
        {},
        _error("insufficient_quota", "You exceeded your current quota", "insufficient_quota"),
    ),
    "no credit": (400, {}, _error("invalid_request_error", "Your credit balance is too low")),
    "500": (500, {}, _error("server_error", "The server had an error")),
    "503": (503, {}, _error("overloaded_error", "Overloaded")),
}


@dataclass
class Switched(FakeModel):
    """A model that can be out."""

    #: What it answers; None: it replies.
    outage: tuple[int, dict[str, str], str] | None = None
    #: When it was asked meanwhile, by the monotonic clock.
    asked: list[float] = field(default_factory=list)

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        """Returns the response to a completion request."""
        if self.outage is not None:
            self.asked.append(time.monotonic())
            return self.outage
        return super().respond(request)


@dataclass(frozen=True, slots=True)
class _Run:
    kind: str
    seconds: float
    #: Seconds from its end until everything was applied; None: not in time.
    healed: float | None
    #: Calls while it lasted, after the first seconds, for each second.
    probes: float
    stalled: int


async def attack(stage: Stage) -> Outcome:
    """Runs all outages, one after the other, on the same memories."""
    memories = 40 if stage.short else 1000
    durations = (8.0,) if stage.short else (10.0, 60.0, 20 * 60.0 / COMPRESSION)
    kinds = ("wrong key", "same 400", "rate limit", "500") if stage.short else tuple(OUTAGES)
    model = Switched()
    url = stage.servers.new_database()
    settings = {**stage.servers.redis_settings(), "PALIMPSEST_LOG_LEVEL": "warning"}
    with served(model) as endpoint:
        model.url = f"{endpoint}/v1"
        settings |= {**model.settings, "PALIMPSEST_MODEL_PROBE_SECONDS": str(PROBE_SECONDS)}
        with (
            api(url, **settings) as (_, address),
            worker(url, **settings),
            worker(url, **settings),
        ):
            async with palimpsest.connect(address) as client:
                sessions = [await _session(client, number) for number in range(memories)]
                runs = []
                for seconds in durations:
                    for kind in kinds:
                        runs.append(await _outage(model, sessions, kind, seconds))
                        print(f"      {runs[-1]}", flush=True)
    return _judged(runs, memories)


async def _session(client: palimpsest.Client, number: int) -> palimpsest.Session:
    session = await client.create_session(f"outage-{number}")
    await session.create_memory("m", schema_source=SCHEMA)
    return session


async def _outage(
    model: Switched, sessions: Sequence[palimpsest.Session], kind: str, seconds: float
) -> _Run:
    model.outage, model.asked = OUTAGES[kind], []
    began = time.monotonic()
    heads = dict(await asyncio.gather(*(_append(one) for one in sessions)))
    await asyncio.sleep(max(seconds - (time.monotonic() - began), 0))
    settled = [at for at in model.asked if at > began + seconds / 2]
    stalled = sum([await _stalled(one) for one in sessions])
    model.outage = None
    ended = time.monotonic()
    healed = await _all_applied(sessions, heads, ended)
    return _Run(kind, round(seconds, 1), healed, round(len(settled) / (seconds / 2), 1), stalled)


async def _append(session: palimpsest.Session) -> tuple[str, int]:
    async with session.producer("attack") as producer:
        await producer.append("The harbour is closed on Mondays.")
        ack = await producer.flush()
    assert ack is not None
    return session.id, ack.position


async def _stalled(session: palimpsest.Session) -> bool:
    return (await session.memory("m").get()).info.status == "stalled"


async def _all_applied(
    sessions: Sequence[palimpsest.Session], heads: dict[str, int], ended: float
) -> float | None:
    left = list(sessions)
    # Far more than what is allowed: how long it took is reported in any case.
    while time.monotonic() < ended + 180:
        reached = await asyncio.gather(*(one.memory("m").get() for one in left))
        left = [
            one
            for one, state in zip(left, reached, strict=True)
            if state.applied_position < heads[one.id]
        ]
        if not left:
            return round(time.monotonic() - ended, 1)
        # To look at a thousand memories is work, too.
        await asyncio.sleep(1.0)
    return None


def _judged(runs: Sequence[_Run], memories: int) -> Outcome:
    late = [run for run in runs if run.healed is None or run.healed > 60]
    stalled = sum(run.stalled for run in runs)
    # One probe a pause, with two workers that may both look, and what was under way.
    stormy = [run for run in runs if run.probes > 5]
    healed = max((run.healed or 180.0 for run in runs), default=0.0)
    found = (
        f"{memories} memories, {len(runs)} outages of {sorted({run.seconds for run in runs})} s:"
        f" {stalled} stalled, all applied at most {healed} s after the end, at most"
        f" {max(run.probes for run in runs)} calls a second meanwhile"
    )
    problems = [f"{run.kind} {run.seconds} s" for run in (*late, *stormy)]
    return Outcome(
        held=not problems and not stalled,
        found=found + (f"; late or stormy: {', '.join(problems)}" if problems else ""),
    )


ATTACK = Attack(
    name="outages",
    finding="users 1a",
    summary="the model refuses, fails or is rate limited while all memories have work",
    goal="none stalls, all are applied within a minute after, no storm of calls",
    before="a wrong key for 10 s stalled 73 of 100 memories for good",
    run=attack,
)
