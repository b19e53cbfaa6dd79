"""Writes release notes: the changelog's text, and what an upgrade changes."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
)

UNRELEASED = "## Unreleased"
_SETTINGS = (
    "import json; from service.settings.environment import known_names;"
    " print(json.dumps(sorted(known_names())))"
)


def unreleased(changelog: str) -> str:
    """Returns what the changelog says of what is not released yet; may be empty."""
    _, found, after = changelog.partition(f"{UNRELEASED}\n")
    body = re.split(r"^## ", after, maxsplit=1, flags=re.MULTILINE)[0].strip() if found else ""
    # Headings alone say nothing.
    return body if re.search(r"^[^#\s]", body, re.MULTILINE) else ""


def released(changelog: str, version: str, day: str) -> str:
    """Returns the changelog with that under the name of its version."""
    return changelog.replace(f"{UNRELEASED}\n", f"{UNRELEASED}\n\n## {version} - {day}\n", 1)


def write(version: str, changes: str, tree: Path, before: Path | None, since: str | None) -> str:
    """Returns the notes of a version, whose tree and that of the tag `since` are given."""
    parts = [f"# Palimpsest {version}", changes]
    if before is None:
        parts.append("## Upgrading\n\nThis is the first release.")
    else:
        said = "\n\n".join(f"### {name}\n\n{lines}" for name, lines in _upgrading(tree, before))
        parts.append(f"## Upgrading from {since}\n\n{said or 'Nothing but the packages changes.'}")
    return "\n\n".join(parts) + "\n"


def _upgrading(tree: Path, before: Path) -> Iterator[tuple[str, str]]:
    for name, lists in (
        ("Migrations (`palimpsest migrate`, before the new processes)", _migrations),
        ("Settings", _settings),
        ("API (`palimpsest.v1`)", _api),
    ):
        old, new = set(lists(before)), set(lists(tree))
        added = [f"- new: {one}" for one in sorted(new - old)]
        gone = [f"- gone: {one}" for one in sorted(old - new)]
        if lines := gone + added:
            yield name, "\n".join(lines)


def _migrations(tree: Path) -> Iterator[str]:
    for path in (tree / "migrations/versions").glob("[0-9]*.py"):
        said = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()
        yield f"{path.stem[:4]}: {said[0] if said else path.stem[5:].replace('_', ' ')}"


def _settings(tree: Path) -> Iterable[str]:
    done = subprocess.run(
        [sys.executable, "-c", _SETTINGS],
        cwd=tree,
        env={"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [f"`PALIMPSEST_{name}`" for name in json.loads(done.stdout)]


def _api(tree: Path) -> Iterator[str]:
    files = FileDescriptorSet.FromString((tree / "proto/baseline.binpb").read_bytes())
    for file in files.file:
        if not file.package.startswith("palimpsest."):
            continue
        for service in file.service:
            yield from (f"`{service.name}.{one.name}`" for one in service.method)
        yield from _of_enums(file.enum_type, "")
        for message in file.message_type:
            yield from _of_message(message, "")


def _of_message(message: DescriptorProto, above: str) -> Iterator[str]:
    name = f"{above}{message.name}"
    # With its number and type, so that a change of these is seen.
    for one in message.field:
        scalar = FieldDescriptorProto.Type.Name(one.type).removeprefix("TYPE_").lower()
        of = one.type_name.rpartition(".")[2] or scalar
        yield f"`{name}.{one.name}` ({of}, {one.number})"
    yield from _of_enums(message.enum_type, f"{name}.")
    for nested in message.nested_type:
        if not nested.options.map_entry:
            yield from _of_message(nested, f"{name}.")


def _of_enums(enums: Iterable[EnumDescriptorProto], above: str) -> Iterator[str]:
    for enum in enums:
        yield from (f"`{above}{enum.name}`: `{one.name}`" for one in enum.value)
