"""`python -m verification.chaos NAME …`: runs that try to break the service."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from verification.chaos import campaign, steps
from verification.chaos.schedule import RATE
from verification.mutants import gate
from verification.sweep import running


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m verification.chaos", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True)
    one = names.add_parser("campaign", help="a whole deployment under load, and faults in it")
    one.add_argument("--seed", type=int, default=1, help="of the schedule")
    one.add_argument("--seconds", type=float, default=60.0, help="how long faults occur")
    one.add_argument(
        "--chunks", type=int, default=0, help="the run is invalid with fewer acked chunks"
    )
    one.add_argument("--rate", type=float, default=RATE, help="faults a second; 0: none")
    one.add_argument("--keep", type=Path, help="a folder that keeps all files of the run")
    running.add_arguments(names.add_parser("sweep", help="every fail point with every action"))
    one = names.add_parser("mutants", help="guards taken away, and whether that is noticed")
    one.add_argument("--only", help="one scenario, by its name")
    one = names.add_parser("steps", help="state machines, step by step against the model")
    one.add_argument("machine", nargs="*", help="append, prism, tree, state; none: all")
    one.add_argument("--examples", type=int, default=100, help="of each, of up to 50 steps")
    return parser


def _run(given: argparse.Namespace) -> dict[str, Any]:
    match given.name:
        case "campaign":
            return campaign.run(
                given.seed,
                given.seconds,
                chunks=given.chunks,
                rate=given.rate,
                keep=given.keep,
            )
        case "sweep":
            return running.run_given(given)
        case "mutants":
            return gate.run(given.only)
        case _:
            return steps.run(given.machine, given.examples)


def main() -> None:
    """Runs one of them; prints its result as the last line, and fails when it found something."""
    given = _parser().parse_args()
    result = _run(given)
    print(json.dumps({"name": given.name, **result}))
    if result["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
