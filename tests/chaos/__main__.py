"""`python -m tests.chaos replay [--kills N] [--seed S]`."""

import argparse
import json
import sys

from tests.chaos import replay


def main() -> None:
    """Runs one of them; prints its result as the last line, and fails when it found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("name", choices=("replay",), help="what to break")
    parser.add_argument("--kills", type=int, default=1000, help="workers to kill")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule")
    arguments = parser.parse_args()
    result = replay.run(arguments.kills, arguments.seed)
    print(json.dumps({"name": arguments.name, **result}))
    if result["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
