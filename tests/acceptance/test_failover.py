"""Another PostgreSQL takes over: nothing acked is lost, and everything goes on by itself."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.acked import Traffic, differing, kept, odd_words, refusal, service
from tests.harness import eventually
from tests.replicated import Door, Pair

pytestmark = pytest.mark.timeout(400)
#: Chunks that each producer has acked before a fault, and behind it.
ACKED = 12


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair.in_a_folder() as pair:
        pair.be_synchronous()
        yield pair


@pytest.fixture
def door(pair: Pair) -> Iterator[Door]:
    door = Door(pair.primary.port)
    yield door
    door.close()


def test_clients_go_on_behind_a_switchover_and_behind_a_failover(pair: Pair, door: Door) -> None:
    with service(pair.url_at(door.port)) as (address, *ours):
        traffic = Traffic(address, 2)
        traffic.start()
        traffic.await_more(ACKED)
        # The old primary lives on, with all of our connections to it.
        pair.demote()
        eventually(
            "it is told in clear words",
            lambda: refusal(address, "while-it-is-read-only")[1].startswith(
                "the database takes no writes now: it is a standby"
            ),
        )
        pair.await_caught_up()
        pair.promote()
        door.lead(pair.primary.port)
        traffic.await_more(ACKED)
        # What it had is nobody's any more; it follows the new one.
        pair.replica.kill()
        pair.copy()
        pair.be_synchronous()
        traffic.await_more(ACKED)
        over = pair.fail_over()
        reason, words = refusal(address, "while-there-is-none")
        assert reason == "DATABASE_UNAVAILABLE"
        assert words.startswith("the database cannot be reached or did not answer in time")
        door.lead(pair.primary.port)
        traffic.all_acked_at(over.promoted)
        traffic.await_more(ACKED)
        traffic.end()
        assert asyncio.run(kept(address, traffic)) == []
        assert odd_words(*ours) == []
    assert asyncio.run(differing(pair.url, traffic.names)) == []
