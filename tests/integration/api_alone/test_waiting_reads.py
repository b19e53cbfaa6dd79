"""Reads that wait for a memory, at an API without a worker."""

import asyncio

import pytest

import palimpsest

SCHEMA = "class A:\n    count: int\n"


async def test_a_read_that_waits_for_what_is_deleted_ends_with_its_names(
    client: palimpsest.Client,
) -> None:
    session = await client.create_session("reads")
    memory = await session.create_memory("m", SCHEMA)
    await session.append(["It waits."])
    reading = asyncio.create_task(memory.get(fully_applied=True, timeout=60))
    await asyncio.sleep(0.2)
    await memory.delete()
    with pytest.raises(palimpsest.NotFound) as gone:
        await reading
    assert gone.value.metadata == {"session": "reads", "memory": "m"}
