"""`python -m verification.agents [--only codex]`: the scenes in Claude Code and in Codex.

Cursor has no program that runs without its editor and an account: its plugin is compared with
the published format only.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from verification.agents.models import Model
from verification.agents.programs import Agent, Claude, Codex, NotInstalled, Place, install
from verification.agents.scenes import Service, Stage, play

AGENTS: dict[str, type[Claude] | type[Codex]] = {"claude-code": Claude, "codex": Codex}


def main() -> None:
    """Installs the programs, runs the scenes, and exits with the number that failed."""
    parser = argparse.ArgumentParser(prog="python -m verification.agents", description=__doc__)
    parser.add_argument("--only", choices=AGENTS)
    only = parser.parse_args().only
    try:
        install()
    except NotInstalled as error:
        print(f"skipped: {error}")
        return
    failed = 0
    with tempfile.TemporaryDirectory(prefix="palimpsest-agents-") as folder:
        # As root, the servers of `palimpsest up` run as another user, who must reach their data.
        Path(folder).chmod(0o711)
        service, model = Service(Path(folder) / "data"), Model()
        with model.started(), service.started():
            for name in [only] if only else AGENTS:
                place = Place(folder=Path(folder) / name)
                place.prepare()
                agent: Agent = AGENTS[name](place, service.environment, model.url)
                failed += play(Stage(agent=agent, model=model, service=service))
    sys.exit(failed)


main()
