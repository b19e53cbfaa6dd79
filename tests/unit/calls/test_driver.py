import asyncio
import threading
from collections.abc import Sequence

import pytest

from service.domain.prompting.flows import (
    Fetch,
    FetchingFlow,
    Flow,
    ModelReply,
    ModelRequest,
    Purpose,
    Segment,
    SegmentKind,
)
from service.llm.gateway.driver import WindowPassed, drive, within


def ask(text: str) -> ModelRequest:
    segment = Segment(kind=SegmentKind.TASK, text=text)
    return ModelRequest(
        purpose=Purpose.ANSWER,
        template="t/1",
        segments=(segment,),
        max_output_tokens=1,
    )


def two_batches() -> Flow[list[str]]:
    first: Sequence[ModelReply] = yield [ask("a"), ask("b"), ask("c")]
    second: Sequence[ModelReply] = yield [ask("d")]
    return [reply.text for reply in (*first, *second)]


async def test_batches_run_in_parallel_and_replies_keep_their_order() -> None:
    together = asyncio.Barrier(3)

    async def call(one: ModelRequest) -> ModelReply:
        if one.text in "abc":
            await together.wait()
        return ModelReply(text=one.text.upper(), model="m")

    assert await drive(two_batches(), call) == ["A", "B", "C", "D"]


async def test_an_error_cancels_its_neighbours_and_comes_out_as_itself() -> None:
    cancelled: list[str] = []

    async def call(one: ModelRequest) -> ModelReply:
        if one.text == "b":
            raise RuntimeError("no")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(one.text)
            raise
        raise AssertionError("it is cancelled before")

    flow = two_batches()
    with pytest.raises(RuntimeError, match=r"^no$"):
        await drive(flow, call)
    assert sorted(cancelled) == ["a", "c"]
    with pytest.raises(StopIteration):
        next(flow)


async def test_cancelling_it_cancels_the_calls_and_closes_the_flow() -> None:
    started, closed = asyncio.Barrier(4), asyncio.Event()

    def flow() -> Flow[None]:
        try:
            yield [ask("a"), ask("b"), ask("c")]
        finally:
            closed.set()

    async def call(one: ModelRequest) -> ModelReply:
        await started.wait()
        await asyncio.sleep(30)
        raise AssertionError("it is cancelled before")

    task = asyncio.create_task(drive(flow(), call))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


async def test_a_flow_runs_beside_the_event_loop_and_the_calls_on_it() -> None:
    flowing, calling = list[int](), list[int]()

    def flow() -> Flow[str]:
        flowing.append(threading.get_ident())
        for text in "ab":
            yield [ask(text)]
            flowing.append(threading.get_ident())
        return "done"

    async def call(one: ModelRequest) -> ModelReply:
        calling.append(threading.get_ident())
        return ModelReply(text=one.text, model="m")

    assert await drive(flow(), call) == "done"
    assert set(calling) == {threading.get_ident()}
    assert len(flowing) == 3
    assert threading.get_ident() not in flowing


async def test_cancelled_while_the_flow_works_it_is_closed_after_that() -> None:
    began, may_go_on, seen = threading.Event(), threading.Event(), list[str]()

    def flow() -> Flow[None]:
        try:
            began.set()
            assert may_go_on.wait(60)
            seen.append("worked")
            yield [ask("a")]
        finally:
            seen.append("closed")

    async def call(one: ModelRequest) -> ModelReply:
        raise AssertionError("it was cancelled before")

    task = asyncio.create_task(drive(flow(), call))
    assert await asyncio.to_thread(began.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["worked", "closed"]


async def test_a_flow_without_asks_makes_no_calls() -> None:
    def flow() -> Flow[str]:
        none: Sequence[ModelReply] = yield []
        return f"{len(none)} replies"

    async def call(one: ModelRequest) -> ModelReply:
        raise AssertionError("there is nothing to ask")

    assert await drive(flow(), call) == "0 replies"


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_no_more_asks_than_the_limit_are_under_way_and_all_are_answered_in_order(
    limit: int,
) -> None:
    texts = [str(number) for number in range(7)]
    begun: list[str] = []
    under_way = most = 0

    def flow() -> Flow[list[str]]:
        replies: Sequence[ModelReply] = yield [ask(text) for text in texts]
        return [reply.text for reply in replies]

    async def call(one: ModelRequest) -> ModelReply:
        nonlocal under_way, most
        begun.append(one.text)
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        under_way -= 1
        return ModelReply(text=one.text, model="m")

    assert await drive(flow(), call, limit=limit) == texts
    assert (begun, most) == (texts, limit)


def looking(*batches: Sequence[ModelRequest | Fetch]) -> FetchingFlow[list[object]]:
    heard: list[object] = []
    for batch in batches:
        heard += yield batch
    return heard


async def test_a_flow_within_its_window_is_driven_as_it_is() -> None:
    async def call(one: ModelRequest | Fetch) -> object:
        return one.text.upper() if isinstance(one, ModelRequest) else 7

    flow = looking([ask("abc"), Fetch()], [ask("d")])
    assert await drive(within(flow, 4, len), call) == ["ABC", 7, "D"]


async def test_a_flow_that_passes_its_window_is_ended_before_it_asks() -> None:
    asked: list[str] = []

    async def call(one: ModelRequest | Fetch) -> object:
        assert isinstance(one, ModelRequest)
        asked.append(one.text)
        return None

    # The prompt alone would fit: its reply, of one token, does not.
    flow = looking([ask("abc")], [ask("d"), ask("abcd")])
    with pytest.raises(WindowPassed, match=r"^a prompt of t/1 takes 4 tokens .* window of 4$"):
        await drive(within(flow, 4, len), call)
    assert asked == ["abc"], "nothing of the batch"
    with pytest.raises(StopIteration):
        next(flow)
