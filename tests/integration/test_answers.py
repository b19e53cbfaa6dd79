"""The life of answers over gRPC: asked, heard across lost connections, listed, rated."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

import palimpsest
from palimpsest import BrowseSettings, Question, TrajectoryEvent, errors, sync
from palimpsest.answer_values import Reading
from palimpsest.v1 import answers_pb2, answers_pb2_grpc
from service.domain.telling import TextPiece
from service.domain.tenancy import DEFAULT_TENANT, session_key
from service.domain.work import WorkKind
from storage import answer_texts, answers, settling, trajectories
from storage.database import Database
from tests.cutting import Proxy, cutting
from tests.harness import Servers, api
from tests.integration.test_trajectories import EVENT

SCHEMA = "class N:\n    topics: dict[str, list[str]]\n"


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    """A session with a PRISM memory `m`, over a chunk."""
    session = await client.create_session(f"answers-{uuid4().hex}")
    memory = await session.create_memory("m", schema_source=SCHEMA)
    async with session.producer("p") as producer:
        await producer.append("The harbour museum is closed on Mondays.")
    await memory.get(fully_applied=True, timeout=60)
    return session


class Workerless:
    """A service whose answers nobody makes but the test."""

    def __init__(self, database: Database, address: str) -> None:
        self.address = address
        self._database = database
        self._key = session_key(DEFAULT_TENANT, "s")

    async def tell(self, answer_id: str, *ordinals: int) -> None:
        """Writes events of these ordinals."""
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            for ordinal in ordinals:
                event = replace(EVENT, ordinal=ordinal)
                await trajectories.append(tx, (self._key, UUID(answer_id)), event)

    async def write(self, answer_id: str, ordinal: int, text: str) -> None:
        """Writes a piece of the text."""
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            piece = TextPiece(ordinal=ordinal, text=text)
            assert await answer_texts.append(tx, (self._key, UUID(answer_id)), [piece])

    async def complete(self, answer_id: str, text: str = "On Mondays.") -> None:
        """Ends the answer."""
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            assert await answers.complete(
                tx, self._key, UUID(answer_id), text=text, citations=[], model="m/m"
            )

    async def fail(self, answer_id: str) -> None:
        """Ends the answer without one."""
        async with self._database.transaction(DEFAULT_TENANT) as tx:
            assert await settling.settle(
                tx, WorkKind.ANSWER, self._key, UUID(answer_id), status="failed", failure="no"
            )


@pytest.fixture(scope="module")
async def workerless(servers: Servers) -> AsyncIterator[Workerless]:
    url = servers.new_database()
    database = Database.connect(url, pool_size=3, name="test")
    with api(url) as (_, address):
        async with palimpsest.connect(address) as client:
            await client.create_session("s")
        yield Workerless(database, address)
    await database.close()


class Hearing:
    """Hears what is told of a question, and says when something was."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self._more = asyncio.Event()

    def __call__(self, event: object) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, count: int) -> None:
        """Waits until so many were heard."""
        while len(self.events) < count:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 60)

    @property
    def answer_id(self) -> str:
        (reading,) = [one for one in self.events if isinstance(one, Reading)]
        return reading.answer_id

    @property
    def ordinals(self) -> list[int]:
        return [one.ordinal for one in self.events if isinstance(one, TrajectoryEvent)]

    @property
    def text(self) -> str:
        pieces = (one for one in self.events if isinstance(one, palimpsest.TextPiece))
        return "".join(one.text for one in pieces)


async def reconnected(proxy: Proxy) -> None:
    """Waits until the client is back."""
    before = proxy.connections
    async with asyncio.timeout(60):
        while proxy.connections == before:
            await asyncio.sleep(0.02)


async def test_a_lost_connection_only_interrupts_an_answer(workerless: Workerless) -> None:
    hearing = Hearing()
    async with cutting(workerless.address) as proxy, palimpsest.connect(proxy.address) as client:
        asking = asyncio.create_task(
            client.session("s").ask("When?", stream=True, on_event=hearing, timeout=110)
        )
        await hearing.until(1)
        answer_id = hearing.answer_id
        await workerless.tell(answer_id, 1, 2)
        await workerless.write(answer_id, 1, "On ")
        await hearing.until(4)
        for ordinal in (3, 4):
            back = asyncio.create_task(reconnected(proxy))
            await asyncio.sleep(0)
            proxy.cut()
            # Told while nobody listens.
            await workerless.tell(answer_id, ordinal)
            await workerless.write(answer_id, ordinal - 1, f"{ordinal} ")
            await back
            await hearing.until(2 * ordinal)
        await workerless.complete(answer_id)
        answer = await asking
    assert (answer.answer_id, answer.status, answer.text) == (answer_id, "complete", "On Mondays.")
    assert hearing.ordinals == [1, 2, 3, 4]
    assert hearing.text == "On 3 4 "
    assert len(hearing.events) == 8, "nothing is heard twice"


async def test_what_was_not_taken_for_sure_is_not_asked_again(
    session: palimpsest.Session, address: str
) -> None:
    before = [one.answer_id async for one in session.answers()]
    async with cutting(address) as proxy, palimpsest.connect(proxy.address) as client:
        await proxy.close()
        with pytest.raises(errors.ConnectionFailed):
            await client.session(session.name).ask("?")
    assert [one.answer_id async for one in session.answers()] == before


async def test_several_may_listen_to_one_answer(workerless: Workerless) -> None:
    first = Hearing()
    async with palimpsest.connect(workerless.address) as client:
        session = client.session("s")
        asking = asyncio.create_task(session.ask("When?", on_event=first, timeout=110))
        await first.until(1)
        answer_id = first.answer_id
        await workerless.tell(answer_id, 1, 2, 3)
        await first.until(4)
        others = [Hearing() for _ in range(3)]
        resuming = [
            asyncio.create_task(
                client.resume_answer(
                    "s", answer_id, after_event=after, on_event=hearing, timeout=110
                )
            )
            for after, hearing in enumerate(others)
        ]
        for after, hearing in enumerate(others):
            await hearing.until(3 - after)
        await workerless.tell(answer_id, 4)
        await workerless.complete(answer_id)
        answer = await asking
        assert [await one for one in resuming] == [answer] * 3
        assert [one.ordinals for one in others] == [[1, 2, 3, 4], [2, 3, 4], [3, 4]]
        # Of an answer that has ended the same is told.
        late = Hearing()
        assert await session.resume_answer(answer_id, after_event=2, on_event=late) == answer
        assert late.ordinals == [3, 4]
        for wrong, kind in ((str(uuid4()), errors.NotFound), ("no id", errors.InvalidArgument)):
            with pytest.raises(kind):
                await session.resume_answer(wrong)


async def test_who_waits_hears_of_the_end_whatever_it_is(workerless: Workerless) -> None:
    async with palimpsest.connect(workerless.address) as client:
        session, hearing = client.session("s"), Hearing()
        for end, kind, reason in (
            (workerless.fail, errors.FailedPrecondition, "ANSWER_FAILED"),
            (session.cancel_answer, errors.Cancelled, "ANSWER_CANCELLED"),
        ):
            hearing = Hearing()
            asking = asyncio.create_task(session.ask("?", on_event=hearing, timeout=110))
            await hearing.until(1)
            await end(hearing.answer_id)
            with pytest.raises(kind) as refused:
                await asking
            assert refused.value.reason == reason
            assert refused.value.metadata["answer"] == hearing.answer_id
        cancelled = await session.answer(hearing.answer_id)
        assert (cancelled.status, cancelled.text, cancelled.reader) == ("cancelled", "", "auto")
        assert await session.cancel_answer(hearing.answer_id) == cancelled
        with pytest.raises(errors.NotFound):
            await session.cancel_answer(str(uuid4()))


async def test_a_deadline_names_the_answer_that_is_made_on(workerless: Workerless) -> None:
    async with palimpsest.connect(workerless.address) as client:
        session = client.session("s")
        with pytest.raises(errors.DeadlineExceeded) as late:
            # So long that the question is stored by then, on any machine.
            await session.ask("When?", timeout=5)
        answer_id = late.value.metadata["answer"]
        await workerless.complete(answer_id)
        assert (await session.resume_answer(answer_id)).text == "On Mondays."


async def test_text_is_streamed_piece_by_piece(workerless: Workerless) -> None:
    hearing = Hearing()
    async with palimpsest.connect(workerless.address) as client:
        stream = client.session("s").stream_ask("When?", on_event=hearing, timeout=110)
        with pytest.raises(ValueError, match="not there yet"):
            stream.answer  # noqa: B018 - reading it is what is tested
        coming = asyncio.ensure_future(anext(stream))
        await hearing.until(1)
        for ordinal, text in enumerate(("On ", "Mon", "days."), 1):
            await workerless.write(hearing.answer_id, ordinal, text)
            assert (await coming).text == text
            coming = asyncio.ensure_future(anext(stream))
        await workerless.complete(hearing.answer_id)
        with pytest.raises(StopAsyncIteration):
            await coming
        assert stream.answer.text == "On Mondays."


async def test_many_are_asked_at_once_and_one_that_fails_ends_no_other(
    workerless: Workerless,
) -> None:
    told: list[tuple[int, object]] = []
    readings = asyncio.Event()

    def hear(number: int, event: object) -> None:
        told.append((number, event))
        if sum(isinstance(one, Reading) for _, one in told) == 3:
            readings.set()

    async with cutting(workerless.address) as proxy, palimpsest.connect(proxy.address) as client:
        session = client.session("s")
        asking = asyncio.create_task(
            session.ask_all(["a", "b", Question(query="c", reader="whole")], on_event=hear)
        )
        await asyncio.wait_for(readings.wait(), 60)
        ids = {n: one.answer_id for n, one in told if isinstance(one, Reading)}
        assert len(set(ids.values())) == 3
        await workerless.fail(ids[1])
        await workerless.tell(ids[2], 1)
        await workerless.complete(ids[2], "c!")
        async with asyncio.timeout(60):
            while not any(isinstance(one, TrajectoryEvent) for _, one in told):
                await asyncio.sleep(0.02)
        proxy.cut()
        await workerless.complete(ids[0], "a!")
        first, second, third = await asking
    assert isinstance(first, palimpsest.Answer)
    assert isinstance(third, palimpsest.Answer)
    assert [first.text, third.text] == ["a!", "c!"]
    assert (first.reader, third.reader) == ("auto", "whole")
    assert isinstance(second, errors.FailedPrecondition)
    assert second.reason == "ANSWER_FAILED"
    assert second.metadata["answer"] == ids[1]
    assert [number for number, one in told if isinstance(one, TrajectoryEvent)] == [2]


async def test_none_of_many_is_stored_when_one_is_invalid(workerless: Workerless) -> None:
    async with palimpsest.connect(workerless.address) as client:
        session = client.session("s")
        before = [one.answer_id async for one in session.answers()]
        for wrong, kind, field in (
            (Question(query=""), errors.InvalidArgument, "questions[1].query"),
            (Question(query="a\0b"), errors.InvalidArgument, "questions[1].query"),
            (
                Question(query="?", browsing=BrowseSettings(actions=["answer"])),
                errors.InvalidArgument,
                "questions[1].browsing",
            ),
            (
                Question(query="?", response_schema="{"),
                errors.InvalidArgument,
                "questions[1].response_schema",
            ),
            (
                Question(query="?", after="no token"),
                errors.InvalidArgument,
                "questions[1].consistency.at_least",
            ),
            (Question(query="?", memory="none"), errors.NotFound, ""),
        ):
            with pytest.raises(kind) as refused:
                await session.ask_all(["fine", wrong])
            assert list(refused.value.fields) == ([field] if field else [])
        assert [one.answer_id async for one in session.answers()] == before
        assert await session.ask_all([]) == []


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": "é" * 4097}, "query"),
        ({"query": "a\0b"}, "query"),
        ({"memory": "A B"}, "memory"),
        ({"memory": "m", "reader": "dciso"}, "memory"),
        ({"reader": "pcc"}, "memory"),
        ({"memory": "m", "browsing": BrowseSettings()}, "browsing"),
        ({"browsing": BrowseSettings(option="rank", actions=["append", "answer"])}, "browsing"),
        ({"browsing": BrowseSettings(window_tokens=511)}, "browsing.window_tokens"),
        ({"browsing": BrowseSettings(window_tokens=10**6 + 1)}, "browsing.window_tokens"),
        ({"browsing": BrowseSettings(pieces=101)}, "browsing.pieces"),
        ({"browsing": BrowseSettings(max_calls=10_001)}, "browsing.max_calls"),
        ({"browsing": BrowseSettings(actions=["move", "move"])}, "browsing.actions"),
        ({"reader": "dciso", "beam": 2}, "navigation"),
        ({"model": "x" * 257}, "model"),
        ({"model": "a\0b"}, "model"),
        ({"memory": "m", "model": "a/b"}, "model"),
        ({"response_schema": "[1]"}, "response_schema"),
        ({"response_schema": {"type": "nothing"}}, "response_schema"),
        ({"response_schema": {"const": "a\0b"}}, "response_schema"),
        ({"response_schema": " " * 16_385 + "{}"}, "response_schema"),
    ],
)
async def test_what_cannot_be_asked_is_one_clear_error(
    session: palimpsest.Session, said: dict[str, Any], field: str
) -> None:
    with pytest.raises(errors.InvalidArgument) as refused:
        await session.ask(said.pop("query", "?"), **said)
    assert list(refused.value.fields) == [field]
    assert "\n" not in str(refused.value)
    assert [one async for one in session.answers()] == []


@pytest.mark.parametrize(
    "said",
    [
        {"reader": "none"},
        {"options": "abc"},
        {"browsing": BrowseSettings(option="none")},  # type: ignore[arg-type]
        {"browsing": BrowseSettings(order="none")},  # type: ignore[arg-type]
        {"browsing": BrowseSettings(actions="move")},  # type: ignore[arg-type]
        {"browsing": BrowseSettings(actions=["none"])},  # type: ignore[list-item]
        {"response_schema": " "},
        {"response_schema": {"default": float("nan")}},
    ],
)
async def test_what_cannot_be_sent_is_refused_before_it_is(
    session: palimpsest.Session, said: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"."):
        await session.ask("?", **said)


async def test_answers_are_listed_newest_first(
    workerless: Workerless, client: palimpsest.Client
) -> None:
    async with palimpsest.connect(workerless.address) as other:
        session = await other.create_session(f"list-{uuid4().hex}")
        await session.create_memory("m", schema_source=SCHEMA)
        stub = answers_pb2_grpc.AnswerServiceStub(other.channel)
        asked: list[str] = []
        for start in range(0, 512, 32):
            request = answers_pb2.AskManyRequest(
                questions=[
                    answers_pb2.AskRequest(
                        session=session.name,
                        query=f"{start + n}",
                        memory="m" if n % 4 == 0 else "",
                    )
                    for n in range(32)
                ]
            )
            ids: dict[int, str] = {}
            call = stub.AskMany(request)
            async for response in call:
                ids[response.index] = response.response.reading.answer_id
                if len(ids) == 32:
                    break
            call.cancel()
            asked += [ids[n] for n in range(32)]
        await session.cancel_answer(asked[0])
        listed = [one async for one in session.answers()]
        assert [one.created_at for one in listed] == sorted(
            (one.created_at for one in listed), reverse=True
        )
        assert sorted(one.answer_id for one in listed) == sorted(asked)
        assert {one.query for one in listed} == {str(n) for n in range(512)}
        of_memory = [one.query async for one in session.answers(memory="m")]
        assert sorted(of_memory, key=int) == [str(n) for n in range(0, 512, 4)]
        assert [one.query async for one in session.answers(status="cancelled")] == ["0"]
        pages = answers_pb2.ListAnswersRequest(session=session.name, page_size=100)
        sizes = [len(page.answers) async for page in other.pages(stub.ListAnswers, pages)]
        assert sizes == [100] * 5 + [12]
        with pytest.raises(errors.NotFound):
            _ = [one async for one in session.answers(memory="none")]
        with pytest.raises(errors.NotFound):
            _ = [one async for one in other.session("none").answers()]
        for page_token in ("no token", await _token(stub, session.name)):
            wrong = answers_pb2.ListAnswersRequest(
                session=session.name, memory="m", page_token=page_token
            )
            with pytest.raises(errors.InvalidArgument) as refused:
                await other.call(stub.ListAnswers, wrong)
            assert refused.value.reason == "TOKEN_INVALID"


async def _token(stub: Any, session: str) -> str:
    """A token of another list."""
    page = await stub.ListAnswers(answers_pb2.ListAnswersRequest(session=session, page_size=1))
    return str(page.next_page_token)


@pytest.mark.timeout(300)
async def test_a_session_is_asked_without_naming_a_memory(session: palimpsest.Session) -> None:
    hearing = Hearing()
    schema = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}
    stream = session.stream_ask(
        "When is the harbour museum closed?",
        response_schema=schema,
        on_event=hearing,
        timeout=200,
    )
    text = ""
    async for piece in stream:
        text = piece.text if piece.restarts else text + piece.text
    answer = stream.answer
    assert (answer.status, answer.memory, answer.reader) == ("complete", "", "auto")
    assert "Mondays" in answer.text
    assert answer.text == text
    assert answer.choice is not None
    assert answer.choice.reason
    assert isinstance(answer.value["day"], str)
    assert hearing.ordinals == list(range(1, len(hearing.ordinals) + 1))
    events = [one for one in hearing.events if isinstance(one, TrajectoryEvent)]
    assert (events[0].kind, events[-1].kind) == ("choice", "shaping")
    assert [one async for one in session.trajectory(answer.answer_id)] == events
    (cited,) = answer.citations
    (chunk,) = [one async for one in session.chunks()]
    assert "Mondays" in chunk.text[cited.from_character : cited.to_character]
    assert [one async for one in session.answers()] == [answer]


async def test_a_page_has_the_costs_of_its_answers(session: palimpsest.Session) -> None:
    memory = session.memory("m")
    asked = [await memory.ask(f"When is it closed {n}?") for n in range(3)]
    assert all(one.usage.calls > 0 for one in asked)
    listed = [one async for one in session.answers()]
    assert listed == asked[::-1]
    assert [one.usage for one in listed] == [one.usage for one in asked[::-1]]
    assert listed[0].reader == "prism"
    assert listed[0].memory == "m"


async def test_a_complete_answer_is_rated_and_the_last_rating_counts(
    session: palimpsest.Session, workerless: Workerless
) -> None:
    answer = await session.memory("m").ask("When is it closed?")
    assert answer.rating is None
    first = await session.rate(answer.answer_id, good=True)
    assert (first.good, first.comment, first.expected) == (True, "", "")
    second = await session.rate(
        answer.answer_id, good=False, comment="too long", expected="On Mondays."
    )
    assert (second.good, second.comment, second.expected) == (False, "too long", "On Mondays.")
    assert second.rated_at > first.rated_at
    assert (await session.answer(answer.answer_id)).rating == second
    assert [one.rating async for one in session.answers()] == [second]
    for said, field in (
        ({"comment": "a\0"}, "rating.comment"),
        ({"expected": "a\0"}, "rating.expected"),
        ({"comment": "é" * 2049}, "rating.comment"),
        ({"expected": "é" * 4097}, "rating.expected"),
    ):
        with pytest.raises(errors.InvalidArgument) as refused:
            await session.rate(answer.answer_id, good=True, **said)
        assert list(refused.value.fields) == [field]
    with pytest.raises(errors.NotFound):
        await session.rate(str(uuid4()), good=True)
    assert (await session.answer(answer.answer_id)).rating == second
    async with palimpsest.connect(workerless.address) as client:
        hearing = Hearing()
        asking = asyncio.create_task(client.session("s").ask("When?", on_event=hearing))
        await hearing.until(1)
        with pytest.raises(errors.FailedPrecondition) as early:
            await client.session("s").rate(hearing.answer_id, good=True)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert early.value.reason == "ANSWER_NOT_COMPLETE"
    assert early.value.metadata["status"] == "pending"


async def test_the_client_without_await_does_the_same(
    session: palimpsest.Session, address: str
) -> None:
    with sync.Client(address) as client:
        told = client.session(session.name)
        answer = told.ask("When is it closed?", memory="m")
        assert [one.answer_id for one in told.answers(status="complete")] == [answer.answer_id]
        (again,) = told.ask_all(["When is it closed?"], memory="m")
        assert isinstance(again, palimpsest.Answer)
        assert again.text == answer.text
        assert told.resume_answer(answer.answer_id) == answer
        assert client.resume_answer(session.name, answer.answer_id) == answer
        assert told.cancel_answer(answer.answer_id) == answer
        rating = told.rate(answer.answer_id, good=True, comment="yes")
        assert told.answer(answer.answer_id).rating == rating
        stream = told.stream_ask("When is it closed?", memory="m")
        assert "".join(piece.text for piece in stream) in ("", stream.answer.text)
