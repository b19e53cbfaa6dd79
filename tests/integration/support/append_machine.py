"""The append protocol, step by step against the model.

Two servers with guesses of their own write to sessions that share queues; producers resend,
leave gaps, change what they sent, take over from one another and expect heads; beside them
others append without a producer, by requests that come again, unchanged or not; connections
are lost before and after the commit. What the service answers must be what the model does.
"""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from service.domain.log.appending import SERVER_PRODUCER, Request, Submission, SubmittedChunk
from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.log.read_tokens import ReadToken
from service.domain.values.errors import PalimpsestError
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.append_group import FAST_PATH_CHUNKS
from service.usecases.log.submissions import Appended
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database, first
from storage.log import chunks as log
from storage.log import sessions
from tests.integration.support.machines import CutDatabase, Machine
from tests.integration.support.writing import drop_wake_ups, submitted
from verification.chaos.model import Log, Refusal

TOKEN_KEY = b"token-key"
SESSIONS = 3
PRODUCERS = ("p1", "p2", "p3")
#: Ids of requests that come again and again; 0 is none.
REQUESTS = 6
#: Beyond them the fast path is not taken.
MOST_CHUNKS = FAST_PATH_CHUNKS + 3
EVERYTHING = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch that a client may send, described by how it differs from what is due."""

    session: int
    #: SERVER_PRODUCER: it is a request, of which epoch, begin, chunks and gap say nothing.
    producer: str
    #: Number of the request, which is its id; 0: it has none.
    request: int
    epoch: int
    #: Where it begins, counted from the producer's next sequence: below 0 it resends.
    begin: int
    chunks: int
    #: Number of the chunk after which one sequence is left out; 0: none.
    gap: int
    #: Number of the chunk that says something else than before; 0: none.
    changed: int
    #: The head that it is for, counted from the one that there is; None: any.
    head: int | None


# As a rule what is due; each way to be wrong now and then.
BATCHES = st.builds(
    Batch,
    session=st.integers(0, SESSIONS - 1),
    producer=st.sampled_from((*PRODUCERS, SERVER_PRODUCER, SERVER_PRODUCER)),
    request=st.integers(0, REQUESTS),
    epoch=st.sampled_from((0, 0, 0, 1, 1, 2, 3)),
    begin=st.sampled_from((0, 0, 0, 0, 0, -1, -2, -5, 1)),
    chunks=st.integers(1, MOST_CHUNKS),
    gap=st.sampled_from((0, 0, 0, 0, 0, 0, 1, 2)),
    changed=st.sampled_from((0, 0, 0, 0, 0, 1, 2)),
    head=st.sampled_from((None, None, None, None, 0, -1)),
)
#: What the model, or the service, said to a batch: a position, or a reason.
Answer = int | str


class AppendMachine(Machine):
    """See above."""

    @initialize()
    def begin(self) -> None:
        """Sessions without a chunk, and servers that know nothing."""
        self.names = [self.bench.name() for _ in range(SESSIONS)]
        self.keys = [session_key(DEFAULT_TENANT, name) for name in self.names]
        self.logs = [Log() for _ in self.names]
        self.last_request = REQUESTS
        self.bench.run(self._start())

    async def _start(self) -> None:
        self.databases = [CutDatabase.made(self.bench.url, f"server {n}") for n in range(2)]
        async with self.databases[0].transaction(DEFAULT_TENANT) as tx:
            for key, name in zip(self.keys, self.names, strict=True):
                await sessions.create(tx, key, name)
        self.tasks: list[asyncio.Task[None]] = []
        self.servers = [self._server(database) for database in self.databases]

    def _server(self, database: Database) -> Appender:
        server = Appender(database, WakeUps(drop_wake_ups), TOKEN_KEY, Limits())
        self.tasks.append(asyncio.get_running_loop().create_task(server.run()))
        return server

    def teardown(self) -> None:
        """Reads the logs, and stops the servers."""
        if not hasattr(self, "servers"):
            return
        try:
            self.bench.run(self._check_logs())
        finally:
            self.bench.run(self._stop())

    async def _stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for database in self.databases:
            await database.close()

    @rule(
        server=st.integers(0, 1),
        session=st.integers(0, SESSIONS - 1),
        producer=st.sampled_from(PRODUCERS),
        epoch=st.integers(0, 3),
        head=st.sampled_from((None, None, 0, -1)),
    )
    def open(self, server: int, session: int, producer: str, epoch: int, head: int | None) -> None:
        """Opens a stream: producers with a lower epoch are fenced."""
        expected = self._head(session, head)
        due: Answer
        try:
            due = self.logs[session].open(producer, epoch, expected)
        except Refusal as refusal:
            due = refusal.reason
        found = self.bench.run(self._open(server, session, producer, epoch, expected))
        assert found == (due if isinstance(due, str) else (due, self.logs[session].head))
        self.did("open")

    async def _open(
        self, server: int, session: int, producer: str, epoch: int, expected: int | None
    ) -> str | tuple[int, int]:
        try:
            opened = await self.servers[server].open(
                DEFAULT_TENANT,
                session=self.names[session],
                producer_id=producer,
                epoch=epoch,
                expected_head=expected,
            )
        except PalimpsestError as error:
            return error.reason.value
        return opened.last_sequence, opened.head

    def _head(self, session: int, difference: int | None) -> int | None:
        return None if difference is None else max(0, self.logs[session].head + difference)

    @rule(server=st.integers(0, 1), batch=BATCHES)
    def append(self, server: int, batch: Batch) -> None:
        """A batch by itself."""
        self._send(server, [batch])
        self.did("append")

    @rule(server=st.integers(0, 1), batches=st.lists(BATCHES, min_size=2, max_size=6))
    def group(self, server: int, batches: list[Batch]) -> None:
        """Batches that one commit writes: of several producers and sessions."""
        self._send(server, batches)
        self.did("group")

    @rule(
        server=st.integers(0, 1),
        session=st.integers(0, SESSIONS - 1),
        times=st.integers(2, 5),
        requests=st.booleans(),
    )
    def stream(self, server: int, session: int, times: int, requests: bool) -> None:
        """Appends one chunk after the other, as a conversation does: the fast path."""
        for _ in range(times):
            epoch = max((one.epoch for one in self.logs[session].producers.values()), default=0)
            self.last_request += requests
            batch = Batch(
                session=session,
                producer=SERVER_PRODUCER if requests else PRODUCERS[0],
                request=self.last_request,
                epoch=epoch,
                begin=0,
                chunks=1,
                gap=0,
                changed=0,
                head=None,
            )
            self._send(server, [batch])
        self.did("stream")

    @rule(batches=st.tuples(BATCHES, BATCHES), same=st.booleans())
    def race(self, batches: tuple[Batch, Batch], same: bool) -> None:
        """Both servers are sent something at once, `same` the same: one of them is first."""
        first = self._submission(batches[0])
        sent = (first, first if same else self._submission(batches[1]))
        found = self.bench.run(self._race(*sent))
        for order in ((0, 1), (1, 0)):
            logs = copy.deepcopy(self.logs)
            due = {n: _due(logs[self._of(sent[n])], sent[n]) for n in order}
            if [due[0], due[1]] == found:
                self.logs = logs
                break
        else:
            raise AssertionError(f"neither order gives {found} for {sent}")
        self.did("race")

    async def _race(self, first: Submission, second: Submission) -> list[Answer]:
        answers = zip(self.servers, (first, second), strict=True)
        return await asyncio.gather(*(self._answer(server, sent) for server, sent in answers))

    @rule(server=st.integers(0, 1), batch=BATCHES, cut=st.sampled_from(("before", "behind")))
    def lose(self, server: int, batch: Batch, cut: str) -> None:
        """The connection is lost, and the batch is sent again, to the other server."""
        sent = self._submission(batch)
        log_ = self.logs[batch.session]
        with self.databases[server].losing(cut):
            found = self.bench.run(self._answer(self.servers[server], sent))
        written = copy.deepcopy(log_)
        due = _due(written, sent)
        now = self.bench.run(self._stands(sent))
        if isinstance(due, str):
            # A server that has heard of nothing takes the batch for due, until its write says
            # otherwise: of one that is lost it knows no more than that.
            assert found in (due, "DATABASE_UNAVAILABLE")
            assert now == _stands(log_, sent)
            self._send_all(1 - server, [sent])
            self.did("lose a refusal")
            return
        assert found == "DATABASE_UNAVAILABLE"
        assert now in (_stands(log_, sent), _stands(written, sent))
        if now != _stands(log_, sent):
            assert cut == "behind"
            self.logs[batch.session] = written
        self._send_all(1 - server, [sent])
        self.did(f"lose {cut}")

    async def _stands(self, sent: Submission) -> tuple[int, int, int]:
        """Head, last sequence and epoch as the tables have them."""
        async with self.databases[0].transaction(DEFAULT_TENANT) as tx:
            session = await sessions.lock_head(tx, sent.session_key)
            rows = await tx.fetch(
                "SELECT last_sequence, epoch FROM producer"
                " WHERE session_key = %s AND producer_id = %s",
                (sent.session_key, sent.producer_id),
            )
            known = first(rows)
        assert session is not None
        if known is None:
            return session.head, 0, 0
        return session.head, known.last_sequence, known.epoch

    @rule(server=st.integers(0, 1))
    def restart(self, server: int) -> None:
        """A server forgets what it knew."""
        self.bench.run(self._restart(server))
        self.did("restart")

    async def _restart(self, server: int) -> None:
        self.servers[server] = self._server(self.databases[server])

    @rule(session=st.integers(0, SESSIONS - 1), after=st.integers(0, 50), limit=st.integers(1, 20))
    def read(self, session: int, after: int, limit: int) -> None:
        """A page of the log."""
        page = self.bench.run(self._page(session, after, limit))
        self._check_page(session, after, limit, page)
        self.did("read")

    async def _page(self, session: int, after: int, limit: int) -> Sequence[LoggedChunk]:
        async with self.databases[1].transaction(DEFAULT_TENANT) as tx:
            return await log.read(tx, self.keys[session], after, limit)

    def _check_page(
        self, session: int, after: int, limit: int, page: Sequence[LoggedChunk]
    ) -> None:
        held = self.logs[session]
        due = [
            (at, held.place(at), held.contents[at - 1])
            for at in range(after + 1, min(after + limit, held.head) + 1)
        ]
        found = [
            (one.position, (one.producer_id, one.producer_sequence), one.chunk.text) for one in page
        ]
        assert found == due

    async def _check_logs(self) -> None:
        for session in range(SESSIONS):
            page = await self._page(session, 0, EVERYTHING)
            self._check_page(session, 0, EVERYTHING, page)

    def _of(self, sent: Submission) -> int:
        return self.names.index(sent.session)

    def _send(self, server: int, batches: Sequence[Batch]) -> None:
        self._send_all(server, [self._submission(one) for one in batches])

    def _send_all(self, server: int, sent: Sequence[Submission]) -> None:
        due = [_due(self.logs[self._of(one)], one) for one in sent]
        found = self.bench.run(self._answers(server, sent))
        assert found == due, f"{found} for {due}: {sent}"

    async def _answers(self, server: int, sent: Sequence[Submission]) -> list[Answer]:
        return await asyncio.gather(*(self._answer(self.servers[server], one) for one in sent))

    async def _answer(self, server: Appender, sent: Submission) -> Answer:
        try:
            appended = await server.submit(DEFAULT_TENANT, sent)
        except PalimpsestError as error:
            return error.reason.value
        self._check_ack(sent, appended)
        return appended.position

    def _check_ack(self, sent: Submission, appended: Appended) -> None:
        if sent.has_producer:
            assert appended.sequence == sent.chunks[-1].sequence
        else:
            assert appended.sequence == 0
            assert appended.position - appended.first_position == len(sent.chunks) - 1
        token = ReadToken.verify(TOKEN_KEY, appended.token)
        assert (token.session_key, token.position) == (sent.session_key, appended.position)

    def _submission(self, batch: Batch) -> Submission:
        if batch.producer == SERVER_PRODUCER:
            return self._request(batch)
        known = self.logs[batch.session].producers.get(batch.producer)
        first = max(1, (known.last if known else 0) + 1 + batch.begin)
        sequences = [first + number + (0 < batch.gap <= number) for number in range(batch.chunks)]
        return Submission(
            session=self.names[batch.session],
            session_key=self.keys[batch.session],
            producer_id=batch.producer,
            epoch=batch.epoch,
            expected_head=self._head(batch.session, batch.head),
            chunks=tuple(
                _chunk(batch.producer, sequence, is_changed=number == batch.changed)
                for number, sequence in enumerate(sequences, start=1)
            ),
        )

    def _request(self, batch: Batch) -> Submission:
        # What a request appends follows from its number, unless something is changed.
        count = batch.request % MOST_CHUNKS + 1
        chunks = tuple(
            _chunk(f"request {batch.request}", number, is_changed=number == batch.changed)
            for number in range(1, count + 1)
        )
        request = Request(
            request_id=f"r{batch.request}",
            digest=sha256(b"".join(chunk.digest for chunk in chunks)).digest(),
        )
        return Submission(
            session=self.names[batch.session],
            session_key=self.keys[batch.session],
            producer_id=SERVER_PRODUCER,
            epoch=0,
            expected_head=self._head(batch.session, batch.head),
            chunks=tuple(replace(chunk, sequence=0) for chunk in chunks),
            request=request if batch.request else None,
        )


def _chunk(producer: str, sequence: int, *, is_changed: bool) -> SubmittedChunk:
    text = f"{producer} {sequence}" + (" changed" if is_changed else "")
    return submitted(sequence, Chunk(kind=ChunkKind.TEXT, text=text))


def _due(held: Log, sent: Submission) -> Answer:
    """Returns what the service has to answer; then the model has the batch, if it is to."""
    texts = [one.chunk.text for one in sent.chunks]
    try:
        if not sent.has_producer:
            request_id = sent.request.request_id if sent.request else None
            return held.request(request_id, texts, sent.expected_head)
        return held.append(
            sent.producer_id,
            sent.epoch,
            [one.sequence for one in sent.chunks],
            texts,
            sent.expected_head,
        )
    except Refusal as refusal:
        return refusal.reason


def _stands(held: Log, sent: Submission) -> tuple[int, int, int]:
    known = held.producers.get(sent.producer_id)
    return (held.head, known.last, known.epoch) if known else (held.head, 0, 0)
