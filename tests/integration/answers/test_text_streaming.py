"""Texts of answers are streamed from the database while written, and are whole when complete."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from service.domain.answers.answer_updates import TextPiece, text_of
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from service.usecases.answers import stored_answers, text_streaming
from storage.answers import answers, texts
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database
from storage.engine.errors import Unreachable
from storage.tables import call
from tests.integration.support.scripted import (
    CONFIG,
    KEY,
    MEMORY,
    Script,
    answerer,
    make,
    prism_method,
)
from tests.integration.support.scripted import ITEM as MEMORY_ITEM
from tests.integration.support.stored_answers import store_question
from tests.support.completions import completion
from tests.support.gateways import gateway
from tests.support.properties import examples

REPLY = "[ANSWER]\nA ship that lies\nin the harbour.\n[PATHS]\n$.topics.t1\n"
TEXT = "A ship that lies\nin the harbour."


@dataclass
class Writing:
    """Writes its replies in parts; a failure in front of one breaks it after its parts."""

    replies: list[tuple[Sequence[str], ModelFailure | None]]
    #: Called after each part.
    behind: Callable[[], Awaitable[None]] | None = None
    streamed: list[bool] = field(default_factory=list)

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        assert ask.purpose is Purpose.ANSWER
        self.streamed.append(plan.on_text is not None)
        parts, failure = self.replies.pop(0)
        for part in parts:
            if plan.on_text is not None:
                plan.on_text(part)
            if self.behind is not None:
                await self.behind()
        if failure is not None:
            raise failure
        return completion("".join(parts), model)


@pytest.fixture
async def memory(database: Database) -> Database:
    """Returns a database with a memory that knows something."""
    await make(database, ["a"])
    await prism_method(database, Script()).drain(MEMORY_ITEM)
    return database


async def ask(database: Database, *, tells_text: bool = True) -> WorkItem:
    return await store_question(
        database,
        MEMORY,
        "What is it?",
        revision=1,
        applied_position=1,
        tells_text=tells_text,
    )


async def read(database: Database, answer_id: UUID) -> tuple[StoredAnswer, Sequence[TextPiece]]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        stored = await answers.get(tx, KEY, answer_id)
        pieces = await texts.read(tx, (KEY, answer_id))
    assert stored is not None
    return stored, pieces


async def tell(database: Database, answer_id: UUID, *pieces: TextPiece) -> bool:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return await texts.append(tx, (KEY, answer_id), pieces)


def in_parts(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


async def make_answer(database: Database, item: WorkItem, writing: Writing) -> None:
    await answerer(database, gateway(writing, database, tries=2), CONFIG).make(item)


async def test_the_text_is_streamed_while_it_is_written(
    memory: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_streaming, "PIECE_SECONDS", 0.01)
    item, seen, parts = await ask(memory), [""], in_parts(REPLY, 9)

    async def look() -> None:
        written = "".join(parts[: next(numbers)])
        # Each part with more of the text is streamed before the model writes the next.
        while len(seen[-1]) < len(written.removeprefix("[ANSWER]\n").partition("\n[")[0]):
            await asyncio.sleep(0.01)
            seen.append(text_of((await read(memory, item.item_id))[1]))

    numbers = count(1)
    await make_answer(memory, item, Writing([(parts, None)], behind=look))
    stored, pieces = await read(memory, item.item_id)
    assert stored.text == text_of(pieces) == TEXT
    assert len(set(seen) - {"", TEXT}) > 1
    assert all(TEXT.startswith(text) for text in seen)
    assert [piece.ordinal for piece in pieces] == list(range(1, len(pieces) + 1))
    assert not any(piece.restarts for piece in pieces)


async def test_who_does_not_read_along_costs_nothing(memory: Database) -> None:
    item = await ask(memory, tells_text=False)
    writing = Writing([([REPLY], None)])
    await make_answer(memory, item, writing)
    stored, pieces = await read(memory, item.item_id)
    assert (stored.text, pieces, writing.streamed) == (TEXT, [], [False])


async def test_a_broken_try_is_void_for_a_client_that_reads_along(
    memory: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_streaming, "PIECE_SECONDS", 0.01)
    broken = (["[ANSWER]\nA boat ", "on the sea"], ModelFailure("it broke", retryable=True))
    item = await ask(memory)

    async def until_told() -> None:
        while not (await read(memory, item.item_id))[1]:
            await asyncio.sleep(0.01)

    writing = Writing([broken, ([REPLY], None)], behind=until_told)
    await make_answer(memory, item, writing)
    stored, pieces = await read(memory, item.item_id)
    assert stored.text == text_of(pieces) == TEXT
    assert pieces[0].text.startswith("A boat")
    assert sum(piece.restarts for piece in pieces) == 1


@pytest.mark.parametrize(
    ("told", "restarts"),
    [("A ship that", 0), (TEXT, 0), ("A boat", 1), (TEXT + " Or not?", 1)],
)
async def test_who_takes_over_goes_on_where_the_text_is_the_same(
    memory: Database, told: str, restarts: int
) -> None:
    item = await ask(memory)
    begun = (TextPiece(ordinal=1, text=told[:3]), TextPiece(ordinal=2, text=told[3:]))
    assert await tell(memory, item.item_id, *begun)
    await make_answer(memory, item, Writing([(in_parts(REPLY, 5), None)]))
    stored, pieces = await read(memory, item.item_id)
    assert stored.text == text_of(pieces) == TEXT
    assert sum(piece.restarts for piece in pieces) == restarts


async def test_a_text_that_another_worker_streams_is_stored_once(memory: Database) -> None:
    item = await ask(memory)

    async def another() -> None:
        pieces = (await read(memory, item.item_id))[1]
        if pieces:
            last = TextPiece(ordinal=len(pieces) + 1, text="!", restarts=False)
            await tell(memory, item.item_id, last)
        await asyncio.sleep(0.05)

    await make_answer(memory, item, Writing([(in_parts(REPLY, 9), None)], behind=another))
    stored, pieces = await read(memory, item.item_id)
    assert stored.text == text_of(pieces) == TEXT


async def test_nothing_is_stored_after_the_text_of_another_worker(memory: Database) -> None:
    item = await ask(memory)
    heard: list[str] = []

    async def another() -> None:
        while not (pieces := (await read(memory, item.item_id))[1]):
            await asyncio.sleep(0.02)
        if len(pieces) == 1:
            await tell(memory, item.item_id, TextPiece(ordinal=2, text="!"))
        else:
            await asyncio.sleep(0.5)
            heard.extend(piece.text for piece in (await read(memory, item.item_id))[1])

    parts = ["[ANSWER]\nA ship\n", "that lies there. " * 400 + "\n"]
    await make_answer(memory, item, Writing([(parts, None)], behind=another))
    assert heard[1:] == ["!"]


async def test_nothing_is_stored_after_the_end_of_an_answer(memory: Database) -> None:
    item = await ask(memory)
    await make_answer(memory, item, Writing([([REPLY], None)]))
    _, pieces = await read(memory, item.item_id)
    late = TextPiece(ordinal=len(pieces) + 1, text="late")
    assert not await tell(memory, item.item_id, late)
    async with memory.transaction(DEFAULT_TENANT) as tx:
        await texts.complete(tx, (KEY, item.item_id), "another")
    assert (await read(memory, item.item_id))[1] == pieces


async def test_a_database_that_fails_ends_the_streaming_and_not_the_answer(
    memory: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends = 0
    append = texts.append

    async def failing(*arguments: object) -> bool:
        nonlocal appends
        appends += 1
        if appends == 1:
            raise Unreachable("the database is away")
        return await append(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(texts, "append", failing)
    item = await ask(memory)
    writing = Writing([(in_parts(REPLY, 9), None)], behind=lambda: asyncio.sleep(0.03))
    await make_answer(memory, item, writing)
    stored, pieces = await read(memory, item.item_id)
    assert stored.text == text_of(pieces) == TEXT
    assert appends == 2, "the second one when the answer was complete"


async def test_a_long_text_comes_in_pieces_of_bounded_size(memory: Database) -> None:
    item = await ask(memory)
    text = "ä" * 5000
    await make_answer(memory, item, Writing([([f"[ANSWER]\n{text}"], None)]))
    stored, pieces = await read(memory, item.item_id)
    assert stored.text == text_of(pieces) == text
    assert max(len(piece.text.encode()) for piece in pieces) <= 4096


async def test_a_cancelled_answer_ends_the_call_that_is_under_way(memory: Database) -> None:
    item, writes = await ask(memory), asyncio.Event()

    async def for_ever() -> None:
        writes.set()
        await asyncio.get_running_loop().create_future()

    writing = Writing([([REPLY], None)], behind=for_ever)
    maker = answerer(memory, gateway(writing, memory), CONFIG)
    making = asyncio.create_task(maker.make(item))
    await writes.wait()
    await stored_answers.cancel(memory, DEFAULT_TENANT, "s", item.item_id)
    await maker.active.look()
    await making
    # The executor records the outcome, whether or not a worker waits.
    while not (made := await failures(memory, item)):
        await asyncio.sleep(0.05)
    assert len(made) == 1
    assert "called off" in made[0]
    assert (await read(memory, item.item_id))[0].status == "cancelled"


async def failures(database: Database, item: WorkItem) -> list[str]:
    """Returns what the failed calls of an answer say."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch(
            select(call.c.failure).where(
                call.c.session_key == KEY,
                call.c.occasion == f"answer:{item.item_id}",
            )
        )
        return [row.failure for row in rows]


_REPLIES = st.lists(
    st.sampled_from(["[ANSWER]", "\n", "[PATHS]", "A ship", " ", "$.a", "[", "<think>", "\0"]),
    max_size=8,
)


@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(parts=_REPLIES, told=st.sampled_from(["", "A ship", "A boat"]))
async def test_whatever_a_model_writes_the_whole_text_is_told(
    memory: Database, parts: list[str], told: str
) -> None:
    item = await ask(memory)
    if told:
        await tell(memory, item.item_id, TextPiece(ordinal=1, text=told))
    # What says nothing is asked for again.
    writing = Writing([([part.replace("\0", "") for part in parts], None)] * 3)
    await make_answer(memory, item, writing)
    stored, pieces = await read(memory, item.item_id)
    if stored.status == "failed":
        # Marks, blanks and thoughts are no answer.
        assert "A ship" not in parts or {"[PATHS]", "<think>"} & set(parts)
        return
    assert stored.status == "complete"
    assert stored.text == text_of(pieces)
