"""Selecting chunks by positions: each once, in order, and none between them is read."""

import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database
from storage.log import selecting
from storage.log.selecting import PAGE_CHUNKS, Selection
from tests.integration.support.scripted import KEY, make
from tests.integration.support.statements import statements

MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("ranges", "found"),
    [
        ([(2, 2)], [2]),
        ([(5, 9), (1, 2)], [1, 2, 5, 6, 7, 8, 9]),
        ([(1, 600), (3, 4), (300, MAX)], [*range(1, 601)]),
        ([(256, 257), (1, 255)], [*range(1, 258)]),
        ([(1, 256)], [*range(1, 257)]),
        ([(601, MAX), (MAX, MAX)], []),
        ([(2 * n, 2 * n) for n in range(1, 301)], [*range(2, 601, 2)]),
    ],
)
async def test_ranges_name_each_position_once(
    database: Database, ranges: list[tuple[int, int]], found: list[int]
) -> None:
    await make(database, [f"t{n}" for n in range(600)])
    seen: list[int] = []
    after, pages = 0, 0
    with statements() as sent:
        async with database.transaction(DEFAULT_TENANT) as tx:
            while after < 600:
                page, after = await selecting.select(
                    tx, KEY, Selection(ranges=ranges), after=after, upto=600
                )
                seen += [one.position for one in page]
                pages += 1
    assert seen == found
    assert pages <= len(found) // PAGE_CHUNKS + 1
    # No chunk is compared with all ranges.
    assert not [one for one in sent if "unnest" in one and "FROM chunk" in one]
