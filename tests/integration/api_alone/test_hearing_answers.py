"""Answers heard while they are made: across lost connections, by several, to whatever end."""

import asyncio
from uuid import uuid4

import pytest

import palimpsest
from tests.integration.api_alone.answers_by_hand import ByHand
from tests.integration.support.hearing import Hearing
from tests.support.cutting import Proxy, cutting


async def reconnected(proxy: Proxy) -> None:
    """Waits until the client is back."""
    before = proxy.connections
    async with asyncio.timeout(60):
        while proxy.connections == before:
            await asyncio.sleep(0.02)


async def test_a_lost_connection_only_interrupts_an_answer(by_hand: ByHand) -> None:
    hearing = Hearing()
    async with cutting(by_hand.address) as proxy, palimpsest.connect(proxy.address) as client:
        asking = asyncio.create_task(
            client.session("s").ask("When?", stream=True, on_event=hearing, timeout=110)
        )
        await hearing.until(1)
        answer_id = hearing.answer_id
        await by_hand.tell(answer_id, 1, 2)
        await by_hand.write(answer_id, 1, "On ")
        await hearing.until(4)
        for ordinal in (3, 4):
            back = asyncio.create_task(reconnected(proxy))
            await asyncio.sleep(0)
            proxy.cut()
            # Sent while no client listens.
            await by_hand.tell(answer_id, ordinal)
            await by_hand.write(answer_id, ordinal - 1, f"{ordinal} ")
            await back
            await hearing.until(2 * ordinal)
        await by_hand.complete(answer_id)
        answer = await asking
    assert (answer.id, answer.state, answer.text) == (answer_id, "done", "On Mondays.")
    assert hearing.ordinals == [1, 2, 3, 4]
    assert hearing.text == "On 3 4 "
    assert len(hearing.events) == 8, "nothing is heard twice"


async def test_several_may_listen_to_one_answer(by_hand: ByHand) -> None:
    first = Hearing()
    async with palimpsest.connect(by_hand.address) as client:
        session = client.session("s")
        asking = asyncio.create_task(session.ask("When?", on_event=first, timeout=110))
        await first.until(1)
        answer_id = first.answer_id
        await by_hand.tell(answer_id, 1, 2, 3)
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
        await by_hand.tell(answer_id, 4)
        await by_hand.complete(answer_id)
        answer = await asking
        assert [await one for one in resuming] == [answer] * 3
        assert [one.ordinals for one in others] == [[1, 2, 3, 4], [2, 3, 4], [3, 4]]
        # For an answer that has ended the stream is the same.
        late = Hearing()
        assert await session.resume_answer(answer_id, after_event=2, on_event=late) == answer
        assert late.ordinals == [3, 4]
        for wrong, kind in (
            (str(uuid4()), palimpsest.NotFound),
            ("no id", palimpsest.InvalidArgument),
        ):
            with pytest.raises(kind):
                await session.resume_answer(wrong)


async def test_who_waits_hears_of_the_end_whatever_it_is(by_hand: ByHand) -> None:
    async with palimpsest.connect(by_hand.address) as client:
        session, hearing = client.session("s"), Hearing()
        for end, kind, reason in (
            (by_hand.fail, palimpsest.FailedPrecondition, "ANSWER_FAILED"),
            (by_hand.fail_over_budget, palimpsest.ResourceExhausted, "BUDGET_EXHAUSTED"),
            (session.cancel_answer, palimpsest.Cancelled, "ANSWER_CANCELLED"),
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
        assert (cancelled.state, cancelled.text, cancelled.reader) == ("cancelled", "", "auto")
        assert await session.cancel_answer(hearing.answer_id) == cancelled
        with pytest.raises(palimpsest.NotFound):
            await session.cancel_answer(str(uuid4()))


@pytest.mark.prove
async def test_a_deadline_names_the_answer_that_is_made_on(by_hand: ByHand) -> None:
    async with palimpsest.connect(by_hand.address) as client:
        session = client.session("s")
        with pytest.raises(palimpsest.DeadlineExceeded) as late:
            # So long that the question is stored by then, on any machine.
            await session.ask("When?", timeout=5)
        answer_id = late.value.metadata["answer"]
        await by_hand.complete(answer_id)
        assert (await session.resume_answer(answer_id)).text == "On Mondays."


async def test_text_is_streamed_piece_by_piece(by_hand: ByHand) -> None:
    hearing = Hearing()
    async with palimpsest.connect(by_hand.address) as client:
        stream = client.session("s").stream_ask("When?", on_event=hearing, timeout=110)
        with pytest.raises(ValueError, match="not there yet"):
            stream.answer  # noqa: B018 - reading it is what is tested
        coming = asyncio.ensure_future(anext(stream))
        await hearing.until(1)
        for ordinal, text in enumerate(("On ", "Mon", "days."), 1):
            await by_hand.write(hearing.answer_id, ordinal, text)
            assert (await coming).text == text
            coming = asyncio.ensure_future(anext(stream))
        await by_hand.complete(hearing.answer_id)
        with pytest.raises(StopAsyncIteration):
            await coming
        assert stream.answer.text == "On Mondays."
