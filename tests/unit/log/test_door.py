"""The door before the queues lets known sessions in, in order, and refuses unknown ones."""

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import pytest

from service.domain.values.errors import NotFound, Unavailable
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.usecases.log import door as doors
from service.usecases.log.door import Door
from service.usecases.log.submissions import Appended, QueuedSubmission
from storage.engine.errors import Unreachable
from tests.integration.support.writing import submission


class House:
    """A door with what is behind it, and the sessions that exist."""

    def __init__(self) -> None:
        self.sessions: set[UUID] = set()
        self.inside: list[QueuedSubmission] = []
        self.away: list[QueuedSubmission] = []
        self.looks: list[Sequence[UUID]] = []
        self.failure: Exception | None = None
        #: Set: looks end.
        self.open = asyncio.Event()
        self.open.set()
        self.door = Door(self._existing, self.inside.append, self.away.append)

    async def _existing(self, tenant_id: UUID, keys: Sequence[UUID]) -> Collection[UUID]:
        self.looks.append(keys)
        found = {key for key in keys if key in self.sessions}
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        return found

    def come(
        self, name: str, number: int = 1, tenant_id: UUID = DEFAULT_TENANT
    ) -> QueuedSubmission:
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        made = replace(
            submission(name, ["x"], first=number), session_key=session_key(tenant_id, name)
        )
        entry = QueuedSubmission(tenant_id, made, done)
        self.door.come(entry)
        return entry

    def create(self, name: str, tenant_id: UUID = DEFAULT_TENANT) -> None:
        self.sessions.add(session_key(tenant_id, name))

    async def looked(self, times: int) -> None:
        """Waits until so many looks have begun, and as many have ended as may end."""
        while len(self.looks) < times:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    made = House()
    running = asyncio.create_task(made.door.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_is_not_there_never_gets_in_and_is_looked_for_at_once() -> None:
    async with house() as made:
        made.create("s")
        there = made.come("s")
        missing = [made.come(f"none{number}") for number in range(20)]
        for entry in missing:
            with pytest.raises(NotFound):
                await entry.done
        assert made.inside == [there]
        assert made.away == missing
        assert len(made.looks) == 1
        # A known session is let in without a look, however many others wait for one.
        made.open.clear()
        made.come("none")
        again = made.come("s", 2)
        assert made.inside == [there, again]


async def test_a_session_made_a_moment_ago_is_not_refused_for_what_was_seen_before() -> None:
    async with house() as made:
        before = made.come("s")
        with pytest.raises(NotFound):
            await before.done
        # By another process, without a notification here.
        made.create("s")
        after = made.come("s")
        await made.looked(2)
        assert made.inside == [after]


async def test_what_comes_during_a_look_is_refused_by_a_later_one_only() -> None:
    async with house() as made:
        made.open.clear()
        early = made.come("s")
        await made.looked(1)
        made.create("s")
        late = made.come("s")
        made.open.set()
        with pytest.raises(NotFound):
            await early.done
        await made.looked(2)
        assert made.inside == [late]


async def test_what_comes_during_a_look_does_not_overtake_what_came_before() -> None:
    async with house() as made:
        made.create("s")
        made.open.clear()
        entries = [made.come("s", 1)]
        await made.looked(1)
        entries.append(made.come("s", 2))
        made.open.set()
        while not made.inside:
            await asyncio.sleep(0)
        entries.append(made.come("s", 3))
        assert made.inside == entries
        await made.looked(1)
        assert made.inside == entries


@pytest.mark.parametrize("seed", range(5))
async def test_each_session_keeps_its_order_and_no_append_is_forgotten(seed: int) -> None:
    chosen = random.Random(seed)
    tenants = (DEFAULT_TENANT, UUID(int=7))
    async with house() as made:
        sent: list[QueuedSubmission] = []
        for number in range(300):
            name, tenant_id = f"s{chosen.randrange(6)}", chosen.choice(tenants)
            if chosen.random() < 0.03:
                made.create(name, tenant_id)
            sent.append(made.come(name, number + 1, tenant_id))
            if chosen.random() < 0.3:
                await asyncio.sleep(0)
        while len(made.inside) + len(made.away) < len(sent):
            await asyncio.sleep(0)
        by_key: dict[UUID, list[int]] = {}
        for entry in made.inside:
            one = entry.submission
            by_key.setdefault(one.session_key, []).append(one.chunks[0].sequence)
        assert set(by_key) <= made.sessions
        assert all(numbers == sorted(numbers) for numbers in by_key.values())


async def test_a_database_that_is_away_is_said_and_asked_again() -> None:
    async with house() as made:
        made.failure = Unreachable("gone")
        refused = made.come("s")
        with pytest.raises(Unavailable):
            await refused.done
        made.failure = ValueError("a defect")
        broken = made.come("s")
        with pytest.raises(ValueError, match="a defect"):
            await broken.done
        made.failure = None
        made.create("s")
        entry = made.come("s")
        await made.looked(3)
        assert (made.inside, made.away) == ([entry], [refused, broken])


async def test_a_flood_of_refusals_is_slowed_down_and_forgotten_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, now = asyncio.get_running_loop(), 1000.0
    monkeypatch.setattr(loop, "time", lambda: now)
    pace = doors._Pace()
    waits = [pace.wait_seconds() for _ in range(1000)]
    assert waits[: doors.REFUSALS] == [0.0] * doors.REFUSALS
    rest = waits[doors.REFUSALS :]
    assert rest == sorted(rest)
    assert rest[0] == pytest.approx(1 / doors.REFUSALS_A_SECOND)
    assert rest[-1] == pytest.approx(doors.REFUSAL_SECONDS)
    # All outcomes are reported by then.
    now += doors.REFUSAL_SECONDS + 2 / doors.REFUSALS_A_SECOND
    assert pace.wait_seconds() == 0.0


async def test_refusals_that_wait_hold_no_more_than_so_many_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doors._Pace, "wait_seconds", lambda _: 3600.0)
    async with house() as made:
        first = made.come("none")
        monkeypatch.setattr(doors, "REFUSED_BYTES", first.size)
        second = made.come("none")
        with pytest.raises(NotFound):
            await second.done
        assert not first.done.done()
