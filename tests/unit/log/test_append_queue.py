"""Queues of appends: each session's submissions in their order, whatever holds others up."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.append_queue import Appended, AppendQueue, QueuedSubmission, by_session
from service.usecases.log.wake_ups import WakeUps
from tests.integration.support.writing import drop_wake_ups, submission

TENANTS = (DEFAULT_TENANT, UUID(int=7))
NAMES = [f"s{number}" for number in range(6)]


def entry(name: str, number: int) -> QueuedSubmission:
    done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    return QueuedSubmission(DEFAULT_TENANT, submission(name, ["x"], first=number), done)


async def test_what_comes_back_goes_before_what_came_behind_it() -> None:
    queue = AppendQueue()
    first, second, third, fourth = (entry("s", number) for number in range(1, 5))
    key = first.submission.session_key
    queue.put(first)
    assert queue.free(await queue.take()) == [first]
    queue.leave([key])
    queue.put(second)
    queue.put(third)
    assert queue.free(await queue.take()) == []
    queue.put(fourth)
    # The first was not written: somebody has its session locked.
    queue.come_back([key], [first])
    assert queue.free(await queue.take()) == [first, second, third, fourth]


class Slow(Appender):
    """Commits by chance: late, not all sessions of a group, in whatever order they come."""

    def __init__(self, chosen: random.Random) -> None:
        super().__init__(None, WakeUps(drop_wake_ups), b"key", Limits(), queues=1)  # type: ignore[arg-type]
        self._chosen = chosen
        #: Sequences by tenant and session, as they were written.
        self.written: dict[tuple[UUID, str], list[int]] = {}

    async def _existing(self, tenant_id: UUID, keys: Sequence[UUID]) -> Sequence[UUID]:
        await asyncio.sleep(self._chosen.choice((0, 0.001)))
        return keys

    async def _commit(
        self, tenant_id: UUID, entries: Sequence[QueuedSubmission], *, rereads: int = 0
    ) -> Sequence[QueuedSubmission]:
        await asyncio.sleep(self._chosen.choice((0, 0, 0.001, 0.01)))
        parts = by_session(entries)
        left: list[QueuedSubmission] = []
        for part in parts:
            if len(parts) > 1 and self._chosen.random() < 0.3:
                left += part
                continue
            for one in part:
                place = (tenant_id, one.submission.session)
                sequence = one.submission.chunks[-1].sequence
                self.written.setdefault(place, []).append(sequence)
                one.done.set_result(
                    Appended(sequence=sequence, first_position=1, position=sequence, token="")
                )
        return left


@pytest.mark.parametrize("seed", range(5))
async def test_each_session_keeps_its_order_and_nothing_is_forgotten(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Appender._in_time.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "seconds", 0.002)
    chosen = random.Random(seed)
    appender = Slow(chosen)
    running = asyncio.create_task(appender.run())
    sent: dict[tuple[UUID, str], int] = {}
    waits: list[Any] = []
    for _ in range(400):
        place = chosen.choice(TENANTS), chosen.choice(NAMES)
        sent[place] = sent.get(place, 0) + 1
        one = submission(place[1], ["x"], first=sent[place])
        waits.append(appender.submit(place[0], replace(one, session_key=session_key(*place))))
        if chosen.random() < 0.3:
            await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        await asyncio.gather(*waits)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    expected = {place: list(range(1, last + 1)) for place, last in sent.items()}
    assert appender.written == expected
    assert appender._unwritten == 0
