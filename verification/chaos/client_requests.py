"""The clients of a campaign that append without a producer: each call a request of its own.

Several at once write to a session, by any server. Each counts its own chunks, and the text of a
chunk says its place in that count: so in the end it is known whose it is, though the log has it
under numbers that the service gave. A client does the next request when it knows that the one
before is stored; what it does not know it asks for again under the same id, by whichever server.
"""

import asyncio
import os
import random
import time

from palimpsest import Aborted, Appended, PalimpsestError
from verification.chaos.clients import PAUSE_SECONDS, Desk, Room
from verification.chaos.history import Refused, Requested, Sent
from verification.chaos.workload import chunk_text

#: Chunks of a request.
SIZES = (1, 1, 1, 2, 7, 30)
#: How often a request names the head that it expects, and how often one that is done is sent again.
EXPECTED_HEAD_SHARE = 0.1
RESEND_SHARE = 0.2
#: How long one call goes around a server that is away, before it is left to another call: so
#: short that both come often.
CALL_SECONDS = (0.5, 10.0)


class Requesting:
    """One client of a room."""

    def __init__(self, desk: Desk, room: Room, name: str, rng: random.Random) -> None:
        """`name`: of lower-case letters and digits, and of no client before it."""
        self._desk = desk
        self._room = room
        self._name = name
        self._rng = rng
        self._client = f"{desk.plan.name}-{name}-{os.getpid()}"

    async def run(self, chunks: int) -> None:
        """Appends so many, or fewer when it is over, or something takes too long, before."""
        last = 0
        while last < chunks:
            first, last = last + 1, last + min(self._rng.choice(SIZES), chunks - last)
            if not await self._stored(first, last):
                return
            if self._rng.random() < RESEND_SHARE and not await self._stored(first, last):
                return

    async def _stored(self, first: int, last: int) -> bool:
        """Asks until it is known to be stored, as long as its room waits; whether that is known."""
        expects = self._rng.random() < EXPECTED_HEAD_SHARE
        until = time.monotonic() + self._room.making.wait_seconds
        while not self._desk.is_over() and time.monotonic() < until:
            try:
                done = await self._append(first, last, expects=expects)
            except PalimpsestError as error:
                # What another one has written since is not to be expected again.
                expects = expects and not isinstance(error, Aborted)
                self._refused(first, error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._done(first, last, done)
            return True
        return False

    async def _append(self, first: int, last: int, *, expects: bool) -> Appended:
        client = self._rng.choice(self._desk.clients)
        session = client.session(self._room.session)
        head = (await session.info()).head if expects else None
        self._desk.write(
            Sent(
                client=self._client,
                session=self._room.session,
                producer=self._name,
                epoch=0,
                first_sequence=first,
                last_sequence=last,
                expected_head=head,
                at=time.monotonic(),
            )
        )
        return await session.append(
            [chunk_text(self._name, sequence) for sequence in range(first, last + 1)],
            request_id=f"{self._name}-{first}",
            expected_head=head,
            timeout=self._rng.uniform(*CALL_SECONDS),
        )

    def _done(self, first: int, last: int, done: Appended) -> None:
        self._desk.write(
            Requested(
                client=self._client,
                session=self._room.session,
                producer=self._name,
                first_sequence=first,
                last_sequence=last,
                first_position=done.positions.first,
                position=done.positions.last,
                at=time.monotonic(),
            )
        )
        if done.positions.last > self._room.position:
            self._room.position, self._room.token = done.positions.last, done.read_token

    def _refused(self, first: int, error: PalimpsestError) -> None:
        self._desk.write(
            Refused(
                client=self._client,
                session=self._room.session,
                name=self._name,
                sequence=first,
                reason=self._desk.reason("request", error),
                at=time.monotonic(),
            )
        )
