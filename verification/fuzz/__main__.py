"""`python -m verification.fuzz NAME|all --inputs N --seed S`: fuzzes and prints what came of it.

One JSON line for each target, the findings first. Ends with 1 where a promise was broken.
"""

import argparse
import gc
import json
import sys

from verification.fuzz import (
    files,
    forms,
    models,
    patterns,
    replies,
    requests,
    revisions,
    schemas,
    values,
)
from verification.fuzz.runs import Result, Target, survey

MODULES = (revisions, schemas, values, forms, replies, patterns, requests, models, files)
TARGETS: dict[str, Target] = {one.name: one for module in MODULES for one in module.TARGETS}


def main() -> None:
    """Fuzzes one target, or each in turn."""
    parser = argparse.ArgumentParser(prog="python -m verification.fuzz", description=__doc__)
    parser.add_argument("name", choices=["all", *TARGETS], help="what to fuzz")
    parser.add_argument("--inputs", type=int, default=10_000, help="how many inputs, of each")
    parser.add_argument("--seed", type=int, default=0, help="which inputs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    arguments = parser.parse_args()
    names = list(TARGETS) if arguments.name == "all" else [arguments.name]
    # As in a process of the service that is ready: what is loaded is not looked through again.
    gc.collect()
    gc.freeze()
    is_broken = False
    for name in names:
        result = survey(TARGETS[name], arguments.inputs, arguments.seed, first=arguments.first)
        for place, found in result.findings.items():
            is_broken = True
            print(f"{name}: {place}\n  {found.said}\n  input {found.number}: {found.shown}")
        print(json.dumps(_line(result, arguments.seed)), flush=True)
    sys.exit(is_broken)


def _line(result: Result, seed: int) -> dict[str, object]:
    return {
        "name": f"fuzz-{result.name}",
        "value": result.inputs,
        "seed": seed,
        "taken": result.taken,
        "refused": result.refused,
        "seconds": round(result.seconds, 1),
        "slowest_ms": round(1000 * result.slowest_seconds, 1),
        "slowest_characters": result.slowest_size,
        "slowest_input": result.slowest_number,
        "most_calls": result.most_calls,
        "most_mib": round(result.most_bytes / 2**20, 1),
        "findings": len(result.findings),
    }


if __name__ == "__main__":
    main()
