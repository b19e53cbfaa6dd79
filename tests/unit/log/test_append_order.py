"""Commits of appends: each session's submissions in their order, whatever holds others up."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.settings.config import Limits
from service.usecases.log import group_commit
from service.usecases.log.append import Appender
from service.usecases.log.group_commit import Later
from service.usecases.log.submissions import Appended, QueuedSubmission
from service.usecases.log.wake_ups import WakeUps
from storage.engine.errors import Busy
from tests.integration.support.writing import drop_wake_ups, submission

TENANTS = (DEFAULT_TENANT, UUID(int=7))
NAMES = [f"s{number}" for number in range(6)]


class Slow(Appender):
    """Commits by chance: late, not all sessions of a group, in whatever order they come."""

    def __init__(self, chosen: random.Random) -> None:
        super().__init__(None, WakeUps(drop_wake_ups), b"key", Limits())  # type: ignore[arg-type]
        self._chosen = chosen
        #: Sequences by tenant and session, as they were written.
        self.written: dict[tuple[UUID, str], list[int]] = {}

    async def _existing(self, tenant_id: UUID, keys: Sequence[UUID]) -> Sequence[UUID]:
        await asyncio.sleep(self._chosen.choice((0, 0.001)))
        return keys

    async def _commit(
        self, tenant_id: UUID, entries: Sequence[QueuedSubmission]
    ) -> Sequence[Appended | Exception | Later]:
        await asyncio.sleep(self._chosen.choice((0, 0, 0.001, 0.01)))
        names = {one.submission.session for one in entries}
        if len(names) > 1 and self._chosen.random() < 0.1:
            raise Busy("one of them")
        locked = {name for name in names if len(names) > 1 and self._chosen.random() < 0.3}
        return [
            Later.LATER if one.submission.session in locked else self._append(tenant_id, one)
            for one in entries
        ]

    def _append(self, tenant_id: UUID, one: QueuedSubmission) -> Appended:
        sequence = one.submission.chunks[-1].sequence
        self.written.setdefault((tenant_id, one.submission.session), []).append(sequence)
        return Appended(sequence=sequence, first_position=1, position=sequence, token="")


@pytest.mark.parametrize("seed", range(5))
async def test_each_session_keeps_its_order_and_nothing_is_forgotten(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "ASIDE_SECONDS", 0.002)
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
