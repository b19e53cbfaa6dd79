"""Runs the state machines for a chosen time."""

import logging
import sys
import time
import traceback
from typing import Any

import structlog

from tests.integration.support.append_machine import AppendMachine
from tests.integration.support.machines import Machine, run_machine
from tests.integration.support.prism_machine import PrismMachine
from tests.integration.support.state_machine import StateMachine
from tests.integration.support.tree_machine import TreeMachine
from tests.support.harness import Servers

MACHINES: dict[str, type[Machine]] = {
    "append": AppendMachine,
    "prism": PrismMachine,
    "tree": TreeMachine,
    "state": StateMachine,
}
#: Steps of one example.
STEPS = 50


def run(names: list[str], examples: int) -> dict[str, Any]:
    """Runs so many examples of each machine, of all for none; what they did, and `wrong`.

    Steps that lead to what the model does not say are printed, as few as were found.
    """
    # The logs of workers that die on purpose are of no use.
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    machines: dict[str, Any] = {}
    wrong: list[str] = []
    with Servers.started() as servers:
        for name in names or MACHINES:
            began = time.monotonic()
            try:
                done = run_machine(
                    MACHINES[name], servers, examples=examples, steps=STEPS, seeded=False
                )
            except Exception as error:
                traceback.print_exc()
                wrong.append(f"{name}: {type(error).__name__}: {error}")
                continue
            machines[name] = {
                "steps": done.total(),
                "seconds": round(time.monotonic() - began),
                "rules": dict(sorted(done.items())),
            }
            print(f"{name}: {done.total()} steps", file=sys.stderr)
    return {"wrong": wrong, "machines": machines}
