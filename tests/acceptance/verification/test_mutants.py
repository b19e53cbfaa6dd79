"""Guards are removed one after the other: each works in its turn, and none is idle."""

from collections.abc import AsyncIterator

import pytest

from tests.support.harness import Servers
from verification.mutants.gate import CHAINS
from verification.mutants.mutant import Chain
from verification.mutants.run import Runs, running

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
async def runs(servers: Servers) -> AsyncIterator[Runs]:
    async with running(servers) as made:
        yield made


@pytest.mark.parametrize("chain", CHAINS, ids=[one.name for one in CHAINS])
async def test_each_guard_holds_and_without_all_of_them_the_checker_notices(
    runs: Runs, chain: Chain
) -> None:
    verdicts = await runs.judge(chain)
    assert [f"{one.mutant.name}: {what}" for one in verdicts for what in one.wrong] == []


def test_there_are_enough_of_them() -> None:
    names = [f"{chain.name}: {layer.name}" for chain in CHAINS for layer in chain.layers]
    assert len(names) == len(set(names)) >= 20
