"""Pages of the documentation: their commands, their program, and what these print."""

import os
import re
import subprocess
from pathlib import Path

from tests.support import forking

#: What differs from run to run.
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def commands(page: str) -> list[tuple[str, list[str]]]:
    """Returns each command of the page and the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in page.partition("## From Python")[0].splitlines():
        if line.startswith("    $ "):
            found.append((line.removeprefix("    $ "), []))
        elif line.startswith("    "):
            found[-1][1].append(line.removeprefix("    "))
    return found


def program(page: str) -> tuple[str, list[str]]:
    """Returns the program at the end, and what it prints."""
    text, _, rest = page.partition("```python\n")[2].partition("```\n")
    return text, [line[4:] for line in rest.splitlines() if line.startswith("    ")]


def printed(command: list[str], address: str, text: str = "") -> list[str]:
    """Returns what a command prints for people: the result, and what was refused."""
    path = f"{Path(forking.python()).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "PATH": path, "PALIMPSEST_ADDRESS": address, "COLUMNS": "200"},
    )
    refused = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 0 or refused, done.stderr
    return [TIME.sub("TIME", line) for line in (*done.stdout.splitlines(), *refused)]
