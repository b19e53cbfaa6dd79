"""State memories on the command line. No worker runs: the vectors are written by hand."""

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest

from service.cli import main
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.state.spec import StateSpec
from storage.engine.database import Database
from tests.acceptance.cli.test_cli import assert_one_clear_line
from tests.integration.support.state_rows import StateRows
from tests.support.harness import Servers, api

SESSION = "walk"
NAMED = ("-s", SESSION, "-m", "m")
SPEC = StateSpec(task="Find the red key.", period=5, episode_vectors=2)
#: What an agent did is no markup, and does nothing to a terminal.
HOSTILE = "[bold]\x1b[31mred :key:"


def run(*arguments: str, stdin: Any = b"", **environment: Any) -> subprocess.CompletedProcess[str]:
    """Returns a command in this process, whose start would take longer than all that it does."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["palimpsest", *arguments]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def succeed(*arguments: str, stdin: Any = b"", **environment: Any) -> str:
    done = run(*arguments, stdin=stdin, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def chunks() -> list[Chunk]:
    steps = [
        Chunk(kind=ChunkKind.STEP, observation=f"stone {n}", action=f"walk {n}")
        for n in range(1, 11)
    ]
    message = Chunk(kind=ChunkKind.MESSAGE, role="user", text="Hurry.")
    return [*steps, message, Chunk(kind=ChunkKind.STEP, action=HOSTILE)]


async def fill(url: str) -> None:
    database = Database.connect(url, pool_size=2, name="test")
    rows = await StateRows.made(database, SESSION, SPEC, chunks())
    await rows.compress(3, 8)
    await rows.compress(3, 9)
    await rows.lift(12)
    await rows.compress(3, 10, skipped=True)
    await database.close()


@pytest.fixture(scope="module")
def at(servers: Servers) -> Iterator[dict[str, str]]:
    url = servers.new_database()
    asyncio.run(fill(url))
    with api(url) as (_, address):
        yield {"PALIMPSEST_ADDRESS": address}


CONTEXT = """\
Memory, level 2:
what is known at 6

Memory:
what is known at 9

Recent steps:

Action: walk 10
Observation: stone 10

user: Hurry.

Action: [bold]\\x1b[31mred :key:
"""


def test_a_context_is_printed_as_a_text(at: dict[str, str]) -> None:
    done = run("state", "context", *NAMED, **at)
    assert done.returncode == 0, done.stderr
    assert done.stdout == CONTEXT
    assert done.stderr.splitlines()[0].startswith("revision 4: 22 tokens of vectors, ")
    past = succeed("state", "context", *NAMED, "--at", "1", **at)
    assert past.startswith("Task:\nFind the red key.\n")
    assert past.endswith("Action: walk 1\nObservation: stone 1\n")


def test_a_context_is_printed_for_programs(at: dict[str, str]) -> None:
    told = json.loads(succeed("state", "context", *NAMED, "--json", **at))
    assert (told["revision"], told["applied_position"], told["head"]) == (4, 9, 12)
    assert [(one["revision"], one["level"]) for one in told["vectors"]] == [(3, 2), (4, 1)]
    assert told["vectors"][0]["children"] == [1, 2]
    assert [one["position"] for one in told["recent"]] == [10, 11, 12]
    assert [one["kind"] for one in told["recent"]] == ["agent_step", "message", "agent_step"]
    assert told["recent"][2]["action"] == HOSTILE
    assert told["text"].endswith(HOSTILE)
    assert not told["compression_due"]
    lines = succeed("state", "context", *NAMED, "--messages", **at).splitlines()
    said = [json.loads(line) for line in lines]
    assert [one["role"] for one in said] == ["system", "assistant", "user", "user", "assistant"]
    assert said[-1]["content"] == f"Action: {HOSTILE}"


def test_vectors_are_listed_and_shown(at: dict[str, str]) -> None:
    listed = succeed("state", "list", *NAMED, **at).splitlines()
    assert listed[0].startswith("r0 level 1 ")
    assert listed[1:] == [
        "r1 level 1 [1-3] 8 tokens: what is known at 3",
        "r2 level 1 [4-6] 9 tokens: what is known at 6",
        "r3 level 2 [1-6] 12 tokens: what is known at 6",
        "r4 level 1 [7-9] 10 tokens, skipped: what is known at 9",
    ]
    upper = succeed("state", "list", *NAMED, "--level", "2", "--json", **at).splitlines()
    assert [json.loads(line)["revision"] for line in upper] == [3]
    assert succeed("state", "show", "2", *NAMED, **at).splitlines() == [
        "r2, level 1: by the model, 9 tokens, stands for [1-6], new are [4-6]",
        "  made from r1 and the steps [4-6]:",
        "    [4] walk 4 / stone 4",
        "    [5] walk 5 / stone 5",
        "    [6] walk 6 / stone 6",
        "what is known at 6",
    ]
    assert succeed("state", "show", "3", *NAMED, **at).splitlines() == [
        "r3, level 2: by the model, 12 tokens, stands for [1-6]",
        "  made from the vectors r1, r2:",
        "    r1 level 1 [1-3] 8 tokens: what is known at 3",
        "    r2 level 1 [4-6] 9 tokens: what is known at 6",
        "what is known at 6",
    ]
    newest = succeed("state", "show", *NAMED, **at).splitlines()
    assert newest[1] == "  made from the task prompt and the steps [7-9]:"
    assert succeed("state", "show", "0", *NAMED, **at).splitlines() == [
        "r0, level 1: the task prompt, 5 tokens",
        "Find the red key.",
    ]
    shown = json.loads(succeed("state", "show", "2", *NAMED, "--json", **at))
    assert (shown["continues"], shown["new_positions"]) == (1, {"first": 4, "last": 6})
    fresh = ("--after", shown_token(at))
    assert succeed("state", "list", *NAMED, *fresh, **at).splitlines() == listed
    assert succeed("state", "list", *NAMED, "--applied", **at).splitlines() == listed


def shown_token(at: dict[str, str]) -> str:
    told = json.loads(succeed("state", "context", *NAMED, "--json", **at))
    assert succeed("state", "context", *NAMED, "--after", told["read_token"], **at) == CONTEXT
    return str(told["read_token"])


def test_a_state_memory_is_shown_as_a_memory(at: dict[str, str]) -> None:
    shown = succeed("memory", "show", "m", "-s", SESSION, **at).splitlines()
    assert shown[:4] == [
        "m at revision 4: 9 of 12 chunks compressed",
        "├── vectors",
        "│   ├── r3 level 2 [1-6] what is known at 6",
        "│   └── r4 level 1 [7-9] what is known at 9",
    ]
    assert shown[-1] == "    └── [12] Action: [bold]\\x1b[31mred :key:"
    listed = succeed("memory", "list", "-s", SESSION, **at).splitlines()
    assert listed[1].split() == ["m", "state", "active", "4", "9", "12"]
    kinds = [
        line.split()[2:4]
        for line in succeed("memory", "revisions", "m", "-s", SESSION, **at).splitlines()
    ]
    assert kinds == [
        ["r0", "create"],
        ["r1", "step"],
        ["r2", "step"],
        ["r3", "episode"],
        ["r4", "skip"],
    ]
    compared = succeed("memory", "diff", "m", "-s", SESSION, "--revision", "1", **at)
    assert compared.splitlines()[0] == "m r1 -> r4"
    assert "what is known at 3" in compared


def test_state_memories_are_made_with_all_their_settings(
    at: dict[str, str], tmp_path: Path
) -> None:
    session = f"s-{uuid4().hex}"
    task = tmp_path / "task.txt"
    task.write_text("Find the key.\n\nIt is red.\n")
    succeed("session", "create", session, **at)
    settings = (
        *("--task-file", str(task), "--period", "4", "--period-kind", "adaptive"),
        *("--period-tokens", "900", "--idle", "2.5", "--state-tokens", "80"),
        *("--pin", "red", "--pin", "key", "--episode-vectors", "3", "--reply-format", "text"),
        "--skip-failures",
    )
    made = succeed("memory", "create", "state", "m", *settings, "-s", session, **at)
    assert made == "m\n"
    context = succeed("state", "context", "-s", session, "-m", "m", **at)
    assert context == "Task:\nFind the key.\n\nIt is red.\n"
    again = ("memory", "create", "state", "n", "--json", "-s", session)
    assert json.loads(succeed(*again, **at))["kind"] == "state"
    wrong = run("memory", "create", "state", "m", "-s", session, **at)
    assert_one_clear_line(wrong, "has a memory 'm' already")


def test_steps_are_recorded(at: dict[str, str], tmp_path: Path) -> None:
    session = f"s-{uuid4().hex}"
    succeed("session", "create", session, **at)
    one = ("state", "record", "-s", session)
    said = succeed(*one, "--action", "look", "--thought", "Where am I?", **at)
    assert said == "1 step durable, up to position 1\n"
    # The same step again is another step.
    assert succeed(*one, "--action", "look", **at) == "1 step durable, up to position 2\n"
    lines = '{"action": "go"}\n{"role": "user", "text": "Hurry."}\n'
    told = json.loads(succeed(*one, "-", "--json", stdin=lines.encode(), **at))
    assert (told["steps"], told["skipped"], told["position"]) == (2, 0, 4)
    file = tmp_path / "steps.jsonl"
    file.write_text(lines)
    named = (*one, str(file), "--producer", "run")
    assert succeed(*named, **at) == "2 steps durable, up to position 6\n"
    with file.open("a") as more:
        more.write('{"observation": "a wall", "metadata": {"tool": "eyes"}}\n')
    again = run(*named, **at)
    assert (again.stdout, again.stderr) == (
        "1 step durable, up to position 7\n",
        "2 of 3 steps are there already\n",
    )
    assert succeed(*named, **at) == "nothing new\n"


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (("state", "context", *NAMED, "--at", "3", "--applied"), "not both"),
        (("state", "context", *NAMED, "--json", "--messages"), "not both"),
        (("state", "context", *NAMED, "--at", "13"), "13"),
        (("state", "context", "-s", "nobody"), "there is no session 'nobody'"),
        (("state", "context", "-s", SESSION, "-m", "n"), "memory 'n'"),
        (("state", "show", "99", *NAMED), "memory 'm' has no revision 99"),
        (("state", "list", "-s", SESSION, "-m", "a\udcff"), "is not UTF-8: surrogates"),
        (("state", "record", "-s", SESSION), "a step needs --observation, --thought or --action"),
        (("state", "record", "-", "--action", "x", "-s", SESSION), "not both"),
        (("state", "record", "-", "-s", SESSION), "standard input has no text"),
        (("state", "record", "--action", "x", "-s", "nobody"), "there is no session 'nobody'"),
        (
            ("memory", "create", "state", "n", "--state-tokens", "8", "-s", SESSION),
            "state.state_tokens: must be 0 or 32 to 32000",
        ),
        (
            ("memory", "create", "state", "n", "--idle", "0.5", "-s", SESSION),
            "state.idle: must be 0 or 1 second to 30 days",
        ),
        (
            ("memory", "rebuild", "tree", "n", *NAMED, "--max-children", "4"),
            "'m' is a state memory: palimpsest memory rebuild state",
        ),
        (
            ("memory", "rebuild", "state", "n", *NAMED, "--episode-vectors", "1"),
            "state.episode_vectors: must be 0 or 2 to 64",
        ),
        (("memory", "rebuild", "state", "n", *NAMED, "--pin", "x", "--no-pins"), "not both"),
        (("memory", "fold", "m", "-s", SESSION), "is a state memory; this is for prism memories"),
    ],
)
def test_what_is_wrong_is_one_clear_line(
    at: dict[str, str], arguments: tuple[str, ...], about: str
) -> None:
    assert_one_clear_line(run(*arguments, **at), about)
