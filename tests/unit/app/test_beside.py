import asyncio
import threading

import pytest

from service.llm.offloading import beside


async def test_work_runs_in_a_thread_and_its_result_comes_back() -> None:
    def work(first: int, *, second: int) -> tuple[int, int]:
        return first + second, threading.get_ident()

    total, thread = await beside(work, 1, second=2)
    assert total == 3
    assert thread != threading.get_ident()


async def test_what_it_raises_is_raised() -> None:
    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match=r"^no$"):
        await beside(work)


@pytest.mark.parametrize("fails", [False, True])
async def test_cancelled_it_ends_when_the_work_does(fails: bool) -> None:
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert may_end.wait(60)
        ended.set()
        if fails:
            raise ValueError("nobody hears of it")

    task = asyncio.create_task(beside(work))
    assert await asyncio.to_thread(began.wait, 60)
    # Twice: asking again does not speed it up.
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
