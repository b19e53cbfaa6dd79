"""Seals that failed, and are requested again after more text."""

import pytest

from service.app.kinds import use_cases
from service.domain.memories.long_operations import Operation, OperationState
from service.domain.operations.verifying.chain import Difference
from service.domain.prompting.flows import ModelRequest
from service.domain.tree.nodes import SummarySource
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.failures import ModelFailure
from service.usecases.memories.long_operations import find, request_seal
from service.usecases.operations.verify import verify_memory
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import revisions, stalls
from tests.integration.support.growing import assert_is_tree, nodes_of
from tests.integration.support.scripted import (
    ITEM,
    KEY,
    MEMORY,
    TREE,
    Script,
    make,
    read,
    summary_reply,
    tree_method,
)
from tests.integration.support.writing import append_texts
from tests.integration.tree.test_tree_method import story


async def seal(database: Database) -> Operation:
    """Requests the seal as the RPC does."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        session = await sessions.lock_head(tx, KEY)
        held = await revisions.lock(tx, KEY, MEMORY)
        assert session is not None
        assert held is not None
        return (await request_seal(tx, held, "m", goal=session.head)).operation


async def look(database: Database, known: Operation) -> Operation:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return (await find(tx, known.id)).operation


async def retry(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        assert await stalls.retry(tx, KEY, MEMORY)


class Faulty(Script):
    """A model that refuses the prompts which have some words, and knows what it was paid for."""

    def __init__(self, words: str) -> None:
        self.paid: list[str] = []

        def reply(ask: ModelRequest, number: int) -> str:
            if words in ask.text:
                raise ModelFailure("refused", retryable=False)
            self.paid.append(ask.text)
            return summary_reply(ask, number)

        super().__init__(reply=reply)


@pytest.mark.prove
@pytest.mark.parametrize("is_retried_first", [False, True], ids=["seal", "retry"])
@pytest.mark.parametrize("words", ["The 11th sentence", "Part "], ids=["leaf", "parent"])
@pytest.mark.parametrize("more", [0, 20])
async def test_a_seal_after_one_that_failed_has_all_of_the_log(
    database: Database, words: str, *, is_retried_first: bool, more: int
) -> None:
    await make(database, story(11), TREE)
    await tree_method(database, Script()).drain(ITEM)
    failed, faulty = await seal(database), Faulty(words)
    assert failed.state is OperationState.RUNNING
    await tree_method(database, faulty).drain(ITEM)
    assert (await read(database)).status == "stalled"
    assert (await look(database, failed)).state is OperationState.FAILED
    before = await nodes_of(database)
    if more:
        await append_texts(database, "s", story(more, 12), first=12)
    if is_retried_first:
        await retry(database)
    again = await seal(database)
    assert (again.id != failed.id, again.goal) == (True, 11 + more)
    if not is_retried_first:
        assert again.state is OperationState.FAILED, "the tree is stalled"
        await retry(database)
    works = Faulty("none has this")
    while await tree_method(database, works).drain(ITEM) is not None:
        pass
    stored = await read(database)
    assert (stored.status, stored.applied_position) == ("sealed", 11 + more)
    assert (await look(database, again)).state is not OperationState.RUNNING
    tree = await nodes_of(database)
    assert before.items() <= tree.items(), "nothing is rebuilt"
    assert_is_tree(tree, 3, sealed=True)
    assert max(node.to_position for node in tree.values()) == 11 + more
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = [one async for one in verify_memory(tx, use_cases(), KEY, MEMORY)]
    # `make` writes a first revision of its own.
    assert {str(one.place) for one in found if isinstance(one, Difference)} <= {"revision 0"}
    assert not set(faulty.paid) & set(works.paid), "nothing is paid twice"
    made = [node for node in tree.values() if node.made is not SummarySource.JOINED]
    assert len(works.paid) <= len(made)
