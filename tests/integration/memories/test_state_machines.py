"""The use cases, step by step against the model, on a real database.

Small here: `PALIMPSEST_TEST_STEPS_EXAMPLES` makes them larger, and
`python -m verification.chaos steps` runs them for as long as is wanted.
"""

import os

import pytest

from tests.integration.support.machines import run_machine
from tests.support.harness import Servers
from verification.chaos.steps import MACHINES

pytestmark = pytest.mark.prove

#: Of each machine, and steps of an example.
EXAMPLES = int(os.environ.get("PALIMPSEST_TEST_STEPS_EXAMPLES", "5"))
STEPS = 20


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", list(MACHINES))
def test_what_is_done_is_what_the_model_says(name: str, servers: Servers) -> None:
    done = run_machine(
        MACHINES[name], servers, examples=EXAMPLES, steps=STEPS, seeded="CI" in os.environ
    )
    assert done.total() >= EXAMPLES
