"""Steps as lines of JSON: each one as it is, and one clear line for what is wrong."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.files import Step, read_steps
from service.cli.kinds.state import StateOptions
from service.cli.output import CommandError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
STEPS = st.lists(
    st.one_of(
        st.builds(Step, observation=TEXT, thought=TEXT, action=TEXT, observed_first=st.booleans()),
        st.builds(Step, action=TEXT, metadata=st.dictionaries(TEXT, TEXT, max_size=2)),
        st.builds(Step, role=TEXT, text=TEXT),
        st.builds(Step, text=TEXT),
    ),
    min_size=1,
    max_size=5,
)


def line_of(step: Step) -> str:
    names = ("observation", "thought", "action", "observed_first", "role", "text", "metadata")
    held = {name: getattr(step, name) for name in names if getattr(step, name)}
    return json.dumps(held, ensure_ascii=False)


@given(steps=STEPS)
def test_steps_are_read_as_they_were_written(
    steps: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("steps") / "steps.jsonl"
    file.write_text("\n\n".join(map(line_of, steps)) + "\n", encoding="utf-8", newline="")
    assert read_steps(str(file)) == steps


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("{", "is no JSON that UTF-8 can hold: Invalid JSON: EOF while parsing"),
        ("[" * 100_000, "Invalid JSON: recursion limit exceeded"),
        ("[]", "Input should be an object"),
        ("{}", "has no observation, thought, action or text"),
        ('{"action": ""}', "has no observation, thought, action or text"),
        ('{"acton": "go"}', "acton: a step has no such field; it has observation, thought,"),
        ('{"action": 3}', "action: Input should be a valid string"),
        ('{"action": "go", "metadata": {"a": 1}}', "metadata: a: Input should be a valid string"),
        ('{"action": "go", "role": "user", "text": "x"}', "is a step and a message in one"),
        (
            '{"action": "go", "observed_first": 1}',
            "observed_first: Input should be a valid boolean",
        ),
        ('{"observed_first": true}', "has no observation, thought, action or text"),
        ('{"text": "x", "observed_first": true}', "is a step and a message in one"),
        ('{"action": "a\\u0000"}', "action: holds a NUL character"),
        ('{"thought": "\\ud83d"}', "Invalid JSON: unexpected end of hex escape"),
        (
            '{"action": "go", "metadata": {"\\ud83d": "a"}}',
            "Invalid JSON: unexpected end of hex escape",
        ),
        ('{"role": "user"}', "has no observation, thought, action or text"),
    ],
)
def test_what_is_no_step_names_its_line(tmp_path: Path, line: str, about: str) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text('{"action": "look"}\n' + line)
    with pytest.raises(CommandError, match="line 2") as caught:
        read_steps(str(file))
    assert about in str(caught.value)


def test_options_of_a_state_memory_are_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "task.txt"
    file.write_text("Find the key.\n\nIt is red.\n")
    options = StateOptions(task_file=str(file), idle=2.5, pin=["a", "b"])
    assert options.settings() == {
        "task": "Find the key.\n\nIt is red.",
        "idle_seconds": 2.5,
        "pinned": ("a", "b"),
    }
    with pytest.raises(CommandError, match="not both"):
        StateOptions(task="x", task_file=str(file)).settings()
