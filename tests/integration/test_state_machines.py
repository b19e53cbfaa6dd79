"""The use cases, step by step against the model, on a real database.

Small here; `PALIMPSEST_STEPS_EXAMPLES` makes them larger, and `python -m tests.chaos steps`
runs them by themselves.
"""

import os

from tests.harness import Servers
from tests.integration.append_machine import AppendMachine
from tests.integration.machines import run_machine

EXAMPLES = int(os.environ.get("PALIMPSEST_STEPS_EXAMPLES", "0"))
SEEDED = "CI" in os.environ


def test_what_is_appended_is_what_the_model_says(servers: Servers) -> None:
    url = servers.new_database()
    done = run_machine(AppendMachine, url, examples=EXAMPLES or 15, steps=25, seeded=SEEDED)
    assert min(done[rule] for rule in ("append", "lose behind", "race")) > 0
