"""The clients of a campaign: processes that append, read, watch, ask and edit all the time.

Each writes down what it sends and what it hears (`history`). Work goes in lanes: a lane
makes a session with memories, fills it, waits until the memories have read it, and goes
on to the next. What the service may refuse under faults is noted; anything else is odd,
and is written to its own file. A process that is killed has a successor, which continues with
its lanes where they were, under higher epochs.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import palimpsest
from palimpsest import AlreadyExists, Cancelled, DeadlineExceeded, PalimpsestError, Unavailable
from verification.chaos.history import Event, Writer

#: What the service may say while everything around it fails.
EXPECTED = frozenset(
    {
        *("DATABASE_UNAVAILABLE", "SERVER_STOPPING", "PRODUCER_FENCED", "HEAD_MISMATCH"),
        *("BACKLOG_FULL", "REVISION_CONFLICT", "MEMORY_STALLED", "NOT_APPLIED_IN_TIME"),
        *("ANSWER_NOT_READY_IN_TIME", "ANSWER_FAILED", "TOO_MANY_ASKS", "TOO_MANY_WATCHES"),
        *("CONTEXT_TOO_LARGE", "TOO_MANY_PENDING"),
    }
)
#: And what comes without a reason, from gRPC itself.
_EXPECTED_KINDS = (Unavailable, DeadlineExceeded, Cancelled)
#: gRPC's own word, at the client, for a call that broke with its connection.
FROM_CORE = "Internal error from Core"
#: Clients of each session that append without a producer, and the part that each has of as many
#: chunks as come by producers.
REQUESTERS = 2
REQUESTED_PART = 20
#: The file that asks clients to end.
OVER = "over"
#: Between two tries of what the service refused.
PAUSE_SECONDS = 0.2
#: How long an SDK producer or watch goes around a service that is away.
GIVE_UP_SECONDS = 20.0
#: Epochs that one life of a process has for each producer; the next life begins above them.
LIFE_EPOCHS = 1_000_000

SCHEMA = "class Notes:\n    topics: dict[str, str]\n    edits: dict[str, str]\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Making:
    """A kind of session: its memories, and how much is written to it."""

    name: str
    #: Chunks of all producers together.
    chunks: int
    producers: int
    make: Callable[[palimpsest.Session], Awaitable[Any]]
    #: Its memory, and of which kind that is; other memories are made beside it.
    memory: str
    kind: str
    #: How long its lane waits at most until the memory has read it, in seconds.
    wait_seconds: float = inf


async def _notes(session: palimpsest.Session) -> None:
    await _once(
        session.create_memory(
            "notes",
            schema_source=SCHEMA,
            chunk_tokens=6000,
            encoding="amendments",
            fold_tokens=20_000,
        )
    )


async def _steps(session: palimpsest.Session) -> None:
    await _once(
        session.create_memory(
            "steps", schema_source=SCHEMA, chunk_tokens=150, encoding="amendments", fold_tokens=2000
        )
    )
    await _once(session.create_memory("whole", schema_source=SCHEMA, encoding="in_place"))


async def _tree(session: palimpsest.Session) -> None:
    await _once(session.create_tree("tree", segment_tokens=4000, summary_tokens=64))


async def _states(session: palimpsest.Session) -> None:
    await _once(session.create_state("state", task="Row.", period=100, episode_vectors=3))


async def _bulk(session: palimpsest.Session) -> None:
    await _once(session.create_state("state", task="Row.", period=1000, state_tokens=100))


async def _once(making: Awaitable[Any]) -> None:
    """What was made by a try whose answer was lost is there."""
    with suppress(AlreadyExists):
        await making


#: Goes on when its memory cannot follow under faults: what is left is read in the end.
BULK = Making(
    name="bulk",
    chunks=40_000,
    producers=3,
    make=_bulk,
    memory="state",
    kind="state",
    wait_seconds=20.0,
)
#: What the lanes fill in turn; those after them fill BULK again and again, so that chunks
#: come however slowly memories of other kinds read under faults.
MAKINGS = (
    Making(name="steps", chunks=300, producers=2, make=_steps, memory="steps", kind="prism"),
    BULK,
    Making(name="notes", chunks=3000, producers=2, make=_notes, memory="notes", kind="prism"),
    BULK,
    Making(name="tree", chunks=4000, producers=2, make=_tree, memory="tree", kind="tree"),
    Making(name="state", chunks=4000, producers=2, make=_states, memory="state", kind="state"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What one client process does; travels as JSON."""

    name: str
    #: Where the API servers listen.
    addresses: list[str]
    #: Where it writes.
    folder: str
    seed: int
    lanes: list[int]

    def to_json(self) -> str:
        """Returns the plan as an argument of a process."""
        return json.dumps(asdict(self))


@dataclass(eq=False, slots=True)
class Room:
    """A session that is being filled, as its clients know it."""

    session: str
    making: Making
    #: The newest token and its position.
    token: str = ""
    position: int = 0
    #: Highest sequence that is acked, by producer.
    acked: dict[str, int] = field(default_factory=dict)


class Desk:
    """What all tasks of a client process share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._folder = folder = Path(plan.folder)
        #: How many processes of this name there were before.
        self.life = len(list(folder.glob(f"history-{plan.name}-life-*.jsonl")))
        # Each life has files of its own: a killed one may have left half a line.
        self._life = f"{plan.name}-life-{self.life}"
        self._history = Writer(folder / f"history-{self._life}.jsonl")
        self._over = folder / OVER
        self._odd = (folder / f"odd-{self._life}.jsonl").open("a", encoding="utf-8")
        self.clients = [palimpsest.connect(address) for address in plan.addresses]
        #: The rooms that are open, by lane.
        self.rooms: dict[int, Room] = {}
        self.refusals: dict[str, int] = {}

    def is_over(self) -> bool:
        """Returns whether nothing new is begun."""
        return self._over.exists()

    def write(self, event: Event) -> None:
        """Adds an event to the history."""
        self._history.write(event)

    def reason(self, what: str, error: PalimpsestError) -> str:
        """Returns why the service said no; what it must not say is noted as odd."""
        reason = error.reason or type(error).__name__
        self.refusals[f"{what}: {reason}"] = self.refusals.get(f"{what}: {reason}", 0) + 1
        is_plain = type(error) in _PLAIN or str(error).startswith(FROM_CORE)
        if error.reason not in EXPECTED and (error.reason or not is_plain):
            self.odd(what, error)
        return reason

    def odd(self, what: str, error: BaseException) -> None:
        """Notes what should not have come."""
        said = {
            "client": self.plan.name,
            "what": what,
            "error": type(error).__name__,
            "reason": getattr(error, "reason", ""),
            "incident": getattr(error, "metadata", {}).get("incident", ""),
            "message": str(error),
        }
        self._odd.write(json.dumps(said) + "\n")
        self._odd.flush()

    def turn(self, lane: int) -> int:
        """Returns where a lane was when the process before this one ended; at first its number."""
        path = self._turn_path(lane)
        return int(path.read_text()) if path.exists() else lane

    def begin_turn(self, lane: int, turn: int) -> None:
        """Remembers where a lane is, beyond the end of this process."""
        new = self._folder / f"new-turn-{lane}"
        new.write_text(str(turn))
        new.rename(self._turn_path(lane))

    def _turn_path(self, lane: int) -> Path:
        return self._folder / f"turn-{lane}"

    async def insist(
        self, what: str, work: Callable[[], Awaitable[Any]], seconds: float = inf
    ) -> Any:
        """Does what may be done again until it is done; None when it is over before."""
        until = time.monotonic() + seconds
        while not self.is_over() and time.monotonic() < until:
            try:
                return await work()
            except PalimpsestError as error:
                self.reason(what, error)
                await asyncio.sleep(PAUSE_SECONDS)
        return None

    async def close(self) -> None:
        """Ends it."""
        for client in self.clients:
            await client.close()
        # The file is never seen incomplete.
        new = self._folder / f"new-refusals-{self._life}"
        new.write_text(json.dumps(self.refusals))
        new.rename(self._folder / f"refusals-{self._life}.json")


#: Errors of gRPC itself that say nothing but that the service is away.
_PLAIN = (*_EXPECTED_KINDS, palimpsest.ConnectionFailed)


async def lane(desk: Desk, number: int) -> None:
    """Fills one session after the other."""
    from verification.chaos.client_appends import Producing
    from verification.chaos.client_requests import Requesting

    rng = random.Random(f"{desk.plan.seed} lane {number} life {desk.life}")
    turn = desk.turn(number)
    while not desk.is_over():
        desk.begin_turn(number, turn)
        making = MAKINGS[turn % len(MAKINGS)] if number < len(MAKINGS) else BULK
        room = Room(session=f"{making.name}-{number}-{turn}", making=making)
        client = rng.choice(desk.clients)
        session = client.session(room.session)
        made = await desk.insist("create", lambda: _made(session, making))  # noqa: B023
        if not made:
            return
        desk.rooms[number] = room
        await asyncio.gather(
            *(
                Requesting(
                    desk,
                    room,
                    f"r{number}t{turn}n{one}l{desk.life}",
                    random.Random(rng.random()),
                ).run(making.chunks // REQUESTED_PART)
                for one in range(REQUESTERS)
            ),
            *(
                Producing(desk, room, f"p{number}t{turn}n{one}", random.Random(rng.random())).run(
                    making.chunks // making.producers
                )
                for one in range(making.producers)
            ),
        )
        await desk.insist(
            "drain",
            lambda: _drained(rng.choice(desk.clients), room),  # noqa: B023
            making.wait_seconds,
        )
        turn += 1


async def _made(session: palimpsest.Session, making: Making) -> bool:
    await session.create(exist_ok=True)
    await making.make(session)
    return True


async def _drained(client: palimpsest.Client, room: Room) -> bool:
    memory = client.session(room.session).memory(room.making.memory)
    if room.making.kind == "state":
        # It reads in periods: what is recent is not in it yet.
        state = client.session(room.session).state(room.making.memory)
        await state.context(fully_applied=True, forms=("text",), timeout=5)
    else:
        await memory.get(after=room.token, timeout=5)
    return True


async def _run(plan: Plan) -> None:
    from verification.chaos.client_reads import TASKS

    desk = Desk(plan)
    tasks = [
        asyncio.create_task(lane(desk, number), name=f"lane {number}") for number in plan.lanes
    ]
    for work in TASKS:
        rng = random.Random(f"{plan.seed} {plan.name} {desk.life} {work.__name__}")
        name = f"{plan.name}-{work.__name__}-{os.getpid()}"
        tasks.append(asyncio.create_task(work(desk, name, rng), name=work.__name__))
    for task in tasks:
        try:
            await task
        except Exception as error:
            # A client of ours that breaks is as odd as what the service says.
            import traceback

            traceback.print_exc()
            desk.odd(task.get_name(), error)
    await desk.close()


def main(plan: str) -> None:
    """Is a client process."""
    import uvloop

    print("ready", flush=True)
    uvloop.run(_run(Plan(**json.loads(plan))))
