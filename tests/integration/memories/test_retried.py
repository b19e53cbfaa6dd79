"""A memory that stalled on useless replies, and is retried: the model is asked anew."""

import pytest

from service.domain.prompting.flows import ModelRequest
from service.domain.state.spec import StateSpec
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.failures import ModelFailure
from storage.engine.database import Database
from storage.memories import revisions, stalls
from tests.integration.support.ledger_sums import usage_of_session
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    TREE,
    Script,
    make,
    read,
    state_method,
    summary_reply,
    tree_method,
)

STATE = StateSpec(task="Find it.", period=1, state_tokens=64, model="test/scripted")


@pytest.mark.parametrize("spec", [STATE, TREE], ids=["state", "tree"])
async def test_the_model_is_asked_anew(database: Database, spec: MemorySpec) -> None:
    words: list[str] = []

    def reply(ask: ModelRequest, number: int) -> str:
        return words[0] if words else ""

    script = Script(reply=reply)
    worker = state_method(database, script) if spec is STATE else tree_method(database, script)
    # More than a segment of the tree.
    await make(database, [f"Line {n} has some words. " * 9 for n in range(9)], spec)
    await worker.drain(ITEM)
    assert (await read(database)).status == "stalled"
    in_vain = len(script.asked)
    words.append(summary_reply(script.asked[0], 1))
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry(tx, KEY, MEMORY)
    while await worker.drain(ITEM) is not None:
        pass
    stored = await read(database)
    assert stored.status == "active"
    assert stored.applied_position == 9
    async with database.transaction(DEFAULT_TENANT) as tx:
        (usage,) = await usage_of_session(tx, KEY)
    assert usage.calls == len(script.asked) > in_vain


async def test_what_was_paid_for_is_used_when_the_model_was_away(database: Database) -> None:
    script = Script(failures=[ModelFailure("the model is away", retryable=False)])
    await make(database, ["Line 1."], STATE)
    await state_method(database, script).drain(ITEM)
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry(tx, KEY, MEMORY)
        held = await revisions.claim(tx, KEY, MEMORY, StateSpec.kind)
    assert held is not None
    assert held.retries == 0
