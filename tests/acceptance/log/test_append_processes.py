"""Real processes that append to one session at once."""

import asyncio

import pytest

import palimpsest
from tests.acceptance.operations.verified import verified
from tests.support.append_processes import (
    append_together,
    append_while_killed,
    texts_of,
    wrong_with,
)
from tests.support.harness import Servers, api

pytestmark = pytest.mark.timeout(600)


@pytest.mark.prove
def test_four_processes_append_by_two_servers_and_nothing_is_lost(servers: Servers) -> None:
    url = servers.new_database()

    async def append() -> list[str]:
        async with palimpsest.connect(one) as client:
            await client.create_session("s")
        sending = (
            append_together(at, "s", processes=2, messages=25, mode="append", first=first)
            for first, at in ((0, one), (2, other))
        )
        told = [each for group in await asyncio.gather(*sending) for each in group]
        log = await texts_of(one, "s")
        assert wrong_with(log, told) == []
        assert sum(len(each.acked) for each in told) == 100
        return log

    with api(url) as (_, one), api(url) as (_, other):
        assert len(asyncio.run(append())) == 100
    assert asyncio.run(verified(url)) == []


@pytest.mark.prove
def test_an_api_that_is_killed_loses_nothing_and_stores_nothing_twice(servers: Servers) -> None:
    url = servers.new_database()
    told, log = asyncio.run(append_while_killed(url, "s", processes=4, messages=10, kills=2))
    assert wrong_with(log, told) == []
    assert len(log) == len(set(log)) == 40
    assert asyncio.run(verified(url)) == []


@pytest.mark.prove
def test_processes_of_one_producer_id_learn_of_each_other(servers: Servers) -> None:
    url = servers.new_database()

    async def append() -> None:
        async with palimpsest.connect(address) as client:
            await client.create_session("s")
        told = await append_together(address, "s", processes=3, messages=5, mode="producer")
        assert wrong_with(await texts_of(address, "s"), told) == []
        refused = [each.error for each in told if each.error]
        assert len(refused) >= 2
        for error in refused:
            assert error.startswith("SEQUENCE_CONTENT_CHANGED: ")
            assert "another process uses this producer id, 'app'" in error

    with api(url) as (_, address):
        asyncio.run(append())
