"""`python -m tests.benchmarks NAME`."""

import argparse
import importlib
import json

NAMES = ("append", "apply", "read", "step")


def main() -> None:
    """Runs one benchmark and prints its result as the last line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES, help="what to measure")
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long it may take")
    arguments = parser.parse_args()
    module = importlib.import_module(f"tests.benchmarks.{arguments.name}")
    print(json.dumps({"name": arguments.name, **module.run(arguments.seconds)}))


if __name__ == "__main__":
    main()
