"""Many answers of one session: asked at once, and listed."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import BrowseSettings, Question, Reading, TrajectoryEvent
from palimpsest.v1 import answer_service_pb2, answer_service_pb2_grpc
from tests.integration.api_alone.answers_by_hand import ByHand
from tests.integration.api_alone.refusals import SCHEMA
from tests.integration.support.hearing import Hearing
from tests.support.cutting import cutting


async def test_many_are_asked_at_once_and_one_that_fails_ends_no_other(
    by_hand: ByHand,
) -> None:
    told: list[tuple[int, object]] = []
    readings = asyncio.Event()

    def hear(number: int, event: object) -> None:
        told.append((number, event))
        if sum(isinstance(one, Reading) for _, one in told) == 3:
            readings.set()

    async with cutting(by_hand.address) as proxy, palimpsest.connect(proxy.address) as client:
        session = client.session("s")
        asking = asyncio.create_task(
            session.ask_all(["a", "b", Question(query="c", reader="whole")], on_event=hear)
        )
        await asyncio.wait_for(readings.wait(), 60)
        ids = {n: one.answer for n, one in told if isinstance(one, Reading)}
        assert len(set(ids.values())) == 3
        await by_hand.fail(ids[1])
        await by_hand.tell(ids[2], 1)
        await by_hand.complete(ids[2], "c!")
        async with asyncio.timeout(60):
            while not any(isinstance(one, TrajectoryEvent) for _, one in told):
                await asyncio.sleep(0.02)
        proxy.cut()
        await by_hand.complete(ids[0], "a!")
        first, second, third = await asking
    assert isinstance(first, palimpsest.Answer)
    assert isinstance(third, palimpsest.Answer)
    assert [first.text, third.text] == ["a!", "c!"]
    assert (first.reader, third.reader) == ("auto", "whole")
    assert isinstance(second, palimpsest.FailedPrecondition)
    assert second.reason == "ANSWER_FAILED"
    assert second.metadata["answer"] == ids[1]
    assert [number for number, one in told if isinstance(one, TrajectoryEvent)] == [2]


async def test_none_of_many_is_stored_when_one_is_invalid(by_hand: ByHand) -> None:
    async with palimpsest.connect(by_hand.address) as client:
        session = client.session("s")
        before = [one.id async for one in session.answers()]
        for wrong, kind, field in (
            (Question(query=""), palimpsest.InvalidArgument, "questions[1].query"),
            (Question(query="a\0b"), palimpsest.InvalidArgument, "questions[1].query"),
            (
                Question(query="?", browsing=BrowseSettings(actions=["answer"])),
                palimpsest.InvalidArgument,
                "questions[1].browsing",
            ),
            (
                Question(query="?", response_schema="{"),
                palimpsest.InvalidArgument,
                "questions[1].response_schema",
            ),
            (
                Question(query="?", after="no token"),
                palimpsest.InvalidArgument,
                "questions[1].consistency.at_least",
            ),
            (Question(query="?", memory="none"), palimpsest.NotFound, ""),
        ):
            with pytest.raises(kind) as refused:
                await session.ask_all(["fine", wrong])
            assert list(refused.value.fields) == ([field] if field else [])
        assert [one.id async for one in session.answers()] == before
        assert await session.ask_all([]) == []


async def test_answers_are_listed_newest_first(client: palimpsest.Client) -> None:
    session = await client.create_session(f"list-{uuid4().hex}")
    await session.create_memory("m", schema_source=SCHEMA)
    stub = answer_service_pb2_grpc.AnswerServiceStub(client.channel)
    asked: list[str] = []
    for start in range(0, 512, 32):
        request = answer_service_pb2.AskManyRequest(
            questions=[
                answer_service_pb2.AskRequest(
                    session=session.id,
                    query=f"{start + n}",
                    memory="m" if n % 4 == 0 else "",
                )
                for n in range(32)
            ]
        )
        ids: dict[int, str] = {}
        call = stub.AskMany(request)
        async for response in call:
            ids[response.index] = response.reading.answer
            if len(ids) == 32:
                break
        call.cancel()
        asked += [ids[n] for n in range(32)]
    await session.cancel_answer(asked[0])
    listed = [one async for one in session.answers()]
    assert [one.created_at for one in listed] == sorted(
        (one.created_at for one in listed), reverse=True
    )
    assert sorted(one.id for one in listed) == sorted(asked)
    assert {one.query for one in listed} == {str(n) for n in range(512)}
    of_memory = [one.query async for one in session.answers(memory="m")]
    assert sorted(of_memory, key=int) == [str(n) for n in range(0, 512, 4)]
    assert [one.query async for one in session.answers(state="cancelled")] == ["0"]
    pages = answer_service_pb2.ListAnswersRequest(session=session.id, page_size=100)
    sizes = [len(page.answers) async for page in client._connection.pages(stub.ListAnswers, pages)]
    assert sizes == [100] * 5 + [12]
    with pytest.raises(palimpsest.NotFound):
        _ = [one async for one in session.answers(memory="none")]
    with pytest.raises(palimpsest.NotFound):
        _ = [one async for one in client.session("none").answers()]
    for page_token in ("no token", await _token(stub, session.id)):
        wrong = answer_service_pb2.ListAnswersRequest(
            session=session.id, memory="m", page_token=page_token
        )
        with pytest.raises(palimpsest.InvalidArgument) as refused:
            await client.call(stub.ListAnswers, wrong)
        assert refused.value.reason == "TOKEN_INVALID"


async def _token(stub: Any, session: str) -> str:
    """Returns a token of another list."""
    page = await stub.ListAnswers(
        answer_service_pb2.ListAnswersRequest(session=session, page_size=1)
    )
    return str(page.next_page_token)


async def test_an_answer_that_is_being_made_is_not_rated(by_hand: ByHand) -> None:
    async with palimpsest.connect(by_hand.address) as client:
        hearing = Hearing()
        asking = asyncio.create_task(client.session("s").ask("When?", on_event=hearing))
        await hearing.until(1)
        with pytest.raises(palimpsest.FailedPrecondition) as early:
            await client.session("s").rate(hearing.answer_id, good=True)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert early.value.reason == "ANSWER_NOT_DONE"
    assert early.value.metadata["state"] == "pending"
