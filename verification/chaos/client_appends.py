"""The producers of a campaign: through the SDK, and by hand what the SDK would not do."""

import asyncio
import os
import random
import time
from functools import partial
from math import inf
from typing import Any

from palimpsest import PalimpsestError, Producer, ResourceExhausted
from palimpsest._convert_chunks import digest
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from verification.batches import append_batch
from verification.chaos.clients import GIVE_UP_SECONDS, LIFE_EPOCHS, PAUSE_SECONDS, Desk, Room
from verification.chaos.history import Acked, Opened, Refused, Sent
from verification.chaos.workload import chunk_text

#: Sizes of batches; most of the chunks come in large ones.
BATCHES = (1, 2, 7, 30, 100, 256, 256, 256, 256)
#: Batches between two waits for their acks, and batches of one opening.
FLUSH_BATCHES = 4
OPENING_BATCHES = (2, 24)
#: How often an opening ends with a rival of a higher epoch, or a resend.
RIVAL_SHARE = 0.1
RESEND_SHARE = 0.3
#: Between two tries of what a full log refused.
FULL_SECONDS = 1.0
#: How long a request by hand may take.
CALL_SECONDS = 10.0


class Recorded(Producer):
    """A producer of the SDK that records the responses of the service."""

    #: Set after the constructor, which is the SDK's.
    desk: Desk
    room: Room
    client: str
    _invoked: float

    async def __aenter__(self) -> "Recorded":
        await super().__aenter__()
        return self

    @property
    def epoch(self) -> int:
        """The one that it was opened with."""
        return int(self._opening.epoch)

    async def _stream(self) -> PalimpsestError:
        self._invoked = time.monotonic()
        return await super()._stream()

    def _begin(self, opened: session_service_pb2.AppendChunksResponse.Opened) -> None:
        self.desk.write(
            Opened(
                **_place(self.client, self.room, self._opening.producer_id),
                epoch=self.epoch,
                last_sequence=opened.last_producer_sequence,
                head=opened.head,
                invoked=self._invoked,
                at=time.monotonic(),
            )
        )
        # A process before this one may have got so far.
        acked, producer = self.room.acked, self._opening.producer_id
        acked[producer] = max(acked.get(producer, 0), opened.last_producer_sequence)
        super()._begin(opened)

    def _take_ack(self, message: session_service_pb2.AppendChunksResponse.Ack) -> None:
        noted(self.desk, self.client, self.room, self._opening.producer_id, message)
        super()._take_ack(message)


def noted(
    desk: Desk,
    client: str,
    room: Room,
    producer: str,
    ack: session_service_pb2.AppendChunksResponse.Ack,
) -> None:
    """Writes an ack down."""
    desk.write(
        Acked(
            **_place(client, room, producer),
            sequence=ack.through_producer_sequence,
            position=ack.through_position,
            token=ack.read_token,
            at=time.monotonic(),
        )
    )
    acked = room.acked.get(producer, 0)
    room.acked[producer] = max(acked, ack.through_producer_sequence)
    if ack.through_position > room.position:
        room.position, room.token = ack.through_position, ack.read_token


def _place(client: str, room: Room, producer: str) -> dict[str, Any]:
    return {"client": client, "session": room.session, "producer": producer}


class Producing:
    """One producer of a room, with all its openings."""

    def __init__(self, desk: Desk, room: Room, producer: str, rng: random.Random) -> None:
        self._desk = desk
        self._room = room
        self._producer = producer
        self._rng = rng
        #: That it opens with, until a rival comes.
        self.epoch = desk.life * LIFE_EPOCHS
        self._client = f"{desk.plan.name}-{producer}-{os.getpid()}"

    async def run(self, chunks: int) -> None:
        """Appends so many, in one opening after the other; less to a log that stays full."""
        full_since = inf
        while self._room.acked.get(self._producer, 0) < chunks and not self._desk.is_over():
            try:
                await self._opening(chunks)
                full_since = inf
                if self._rng.random() < RESEND_SHARE:
                    await self._resend()
            except PalimpsestError as error:
                self._refused(error)
                if not isinstance(error, ResourceExhausted):
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                full_since = min(full_since, time.monotonic())
                if time.monotonic() - full_since > self._room.making.wait_seconds:
                    return
                await asyncio.sleep(FULL_SECONDS)

    async def _opening(self, chunks: int) -> None:
        async with self._opened() as producer:
            await self._append(producer, chunks, self._rng.randint(*OPENING_BATCHES))
            if self._rng.random() < RIVAL_SHARE:
                self.epoch += 1
                async with self._opened("-rival") as rival:
                    await self._append(rival, chunks, 2)
                # What it says from now on is refused: it is fenced off.
                await self._append(producer, chunks, 1)

    def _opened(self, suffix: str = "") -> Recorded:
        client = self._rng.choice(self._desk.clients)
        opening = session_service_pb2.AppendChunksRequest.Open(
            session=self._room.session, producer_id=self._producer, epoch=self.epoch
        )
        made = Recorded(client._connection, opening, GIVE_UP_SECONDS)
        made.desk, made.room, made.client = self._desk, self._room, self._client + suffix
        return made

    async def _append(self, producer: Recorded, chunks: int, batches: int) -> None:
        sequence = producer.last_acked_sequence
        for number in range(1, batches + 1):
            size = min(self._rng.choice(BATCHES), chunks - sequence)
            if size <= 0 or self._desk.is_over():
                return
            self._sent(producer.client, producer.epoch, sequence + 1, sequence + size)
            for _ in range(size):
                sequence += 1
                await producer.append(chunk_text(self._producer, sequence))
            if number % FLUSH_BATCHES == 0:
                await producer.flush()
        await producer.flush()

    async def _resend(self) -> None:
        """Sends again what is durable: that writes nothing, and is acked as before."""
        last = self._room.acked.get(self._producer, 0)
        if last:
            first = self._rng.randint(1, last)
            await self._by_hand(first, min(last, first + self._rng.randint(0, 255)))

    async def _by_hand(self, first: int, last: int) -> None:
        """Sends one batch over a stream of its own."""
        client = self._rng.choice(self._desk.clients)
        sent = []
        for sequence in range(first, last + 1):
            chunk = chunks_pb2.Chunk(text=chunk_text(self._producer, sequence))
            chunk.producer_sequence, chunk.digest = sequence, digest(chunk)
            sent.append(chunk)
        opening = session_service_pb2.AppendChunksRequest.Open(
            session=self._room.session, producer_id=self._producer, epoch=self.epoch
        )
        self._sent(self._client, self.epoch, first, last)
        stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
        ack = await client.call(
            partial(append_batch, stub, opening), sent, timeout=CALL_SECONDS, retry=False
        )
        noted(self._desk, self._client, self._room, self._producer, ack)

    def _sent(self, client: str, epoch: int, first: int, last: int) -> None:
        self._desk.write(
            Sent(
                **_place(client, self._room, self._producer),
                epoch=epoch,
                first_sequence=first,
                last_sequence=last,
                at=time.monotonic(),
            )
        )

    def _refused(self, error: PalimpsestError) -> None:
        self._desk.write(
            Refused(
                client=self._client,
                session=self._room.session,
                name=self._producer,
                sequence=self._room.acked.get(self._producer, 0) + 1,
                reason=self._desk.reason("append", error),
                at=time.monotonic(),
            )
        )
