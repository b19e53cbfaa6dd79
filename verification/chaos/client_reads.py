"""The readers, watchers, askers and editors of a campaign."""

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from uuid import uuid4

from palimpsest import Edit, Memory, PalimpsestError
from palimpsest.v1 import chunks_pb2, common_pb2, session_service_pb2, session_service_pb2_grpc
from service.domain.values.json_values import canonical
from verification.chaos.clients import GIVE_UP_SECONDS, Desk, Room
from verification.chaos.history import (
    Asked,
    Edited,
    ReadLog,
    ReadMemory,
    Refused,
    RolledBack,
    Watched,
)
from verification.chaos.workload import owner

#: Between two requests of one task.
PAUSE_SECONDS = 0.3
PAGE_CHUNKS = 200
#: How long a read waits for the position of its token, and how long a question may take.
READ_SECONDS = 8.0
ASK_SECONDS = 15.0
#: How long a watch lasts.
WATCH_SECONDS = (0.5, 6.0)
#: The share of folds in what an editor does, and of rollbacks in the rest.
FOLD_SHARE = 0.1
ROLLBACK_SHARE = 0.1


async def read_log(desk: Desk, name: str, rng: random.Random) -> None:
    """Reads pages of the logs while others write them."""
    async for client, room in _turns(desk, rng):
        stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
        first = rng.randint(1, max(room.position, 1))
        request = session_service_pb2.ListChunksRequest(
            session=room.session,
            filter=chunks_pb2.ChunkFilter(positions=common_pb2.PositionRange(first=first)),
            page_size=PAGE_CHUNKS,
        )
        invoked = time.monotonic()
        try:
            page = await client.call(stub.ListChunks, request, timeout=READ_SECONDS)
        except PalimpsestError as error:
            desk.reason("read_log", error)
            continue
        desk.write(
            ReadLog(
                client=name,
                session=room.session,
                from_position=first,
                chunks=[
                    (one.position, *owner(one.producer_id, one.producer_sequence, one.text))
                    for one in page.chunks
                ],
                head=page.head,
                invoked=invoked,
                returned=time.monotonic(),
            )
        )


async def read_memory(desk: Desk, name: str, rng: random.Random) -> None:
    """Reads memories, with tokens and without."""
    async for client, room in _turns(desk, rng):
        memory = client.session(room.session).memory(room.making.memory)
        # A state memory reads in periods: a token may wait for chunks that never come.
        with_token = bool(room.token) and room.making.kind != "state" and rng.random() < 0.5
        position, token = (room.position, room.token) if with_token else (0, "")
        invoked = time.monotonic()
        try:
            state = await memory.get(after=token, timeout=READ_SECONDS)
        except PalimpsestError as error:
            desk.reason("read_memory", error)
            continue
        is_prism = room.making.kind == "prism"
        value = canonical(state.value).encode() if is_prism else b""
        desk.write(
            ReadMemory(
                client=name,
                session=room.session,
                memory=room.making.memory,
                wanted_position=position,
                revision=state.revision,
                applied_position=state.applied_position,
                digest=hashlib.sha256(value).hexdigest() if is_prism else "",
                invoked=invoked,
                returned=time.monotonic(),
            )
        )


async def watch(desk: Desk, name: str, rng: random.Random) -> None:
    """Watches one memory after the other, each for a while."""
    async for client, room in _turns(desk, rng):
        memory = client.session(room.session).memory(room.making.memory)
        told: list[tuple[int, int | None]] = []
        after = 0
        try:
            if rng.random() < 0.5:
                after = (await memory.get(timeout=READ_SECONDS)).revision
            watching = memory.watch(after_revision=after, give_up_seconds=GIVE_UP_SECONDS)
            async with asyncio.timeout(rng.uniform(*WATCH_SECONDS)), watching:
                async for one in watching:
                    read = one.revision.positions
                    told.append((one.revision.revision, None if read is None else read.last))
        except TimeoutError:
            pass
        except PalimpsestError as error:
            desk.reason("watch", error)
        desk.write(
            Watched(
                client=name,
                session=room.session,
                memory=room.making.memory,
                after_revision=after,
                told=told,
                at=time.monotonic(),
            )
        )


async def ask(desk: Desk, name: str, rng: random.Random) -> None:
    """Asks the memories that answer from what they hold."""
    async for client, room in _turns(desk, rng, kind="prism"):
        memory = client.session(room.session).memory(room.making.memory)
        said: dict[str, Any] = {"answer_id": "", "citations": [], "head": 0}
        invoked = time.monotonic()
        try:
            answer = await memory.ask(
                f"What of the river, {rng.randint(1, 10**9)}?", timeout=ASK_SECONDS
            )
        except PalimpsestError as error:
            reason = desk.reason("ask", error)
            said["status"] = f"failed: {reason}" if reason == "ANSWER_FAILED" else "unknown"
            said["answer_id"] = error.metadata.get("answer", "")
        else:
            said["status"] = "done"
            said["answer_id"] = answer.id
            said["citations"] = [(one.position, one.position) for one in answer.citations]
            said["head"] = answer.read_point.applied_position
        desk.write(
            Asked(
                client=name,
                session=room.session,
                memory=room.making.memory,
                invoked=invoked,
                returned=time.monotonic(),
                **said,
            )
        )


async def edit(desk: Desk, name: str, rng: random.Random) -> None:
    """Changes memories by hand, for the revision that it saw or for whichever there is."""
    async for client, room in _turns(desk, rng, kind="prism"):
        memory = client.session(room.session).memory(room.making.memory)
        try:
            if rng.random() < FOLD_SHARE:
                await memory.fold()
                continue
            seen = (await memory.get(timeout=READ_SECONDS)).revision
        except PalimpsestError as error:
            desk.reason("edit", error)
            continue
        expected = seen if rng.random() < 0.5 else 0
        if rng.random() < ROLLBACK_SHARE:
            await _roll_back(desk, name, room, memory, rng.randint(0, seen), expected)
        else:
            await _edit(desk, name, room, memory, expected)


async def _edit(desk: Desk, name: str, room: Room, memory: Memory, expected: int) -> None:
    mark = f"m{uuid4().hex}"
    begun = Edited(
        client=name,
        session=room.session,
        memory=memory.id,
        expected_revision=expected,
        mark=mark,
        revision=0,
        invoked=time.monotonic(),
        returned=0.0,
    )
    # A client that is killed before the response has made it, or not.
    desk.write(begun)
    revision = 0
    try:
        made = await memory.edit(
            [Edit.add(f"$.edits.{mark}", mark)], expected_revision=expected or None
        )
        revision = made.info.revision
    except PalimpsestError as error:
        reason = desk.reason("edit", error)
        if reason == "REVISION_CONFLICT":
            desk.write(_refused(name, room, reason, mark))
            return
    desk.write(replace(begun, revision=revision, returned=time.monotonic()))


async def _roll_back(
    desk: Desk, name: str, room: Room, memory: Memory, restored: int, expected: int
) -> None:
    invoked, revision = time.monotonic(), 0
    try:
        revision = (await memory.rollback(restored, expected_revision=expected or None)).revision
    except PalimpsestError as error:
        reason = desk.reason("roll back", error)
        if reason == "REVISION_CONFLICT":
            desk.write(_refused(name, room, reason))
            return
    desk.write(
        RolledBack(
            client=name,
            session=room.session,
            memory=memory.id,
            expected_revision=expected,
            restored_revision=restored,
            revision=revision,
            invoked=invoked,
            returned=time.monotonic(),
        )
    )


def _refused(name: str, room: Room, reason: str, mark: str = "") -> Refused:
    return Refused(
        client=name,
        session=room.session,
        name=room.making.memory,
        sequence=0,
        reason=reason,
        mark=mark,
        at=time.monotonic(),
    )


async def retry(desk: Desk, name: str, rng: random.Random) -> None:
    """Retries stalled memories, as an operator would."""
    async for client, room in _turns(desk, rng):
        session = client.session(room.session)
        try:
            for one in await session.memories():
                if one.status == "stalled":
                    await session.memory(one.id).retry()
                    desk.refusals["stalled"] = desk.refusals.get("stalled", 0) + 1
        except PalimpsestError as error:
            desk.reason("retry", error)


async def _turns(desk: Desk, rng: random.Random, kind: str = "") -> Any:
    """Returns a client and an open room, again and again until it is over."""
    while not desk.is_over():
        await asyncio.sleep(rng.uniform(0, 2 * PAUSE_SECONDS))
        rooms = [
            room for room in desk.rooms.values() if room.making.kind == (kind or room.making.kind)
        ]
        if rooms:
            yield rng.choice(desk.clients), rng.choice(rooms)


#: Every task that a client process does beside its lanes.
TASKS: tuple[Callable[[Desk, str, random.Random], Coroutine[Any, Any, None]], ...] = (
    read_log,
    read_memory,
    watch,
    ask,
    edit,
    retry,
)
