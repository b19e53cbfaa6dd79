"""Clients may send a first message: few at once, shared by connections, within a time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from service.domain.values.errors import DeadlineExceeded, Exhausted, PalimpsestError
from service.domain.values.reasons import Reason
from service.rpc import arrivals
from service.rpc.arrivals import Arrivals

#: Longer than any test takes.
LONG_SECONDS = 600.0


class Client:
    """A call that reads for as long as the test wants."""

    def __init__(self, room: Arrivals, connection: str) -> None:
        self.reads = False
        self._whole = asyncio.Event()
        self.task = asyncio.create_task(self._receive(room, connection))

    async def _receive(self, room: Arrivals, connection: str) -> None:
        async with room.place(connection):
            self.reads = True
            await self._whole.wait()

    async def finish(self) -> None:
        """Its message is there."""
        self._whole.set()
        await self.task

    async def refusal(self) -> PalimpsestError:
        """Returns why it was refused."""
        with pytest.raises(PalimpsestError) as caught:
            await self.task
        return caught.value


@asynccontextmanager
async def calling(
    *, places: int = 2, waiting: int = 100, seconds: float = LONG_SECONDS
) -> AsyncIterator[Callable[[str], Client]]:
    room = Arrivals(places=places, waiting=waiting, seconds=seconds)
    clients: list[Client] = []

    def call(connection: str) -> Client:
        clients.append(Client(room, connection))
        return clients[-1]

    yield call
    for client in clients:
        client.task.cancel()
    await asyncio.gather(*(client.task for client in clients), return_exceptions=True)
    assert not room._read, "all places are free again"
    assert not room._waits
    assert not room._reading
    assert not room._waiting


async def turn() -> None:
    """Lets all that can continue do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_more_than_the_places_wait_their_turn() -> None:
    async with calling() as call:
        first, second, third = call("a"), call("a"), call("a")
        await turn()
        assert (first.reads, second.reads, third.reads) == (True, True, False)
        await second.finish()
        await turn()
        assert third.reads
        await first.finish()
        await third.finish()


async def test_a_connection_without_a_place_takes_the_oldest_of_the_one_with_most() -> None:
    async with calling() as call:
        oldest, younger = call("attacker"), call("attacker")
        await turn()
        honest = call("honest")
        await turn()
        assert honest.reads
        refused = await oldest.refusal()
        assert isinstance(refused, Exhausted)
        assert (refused.reason, refused.metadata) == (Reason.TOO_MANY_CALLS, {"limit": "2"})
        assert refused.retry_seconds > 0
        assert not younger.task.done()
        await honest.finish()


async def test_a_free_place_goes_to_the_connection_with_the_fewest() -> None:
    async with calling(places=3) as call:
        reading = [call("a"), call("b"), call("c")]
        await turn()
        waiting = [call("a"), call("a"), call("b")]
        await turn()
        assert not any(one.reads for one in waiting)
        await reading[1].finish()
        await turn()
        assert [one.reads for one in waiting] == [False, False, True]


async def test_a_message_that_does_not_come_ends_its_call() -> None:
    async with calling(seconds=0.01) as call:
        refused = await call("a").refusal()
        assert isinstance(refused, DeadlineExceeded)
        assert refused.reason is Reason.REQUEST_INCOMPLETE
        assert refused.metadata == {"limit_seconds": "0.01"}


async def test_who_waits_takes_the_places_of_what_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "PATIENT_SECONDS", 0.01)
    async with calling(places=1) as call:
        slow = call("a")
        await turn()
        waiting = call("b")
        assert (await slow.refusal()).reason is Reason.TOO_MANY_CALLS
        await turn()
        assert waiting.reads


async def test_what_waits_is_bounded_too() -> None:
    async with calling(places=1, waiting=2) as call:
        call("a")
        await turn()
        waiting = [call("a"), call("a")]
        await turn()
        beyond = call("a")
        assert (await beyond.refusal()).metadata == {"limit": "2"}
        # Another connection takes the turn of the one that has most of them.
        other = call("b")
        assert (await waiting[1].refusal()).reason is Reason.TOO_MANY_CALLS
        await turn()
        assert not other.task.done()
        assert not waiting[0].task.done()


async def test_a_call_that_is_cancelled_while_it_waits_leaves_its_turn() -> None:
    async with calling(places=1) as call:
        first, second, third = call("a"), call("a"), call("a")
        await turn()
        second.task.cancel()
        await turn()
        await first.finish()
        await turn()
        assert third.reads


async def test_a_burst_is_received_whole() -> None:
    room = Arrivals(places=3, waiting=1000, seconds=LONG_SECONDS)
    reading, most = 0, 0

    async def receive(number: int) -> int:
        nonlocal reading, most
        async with room.place(f"connection {number % 7}"):
            reading += 1
            most = max(most, reading)
            await asyncio.sleep(0)
            reading -= 1
        return number

    # All of one connection: where several have unequal shares, some make room and come again.
    assert await asyncio.gather(*(receive(7 * number) for number in range(500)))
    assert most == 3
