"""The list of tools: its cost in each prompt, and its stable bytes."""

import json
import re
from typing import Any

import pytest

from service.llm.providers.facts import Facts
from service.mcp.rendering import pointer, value_text
from service.mcp.tools import WrongArguments, listed, taken
from service.settings.config import Config
from service.settings.mcp_tools import ADMIN_TOOLS, DEFAULT_TOOLS, TOOLS, checked

#: Of all default tools together, as JSON, with the vocabulary of current models of OpenAI's.
MAX_TOKENS = 900


def as_json(names: tuple[str, ...]) -> str:
    found = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in listed(names)]
    return json.dumps(found, separators=(",", ":"))


def test_the_default_tools_are_short() -> None:
    count = Facts(Config()).of("openai/gpt-4o").count
    tokens = count(as_json(DEFAULT_TOOLS))
    assert 100 < tokens <= MAX_TOKENS


def test_the_order_is_not_that_of_the_setting() -> None:
    assert as_json(tuple(reversed(TOOLS))) == as_json(TOOLS)
    assert [one.name for one in listed(("forget", "recall"))] == ["recall", "forget"]


def test_models_choose_no_session() -> None:
    for one in listed(TOOLS):
        assert not {"session", "thread", "tenant", "user"} & set(one.input_schema["properties"])


def test_what_destroys_says_so() -> None:
    hints = {one.name: one.annotations for one in listed(TOOLS)}
    destroying = [name for name, one in hints.items() if one is not None and one.destructive_hint]
    assert destroying == ["forget"]
    reading = [name for name, one in hints.items() if one is not None and one.read_only_hint]
    assert reading == ["recall", "get_memory", "why", "list_memories"]


def test_names_of_settings() -> None:
    assert checked((*DEFAULT_TOOLS, *ADMIN_TOOLS)) == TOOLS
    with pytest.raises(ValueError, match="no tool 'forgets': the tools are remember"):
        checked(("forgets",))


def test_whole_numbers_are_integers() -> None:
    found = taken("forget", {"positions": [1.0, 2], "dry_run": True})
    assert json.dumps(found) == '{"positions": [1, 2], "dry_run": true}'
    assert repr(taken("why", {"position": 3.0})) == "{'position': 3}"
    # What an entry is set to stays as it is.
    assert repr(taken("edit_memory", {"path": "x", "value": 1.0})["value"]) == "1.0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"positions": [1] * 500_000}, "positions has 500000 items: send at most 20"),
        ({"text": ["x"] * 21}, "text has 21 items"),
        ({"positions": [1e300]}, "positions is no number of 64 bits"),
        ({"positions": [1.5]}, "1.5 is not of type 'integer'"),
    ],
)
def test_arguments_out_of_bounds(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongArguments, match=re.escape(said)):
        taken("forget", arguments)


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("", ""),
        ("$['a']['b']", "$['a']['b']"),
        ("/a/b", "/a/b"),
        ("a / b", "/a/b"),
        ("a", "/a"),
        ("a~b / c/d / 0", "/a~0b/c~1d/0"),
    ],
)
def test_paths_may_be_as_recall_shows_them(path: str, read: str) -> None:
    assert pointer(path) == read


def test_a_long_value_is_an_outline() -> None:
    text = value_text({"long\nkey": "x" * 30_000, "b": 1})
    assert text.splitlines()[1:] == ["long", "  key: 30002 characters", "b: 1 characters"]
    assert value_text({"b": 1}) == '{"b": 1}'
