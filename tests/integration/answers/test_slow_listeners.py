"""A client that does not read its updates of an answer: no more are read for it."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any
from uuid import uuid4

import pytest

from service.domain.answers.answer_updates import Listener, ListenerBatch, TextPiece
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.answers import texts
from storage.engine.database import Database
from storage.memories import job_results
from tests.integration.support.waits import GONE


async def nobody(_: Any, items: Collection[WorkItem]) -> Collection[WorkItem]:
    return ()


@pytest.mark.prove
async def test_only_waiting_calls_are_checked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Collection[Listener]] = []

    async def look(_: Any, listeners: Collection[Listener]) -> Mapping[Listener, ListenerBatch]:
        looks.append(tuple(listeners))
        return {
            one: ListenerBatch(
                events=(), pieces=[TextPiece(ordinal=one.piece + 1, text="x", restarts=False)]
            )
            for one in listeners
        }

    monkeypatch.setattr(job_results, "missing", nobody)
    monkeypatch.setattr(texts, "read_news", look)
    watcher = ProgressWatcher(database)
    running = asyncio.create_task(watcher.run())
    slow, quick = (
        Listener(
            item=WorkItem(
                kind=WorkKind.ANSWER,
                tenant_id=DEFAULT_TENANT,
                session_key=session_key(DEFAULT_TENANT, "s"),
                item_id=uuid4(),
            ),
            hears_text=True,
        )
        for _ in range(2)
    )
    async with asyncio.timeout(30):
        told = watcher.told(slow, deleted=GONE, deadline=None)
        first = await anext(told)
        # From here on `slow` does not read.
        looks.clear()
        heard = [piece.ordinal async for piece in _pieces(watcher, quick, 5)]
        assert heard == [1, 2, 3, 4, 5]
        assert not any(slow in listeners for listeners in looks)
        second = await anext(told)
        assert [one.pieces[0].ordinal for one in (first, second)] == [1, 2], "it missed nothing"
        await told.aclose()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def _pieces(watcher: ProgressWatcher, listener: Listener, count: int) -> Any:
    told = watcher.told(listener, deleted=GONE, deadline=None)
    for _ in range(count):
        for piece in (await anext(told)).pieces:
            yield piece
    await told.aclose()


async def test_who_waits_is_looked_after_though_one_look_broke(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def settled(_: Any, items: Collection[WorkItem]) -> Collection[WorkItem]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise LookupError("a defect")
        return items

    monkeypatch.setattr(job_results, "ended", settled)
    monkeypatch.setattr(job_results, "missing", nobody)
    watcher = ProgressWatcher(database)
    running = asyncio.create_task(watcher.run())
    item = WorkItem(
        kind=WorkKind.ANSWER,
        tenant_id=DEFAULT_TENANT,
        session_key=session_key(DEFAULT_TENANT, "s"),
        item_id=uuid4(),
    )
    async with asyncio.timeout(30):
        assert await watcher.settled(item, deleted=GONE, deadline=None)
    assert looks == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
