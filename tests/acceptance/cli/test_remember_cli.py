"""`palimpsest remember` and `recall`: texts and messages from a shell, and what is refused."""

import json
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from palimpsest import sync
from tests.acceptance.cli.test_cli import assert_one_clear_line, run

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "I eat no nuts.", "occurred_at": "2026-05-03T10:00Z"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "note", "args": {"nuts": 0}}]},
    {"role": "tool", "content": "noted"},
]


@pytest.fixture
def name() -> str:
    return f"remembering-{uuid4().hex}"


def remember(
    address: str, name: str, *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    given = ("remember", *arguments, "--session", name, "--address", address)
    return run(*given, stdin=stdin.encode())


def test_texts_and_messages_are_stored_in_a_new_session(
    address: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "chat.json").write_text(json.dumps(MESSAGES))
    one = remember(address, name, "She is vegan.", "--thread", "lunch")
    two = remember(address, name, "-", stdin="She likes soup.\n")
    given = ("--messages", str(tmp_path / "chat.json"), "--wait", "--json")
    three = remember(address, name, *given)
    for done in (one, two, three):
        assert done.returncode == 0, done.stderr
    assert one.stdout.startswith("read token ")
    assert "1 chunk durable, up to position 1" in one.stderr
    found = json.loads(three.stdout)
    assert (found["session"], found["chunks"], found["skipped"]) == (name, 2, 1)
    assert found["positions"] == {"first": 3, "last": 4}
    with sync.connect(address) as client:
        chunks = list(client.session(name).chunks())
    assert [one.text or one.action for one in chunks] == [
        "She is vegan.",
        "She likes soup.\n",
        "I eat no nuts.",
        'note({"nuts": 0})',
    ]
    assert (chunks[0].thread, chunks[3].observation) == ("lunch", "noted")
    assert chunks[2].occurred_at is not None
    assert chunks[2].occurred_at.isoformat() == "2026-05-03T10:00:00+00:00"


def test_the_same_under_one_id_is_stored_once(address: str, name: str) -> None:
    first, second = (
        remember(address, name, "ok", "--request-id", "turn-1", "--json") for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert second.stdout == first.stdout


def test_a_system_prompt_alone_is_nothing_to_remember(address: str, name: str) -> None:
    prompt = json.dumps(MESSAGES[0])
    done = remember(address, name, "--messages", "-", stdin=prompt)
    assert (done.returncode, done.stdout) == (0, "nothing to remember\n")
    assert "1 message left out" in done.stderr
    kept = remember(address, name, "--messages", "-", "--system", stdin=prompt)
    assert kept.stdout.startswith("read token "), kept.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "about"),
    [
        ((), "", "give a text, - for standard input, or --messages FILE"),
        (("x", "--messages", "-"), "[]", "give a text, - for standard input, or --messages FILE"),
        ((__file__,), "", "is a file, and a text is wanted: `remember - <"),
        (("--messages", "-"), "[", "standard input is not JSON: "),
        (("--messages", "-"), "[" * 100_000, "standard input is not JSON: "),
        (("--messages", "-"), "[]", "there is nothing to remember"),
        (("--messages", "-"), '["x", 7]', "message 2: a value of type int"),
        (
            ("--messages", "-"),
            '[{"role": "user", "content": [{"type": "image_url"}]}]',
            "message 1: part 1: an image (image_url) is not remembered",
        ),
        (
            ("--messages", "-"),
            '{"role": "user", "content": "x", "occurred_at": "soon"}',
            "standard input: message 1: occurred_at: 'soon' is no time",
        ),
        (("--messages", "-"), '["\\ud83d"]', "half of a surrogate pair"),
        (("x", "--thread", "no/good"), "", "thread"),
    ],
)
def test_what_it_refuses_is_one_clear_line(
    address: str, name: str, arguments: tuple[str, ...], stdin: str, about: str
) -> None:
    assert_one_clear_line(remember(address, name, *arguments, stdin=stdin), about)


def recall(address: str, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("recall", *arguments, "--session", name, "--address", address)


def test_what_was_remembered_is_recalled_as_a_text_for_a_pipe(address: str, name: str) -> None:
    remember(address, name, "Alice eats no nuts.", "--thread", "lunch")
    remember(address, name, "The weather is fine.", "--thread", "today")
    done = recall(address, name, "What may she eat?", "--exclude-thread", "today")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith('[1, thread "lunch"] Alice eats no nuts.\n')
    assert "weather" not in done.stdout
    as_json = recall(address, name, "nuts", "--tokens", "50", "--json", "--section", "unread")
    found = json.loads(as_json.stdout)
    assert (found["session"], found["read_point"]["applied_position"]) == (name, 2)
    assert found["tokens"] <= 50
    assert [one["section"] for one in found["parts"]] in ([], ["unread"], ["unread", "unread"])


def test_a_session_without_anything_is_said_to_be_empty(address: str, name: str) -> None:
    done = recall(address, f"{name} b", "nuts")
    assert_one_clear_line(done, f"session '{name} b' has nothing yet: `palimpsest remember TEXT")
    assert f"--session '{name} b'`" in done.stderr
    remember(address, name, "Alice eats no nuts.")
    done = recall(address, name, "nuts", "--thread", "none")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "nothing of session" in done.stderr
    missing = recall(address, name, "nuts", "--memory", "nowhere")
    assert_one_clear_line(missing, "nowhere")
