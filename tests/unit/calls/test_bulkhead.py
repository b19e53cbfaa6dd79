"""Models that do not reply: what is released, what keeps its place, and when it is over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from service.llm.gateway import bulkhead as bulkhead_module
from service.llm.gateway.bulkhead import MAX_WAIT_SECONDS, Bulkhead
from service.llm.providers.failures import ModelFailure


class World:
    """A worker with up to two slots for unresponsive models, a clock, and models that reply on
    command."""

    def __init__(self, concurrency: int = 16) -> None:
        self.now = 0.0
        self.bulkhead = Bulkhead(
            silent_seconds=30, slots=2, concurrency=concurrency, clock=lambda: self.now
        )
        #: The calls that models have, in the order in which they were asked.
        self.asked: list[tuple[str, asyncio.Future[None]]] = []
        self.running: list[asyncio.Task[float | None]] = []
        #: The seconds of what was released.
        self.left: list[float] = []

    async def release(self, seconds: float) -> None:
        self.left.append(seconds)

    async def call(self, model: str) -> None:
        async with self.bulkhead.waiting(model):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.asked.append((model, done))
            await done

    async def begin(self, *models: str) -> asyncio.Task[float | None]:
        """Takes something in hand that asks models one after the other."""

        async def work() -> None:
            for model in models:
                await self.call(model)

        task = asyncio.create_task(self.bulkhead.run(work(), release=self.release))
        self.running.append(task)
        await settle()
        return task

    async def reply(self, number: int = -1) -> None:
        """Replies to one of the calls."""
        self.asked[number][1].set_result(None)
        await settle()

    async def look(self, at: float) -> list[bool]:
        """Returns what still runs after a look at a time."""
        self.now = at
        await self.bulkhead.look()
        await settle()
        return [not task.done() for task in self.running]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def world(concurrency: int = 16) -> AsyncIterator[World]:
    made = World(concurrency)
    try:
        yield made
    finally:
        for task in made.running:
            task.cancel()
        await asyncio.gather(*made.running, return_exceptions=True)


async def test_the_youngest_beyond_the_places_are_released_once_a_model_is_unresponsive() -> None:
    async with world() as it:
        for _ in range(4):
            await it.begin("a")
        good = await it.begin("b")
        assert await it.look(29) == [True] * 5
        await it.reply()
        assert await it.look(31) == [True, True, False, False, False]
        assert await good is None, "it had its reply"
        for task in it.running[2:4]:
            seconds = await task
            assert seconds is not None
            assert 15 <= seconds <= 31, "as long as the model has been unresponsive, at most"


async def test_what_comes_later_is_released_before_it_asks_until_the_model_replies() -> None:
    async with world() as it:
        first = await it.begin("a")
        await it.begin("a")
        await it.look(1000)
        late = await it.begin("a")
        seconds = await late
        assert seconds is not None
        assert seconds <= MAX_WAIT_SECONDS
        assert len(it.asked) == 2
        await it.reply(0)
        assert await first is None
        await it.begin("a")
        assert len(it.asked) == 3
        assert await it.look(1029) == [False, True, False, True]


async def test_all_unresponsive_models_share_the_places() -> None:
    async with world() as it:
        for model in ("a", "b", "c", "d"):
            await it.begin(model)
        assert await it.look(30) == [True, True, False, False]


async def test_a_refusal_is_a_reply_and_a_failure_that_may_pass_is_none() -> None:
    async with world() as it:
        for retryable in (False, True):
            tasks = [await it.begin("a") for _ in range(3)]
            it.now += 29
            it.asked[-3][1].set_exception(ModelFailure("it failed", retryable=retryable))
            with pytest.raises(ModelFailure):
                await tasks[0]
            third = await it.begin("a")
            running = await it.look(it.now + 2)
            assert running[-3:] == ([True] * 3 if not retryable else [True, True, False])
            assert third.done() is retryable
            for number, (_, done) in enumerate(it.asked):
                if not done.done():
                    await it.reply(number)


async def test_work_that_asks_several_at_once_is_released_as_a_whole() -> None:
    async with world() as it:
        for _ in range(2):
            await it.begin("a")
        await it.look(30)

        async def tree() -> None:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(3):
                    tasks.create_task(it.call("a"))

        seconds = await it.bulkhead.run(tree(), release=it.release)
        assert [seconds] == it.left
        assert len(it.asked) == 2


async def test_a_worker_that_stops_is_not_asked_to_return() -> None:
    async with world() as it:
        task = await it.begin("a")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_is_not_in_hand_waits_on() -> None:
    async with world() as it:
        outside = asyncio.create_task(it.call("a"))
        await settle()
        await it.look(1000)
        assert not outside.done()
        await it.reply()
        await outside


async def test_a_model_without_waiting_calls_is_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulkhead_module, "MAX_MODELS", 2)
    async with world() as it:
        for number in range(9):
            await it.begin(f"m{number}")
            if number:
                await it.reply()
        assert set(it.bulkhead._models) == {"m0", "m8"}


async def test_of_two_places_one_is_for_unresponsive_models() -> None:
    async with world(concurrency=2) as it:
        first = await it.begin("a")
        second = await it.begin("a")
        assert await it.look(31) == [True, False]
        assert await second is not None
        good = await it.begin("b")
        await it.reply()
        assert await good is None
        # The other keeps its place, for as long as its call may take.
        assert await it.look(500) == [True, False, False]
        await it.reply(0)
        assert await first is None


async def test_one_place_is_left_for_others_by_an_unresponsive_model_which_has_its_turns() -> None:
    async with world(concurrency=1) as it:
        first = await it.begin("a")
        assert await it.look(29) == [True]
        assert await it.look(30) == [False], "it would have the place for as long as it likes"
        back = await first
        assert back is not None
        assert 15 <= back <= 30
        # What else waits for it takes no time before its next turn.
        assert await (await it.begin("a")) is not None
        assert len(it.asked) == 1
        good = await it.begin("b")
        await it.reply()
        assert await good is None
        it.now += 15
        turn = await it.begin("a")
        assert len(it.asked) == 3
        assert (await it.look(it.now + 29))[-1], "a turn is as long as the first"
        assert not (await it.look(it.now + 1))[-1]
        assert await turn is not None
        it.now += MAX_WAIT_SECONDS / 2
        again = await it.begin("a")
        await it.reply()
        assert await again is None
        # It replies: nothing is released before it has been unresponsive again.
        await it.begin("a")
        assert (await it.look(it.now + 29))[-1]


@pytest.mark.parametrize("concurrency", [1, 2, 3])
async def test_few_places_are_for_all_whether_their_model_replies_or_not(concurrency: int) -> None:
    """A worker by the second: what is released or fails comes back, and all of it ends."""
    silent_until, call_seconds = 1000, 120
    async with world(concurrency) as it:
        #: When what is to do may be taken, and its model.
        queue = [(0.0, "a")] * 5 + [(0.0, "b")]
        running: dict[asyncio.Task[float | None], str] = {}
        began: list[float] = []
        ended: dict[str, list[float]] = {"a": [], "b": []}
        while len(ended["a"]) < 5:
            assert it.now < silent_until + 1000, f"not all had their replies: {ended}"
            it.now += 1
            queue.sort()
            while len(running) < concurrency and queue and queue[0][0] <= it.now:
                _, model = queue.pop(0)
                running[await it.begin(model)] = model
            began += [it.now] * (len(it.asked) - len(began))
            for since, (model, done) in zip(began, it.asked, strict=True):
                if done.done():
                    continue
                if model == "b" or it.now > silent_until:
                    done.set_result(None)
                elif it.now - since >= call_seconds:
                    done.set_exception(ModelFailure("it took too long", retryable=True))
            await settle()
            await it.look(it.now)
            for task in [one for one in running if one.done()]:
                model = running.pop(task)
                seconds = 1.0 if task.exception() is not None else task.result()
                if seconds is None:
                    ended[model].append(it.now)
                else:
                    queue.append((it.now + seconds, model))
    (good,) = ended["b"]
    assert good < 60, "it waited until the model counted as unresponsive, not for its calls"
    assert silent_until < max(ended["a"]) < silent_until + 200
