"""The commands of Anthropic's memory tool, without a service."""

import json
from typing import Any

import pytest

from palimpsest.integrations._memory_commands import (
    COMMANDS,
    MAX_FILE_BYTES,
    MAX_FILES,
    CommandRefused,
    Files,
)

FILES: Files = {"a.md": "one\ntwo\none\n", "notes/b.md": "x", "notes/deep/er/c.md": "y" * 1536}


def done(command: str, **given: Any) -> tuple[str, Files | None]:
    return COMMANDS[command](FILES, given)


def refused(command: str, **given: Any) -> str:
    with pytest.raises(CommandRefused) as error:
        COMMANDS[command](FILES, given)
    return str(error.value)


@pytest.mark.parametrize(
    "path",
    [
        "",
        None,
        5,
        "/",
        "/etc/passwd",
        "/memoriesx",
        "memories/a.md",
        "/memories/../etc/passwd",
        "/memories/notes/../../etc",
        "/memories/./a.md",
        "/memories/%2e%2e/etc",
        "/memories/..%2Fetc",
        "/memories/..\\etc",
        "/memories/a\x00b",
        "/memories/a\nb",
        "/memories/" + "x" * 500,
    ],
)
@pytest.mark.parametrize("command", list(COMMANDS))
def test_paths_outside_are_refused(command: str, path: Any) -> None:
    names = ("path", "old_path", "new_path")
    given = {"file_text": "", "old_str": "x", "new_str": "", "insert_line": 0, "insert_text": ""}
    said = refused(command, **dict.fromkeys(names, path), **given)
    assert said.startswith(("Path must start with /memories", "Path /memories/", "A path has"))


def test_a_directory_shows_two_levels_and_nothing_hidden() -> None:
    files = {**FILES, ".git/x": "x", "node_modules/y": "y", "notes/.hidden": "z"}
    shown, changed = COMMANDS["view"](files, {"path": "/memories"})
    assert changed is None
    assert shown.splitlines() == [
        "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items"
        " and node_modules:",
        "1.5K\t/memories",
        "12B\t/memories/a.md",
        "1.5K\t/memories/notes/",
        "1B\t/memories/notes/b.md",
        "1.5K\t/memories/notes/deep/",
    ]
    assert COMMANDS["view"]({}, {"path": "/memories"})[0].splitlines()[1:] == ["0B\t/memories"]


def test_what_changes_returns_the_files_after_it() -> None:
    _, renamed = done("rename", old_path="/memories/notes", new_path="/memories/old/notes")
    assert renamed is not None
    assert sorted(renamed) == ["a.md", "old/notes/b.md", "old/notes/deep/er/c.md"]
    _, deleted = done("delete", path="/memories/notes")
    assert deleted == {"a.md": FILES["a.md"]}
    assert sorted(FILES) == ["a.md", "notes/b.md", "notes/deep/er/c.md"]


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        (
            "create",
            {"path": "/memories/a.md", "file_text": ""},
            "a.md already exists",
        ),
        ("create", {"path": "/memories/notes", "file_text": ""}, "already exists"),
        ("create", {"path": "/memories", "file_text": ""}, "already exists"),
        ("create", {"path": "/memories/a.md/b", "file_text": ""}, "is not a directory"),
        ("create", {"path": "/memories/b"}, "Missing `file_text`"),
        ("create", {"path": "/memories/b", "file_text": "a\0"}, "characters that no text has"),
        ("create", {"path": "/memories/b", "file_text": "\udc80"}, "characters that no text has"),
        ("create", {"path": "/memories/b", "file_text": "x" * MAX_FILE_BYTES}, "at most 65536"),
        (
            "str_replace",
            {"path": "/memories/a.md", "old_str": "", "new_str": "x"},
            "did not appear",
        ),
        ("str_replace", {"path": "/memories/notes", "old_str": "x"}, "is not a file"),
        ("insert", {"path": "/memories/a.md", "insert_line": "1"}, "Invalid `insert_line`"),
        ("rename", {"old_path": "/memories/notes", "new_path": "/memories/notes/x"}, "is within"),
        ("rename", {"old_path": "/memories/a.md", "new_path": "/memories/notes"}, "already exists"),
    ],
)
def test_what_cannot_be_done(command: str, given: dict[str, Any], said: str) -> None:
    assert said in refused(command, **given)


def test_files_have_a_limit() -> None:
    full = {f"{number}.md": "" for number in range(MAX_FILES)}
    with pytest.raises(CommandRefused, match="There is no room"):
        COMMANDS["create"](full, {"path": "/memories/more", "file_text": ""})
    large = {f"{number}.md": "x" * 65_000 for number in range(16)}
    assert len(json.dumps(large)) < 1024 * 1024 + 1000
    with pytest.raises(CommandRefused, match="delete what is not needed"):
        COMMANDS["create"](large, {"path": "/memories/more", "file_text": "x" * 65_000})
