"""The pipeline that builds trees, without a database or a model."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from service.domain.tree.nodes import SummarySource, TextOffset
from service.domain.tree.planning import Planned, TreePlan
from service.domain.tree.segmenting import Cut
from service.domain.tree.summarizing import Summary
from service.usecases.tree.pipeline import WINDOW, LogRead, Pipeline, PipelineSteps

#: Enough for the next look at the log to be due while the models think.
CALL_SECONDS = 0.1


async def test_with_a_full_window_it_sleeps_until_a_call_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = 0
    wait = asyncio.wait

    async def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal waits
        waits += 1
        return await wait(*arguments, **named)

    monkeypatch.setattr(asyncio, "wait", counted)
    plan = TreePlan((), (), (), max_children=8)
    texts = 2 * WINDOW
    stored: list[str] = []

    async def read() -> LogRead:
        # The last chunk of the log has more leaves than the window has room for.
        came = not plan.leaves and not stored
        if came:
            numbers = range(1, texts + 1)
            plan.add(
                [
                    Cut(start=TextOffset(n), end=TextOffset(n + 1), text="x", tokens=1)
                    for n in numbers
                ]
            )
        return LogRead(came=came, is_all=True)

    async def make(planned: Planned) -> Summary:
        await asyncio.sleep(CALL_SECONDS)
        return Summary(text="s", made=SummarySource.MODEL, tokens=1)

    async def store(nodes: Sequence[Planned], last: bool) -> None:
        stored.extend(node.name for node in nodes)

    pipeline = Pipeline(plan, PipelineSteps(read=read, make=make, store=store), concurrency=1)
    until = asyncio.get_running_loop().time() + 600
    assert await pipeline.run(stop=None, until=until)
    assert len([name for name in stored if name.startswith("0.")]) == texts
    # For each node its call, its commit, and looks at the log.
    assert waits < 10 * len(stored)
