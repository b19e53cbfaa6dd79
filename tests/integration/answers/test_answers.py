"""Answers over gRPC: asked, refused, read, rated."""

from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import BrowseSettings, TrajectoryEvent, sync
from tests.integration.support.hearing import Hearing
from tests.support.cutting import cutting

SCHEMA = "class N:\n    topics: dict[str, list[str]]\n"


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    """Returns a session with a PRISM memory `m`, over a chunk."""
    session = await client.create_session(f"answers-{uuid4().hex}")
    memory = await session.create_memory("m", schema_source=SCHEMA)
    async with session.producer("p") as producer:
        await producer.append("The harbour museum is closed on Mondays.")
    await memory.get(fully_applied=True, timeout=60)
    return session


async def test_what_was_not_taken_for_sure_is_not_asked_again(
    session: palimpsest.Session, address: str
) -> None:
    before = [one.id async for one in session.answers()]
    async with cutting(address) as proxy, palimpsest.connect(proxy.address) as client:
        await proxy.close()
        with pytest.raises(palimpsest.ConnectionFailed):
            await client.session(session.id).ask("?")
    assert [one.id async for one in session.answers()] == before


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": "é" * 4097}, "query"),
        ({"query": "a\0b"}, "query"),
        ({"memory": "A/B"}, "memory"),
        ({"memory": "m", "reader": "dciso"}, "memory"),
        ({"reader": "pcc"}, "memory"),
        ({"memory": "m", "browsing": BrowseSettings()}, "browsing"),
        ({"browsing": BrowseSettings(strategy="rank", actions=["append", "answer"])}, "browsing"),
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
    with pytest.raises(palimpsest.InvalidArgument) as refused:
        await session.ask(said.pop("query", "?"), **said)
    assert list(refused.value.fields) == [field]
    assert "\n" not in str(refused.value)
    assert [one async for one in session.answers()] == []


@pytest.mark.parametrize(
    "said",
    [
        {"reader": "none"},
        {"options": "abc"},
        {"browsing": BrowseSettings(strategy="none")},  # type: ignore[arg-type]
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
    assert (answer.state, answer.memory, answer.reader) == ("done", "", "auto")
    assert "Mondays" in answer.text
    assert answer.text == text
    assert answer.choice is not None
    assert answer.choice.reason
    assert isinstance(answer.value["day"], str)
    assert hearing.ordinals == list(range(1, len(hearing.ordinals) + 1))
    events = [one for one in hearing.events if isinstance(one, TrajectoryEvent)]
    assert (events[0].kind, events[-1].kind) == ("choice", "shaping")
    assert [one async for one in session.trajectory(answer.id)] == events
    (cited,) = answer.citations
    (chunk,) = [one async for one in session.chunks()]
    assert cited.characters is not None
    assert "Mondays" in chunk.text[cited.characters.start : cited.characters.end]
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
    session: palimpsest.Session,
) -> None:
    answer = await session.memory("m").ask("When is it closed?")
    assert answer.rating is None
    first = (await session.rate(answer.id, good=True)).rating
    assert first is not None
    assert (first.good, first.comment, first.expected) == (True, "", "")
    rated = await session.rate(answer.id, good=False, comment="too long", expected="On Mondays.")
    second = rated.rating
    assert second is not None
    assert (second.good, second.comment, second.expected) == (False, "too long", "On Mondays.")
    assert second.created_at > first.created_at
    assert (await session.answer(answer.id)).rating == second
    assert [one.rating async for one in session.answers()] == [second]
    for said, field in (
        ({"comment": "a\0"}, "rating.comment"),
        ({"expected": "a\0"}, "rating.expected"),
        ({"comment": "é" * 2049}, "rating.comment"),
        ({"expected": "é" * 4097}, "rating.expected"),
    ):
        with pytest.raises(palimpsest.InvalidArgument) as refused:
            await session.rate(answer.id, good=True, **said)
        assert list(refused.value.fields) == [field]
    with pytest.raises(palimpsest.NotFound):
        await session.rate(str(uuid4()), good=True)
    assert (await session.answer(answer.id)).rating == second


async def test_the_client_without_await_does_the_same(
    session: palimpsest.Session, address: str
) -> None:
    with sync.Client(address) as client:
        told = client.session(session.id)
        answer = told.ask("When is it closed?", memory="m")
        assert [one.id for one in told.answers(state="done")] == [answer.id]
        (again,) = told.ask_all(["When is it closed?"], memory="m")
        assert isinstance(again, palimpsest.Answer)
        assert again.text == answer.text
        assert told.resume_answer(answer.id) == answer
        assert client.resume_answer(session.id, answer.id) == answer
        assert told.cancel_answer(answer.id) == answer
        rated = told.rate(answer.id, good=True, comment="yes")
        assert told.answer(answer.id) == rated
        stream = told.stream_ask("When is it closed?", memory="m")
        assert "".join(piece.text for piece in stream) in ("", stream.answer.text)
        stream = told.memory("m").stream_ask("When is it closed?", timeout=110)
        assert "".join(piece.text for piece in stream) in ("", stream.answer.text)
        assert (stream.answer.memory, stream.answer.text) == ("m", answer.text)
