"""Removes what a user asks to forget: lists it first, and only within the scope."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from palimpsest import Chunk, ChunkFilterOptions, Forgotten, NotFound, PositionRange
from service.mcp.rendering import (
    DATA,
    MAX_SOURCE_CHARACTERS,
    chunk_text,
    counted,
    ranges_text,
)
from service.mcp.scope import ToolScope
from service.mcp.tools import MAX_FORGOTTEN, MIN_FORGOTTEN_CHARACTERS, WrongArguments

_NOTHING = "Nothing was removed: no chunk here"
#: What is kept with the record of a removal.
_REASON = "requested by a tool"


async def forget(scope: ToolScope, given: Mapping[str, Any]) -> str:
    """Removes chunks and what was derived from them; says what it removed, and what it did not."""
    text, positions = given.get("text", ""), given.get("positions", [])
    _check(text, positions)
    try:
        found = await _matching(scope, text, positions)
    except NotFound as error:
        if error.reason != "SESSION_NOT_FOUND":
            raise
        found = []
    chunks = [one for one in found if one.redaction is None]
    if not chunks:
        what = "contains that text" if text else "is at these positions with content"
        return f"{_NOTHING} {what}.{_other_threads(scope)}"
    if given.get("dry_run"):
        shown = "\n".join(chunk_text(one, MAX_SOURCE_CHARACTERS) for one in chunks)
        return f"Nothing was removed. {DATA} It would remove:\n{shown}"
    # By position: a text would match other threads, and what was stored since it was listed.
    done = await scope.session.forget(
        positions=[one.position for one in chunks],
        reason=_REASON,
        # What is kept out is kept out of all threads.
        keep_out=bool(text) and not scope.thread,
        request_id=uuid4().hex,
    )
    return _said(done)


def _check(text: str, positions: list[int]) -> None:
    if bool(text) == bool(positions):
        raise WrongArguments("forget takes either text or positions")
    if text and len(text.strip()) < MIN_FORGOTTEN_CHARACTERS:
        raise WrongArguments(
            f"text is too short: send at least {MIN_FORGOTTEN_CHARACTERS} characters, or positions"
        )
    if any(one < 1 for one in positions):
        raise WrongArguments("positions begin at 1: recall shows them in brackets")


async def _matching(scope: ToolScope, text: str, positions: list[int]) -> list[Chunk]:
    """Returns the chunks of the scope that are meant. Raises WrongArguments for too many."""
    ranges: Sequence[PositionRange]
    if text:
        ranges = (await scope.session.forget(text=text, dry_run=True, keep_out=False)).positions
    else:
        ranges = [PositionRange(first=one, last=one) for one in sorted(set(positions))]
    within: ChunkFilterOptions = {"threads": [scope.thread]} if scope.thread else {}
    found: list[Chunk] = []
    for one in ranges:
        async for chunk in scope.session.chunks(
            from_position=one.first, to_position=one.last, **within
        ):
            found.append(chunk)
            if len(found) > MAX_FORGOTTEN:
                raise WrongArguments(
                    f"more than {MAX_FORGOTTEN} chunks match, and one call removes at most"
                    f" {MAX_FORGOTTEN}: send a longer text, or positions"
                )
    return found


def _said(done: Forgotten) -> str:
    said = f"Removed the content of {counted(done.chunks, 'chunk')}"
    said += f" ({ranges_text(done.positions)}) and what memories wrote since they read it."
    if done.operation is not None and done.operation.state != "done":
        said += " Memories now read the rest again; until then they may lack later facts."
    if done.undone_edit_count:
        said += f" {counted(done.undone_edit_count, 'edit')} by hand went with it."
    return f"{said} Earlier edits by hand stay: check get_memory."


def _other_threads(scope: ToolScope) -> str:
    return " Only this thread was searched." if scope.thread else ""
