"""Times the way of a newcomer, for each surface, to the first fact remembered and recalled.

`python -m verification.newcomer [--only NAME …]`, beside `palimpsest up` of a fresh clone, with
PALIMPSEST_ADDRESS and PALIMPSEST_HTTP_URL where it is not at its usual address. Each surface gets
a folder of its own and a clone of this repository, installs its client from there, and runs the
shortest program of its guide. Prints lines as a table: programs count without blank lines,
comments and lone brackets; commands are those that install and run. Package caches of pip, npm,
Go and Maven are as they are: run it twice for the figures with warm caches.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from tests import ROOT

FACT, QUESTION = "Alice eats no nuts.", "What may she eat?"
#: What was recalled has it, whatever the words of a guide's fact are.
RECALLED = re.compile(r"\bnuts\b|peanuts")
SECONDS = 400.0
#: Lines that no one writes for their meaning.
TRIVIAL = re.compile(r"^\s*(//.*|#.*|\*.*|[{}()\[\];]*)$")


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A way to use the service, as its guide says."""

    #: Commands of the shell, run in the user's folder; $CLONE is the repository.
    install: tuple[str, ...] = ()
    #: The user's files by name, counted as lines of code.
    files: Mapping[str, str] = field(default_factory=dict)
    #: Commands that remember and recall, or start the program.
    run: tuple[str, ...]


PYTHON = """
from palimpsest.sync import connect

with connect() as client:
    alice = client.session("alice")
    alice.remember("Alice eats no nuts.")
    print(alice.recall("What may she eat?"))
"""
POM = """
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>me</groupId><artifactId>mine</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>dev.palimpsest</groupId>
    <artifactId>palimpsest-sdk</artifactId>
    <version>0.1.0</version>
  </dependency></dependencies>
</project>
"""
MCP = """
import asyncio, os, sys
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    server = StdioServerParameters(
        command="palimpsest", args=["mcp", "--session", "alice"], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        await client.call_tool("remember", {"text": "Alice eats no nuts."})
        print(await client.call_tool("recall", {"query": "What may she eat?"}))

asyncio.run(main())
"""


def guide(page: str, language: str) -> str:
    """Returns the first program of a page in a language."""
    return (ROOT / page).read_text().partition(f"```{language}\n")[2].partition("```")[0]


def surfaces() -> dict[str, Surface]:
    """Returns each surface; its session is named by `timed`."""
    post = "curl -s $PALIMPSEST_HTTP_URL/palimpsest.v1.SessionService"
    is_json = "-H 'content-type: application/json'"
    hook = "palimpsest-hook prompt --agent claude-code"
    return {
        "Python": Surface(
            install=(
                "python3 -m venv .venv",
                ".venv/bin/pip install -q $CLONE/proto $CLONE/clients/python",
            ),
            files={"program.py": PYTHON},
            run=(".venv/bin/python program.py",),
        ),
        "command line": Surface(
            run=(
                f'palimpsest remember "{FACT}" -s alice',
                f'palimpsest recall "{QUESTION}" -s alice',
            )
        ),
        "HTTP (curl)": Surface(
            run=(
                f"""{post}/CreateSession {is_json} -d '{{"session": {{"id": "alice"}}}}'""",
                f"""{post}/Append {is_json} -d '{{"session": "alice", "request_id": "1","""
                f""" "chunks": [{{"text": "{FACT}"}}]}}'""",
                f"""{post}/Recall {is_json} -d"""
                f""" '{{"session": "alice", "query": "{QUESTION}"}}'""",
            )
        ),
        "TypeScript": Surface(
            install=(
                "npm ci --silent --no-audit --no-fund --prefix $CLONE/clients/typescript",
                "cd $CLONE/clients/typescript && npm run --silent build",
                "npm install --silent --no-audit --no-fund $CLONE/clients/typescript",
            ),
            files={"program.mjs": guide("clients/typescript/README.md", "ts")},
            run=("timeout 60 node program.mjs",),
        ),
        "Go": Surface(
            install=(
                "go mod init example",
                "go mod edit -require palimpsest.invalid/clients/go@v0.0.0"
                " -replace palimpsest.invalid/clients/go=$CLONE/clients/go",
                "go mod tidy",
            ),
            files={"main.go": guide("clients/go/README.md", "go")},
            run=("go run .",),
        ),
        "Java": Surface(
            install=(
                "mvn -f $CLONE/clients/java -q -B -DskipTests install",
                "mvn -q -B dependency:copy-dependencies",
            ),
            files={"pom.xml": POM, "Main.java": guide("clients/java/README.md", "java")},
            run=("java -cp 'target/dependency/*' Main.java",),
        ),
        "MCP (stdio)": Surface(files={"program.py": MCP}, run=("python program.py",)),
        "hook": Surface(
            run=(
                f"echo '{_prompt(FACT, 'monday')}' | {hook} && palimpsest-hook flush",
                f"echo '{_prompt(QUESTION, 'tuesday')}' | {hook}",
            )
        ),
    }


def _prompt(said: str, thread: str) -> str:
    event = {
        "hook_event_name": "UserPromptSubmit",
        "permission_mode": "default",
        "session_id": thread,
        "cwd": ".",
        "prompt": said,
    }
    return json.dumps(event)


def shell(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Runs a command. Raises RuntimeError with what it printed."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode not in (0, 124):
        raise RuntimeError(f"{command}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout


def timed(surface: Surface, environment: dict[str, str]) -> tuple[float, float, str]:
    """Returns the seconds to install and to recall, and what was recalled."""
    session = f"newcomer-{uuid4().hex[:8]}"
    own = {**environment, "PALIMPSEST_SESSION": session}
    with tempfile.TemporaryDirectory() as name:
        folder, clone = Path(name, "mine"), Path(name, "clone")
        folder.mkdir()
        own |= {"CLONE": str(clone), "PALIMPSEST_HOOK_QUEUE": str(Path(name, "queue"))}
        subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", clone], check=True)
        for file, text in surface.files.items():
            (folder / file).write_text(text.replace('"alice"', f'"{session}"'))
        started = time.monotonic()
        for command in surface.install:
            shell(command, folder, own)
        installed = time.monotonic()
        shown = ""
        for command in surface.run:
            shown = shell(re.sub(r"\balice\b", session, command), folder, own)
        ended = time.monotonic()
    return installed - started, ended - installed, shown


def lines_of(surface: Surface) -> int:
    """Counts the lines that a user writes, besides commands."""
    lines = (line for text in surface.files.values() for line in text.splitlines())
    return sum(not TRIVIAL.match(line) for line in lines)


def main() -> None:
    """Measures the surfaces, and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m verification.newcomer", description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(surfaces()), choices=list(surfaces()))
    given = parser.parse_args()
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ["PATH"], "/usr/local/go/bin"]
    )
    environment = {
        "PALIMPSEST_HTTP_URL": "http://127.0.0.1:50080",
        "PALIMPSEST_HOOK_SECONDS": "30",
        **os.environ,
        "PATH": path,
    }
    print("| surface | lines of code | commands | install, s | run, s | total, s |")
    print("| --- | --: | --: | --: | --: | --: |")
    failed = False
    for name in given.only:
        surface = surfaces()[name]
        try:
            install, run, shown = timed(surface, environment)
            if not RECALLED.search(shown):
                raise RuntimeError(f"the fact was not recalled: {shown[-500:]!r}")
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed = True
            print(f"{name}: {error}", file=sys.stderr)
            continue
        commands = len(surface.install) + len(surface.run)
        print(
            f"| {name} | {lines_of(surface)} | {commands} |"
            f" {install:.1f} | {run:.1f} | {install + run:.1f} |",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
