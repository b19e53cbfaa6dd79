"""How numbers get to the database: as bigint, however small they are, whichever way they go."""

from collections.abc import AsyncIterator

import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from storage.engine.database import Database, Transaction

#: The last value of smallint, of int, and of bigint; and beyond.
SIZES = {0: "bigint", 2**15 - 1: "bigint", 2**31 - 1: "bigint", 2**63 - 1: "bigint"}
SIZES |= {-(2**63): "bigint", 2**63: "numeric", -(2**63) - 1: "numeric"}


@pytest.fixture
async def transaction(database: Database) -> AsyncIterator[Transaction]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        yield tx


@pytest.fixture
async def direct(database: Database) -> AsyncIterator[Transaction]:
    async with database.direct(DEFAULT_TENANT) as tx:
        yield tx


@pytest.mark.parametrize(("number", "expected"), SIZES.items())
async def test_the_type_of_a_number_does_not_depend_on_its_size(
    transaction: Transaction, direct: Transaction, number: int, expected: str
) -> None:
    typed = "SELECT pg_typeof({0})::text, {0}::text"
    said = (expected, str(number))
    named = {"number": number}
    by_name = typed.format("%(number)s")
    assert await transaction.fetch(by_name, named) == [said]
    assert await direct.fetch(by_name, named) == [said]
    assert await direct.fetch(by_name.replace("%(number)s", "%s"), (number, number)) == [said]


@pytest.mark.parametrize(("number", "expected"), SIZES.items())
async def test_nor_does_the_type_of_a_list(
    transaction: Transaction, direct: Transaction, number: int, expected: str
) -> None:
    typed = "SELECT pg_typeof(%(numbers)s)::text, (%(numbers)s)[2]::text"
    said = (f"{expected}[]", str(number))
    numbers = {"numbers": [1, number]}
    assert await transaction.fetch(typed, numbers) == [said]
    assert await direct.fetch(typed, numbers) == [said]


@pytest.mark.parametrize("last", [2**15 - 1, 2**31 - 1])
async def test_a_sum_may_be_greater_than_its_numbers(
    transaction: Transaction, direct: Transaction, last: int
) -> None:
    both = {"last": last, "more": 1}
    total = "SELECT %(last)s + %(more)s"
    assert await transaction.fetch(total, both) == [(last + 1,)]
    assert await direct.fetch(total, both) == [(last + 1,)]


async def test_a_statement_is_prepared_once_for_numbers_of_any_size(
    transaction: Transaction,
) -> None:
    for number in (1, 2**15, 2**31):
        await transaction.fetch("SELECT %(number)s::bigint", {"number": number})
    held = "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE statement ~ %(like)s"
    assert await transaction.fetch(held, {"like": "^SELECT .1::"}) == [(["bigint"],)]
