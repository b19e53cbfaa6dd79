"""Anthropic's memory tool: its own file system's results, its tool runner, and the history."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

from palimpsest.integrations.anthropic_memory import (
    AsyncPalimpsestMemoryTool,
    PalimpsestMemoryTool,
)
from palimpsest.integrations.memory_files import MemoryFiles
from palimpsest.sync import Client, connect

M = "/memories"
#: Commands whose results are compared with those of the package's own implementation.
COMMANDS: list[dict[str, Any]] = [
    {"command": "view", "path": f"{M}/none.md"},
    {"command": "create", "path": f"{M}/a.md", "file_text": "one\ntwo\nthree\nfour\ntwo\n"},
    {"command": "create", "path": f"{M}/a.md", "file_text": "again"},
    {"command": "create", "path": f"{M}/notes/b.md", "file_text": "'quoted' ~/x $['a'] é\r\nnext"},
    {"command": "create", "path": f"{M}/notes/empty.md", "file_text": ""},
    {"command": "view", "path": f"{M}/a.md"},
    {"command": "view", "path": f"{M}/notes/empty.md"},
    {"command": "view", "path": f"{M}/a.md", "view_range": [2, 3]},
    {"command": "view", "path": f"{M}/a.md", "view_range": [4, -1]},
    {"command": "view", "path": f"{M}/a.md", "view_range": [9, 12]},
    {"command": "str_replace", "path": f"{M}/a.md", "old_str": "three", "new_str": "3\n3b"},
    {"command": "str_replace", "path": f"{M}/a.md", "old_str": "two", "new_str": "2"},
    {"command": "str_replace", "path": f"{M}/a.md", "old_str": "absent", "new_str": "2"},
    {"command": "str_replace", "path": f"{M}/none.md", "old_str": "a", "new_str": "b"},
    {"command": "str_replace", "path": f"{M}/notes", "old_str": "a", "new_str": "b"},
    {"command": "insert", "path": f"{M}/a.md", "insert_line": 0, "insert_text": "zero\n"},
    {"command": "insert", "path": f"{M}/a.md", "insert_line": 7, "insert_text": "last"},
    {"command": "insert", "path": f"{M}/a.md", "insert_line": 99, "insert_text": "x"},
    {"command": "insert", "path": f"{M}/notes/empty.md", "insert_line": 0, "insert_text": "x"},
    {"command": "insert", "path": f"{M}/none.md", "insert_line": 0, "insert_text": "x"},
    {"command": "view", "path": f"{M}/a.md"},
    {"command": "rename", "old_path": f"{M}/a.md", "new_path": f"{M}/notes/b.md"},
    {"command": "rename", "old_path": f"{M}/none.md", "new_path": f"{M}/c.md"},
    {"command": "rename", "old_path": f"{M}/a.md", "new_path": f"{M}/deep/a.md"},
    {"command": "rename", "old_path": M, "new_path": f"{M}/c"},
    {"command": "rename", "old_path": f"{M}/notes", "new_path": f"{M}/old"},
    {"command": "view", "path": f"{M}/old/b.md"},
    {"command": "delete", "path": f"{M}/none.md"},
    {"command": "delete", "path": M},
    {"command": "delete", "path": f"{M}/old"},
    {"command": "view", "path": f"{M}/old/b.md"},
    {"command": "view", "path": "/etc/passwd"},
    {"command": "view", "path": f"{M}/../../etc/passwd"},
]


def result(tool: Any, command: dict[str, Any]) -> Any:
    """Returns what the tool runner would send: the text, and whether it is an error."""
    try:
        return tool.call(command), False
    except ToolError as error:
        return str(error), True


def test_results_are_those_of_the_package(client: Client, name: str, tmp_path: Path) -> None:
    ours = PalimpsestMemoryTool(client.session(name))
    theirs = BetaLocalFilesystemMemoryTool(str(tmp_path))
    for command in COMMANDS:
        assert result(ours, command) == result(theirs, command), command
    listed, _ = result(ours, {"command": "view", "path": M})
    expected, _ = result(theirs, {"command": "view", "path": M})
    # The documentation names node_modules, and sizes of directories are those of a disk.
    assert listed.replace(" and node_modules", "").splitlines()[0] == expected.splitlines()[0]
    names = [line.partition("\t")[2] for line in expected.splitlines()[1:]]
    shown = [line.partition("\t")[2] for line in listed.splitlines()[1:]]
    # A directory is there as long as it has a file.
    assert shown == names == [M, f"{M}/deep/", f"{M}/deep/a.md"]


def test_each_command_that_changes_something_is_a_revision(client: Client, name: str) -> None:
    session = client.session(name)
    files = MemoryFiles(session)
    files.run({"command": "view", "path": M})
    files.run({"command": "create", "path": f"{M}/a.md", "file_text": "tea"})
    files.run({"command": "str_replace", "path": f"{M}/a.md", "old_str": "tea", "new_str": "milk"})
    files.run({"command": "view", "path": f"{M}/a.md"})
    files.run({"command": "delete", "path": f"{M}/a.md"})
    memory = session.memory("files")
    made = [one for one in memory.revisions() if one.kind == "edit"]
    assert [one.comment for one in made] == [
        f'create "{M}/a.md"',
        f'str_replace "{M}/a.md"',
        f'delete "{M}/a.md"',
    ]
    memory.rollback(made[1].revision)
    assert "milk" in files.run({"command": "view", "path": f"{M}/a.md"})


def test_another_client_s_change_is_not_lost(client: Client, name: str) -> None:
    one, two = MemoryFiles(client.session(name)), MemoryFiles(client.session(name))
    one.run({"command": "create", "path": f"{M}/a.md", "file_text": "one\n"})
    read = two._read
    changed: list[str] = []

    def read_late() -> Any:
        found = read()
        if not changed:
            insert = {"command": "insert", "path": f"{M}/a.md", "insert_line": 1}
            changed.append(one.run({**insert, "insert_text": "two"}))
        return found

    two._read = read_late  # type: ignore[method-assign]
    two.run({"command": "insert", "path": f"{M}/a.md", "insert_line": 0, "insert_text": "zero"})
    shown = two.run({"command": "view", "path": f"{M}/a.md"})
    assert [line.partition("\t")[2] for line in shown.splitlines()[1:]] == [
        "zero",
        "one",
        "two",
        "",
    ]


def scripted(*calls: dict[str, Any]) -> tuple[httpx2.MockTransport, list[Any]]:
    """Returns a model that calls the tool with these inputs, and what it was asked."""
    asked: list[Any] = []

    def reply(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content))
        turn = len(asked) - 1
        content: list[dict[str, Any]] = [{"type": "text", "text": "Done."}]
        if turn < len(calls):
            use = {"type": "tool_use", "id": f"toolu_{turn}", "name": "memory"}
            content = [{**use, "input": calls[turn]}]
        message = {"id": f"msg_{turn}", "type": "message", "role": "assistant", "model": "scripted"}
        stop = "tool_use" if turn < len(calls) else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        more = {"content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}
        return httpx2.Response(200, json={**message, **more})

    return httpx2.MockTransport(reply), asked


CALLS = (
    {"command": "view", "path": M},
    {"command": "create", "path": f"{M}/tea.md", "file_text": "She likes tea."},
    {"command": "create", "path": f"{M}/tea.md", "file_text": "Twice."},
)
ASK: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Remember that I like tea."}],
}


def results(asked: list[Any]) -> list[tuple[str, bool]]:
    """Returns the results that the model was given, in the order of its calls."""
    # A request has all messages, or what is new of a thread.
    messages = [one for request in asked for one in request["messages"] if one["role"] == "user"]
    parts = [one["content"] for one in messages if isinstance(one["content"], list)]
    blocks = [block for part in parts for block in part]
    found = {one["tool_use_id"]: one for one in blocks if one["type"] == "tool_result"}
    return [(_text(one["content"]), one.get("is_error", False)) for one in found.values()]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(one["text"] for one in content)


def check(asked: list[Any]) -> None:
    assert asked[0]["tools"] == [{"type": "memory_20250818", "name": "memory"}]
    (viewed, _), created, twice = results(asked)
    assert viewed.startswith("Here're the files and directories")
    assert created == (f"File created successfully at: {M}/tea.md", False)
    assert twice == (f"File {M}/tea.md already exists", True)


def test_the_tool_runner_runs_it(client: Client, name: str) -> None:
    transport, asked = scripted(*CALLS)
    model = Anthropic(api_key="none", http_client=httpx2.Client(transport=transport))
    tool = PalimpsestMemoryTool(client.session(name))
    last = model.beta.messages.tool_runner(**ASK, tools=[tool]).until_done()
    assert last.content[0].text == "Done."
    check(asked)


async def test_the_async_tool_runner_runs_it(client: Client, name: str) -> None:
    transport, asked = scripted(*CALLS)
    model = AsyncAnthropic(api_key="none", http_client=httpx2.AsyncClient(transport=transport))
    tool = AsyncPalimpsestMemoryTool(client.session(name))
    await model.beta.messages.tool_runner(**ASK, tools=[tool]).until_done()
    check(asked)


def test_while_the_service_is_away_the_model_reads_so() -> None:
    with connect("127.0.0.1:1", reach_seconds=0.1) as away:
        said, is_error = result(PalimpsestMemoryTool(away.session("a")), CALLS[0])
    assert is_error
    assert said.startswith("The memory is not available: cannot reach Palimpsest")


@pytest.mark.parametrize("given", [{}, {"command": "format"}, {"command": "view", "path": 5}])
def test_calls_that_are_none(client: Client, name: str, given: dict[str, Any]) -> None:
    tool = PalimpsestMemoryTool(client.session(name))
    with pytest.raises((ToolError, NotImplementedError, AttributeError)):
        tool.call(given)
