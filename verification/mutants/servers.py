"""API servers of a world, and what their clients write down of them."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from service.app.kinds import memories_of
from service.domain.log.appending import (
    SERVER_PRODUCER,
    ClientRequest,
    Request,
    Submission,
    SubmittedChunk,
)
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.errors import PalimpsestError
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.settings.config import Limits
from service.usecases.log import idempotency
from service.usecases.log.append import Appender
from service.usecases.log.idempotency import Repeated
from service.usecases.log.submissions import Appended
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.claims import Fenced
from storage.engine.errors import StorageError
from verification.chaos.history import Acked, Edited, Opened, ReadMemory, Sent
from verification.chaos.workload import chunk_text
from verification.mutants.world import TOKEN_KEY, World


class Server:
    """An API server process; its client calls itself by the server's name."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.database = world.database(name)
        #: Wake-ups that are not passed on yet.
        self.woken: list[WorkItem] = []
        self.wake_ups = WakeUps(self._take)
        self.appender = Appender(self.database, self.wake_ups, TOKEN_KEY, Limits())
        self.watcher = ProgressWatcher(self.database)
        self.memories = memories_of(self.database, self.wake_ups, self.watcher, TOKEN_KEY, Limits())
        self.editor = Editor(self.database, self.memories, Limits())

    async def _take(self, items: Sequence[WorkItem]) -> None:
        self.woken += items

    async def open(self, producer: str, epoch: int) -> None:
        """Opens a producer."""
        invoked = time.monotonic()
        opened = await self.appender.open(
            DEFAULT_TENANT,
            session=self.world.session,
            producer_id=producer,
            epoch=epoch,
            expected_head=None,
        )
        self.world.events.append(
            Opened(
                invoked=invoked,
                client=self.name,
                session=self.world.session,
                producer=producer,
                epoch=epoch,
                last_sequence=opened.last_sequence,
                head=opened.head,
                at=time.monotonic(),
            )
        )

    async def append(
        self,
        producer: str,
        first: int,
        last: int | None = None,
        *,
        epoch: int = 0,
        text: str | None = None,
        expected_head: int | None = None,
        skipping: int = 0,
    ) -> str | None:
        """Sends sequences first to last; the ack's token, or None where there is none.

        `skipping` leaves a gap before the last one. With `text`, which replaces the workload's
        own, no event is recorded: no client would send that.
        """
        last = first if last is None else last
        sequences = [*range(first, last), last + skipping]
        if text is None:
            self._sent(producer, epoch, first, last + skipping, expected_head)
        submission = Submission(
            session=self.world.session,
            session_key=self.world.key,
            producer_id=producer,
            epoch=epoch,
            expected_head=expected_head,
            chunks=tuple(_chunk(producer, sequence, text) for sequence in sequences),
        )
        try:
            done = await self.appender.submit(DEFAULT_TENANT, submission)
        except (PalimpsestError, StorageError) as error:
            if text is None:
                self.world.refuse(self.name, producer, first, error)
            return None
        if text is None:
            self._acked(producer, done)
        return done.token

    async def request(self, request_id: str, sequence: int) -> None:
        """Appends a chunk without a producer, to which the server is to give that sequence."""
        self._sent(SERVER_PRODUCER, 0, sequence, sequence, None)
        chunk = _chunk(SERVER_PRODUCER, sequence, None)
        submission = Submission(
            session=self.world.session,
            session_key=self.world.key,
            producer_id=SERVER_PRODUCER,
            epoch=0,
            expected_head=None,
            chunks=(replace(chunk, sequence=0),),
            request=Request(request_id=request_id, digest=chunk.digest),
        )
        try:
            done = await self.appender.submit(DEFAULT_TENANT, submission)
        except (PalimpsestError, StorageError) as error:
            self.world.refuse(self.name, SERVER_PRODUCER, sequence, error)
            return
        self._acked(SERVER_PRODUCER, replace(done, sequence=sequence))

    def _acked(self, producer: str, done: Appended) -> None:
        self.world.events.append(
            Acked(
                client=self.name,
                session=self.world.session,
                producer=producer,
                sequence=done.sequence,
                position=done.position,
                token=done.token,
                at=time.monotonic(),
            )
        )

    def _sent(
        self, producer: str, epoch: int, first: int, last: int, expected_head: int | None
    ) -> None:
        self.world.events.append(
            Sent(
                client=self.name,
                session=self.world.session,
                producer=producer,
                epoch=epoch,
                first_sequence=first,
                last_sequence=last,
                expected_head=expected_head,
                at=time.monotonic(),
            )
        )

    async def edit(self, memory: str, mark: str, expected: int | None = None) -> int:
        """Adds a mark to a PRISM memory; the revision that this made, 0 where none."""
        sent = self._edit_sent(memory, mark, expected)
        try:
            revision = await self._revise(memory, mark, expected)
        except (PalimpsestError, StorageError, Fenced) as error:
            self.world.refuse(self.name, memory, 0, error, mark)
            return 0
        self.world.events.append(replace(sent, revision=revision, returned=time.monotonic()))
        return revision

    async def edit_by_request(self, memory: str, mark: str, request_id: str) -> None:
        """`edit` under a request id; what a repeated one returns is not looked at.

        The mark distinguishes the tries: the request is the same.
        """
        sent = self._edit_sent(memory, mark, None)
        request = ClientRequest(
            session_key=self.world.key,
            request_id=request_id,
            method="EditMemory",
            digest=hashlib.sha256(request_id.encode()).digest(),
        )

        async def work() -> int:
            idempotency.serialize_with(lambda _: b"done")
            return await self._revise(memory, mark, None)

        try:
            done = await idempotency.run(
                self.database, DEFAULT_TENANT, request, work, max_bytes=100
            )
        except (PalimpsestError, StorageError, Fenced, Repeated) as error:
            self.world.refuse(self.name, memory, 0, error, mark)
            return
        if not isinstance(done, bytes):
            made = replace(sent, revision=done, returned=time.monotonic())
            self.world.events.append(made)

    def _edit_sent(self, memory: str, mark: str, expected: int | None) -> Edited:
        sent = Edited(
            client=self.name,
            session=self.world.session,
            memory=memory,
            expected_revision=expected or 0,
            mark=mark,
            revision=0,
            invoked=time.monotonic(),
            returned=0.0,
        )
        self.world.events.append(sent)
        return sent

    async def _revise(self, memory: str, mark: str, expected: int | None) -> int:
        edit = Edit(op=None, path=f"$.edits.{mark}", value_json=f'"{mark}"')
        target = Target(session=self.world.session, memory=memory, expected_revision=expected)
        stored, _ = await self.editor.revise(DEFAULT_TENANT, target, [edit])
        return stored.revision

    async def read(
        self, memory: str, token: str | None, wanted: int, *, seconds: float = 0.2
    ) -> bool:
        """Reads a memory, with a token for `wanted` if there is one; whether it was read."""
        invoked = time.monotonic()
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            reading = await self.memories.read(
                DEFAULT_TENANT,
                self.world.session,
                memory,
                Consistency(at_least=token),
                deadline=deadline,
            )
        except PalimpsestError as error:
            self.world.refuse(self.name, memory, 0, error)
            return False
        self.world.events.append(
            ReadMemory(
                client=self.name,
                session=self.world.session,
                memory=memory,
                wanted_position=wanted,
                revision=reading.revision,
                applied_position=reading.applied_position,
                digest="",
                invoked=invoked,
                returned=time.monotonic(),
            )
        )
        return True


def _chunk(producer: str, sequence: int, text: str | None) -> SubmittedChunk:
    said = chunk_text(producer, sequence) if text is None else text
    chunk = Chunk(kind=ChunkKind.TEXT, text=said)
    return SubmittedChunk(
        sequence=sequence,
        chunk=chunk,
        digest=chunk.digest(),
        size_bytes=chunk.size_bytes(),
    )


@asynccontextmanager
async def server(world: World, name: str) -> AsyncIterator[Server]:
    """Yields a server that runs meanwhile."""
    made = Server(world, name)
    running: list[asyncio.Task[Any]] = [
        asyncio.create_task(made.appender.run()),
        asyncio.create_task(made.wake_ups.run()),
        asyncio.create_task(made.watcher.run()),
    ]
    try:
        yield made
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
