"""The files of Anthropic's memory tool, in a memory that is edited by hand.

It needs no other package: `MemoryFiles.run` takes the input of a call of the tool. With the package
`anthropic`, `palimpsest.integrations.anthropic_memory` has classes for its tool runner.
"""

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from palimpsest._errors import Aborted, AlreadyExists, NotFound, PalimpsestError
from palimpsest._history import Edit
from palimpsest.integrations._memory_commands import COMMANDS, CommandRefused, Files
from palimpsest.sync import Session

#: How often a command is tried again when another client has changed the files meanwhile.
TRIES = 5
#: The memory's schema: the path of each file within /memories, and its text.
_SCHEMA = '''
class Files:
    files: dict[str, str]
    """The texts of files, by their paths."""
'''
_COMMENT_CHARACTERS = 200


class MemoryFiles:
    """The directory /memories of one session.

        files = MemoryFiles(client.session("alice-files"))
        result = files.run({"command": "view", "path": "/memories"})

    Use a session of its own: the memory would also read what is appended to its session. Each
    command that changes something is one revision of the memory, which `Memory.revisions` lists and
    `Memory.rollback` restores.
    """

    def __init__(self, session: Session, memory: str = "files") -> None:
        """The session and the memory are made by the first command that writes."""
        self._session = session
        self._memory = session.memory(memory)

    def run(self, given: Mapping[str, Any]) -> str:
        """Returns the result of a command, as the tool's documentation has it.

        Raises CommandRefused, with the documented message, and PalimpsestError.
        """
        command = COMMANDS.get(str(given.get("command")))
        if command is None:
            raise CommandRefused(f"Unknown command: use one of {', '.join(COMMANDS)}")
        for left in reversed(range(TRIES)):
            files, revision = self._read()
            result, changed = command(files, given)
            if changed is None:
                return result
            try:
                self._write(files, changed, revision, given)
            except Aborted as error:
                # Another client was first: the command is applied to what is there now.
                if error.reason != "REVISION_CONFLICT" or not left:
                    raise
            else:
                return result
        raise AssertionError("the last try returns or raises")

    def clear(self) -> str:
        """Removes all files, as one revision."""
        files, revision = self._read()
        self._write(files, {}, revision, {"command": "clear"})
        return "All memory cleared"

    def _read(self) -> tuple[Files, int | None]:
        try:
            state = self._memory.get()
        except NotFound as error:
            if error.reason not in ("SESSION_NOT_FOUND", "MEMORY_NOT_FOUND"):
                raise
            return {}, None
        return dict(state.value.get("files", {})), state.revision

    def _write(
        self, before: Files, after: Files, revision: int | None, given: Mapping[str, Any]
    ) -> None:
        edits = [Edit.remove(_pointer(one)) for one in before if one not in after]
        edits += [
            Edit.put(_pointer(one), text) for one, text in after.items() if before.get(one) != text
        ]
        if not edits:
            return
        if revision is None:
            revision = self._create()
        about = json.dumps(given.get("path") or given.get("old_path", ""), ensure_ascii=False)
        comment = f"{given['command']} {about}"[:_COMMENT_CHARACTERS]
        self._memory.edit(
            edits, expected_revision=revision, comment=comment, request_id=uuid4().hex
        )

    def _create(self) -> int:
        """Makes what is missing; returns the revision of a memory without files."""
        self._session.create(exist_ok=True, default_memory=False)
        try:
            self._session.create_memory(self._memory.id, _SCHEMA)
        except AlreadyExists as error:
            if error.reason != "MEMORY_EXISTS":
                raise
            # Made by another client meanwhile; an edit that finds files there is a conflict.
        return 0


def said(error: PalimpsestError | ValueError) -> str:
    """Returns what a model reads of an error that is none of its own."""
    return f"The memory is not available: {error}"


def _pointer(path: str) -> str:
    return "/files/" + path.replace("~", "~0").replace("/", "~1")
