"""examples/, and the first guide: all runs as a user would run it, and prints what it shows."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from palimpsest import sync
from tests import ROOT
from tests.acceptance.guides.pages import TIME, commands, printed
from tests.support.harness import Servers, api, worker

README = (ROOT / "examples/README.md").read_text()
STARTED = (ROOT / "docs/guides/getting-started.md").read_text().partition("## Models")[0]
#: Commands of the page by the example that they run, each with what it prints.
PRINTED = {
    name: [(run, lines) for run, lines in commands(README.partition("## A chat")[2]) if name in run]
    for name in ("chat_assistant", "log_stream", "book_reader", "long_agent", "from_mem0")
}
AGENT_STEPS = 2_000
#: What differs with how fast the machine is and how far a producer was when it died.
DIFFERS = (
    (re.compile(r"\b1\d\d lines are durable, continuing with line 1\d\d$"), "1NN lines …"),
    (re.compile(r"(?<=\d steps, )\d+(?= a second)"), "N"),
    (re.compile(r"(a prompt of|at most|compressions:|prompts:) [\d,]+"), r"\1 N"),
    (TIME, "TIME"),
)


@pytest.fixture(scope="module")
def address(servers: Servers) -> Iterator[str]:
    """Yields a service as a user has it: with the default memory."""
    url = servers.new_database(kept=True)
    general = {"PALIMPSEST_DEFAULT_MEMORY": "general"}
    with api(url, **general) as (_, address), worker(url, **servers.redis_settings()):
        yield address


def example(name: str, address: str, *arguments: str, said: str = "", status: int = 0) -> list[str]:
    """Returns the lines that an example prints."""
    done = subprocess.run(
        [sys.executable, f"examples/{name}/{name}.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "PALIMPSEST_ADDRESS": address},
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == status, done.stderr
    return done.stdout.splitlines()


def comparable(lines: list[str]) -> list[str]:
    """Returns lines without blank ones and what differs from run to run."""
    for pattern, instead in DIFFERS:
        lines = [pattern.sub(instead, line) for line in lines]
    return [line.rstrip() for line in lines if line]


def test_the_page_has_a_command_of_each_example() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/*.py")}
    assert folders == {name for name, shown in PRINTED.items() if shown}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=[pytest.mark.prove] if one == "long_agent" else [])
        for one in PRINTED
    ],
)
def test_an_example_prints_what_the_page_says(address: str, name: str) -> None:
    """Runs the commands of the page; the agent takes its 2,000 steps."""
    for command, lines in PRINTED[name]:
        shown = printed(["bash", "-c", f"cd {ROOT}; {command} || true"], address)
        assert comparable(shown) == comparable(lines), command


def test_the_commands_of_the_first_guide_follow_one_another(address: str, tmp_path: Path) -> None:
    lines = re.findall(r"^    (.+)$", STARTED.replace("\\\n", ""), re.MULTILINE)
    (up, *asked) = [line.replace(".venv/bin/", "") for line in lines if "palimpsest " in line]
    assert up == "palimpsest up"
    shown = {}
    for command in asked:
        shown[command] = printed(["bash", "-ec", f"cd {tmp_path}; {command}"], address)
    assert not any(line.startswith("error: ") for lines in shown.values() for line in lines), shown
    answers = [lines[0] for command, lines in shown.items() if " ask " in command]
    assert answers == ["The museum is closed on Mondays."] * 2
    recalled = shown['palimpsest recall "What may she eat?" --session alice']
    assert any("Alice eats no nuts." in line for line in recalled)


def test_the_assistant_knows_a_user_in_another_thread(address: str) -> None:
    user = ["--user", uuid4().hex]
    monday = [*user, "--thread", "monday"]
    example("chat_assistant", address, *monday, said="I am Alice, and I eat no nuts.\n")
    asked = "Which nuts may I eat?\n"
    known = 'You said before: "I am Alice, and I eat no nuts."'
    tuesday = example("chat_assistant", address, *user, "--thread", "tuesday", said=asked)
    assert (tuesday[0].endswith("tuesday: 0 messages so far"), tuesday[-1]) == (True, known)
    again = example("chat_assistant", address, *monday, said="\n")
    assert again[0].endswith("monday: 2 messages so far")
    stranger = example("chat_assistant", address, "--user", uuid4().hex, said=asked)
    assert stranger[-1] == "I will remember that."


def test_a_log_stream_continues_after_a_crash(address: str) -> None:
    session = uuid4().hex
    given = ["--session", session, "--lines", "200"]
    crashed = example("log_stream", address, *given, "--crash-after", "120", status=1)
    assert crashed == [
        "0 lines are durable, continuing with line 1",
        "100 lines are durable",
        "crashing after line 120",
    ]
    with sync.connect(address) as client:
        durable = client.session(session).info().head
    assert 100 <= durable <= 120, "what was flushed, and of the rest what had left the process"
    resumed = example("log_stream", address, *given)
    assert resumed[0] == f"{durable} lines are durable, continuing with line {durable + 1}"
    assert "200 lines in the session, each once and in order" in resumed
    with sync.connect(address) as client:
        assert client.session(session).info().head == 200
    again = example("log_stream", address, *given)
    assert again[0] == "200 lines are durable, continuing with line 201"


def agent_run(address: str, session: str, steps: int) -> tuple[list[str], int]:
    """Returns what the agent prints, and the tokens of its longest prompt."""
    lines = example("long_agent", address, "--session", session, "--steps", str(steps))
    assert "The red key hangs behind the door of the attic." in lines
    assert "  from step 40" in lines
    return lines, max(int(one) for line in lines for one in re.findall(r"at most (\d+)", line))


def test_an_agent_continues_where_it_was_stopped(address: str) -> None:
    session = uuid4().hex
    agent_run(address, session, 60)
    lines, _ = agent_run(address, session, 80)
    assert lines[0] == "60 steps are durable, continuing with step 61"


def test_memories_of_mem0_are_moved_once(address: str) -> None:
    prefix = uuid4().hex
    first, _ = (example("from_mem0", address, "--prefix", prefix) for _ in range(2))
    assert f"session '{prefix}:alice': 2 chunks" in first
    with sync.connect(address) as client:
        texts = [chunk.text for chunk in client.session(f"{prefix}:alice").chunks()]
    assert texts == ["Alice is allergic to peanuts", "Alice rows on the river on Saturdays"]
