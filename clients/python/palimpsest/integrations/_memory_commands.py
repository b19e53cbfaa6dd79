"""The commands of Anthropic's memory tool, on plain values: paths within /memories, and texts.

Results and errors have the words of the tool's documentation, which models know.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

ROOT = "/memories"
#: Bytes of one file and of all of them, as JSON, and characters of a path.
MAX_FILE_BYTES = 64 * 1024
MAX_BYTES = 1024 * 1024
MAX_PATH_CHARACTERS = 500
#: Files that there may be.
MAX_FILES = 200

_NUMBER_WIDTH = 6
#: Directories below the viewed one whose files are listed.
_DEPTH = 2
#: Lines of a changed file that are shown before the change and after it.
_AROUND = 2
_UNITS = ("B", "K", "M", "G")

#: Texts by their paths, without ROOT and without a slash at the beginning.
Files = dict[str, str]
Given = Mapping[str, Any]
#: What the model reads, and the files after the command; None: they stay as they are.
Result = tuple[str, Files | None]


class CommandRefused(Exception):
    """A command that cannot be done; the message is for the model."""


def view(files: Files, given: Given) -> Result:
    """Shows a directory, or a file with numbers of lines."""
    path, shown = _path(given, "path")
    if path in files:
        return _numbered(files[path], shown, given.get("view_range")), None
    if path and not _below(files, path):
        raise CommandRefused(f"The path {shown} does not exist. Please provide a valid path.")
    return _listing(files, path, shown), None


def create(files: Files, given: Given) -> Result:
    """Makes a file that does not exist yet."""
    path, shown = _path(given, "path")
    text = _text(given, "file_text")
    if not path or path in files or _below(files, path):
        raise CommandRefused(f"File {shown} already exists")
    _check_parents(files, path)
    return f"File created successfully at: {shown}", _with(files, {path: text})


def str_replace(files: Files, given: Given) -> Result:
    """Replaces a text that a file has exactly once."""
    path, shown = _file(files, given)
    old, new, content = _text(given, "old_str"), _text(given, "new_str", ""), files[path]
    count = content.count(old) if old else 0
    if not count:
        raise CommandRefused(
            f"No replacement was performed, old_str `{old}` did not appear verbatim in {shown}."
        )
    if count > 1:
        found = ", ".join(str(one) for one in _lines_of(content, old))
        raise CommandRefused(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines:"
            f" {found}. Please ensure it is unique"
        )
    at = content[: content.find(old)].count("\n")
    changed = content.replace(old, new)
    lines = changed.split("\n")
    first = max(0, at - _AROUND)
    snippet = _numbers(lines[first : at + _AROUND + 1], first + 1)
    said = "The memory file has been edited. Here is the snippet showing the change"
    return f"{said} (with line numbers):\n{snippet}", _with(files, {path: changed})


def insert(files: Files, given: Given) -> Result:
    """Inserts lines after a line of a file; 0: before the first."""
    path, shown = _file(files, given)
    lines = files[path].split("\n")
    if not lines[-1]:
        lines.pop()
    at = given.get("insert_line")
    if not isinstance(at, int) or not 0 <= at <= len(lines):
        raise CommandRefused(
            f"Invalid `insert_line` parameter: {at}. It should be within the range"
            f" [0, {len(lines)}]."
        )
    lines.insert(at, _text(given, "insert_text").rstrip("\n"))
    changed = "\n".join(lines)
    changed += "" if changed.endswith("\n") else "\n"
    return f"The file {shown} has been edited.", _with(files, {path: changed})


def delete(files: Files, given: Given) -> Result:
    """Removes a file, or a directory with all that is in it."""
    path, shown = _path(given, "path")
    if not path:
        raise CommandRefused(f"Cannot delete the {ROOT} directory itself")
    gone = {path} if path in files else set(_below(files, path))
    if not gone:
        raise CommandRefused(f"The path {shown} does not exist")
    kept = {one: text for one, text in files.items() if one not in gone}
    return f"Successfully deleted {shown}", kept


def rename(files: Files, given: Given) -> Result:
    """Moves a file or a directory to a path that does not exist yet."""
    (old, old_shown), (new, new_shown) = _path(given, "old_path"), _path(given, "new_path")
    if not old:
        raise CommandRefused(f"Cannot rename the {ROOT} directory itself")
    if not new or new in files or _below(files, new):
        raise CommandRefused(f"The destination {new_shown} already exists")
    moved = [old] if old in files else _below(files, old)
    if not moved:
        raise CommandRefused(f"The path {old_shown} does not exist")
    if f"{new}/".startswith(f"{old}/"):
        raise CommandRefused(f"The destination {new_shown} is within {old_shown}")
    kept = {one: text for one, text in files.items() if one not in moved}
    _check_parents(kept, new)
    after = _with(kept, {new + one[len(old) :]: files[one] for one in moved})
    return f"Successfully renamed {old_shown} to {new_shown}", after


COMMANDS: Mapping[str, Callable[[Files, Given], Result]] = {
    "view": view,
    "create": create,
    "str_replace": str_replace,
    "insert": insert,
    "delete": delete,
    "rename": rename,
}


def _path(given: Given, name: str) -> tuple[str, str]:
    """Returns a path without ROOT, and as it was given. Raises CommandRefused."""
    shown = given.get(name)
    if not isinstance(shown, str) or not f"{shown}/".startswith(f"{ROOT}/"):
        raise CommandRefused(f"Path must start with {ROOT}, got: {shown}")
    if len(shown) > MAX_PATH_CHARACTERS or not shown.isprintable():
        raise CommandRefused(
            f"A path has at most {MAX_PATH_CHARACTERS} characters, all of them printable"
        )
    parts = [one for one in shown[len(ROOT) :].split("/") if one]
    # As they are and as another program might decode them: the files may be exported.
    plain = [one.lower().replace("%2e", ".").replace("%2f", "/") for one in parts]
    if any(one in (".", "..") or "/" in one or "\\" in one for one in plain):
        raise CommandRefused(f"Path {shown} would escape {ROOT} directory")
    return "/".join(parts), shown


def _file(files: Files, given: Given) -> tuple[str, str]:
    path, shown = _path(given, "path")
    if path not in files:
        if not path or _below(files, path):
            raise CommandRefused(f"The path {shown} is not a file.")
        raise CommandRefused(f"The path {shown} does not exist. Please provide a valid path.")
    return path, shown


def _text(given: Given, name: str, default: str | None = None) -> str:
    text = given.get(name, default)
    if not isinstance(text, str):
        raise CommandRefused(f"Missing `{name}` parameter: send a text")
    if "\0" in text or any("\ud800" <= one <= "\udfff" for one in text):
        raise CommandRefused(f"`{name}` has characters that no text has")
    return text


def _below(files: Files, path: str) -> list[str]:
    return [one for one in files if one.startswith(f"{path}/")]


def _check_parents(files: Files, path: str) -> None:
    parts = path.split("/")
    for end in range(1, len(parts)):
        if (parent := "/".join(parts[:end])) in files:
            raise CommandRefused(f"The path {ROOT}/{parent} is not a directory.")


def _with(files: Files, changed: Files) -> Files:
    """Returns the files after a change. Raises CommandRefused for too much."""
    after = {**files, **changed}
    sizes = {
        path: len(json.dumps(text, ensure_ascii=False).encode()) for path, text in after.items()
    }
    if any(sizes[path] > MAX_FILE_BYTES for path in changed):
        raise CommandRefused(f"A file has at most {MAX_FILE_BYTES} bytes: split it")
    if len(after) > MAX_FILES or sum(sizes.values()) > MAX_BYTES:
        raise CommandRefused(
            f"There is no room: at most {MAX_FILES} files of {MAX_BYTES} bytes together, so delete"
            " what is not needed"
        )
    return after


def _json_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode())


def _lines_of(content: str, old: str) -> list[int]:
    found, at = [], content.find(old)
    while at != -1:
        found.append(content[:at].count("\n") + 1)
        at = content.find(old, at + 1)
    return found


def _numbered(content: str, shown: str, view_range: Any) -> str:
    lines, first = content.split("\n"), 1
    if isinstance(view_range, list | tuple) and len(view_range) == 2:
        start, end = view_range
        first = max(1, start)
        lines = lines[first - 1 : None if end == -1 else end]
    return f"Here's the content of {shown} with line numbers:\n{_numbers(lines, first)}"


def _numbers(lines: list[str], first: int) -> str:
    return "\n".join(
        f"{number:>{_NUMBER_WIDTH}}\t{line}" for number, line in enumerate(lines, start=first)
    )


def _listing(files: Files, path: str, shown: str) -> str:
    sizes: dict[tuple[str, ...], int] = {}
    directories: set[tuple[str, ...]] = set()
    total = 0
    for one in files if not path else _below(files, path):
        inner = one[len(path) :].strip("/").split("/")
        size = len(files[one].encode())
        total += size
        for end in range(1, min(len(inner), _DEPTH) + 1):
            key = tuple(inner[:end])
            if any(name.startswith(".") or name == "node_modules" for name in key):
                break
            sizes[key] = sizes.get(key, 0) + size
            if end < len(inner):
                directories.add(key)
    header = f"Here're the files and directories up to {_DEPTH} levels deep in {shown}"
    lines = [f"{header}, excluding hidden items and node_modules:", f"{_size(total)}\t{shown}"]
    for key in sorted(sizes):
        slash = "/" if key in directories else ""
        lines.append(f"{_size(sizes[key])}\t{shown}/{'/'.join(key)}{slash}")
    return "\n".join(lines)


def _size(count: int) -> str:
    if not count:
        return "0B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS) - 1)
    size = count / 1024**power
    return f"{int(size)}{_UNITS[power]}" if size == int(size) else f"{size:.1f}{_UNITS[power]}"
