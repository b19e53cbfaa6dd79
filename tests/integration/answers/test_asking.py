"""Questions as they are stored: to memories, and to sessions without one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select

from service.app.kinds import memories_of
from service.domain.answers.answer_updates import TextPiece
from service.domain.answers.browse.spec import BrowseAction, BrowseOption, BrowseRequest
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.log.read_tokens import ReadToken
from service.domain.state.spec import StateSpec
from service.domain.tree.spec import TreeSpec
from service.domain.values.errors import Exhausted, FailedPrecondition, InvalidInput, NotFound
from service.domain.values.memory_specs import MemorySpec, ReaderName
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.answers.ask import Asker, AskEvent, AskStarted, Begun, Behind
from service.usecases.answers.ask_many import MAX_UNTAKEN, NumberedAskEvent, ask_many
from service.usecases.answers.interest import Interest
from service.usecases.answers.questions import Question
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.answers import answers
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database, value
from storage.engine.errors import Unreachable
from storage.log import sessions as session_rows
from storage.tables import answer
from tests.integration.support.scripted import SPEC
from tests.integration.support.statements import statements
from tests.integration.support.writing import append_texts, drop_wake_ups

KEY = session_key(DEFAULT_TENANT, "s")
TOKEN_KEY = b"token-key"
SPECS: dict[str, MemorySpec] = {"notes": SPEC, "tree": TreeSpec(), "state": StateSpec()}


@pytest.fixture
async def asker(database: Database) -> Asker:
    """Asks a session of three chunks, none of them applied, with a memory of each kind."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await session_rows.create(tx, KEY, "s")
    wake_ups, watcher = WakeUps(drop_wake_ups), ProgressWatcher(database)
    memories = memories_of(database, wake_ups, watcher, TOKEN_KEY, Limits())
    for name, spec in SPECS.items():
        await memories.create(DEFAULT_TENANT, "s", name, spec)
    await append_texts(database, "s", ["a", "b", "c"])
    interest = Interest(database, seconds=60)
    return Asker(database, wake_ups, watcher, TOKEN_KEY, ConcurrencyLimiter(10), interest)


def question(memory: str = "", **said: Any) -> Question:
    plain: dict[str, Any] = {"query": "Who?", "consistency": Consistency()}
    return Question(**{"session": "s", "memory": memory} | plain | said)


async def began(asker: Asker, asked: Question) -> AskStarted:
    """Returns where the question is read, without waiting for the answer."""
    async with aclosing(asker.ask(DEFAULT_TENANT, asked, deadline=None)) as told:
        first = await anext(told)
    assert isinstance(first, AskStarted)
    return first


async def stored(database: Database, reading: AskStarted) -> StoredAnswer:
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await answers.get(tx, KEY, reading.answer_id)
    assert found is not None
    return found


async def count(database: Database) -> int:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return value(await tx.fetch(select(func.count()).select_from(answer))) or 0


@pytest.mark.parametrize(
    ("said", "reader"),
    [
        ({}, ReaderName.AUTO),
        ({"reader": ReaderName.AUTO}, ReaderName.AUTO),
        ({"reader": ReaderName.DCISO}, ReaderName.DCISO),
        ({"reader": ReaderName.WHOLE}, ReaderName.WHOLE),
    ],
)
async def test_what_names_no_memory_reads_the_log_to_its_head(
    database: Database, asker: Asker, said: dict[str, Any], reader: ReaderName
) -> None:
    token = ReadToken(session_key=KEY, incarnation=1, position=2).sign(TOKEN_KEY)
    for consistency, wanted in (
        (Consistency(), 0),
        (Consistency(at_least=token), 2),
        (Consistency(fully_applied=True), 3),
    ):
        reading = await began(asker, question(**said, consistency=consistency))
        assert (reading.revision, reading.applied_position) == (0, 3)
        kept = await stored(database, reading)
        assert (kept.asked_memory, kept.memory_name, kept.asked_spec) == (None, "", None)
        assert (kept.reader, kept.wanted_position) == (reader, wanted)
        assert (kept.revision, kept.applied_position, kept.session_name) == (0, 3, "s")


async def test_all_that_a_question_says_is_kept(database: Database, asker: Asker) -> None:
    said: dict[str, Any] = {
        "browsing": BrowseRequest(option=BrowseOption.RANK, pieces=3),
        "navigation": NavigationRequest(hybrid_leaves=2),
        "response_schema": {"type": "string"},
        "tells_text": True,
        "model": "a/b",
    }
    kept = await stored(database, await began(asker, question(**said)))
    said["wanted_model"] = said.pop("model")
    assert {name: getattr(kept, name) for name in said} == said


@pytest.mark.parametrize(
    ("memory", "said", "reader", "navigates"),
    [
        ("notes", None, ReaderName.PRISM, False),
        ("notes", ReaderName.PRISM, ReaderName.PRISM, False),
        ("tree", None, ReaderName.MEMWALKER, True),
        ("tree", ReaderName.MEMWALKER, ReaderName.MEMWALKER, True),
        ("state", None, ReaderName.PCC, False),
        ("state", ReaderName.PCC, ReaderName.PCC, False),
        ("state", ReaderName.MEMWALKER, ReaderName.MEMWALKER, True),
    ],
)
async def test_a_memory_is_read_by_the_reader_of_its_kind(
    database: Database,
    asker: Asker,
    memory: str,
    said: ReaderName | None,
    reader: ReaderName,
    navigates: bool,
) -> None:
    kept = await stored(database, await began(asker, question(memory, reader=said)))
    assert (kept.reader, kept.memory_name) == (reader, memory)
    assert (kept.navigation is not None) == navigates
    # Nothing is applied yet; a state memory has the whole log at any time.
    assert kept.applied_position == (3 if memory == "state" else 0)


async def test_the_automatic_reader_does_not_wait_for_the_memory_that_is_named(
    database: Database, asker: Asker
) -> None:
    asked = question("notes", reader=ReaderName.AUTO, consistency=Consistency(fully_applied=True))
    kept = await stored(database, await began(asker, asked))
    assert (kept.reader, kept.memory_name, kept.wanted_position) == (ReaderName.AUTO, "notes", 3)
    assert kept.applied_position == 3


@pytest.mark.parametrize(
    ("memory", "said", "field"),
    [
        ("notes", {"reader": ReaderName.DCISO}, "memory"),
        ("notes", {"reader": ReaderName.WHOLE}, "memory"),
        ("", {"reader": ReaderName.PRISM}, "memory"),
        ("", {"reader": ReaderName.MEMWALKER}, "memory"),
        ("", {"reader": ReaderName.PCC}, "memory"),
        ("notes", {"browsing": BrowseRequest()}, "browsing"),
        ("", {"reader": ReaderName.WHOLE, "browsing": BrowseRequest()}, "browsing"),
        (
            "",
            {"browsing": BrowseRequest(actions=frozenset({BrowseAction.ANSWER}))},
            "browsing",
        ),
        ("", {"reader": ReaderName.DCISO, "navigation": NavigationRequest()}, "navigation"),
        ("", {"reader": ReaderName.WHOLE, "navigation": NavigationRequest()}, "navigation"),
        ("notes", {"reader": ReaderName.PRISM, "navigation": NavigationRequest()}, "navigation"),
        ("state", {"reader": ReaderName.PCC, "navigation": NavigationRequest()}, "navigation"),
        ("tree", {"model": "a/b"}, "model"),
        ("tree", {"reader": ReaderName.MEMWALKER, "model": "a/b"}, "model"),
        ("", {"consistency": Consistency(at_least="no token")}, "consistency.at_least"),
    ],
)
async def test_what_contradicts_itself_is_refused_by_its_field(
    database: Database, asker: Asker, memory: str, said: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await began(asker, question(memory, **said))
    assert refused.value.field == field
    assert await count(database) == 0


@pytest.mark.parametrize(
    ("memory", "reader"),
    [
        ("notes", ReaderName.MEMWALKER),
        ("notes", ReaderName.PCC),
        ("tree", ReaderName.PRISM),
        ("tree", ReaderName.PCC),
        ("state", ReaderName.PRISM),
    ],
)
async def test_a_reader_refuses_memories_of_other_kinds(
    database: Database, asker: Asker, memory: str, reader: ReaderName
) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        await began(asker, question(memory, reader=reader))
    assert refused.value.reason == "WRONG_MEMORY_KIND"
    assert refused.value.metadata["memory"] == memory
    assert await count(database) == 0


async def test_what_is_not_there_is_not_found(database: Database, asker: Asker) -> None:
    for asked, reason in (
        (question(session="none"), "SESSION_NOT_FOUND"),
        (question("none"), "MEMORY_NOT_FOUND"),
    ):
        with pytest.raises(NotFound) as refused:
            await began(asker, asked)
        assert refused.value.reason == reason
    assert await count(database) == 0


@pytest.mark.parametrize(("memory", "ends"), [("", ["UPDATE"]), ("notes", [])])
async def test_a_question_is_stored_in_one_short_transaction(
    database: Database, asker: Asker, memory: str, ends: list[str]
) -> None:
    with statements() as sent:
        await began(asker, question(memory))
    said = [one.split()[0].strip(";") for one in sent]
    # The session is kept from being deleted; of a memory that takes a statement of its own. Of a
    # session any memory may wait for more chunks; of a memory it is known.
    keeps = ["SELECT"] if memory else []
    assert said == ["BEGIN", *keeps, "SELECT", "INSERT", *ends, "COMMIT"]


async def test_each_question_of_many_takes_a_place_for_as_long_as_the_call(
    database: Database, asker: Asker
) -> None:
    limiter = ConcurrencyLimiter(3)

    def many(count: int) -> AsyncGenerator[NumberedAskEvent]:
        questions = [question() for _ in range(count)]
        return ask_many(asker, limiter, DEFAULT_TENANT, questions, deadline=None)

    async with aclosing(many(4)) as told:
        with pytest.raises(Exhausted) as refused:
            await anext(told)
    assert refused.value.reason == "TOO_MANY_ASKS"
    assert await count(database) == 0
    for _ in range(2):
        async with aclosing(many(3)) as told:
            assert {(await anext(told))[0] for _ in range(3)} == {0, 1, 2}
            with pytest.raises(Exhausted), limiter.slot():
                raise AssertionError("all places are taken")
    assert await count(database) == 6


async def test_many_read_the_same_log_whatever_is_appended_meanwhile(
    database: Database, asker: Asker
) -> None:
    questions = [question(), question("state"), question(reader=ReaderName.DCISO)]
    begun, _ = await asyncio.gather(
        asker.begin(DEFAULT_TENANT, questions), append_texts(database, "s", ["d", "e"], first=4)
    )
    assert all(isinstance(one, AskStarted) for one in begun)
    assert len({one.applied_position for one in begun if isinstance(one, AskStarted)}) == 1


async def test_what_waits_for_its_memory_is_not_stored_yet(
    database: Database, asker: Asker
) -> None:
    fresh = Consistency(fully_applied=True)
    questions = [question(), question("tree", consistency=fresh)]
    ready, behind = await asker.begin(DEFAULT_TENANT, questions)
    assert isinstance(ready, AskStarted)
    assert isinstance(behind, Behind)
    assert (behind.taken.wanted_position, await count(database)) == (3, 1)


class Talking(Asker):
    """Has more events of each question than a stream buffers."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self.told = 0

    async def begin(
        self, tenant_id: UUID, questions: Sequence[Question], *, waited: bool = False
    ) -> Sequence[Begun]:
        return await self._asker.begin(tenant_id, questions, waited=waited)

    async def go_on(
        self, tenant_id: UUID, question: Question, begun: Begun, deadline: float | None
    ) -> AsyncGenerator[AskEvent]:
        while True:
            self.told += 1
            yield TextPiece(ordinal=self.told, text="x", restarts=False)
            await asyncio.sleep(0)


async def test_questions_wait_for_a_client_that_does_not_read_their_events(
    asker: Asker,
) -> None:
    talking, count = Talking(asker), 3
    questions = [question() for _ in range(count)]
    events = ask_many(talking, ConcurrencyLimiter(count), DEFAULT_TENANT, questions, deadline=None)
    async with aclosing(events) as told:
        await anext(told)
        for _ in range(10 * MAX_UNTAKEN):
            await asyncio.sleep(0)
        # Each question has one more in hand than there is limiter for.
        assert talking.told <= 1 + MAX_UNTAKEN + count
        for _ in range(3 * MAX_UNTAKEN):
            await anext(told)
        assert talking.told > 3 * MAX_UNTAKEN


class BrokenOff(Talking):
    """Loses its connection when its client leaves."""

    async def go_on(
        self, tenant_id: UUID, question: Question, begun: Begun, deadline: float | None
    ) -> AsyncGenerator[AskEvent]:
        try:
            async with aclosing(super().go_on(tenant_id, question, begun, deadline)) as told:
                async for event in told:
                    yield event
        finally:
            raise Unreachable("the server closed the connection")


async def test_who_leaves_unread_questions_is_gone_though_the_database_is_too(
    asker: Asker,
) -> None:
    talking, limiter = BrokenOff(asker), ConcurrencyLimiter(2)
    events = ask_many(talking, limiter, DEFAULT_TENANT, [question(), question()], deadline=None)
    await anext(events)
    for _ in range(10 * MAX_UNTAKEN):
        await asyncio.sleep(0)
    assert talking.told > MAX_UNTAKEN, "there is no limiter for more"
    # It ends at once, or never.
    async with asyncio.timeout(60):
        await events.aclose()
    with limiter.slot(), limiter.slot():
        pass
