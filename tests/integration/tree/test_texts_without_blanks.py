"""Trees of texts that were appended without a blank at their end, also those of version 0.1."""

import pytest

from service.app.kinds import use_cases
from service.domain.operations.verifying.chain import Difference
from service.domain.tree.borders import SegmentPiece
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.operations.verify import verify_memory
from storage.engine.database import Database
from tests.integration.support.growing import nodes_of
from tests.integration.support.scripted import ITEM, KEY, MEMORY, TREE, Script, make, tree_method
from tests.integration.tree.test_tree_method import story


def joint_of_older(one: SegmentPiece, after: SegmentPiece, *, as_written: bool = False) -> bool:
    """Returns whether version 0.1 had a line end there."""
    return one.whole or after.whole


@pytest.mark.parametrize("is_older", [False, True], ids=["now", "of version 0.1"])
async def test_a_tree_is_verified(
    database: Database, monkeypatch: pytest.MonkeyPatch, *, is_older: bool
) -> None:
    """Builds a tree by the rule that its release has, and verifies it by today's."""
    script = Script()
    with monkeypatch.context() as release:
        if is_older:
            release.setattr(SegmentPiece, "is_joint", joint_of_older)
        await make(database, [one.strip() for one in story(20)], TREE)
        await tree_method(database, script).drain(ITEM)
    assert len(await nodes_of(database)) > 3
    assert ("horse.The" in script.asked[0].text) is is_older
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = [one async for one in verify_memory(tx, use_cases(), KEY, MEMORY)]
    # `make` writes a first revision of its own.
    assert {str(one.place) for one in found if isinstance(one, Difference)} <= {"revision 0"}
