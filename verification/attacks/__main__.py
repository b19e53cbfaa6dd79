"""`python -m verification.attacks [NAME …] [--short] [--list]`: attacks the service.

Prints a line for each attack and one line of JSON last. The exit code is the number of
attacks that the service did not withstand.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.support.harness import Servers
from verification.attacks.attack import Attack, Stage, load, run


def _row(attack: Attack, stage: Stage) -> dict[str, Any]:
    """Runs an attack, prints its result, and returns it."""
    began = time.monotonic()
    outcome = asyncio.run(run(attack, stage))
    seconds = round(time.monotonic() - began, 1)
    print(f"{'held' if outcome.held else 'FELL'}  {attack.name}: {outcome.found}")
    print(f"      before: {attack.before}; goal: {attack.goal}; {seconds} s", flush=True)
    return {
        "name": attack.name,
        "finding": attack.finding,
        "held": outcome.held,
        "found": outcome.found,
        "seconds": seconds,
    }


def _run_all(attacks: Sequence[Attack], *, short: bool) -> list[dict[str, Any]]:
    with Servers.started() as servers:
        stage = Stage(servers=servers, short=short)
        return [_row(attack, stage) for attack in attacks]


def main() -> None:
    """Runs the attacks that were named, or all."""
    parser = argparse.ArgumentParser(prog="python -m verification.attacks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks to run; default: all")
    parser.add_argument("--short", action="store_true", help="smaller attacks, in seconds each")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    options = parser.parse_args()
    known = {attack.name: attack for attack in load()}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no such attack: {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [known[name] for name in options.names] or list(known.values())
    if options.list:
        for attack in chosen:
            print(f"{attack.name}: {attack.summary} ({attack.finding}; goal: {attack.goal})")
        return
    rows = _run_all(chosen, short=options.short)
    fell = sum(not row["held"] for row in rows)
    print(json.dumps({"name": "attacks", "value": fell, "goal": 0, "attacks": rows}))
    sys.exit(fell)


if __name__ == "__main__":
    main()
