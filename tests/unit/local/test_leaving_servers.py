"""Connections to a server that accepts no writes are closed, whatever ran on them before."""

import asyncio

import pytest

from storage.engine.database import Database
from storage.engine.errors import ReadOnly


async def test_a_process_that_used_one_of_its_pools_only_leaves_too() -> None:
    database = Database.connect("postgresql://u@127.0.0.1:1/d", pool_size=1, name="test")
    with pytest.raises(ReadOnly), database._translating():
        raise ReadOnly("session is read-only")
    leaving = database._checking
    assert leaving is not None
    await asyncio.wait((leaving,))
    assert leaving.exception() is None
    await database.close()
