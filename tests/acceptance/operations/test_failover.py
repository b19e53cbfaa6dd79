"""Another PostgreSQL takes over: nothing acked is lost, and everything continues by itself."""

import asyncio
from collections.abc import Iterator

import pytest

from service.rpc.server import LIVE, READY
from tests.integration.operations.test_readiness import NOT_SERVING, SERVING, statuses, until
from tests.support.acked import Traffic, differing, kept, odd_words, refusal, service
from tests.support.harness import api, eventually
from tests.support.replicated import Door, Node, Pair

pytestmark = [pytest.mark.prove, pytest.mark.timeout(400)]
#: Chunks that each producer has acked before a fault, and after it.
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


def test_clients_go_on_after_a_switchover_and_after_a_failover(pair: Pair, door: Door) -> None:
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
        # Its own writes are discarded; it follows the new one.
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


def test_health_follows_which_server_takes_writes(pair: Pair, door: Door) -> None:
    """A primary that takes no writes for a while, and one that lives on as a standby."""
    with api(pair.url_at(door.port), PALIMPSEST_PROBE_SECONDS="0.05") as (_, address):
        assert health(address) == [SERVING, SERVING, SERVING]
        assert refusal(address, "before") == ("", "")
        # The old primary lives on with our connections to it, and has to be left.
        assert connections(pair.primary) > 0
        pair.demote()
        it_takes_no_writes(address)
        eventually("it has been left", lambda: connections(pair.primary) == 0)
        pair.take_writes()
        asyncio.run(until(address, SERVING))
        assert refusal(address, "again") == ("", "")
        pair.be_standby()
        it_takes_no_writes(address)
        pair.promote()
        door.lead(pair.primary.port)
        asyncio.run(until(address, SERVING))
        assert refusal(address, "after") == ("", "")
        assert health(address) == [SERVING, SERVING, SERVING]
        assert connections(pair.replica) == 0
    made = "SELECT string_agg(name, ' ' ORDER BY name) FROM session"
    assert pair.primary.ask(made) == "after again before"


def it_takes_no_writes(address: str) -> None:
    asyncio.run(until(address, NOT_SERVING))
    eventually(
        "it is told in clear words",
        lambda: refusal(address, "meanwhile")[1].startswith(
            "the database takes no writes now: it is a standby"
        ),
    )
    assert refusal(address, "meanwhile")[0] == "DATABASE_UNAVAILABLE"
    # To start it again would not help.
    assert health(address) == [NOT_SERVING, NOT_SERVING, SERVING]


def health(address: str) -> list[int]:
    """Returns its health for load balancers, for orchestrators, and whether it lives."""
    return [asyncio.run(statuses(address, (one,))).pop() for one in ("", READY, LIVE)]


def connections(node: Node) -> int:
    """Returns how many connections a server has by which our processes read and write.

    One that only listens looks where it leads when it is lost.
    """
    return int(
        node.ask(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'palimpsest'"
            " AND application_name NOT LIKE '%-signals'"
        )
    )
