"""examples/: each program runs as a user would run it, and prints what it shows."""

import json
import os
import re
import subprocess
import sys
from uuid import uuid4

import pytest

from palimpsest import sync
from tests import ROOT

README = (ROOT / "examples/README.md").read_text()
NAMES = ("chat_assistant", "log_stream", "book_reader", "long_agent", "from_mem0")
AGENT_STEPS = 2_000


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


def test_the_page_has_the_command_of_each_example() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/*.py")}
    assert folders == set(NAMES)
    for name in NAMES:
        assert f"python examples/{name}/{name}.py" in README, name


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
    given = ["--session", uuid4().hex, "--lines", "200"]
    crashed = example("log_stream", address, *given, "--crash-after", "120", status=1)
    assert crashed == [
        "0 lines are durable, continuing with line 1",
        "crashing after line 120",
    ]
    resumed = example("log_stream", address, *given)
    durable = re.match(r"(\d+) lines are durable", resumed[0])
    assert durable is not None
    assert int(durable[1]) <= 120
    assert "200 lines in the session, each once and in order" in resumed
    answers = "\n".join(resumed)
    assert "lost its database because the disk was full" in answers
    assert "\n  line 57, 2026-11-01 00:57:00" in answers
    again = example("log_stream", address, *given)
    assert again[0] == "200 lines are durable, continuing with line 201"


def test_a_book_is_read_once_and_cited(address: str) -> None:
    first, second = (example("book_reader", address) for _ in range(2))
    assert first == second
    told = "\n".join(first)
    assert "He wanted to leave Ness for the shipyards in the south" in told
    assert re.search(r"^  the way: \d\.1 -> .*0\.\d+$", told, re.MULTILINE)
    assert re.search(r"^  \[4\] The supply boat was steered by Jonas Berg", told, re.MULTILINE)


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


@pytest.mark.prove
def test_an_agent_of_2000_steps_has_short_prompts(address: str) -> None:
    session = uuid4().hex
    lines, longest = agent_run(address, session, AGENT_STEPS)
    # 19 steps and a state vector; the whole history has 70,000 tokens in the end.
    assert longest < 2_000
    assert any(line.startswith(f"step {AGENT_STEPS}: ") for line in lines)
    with sync.connect(address) as client:
        assert client.session(session).info().head == AGENT_STEPS


def test_memories_of_mem0_are_moved_once(address: str) -> None:
    prefix = uuid4().hex
    lines = example("from_mem0", address, "--prefix", prefix)
    assert "answer: Alice is allergic to peanuts" in lines
    assert "answer: Ben owns a boat called Marta" in lines
    assert json.dumps(lines).count("2026-03-02 01:00:00") == 1
    with sync.connect(address) as client:
        texts = [chunk.text for chunk in client.session(f"{prefix}:alice").chunks()]
    assert texts == ["Alice is allergic to peanuts", "Alice rows on the river on Saturdays"]
