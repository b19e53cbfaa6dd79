"""The command line; see the package."""

import argparse
import subprocess

from tests import ROOT
from tests.release.building import build, commit_time
from tests.release.preparing import Refused, prepare


def main() -> None:
    """Builds the packages, or prepares a release."""
    parser = argparse.ArgumentParser(prog="python -m tests.release")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("dist", help="wheels and sdists of the work tree, into dist/")
    prepared = commands.add_parser("prepare", help="all of a release but publishing it")
    prepared.add_argument("version", help="X.Y.Z")
    given = parser.parse_args()
    try:
        if given.command == "dist":
            for path in build(ROOT, ROOT / "dist", commit_time(ROOT)):
                print(path.relative_to(ROOT))
        else:
            print(prepare(ROOT, given.version, verify=_verify, say=_say))
    except Refused as error:
        raise SystemExit(f"error: {error}") from error


def _verify() -> bool:
    return subprocess.run(["make", "verify"], cwd=ROOT, check=False).returncode == 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
