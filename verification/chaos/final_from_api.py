"""Reads the final state of all sessions of a campaign from the API.

First every memory reads what is left to read, then everything is asked of the service; only
the ledger, and the parents and epochs of revisions, come from the tables. `final_from_tables`
reads one session from its tables alone.
"""

import asyncio
import hashlib
import json
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg

import palimpsest
from palimpsest import Amendment, MemoryInfo
from service.domain.values.json_values import canonical
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from verification.chaos.history import (
    Final,
    FinalChunk,
    FinalMemory,
    FinalNode,
    FinalRevision,
    FinalSession,
    FinalVector,
    LedgerRow,
)
from verification.chaos.workload import SERIAL, chunk_text, owner

#: How long memories may take until everything is read.
DRAIN_SECONDS = 300.0
LOOK_SECONDS = 0.5
#: Values of past revisions that are read of one memory, and of all of them together.
MAX_VALUES = 200
MAX_ALL_VALUES = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """What is there, and what it took to get there."""

    final: Final
    #: How often stalled memories were retried.
    retries: int
    #: Memories that did not read everything in time, with their positions.
    undrained: tuple[str, ...]
    #: How long memories took to read what was left, and how long everything took to read.
    drain_seconds: float
    seconds: float


def gather(address: str, superuser_url: str, folder: Path, seed: int) -> Gathered:
    """Waits for the memories and reads everything; what is large is kept in `folder`."""
    return asyncio.run(_gather(address, superuser_url, folder, random.Random(seed)))


async def _gather(address: str, superuser_url: str, folder: Path, rng: random.Random) -> Gathered:
    started = time.monotonic()
    async with palimpsest.connect(address) as client:
        names = [one.id async for one in client.sessions()]
        retries, undrained = await _drain(client, names)
        drained = time.monotonic()
        chains = _chains(superuser_url)
        budget = [MAX_ALL_VALUES]
        sessions = [
            await _session(client.session(name), chains, folder, budget, rng) for name in names
        ]
    final = Final(sessions=tuple(sessions), ledger=tuple(_ledger(superuser_url, names)))
    return Gathered(
        final=final,
        retries=retries,
        undrained=tuple(undrained),
        drain_seconds=drained - started,
        seconds=time.monotonic() - drained,
    )


async def _drain(client: palimpsest.Client, names: list[str]) -> tuple[int, list[str]]:
    """Waits until all memories have read everything; retries, and those that have not."""
    until = time.monotonic() + DRAIN_SECONDS
    retries = 0
    left = list(names)
    undrained: list[str] = []
    while left and time.monotonic() < until:
        undrained = []
        still = []
        for name in left:
            session = client.session(name)
            behind = [one for one in await session.memories() if not _is_drained(one)]
            for one in behind:
                undrained.append(f"{name}/{one.id} at {one.applied_position} of {one.head}")
                if one.status == "stalled":
                    retries += 1
                    await session.memory(one.id).retry()
            if behind:
                still.append(name)
        left = still
        if left:
            await asyncio.sleep(LOOK_SECONDS)
    return retries, undrained if left else []


def _is_drained(info: MemoryInfo) -> bool:
    if info.status == "stalled":
        return False
    return info.idle if info.kind == "state" else info.applied_position >= info.head


#: Parent and epoch of each revision, by session, memory and number.
_Chains = Mapping[tuple[UUID, UUID, int], tuple[int | None, int]]


def _chains(superuser_url: str) -> _Chains:
    with psycopg.connect(superuser_url) as connection:
        rows = connection.execute(
            "SELECT session_key, memory_id, revision, parent_revision, epoch FROM revision"
        )
        return {(row[0], row[1], row[2]): (row[3], row[4]) for row in rows}


def _ledger(superuser_url: str, names: list[str]) -> Iterator[LedgerRow]:
    known = {session_key(DEFAULT_TENANT, name): name for name in names}
    with psycopg.connect(superuser_url) as connection:
        # Some replies are of megabytes: only what says which one it is.
        rows = connection.execute(
            r"SELECT session_key, substring(reply FROM '\[s[0-9]+\]') FROM call"
        )
        for key, reply in rows:
            yield LedgerRow(session=known.get(key, str(key)), reply=reply)


async def _session(
    session: palimpsest.Session,
    chains: _Chains,
    folder: Path,
    budget: list[int],
    rng: random.Random,
) -> FinalSession:
    head = (await session.info()).head
    path = folder / f"log-{hashlib.sha256(session.id.encode()).hexdigest()[:16]}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        async for chunk in session.chunks():
            whose = owner(chunk.producer_id, chunk.producer_sequence, chunk.text)
            intact = chunk.text == chunk_text(*whose)
            counted = 0 if chunk.producer_id else chunk.producer_sequence
            line = [chunk.position, *whose, counted, intact]
            file.write(json.dumps(line) + "\n")
    memories = [
        await _memory(session, info, chains, budget, rng) for info in await session.memories()
    ]
    return FinalSession(
        name=session.id, head=head, chunks=StoredChunks(path), memories=tuple(memories)
    )


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """The chunks of a log, read from a file as often as they are wanted."""

    path: Path

    def __iter__(self) -> Iterator[FinalChunk]:
        with self.path.open(encoding="utf-8") as lines:
            for line in lines:
                position, producer, sequence, counted, intact = json.loads(line)
                yield FinalChunk(
                    position=position,
                    producer=producer,
                    sequence=sequence,
                    server_sequence=counted,
                    is_intact=intact,
                )


async def _memory(
    session: palimpsest.Session,
    info: MemoryInfo,
    chains: _Chains,
    budget: list[int],
    rng: random.Random,
) -> FinalMemory:
    memory = session.memory(info.id)
    key = session_key(DEFAULT_TENANT, session.id)
    amendments: dict[int, list[tuple[str, str, str | None]]] = {}
    values: dict[int, str] = {}
    if info.kind == "prism":
        async for made in memory.amendments():
            amendments.setdefault(made.revision, []).append(_amended(made))
        values = await _values(memory, info.revision, budget, rng)
    revisions: list[FinalRevision] = []
    async for one in memory.revisions():
        applied = revisions[-1].to_position if revisions else 0
        parent, epoch = chains[(key, memory_id(key, info.id), one.revision)]
        revisions.append(
            FinalRevision(
                revision=one.revision,
                parent=parent,
                from_position=applied if one.positions is None else one.positions.first - 1,
                to_position=applied if one.positions is None else one.positions.last,
                kind=str(one.kind),
                epoch=epoch,
                restored_revision=one.restored_revision,
                digest=one.value_digest.hex() if info.kind == "prism" else "",
                amendments=tuple(amendments.get(one.revision, ())),
                value=values.get(one.revision),
            )
        )
    return FinalMemory(
        name=info.id,
        kind=str(info.kind),
        status=str(info.status),
        revision=info.revision,
        applied_position=info.applied_position,
        revisions=tuple(revisions),
        nodes=tuple([one async for one in _nodes(session, info)]),
        vectors=tuple([one async for one in _vectors(session, info)]),
    )


def _amended(one: Amendment) -> tuple[str, str, str | None]:
    return one.path, str(one.op), None if one.op == "remove" else canonical(one.value)


async def _values(
    memory: palimpsest.Memory, newest: int, budget: list[int], rng: random.Random
) -> dict[int, str]:
    """Returns the values that the service says the memory had: the newest's, and a sample."""
    count = max(min(MAX_VALUES, budget[0], newest), 0)
    budget[0] -= count
    wanted = {newest, *rng.sample(range(newest), count)}
    return {
        revision: canonical((await memory.get(revision=revision)).value)
        for revision in sorted(wanted)
    }


async def _nodes(session: palimpsest.Session, info: MemoryInfo) -> AsyncIterator[FinalNode]:
    if info.kind != "tree":
        return
    tree = session.tree(info.id)
    for level in (await tree.outline()).levels:
        async for node in tree.level(level.level):
            yield FinalNode(
                level=node.level,
                index=node.number - 1,
                first_position=node.text_range.first_position,
                first_offset=node.text_range.first_offset,
                last_position=node.text_range.last_position,
                last_offset=node.text_range.last_offset,
                children=tuple(int(one.rpartition(".")[2]) - 1 for one in node.children),
                serials=_serials(node.summary),
                revision=node.revision,
            )


async def _vectors(session: palimpsest.Session, info: MemoryInfo) -> AsyncIterator[FinalVector]:
    if info.kind != "state":
        return
    async for vector in session.state(info.id).vectors():
        whole, new = vector.positions, vector.new_positions
        yield FinalVector(
            revision=vector.revision,
            level=vector.level,
            after_position=whole.first - 1 if whole else 0,
            from_position=new.first - 1 if new else 0,
            to_position=whole.last if whole else 0,
            children=vector.children,
            serials=_serials(vector.text),
        )


def _serials(text: str) -> tuple[int, ...]:
    return tuple(int(found[1]) for found in SERIAL.finditer(text))
