"""What the tools do, within a scope. Each returns a text for the model."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

import palimpsest
from palimpsest import Chunk, Edit, NotFound
from service.mcp.rendering import (
    DATA,
    MAX_CHUNK_CHARACTERS,
    MAX_SOURCE_CHARACTERS,
    chunk_text,
    pointer,
    progress_text,
    ranges_text,
    said_of,
    value_text,
)
from service.mcp.scope import SOURCE, ToolScope
from service.mcp.tools import (
    MAX_RECALL_TOKENS,
    RECALL_TOKENS,
    WrongArguments,
)

_NOTHING = "Nothing is remembered here yet."
#: Seconds that memories have to read what is remembered, if the model waits for them.
WAIT_SECONDS = 45.0
#: Changes of an entry that are shown, and chunks that each of them read.
_MAX_CHANGES, _MAX_CHUNKS = 5, 3
#: The budget of entries whose trust is looked up: more than a memory has that is shown whole.
_TRUST_TOKENS = 100_000
_DEFAULT = "default"

Arguments = Mapping[str, Any]
Call = Callable[[ToolScope, Arguments], Awaitable[str]]


async def remember(scope: ToolScope, given: Arguments) -> str:
    """Stores a text; it is durable when this returns."""
    if not given["text"].strip():
        raise WrongArguments("text is empty: send what is to be remembered")
    labels: dict[str, Any] = {
        "source": SOURCE,
        **({"thread": scope.thread} if scope.thread else {}),
    }
    request_id, waits = uuid4().hex, bool(given.get("wait"))
    stored = await scope.session.remember(given["text"], request_id=request_id, **labels)
    assert stored.positions is not None, "there is a text"
    said = f"Remembered, durably, at position {ranges_text([stored.positions])}."
    if not waits:
        return said
    try:
        await scope.session.flush()
        # The same once more: it stores nothing, and waits.
        await scope.session.remember(
            given["text"], request_id=request_id, wait=True, timeout=WAIT_SECONDS, **labels
        )
    except palimpsest.PalimpsestError as error:
        return f"{said} Not all memories have read it yet, and do so later: {error}"
    return f"{said} All memories have read it."


async def recall(scope: ToolScope, given: Arguments) -> str:
    """Returns what fits a query."""
    tokens = given.get("tokens", RECALL_TOKENS)
    if not 1 <= tokens <= MAX_RECALL_TOKENS:
        raise WrongArguments(f"tokens is {tokens}: send 1 to {MAX_RECALL_TOKENS}")
    found = await scope.session.recall(given["query"], tokens=tokens)
    if not found:
        return _NOTHING if not found.read_point.read_token else "Nothing fits within the budget."
    unverified = [
        f"[{one.positions.first}]" if one.section != "memory" and one.positions else _keys(one.path)
        for one in found.parts
        if one.trust != "trusted"
    ]
    return "\n\n".join(filter(None, (DATA, said_of(unverified), found.text)))


async def get_memory(scope: ToolScope, given: Arguments) -> str:
    """Returns a memory, or one of its entries."""
    memory = scope.session.memory(given.get("memory", _DEFAULT))
    state = await _existing(scope, memory.get())
    if isinstance(state, str):
        return state
    path = pointer(given.get("path", ""))
    value: Any = state.value
    prefix = ""
    if path:
        entry = await memory.provenance(path)
        if not entry.exists:
            return f"There is no entry at {entry.path}: get_memory without a path shows all."
        value, prefix = entry.value, entry.path
    unverified = await _unverified(scope, memory.id, prefix) if state.info.kind == "prism" else []
    parts = (progress_text(state.info), DATA, said_of(unverified), value_text(value))
    return "\n".join(filter(None, parts))


async def why(scope: ToolScope, given: Arguments) -> str:
    """Returns the sources of an entry, or a chunk."""
    if ("path" in given) == ("position" in given):
        raise WrongArguments("why takes either path or position")
    if "position" in given:
        chunk = await scope.session.chunk(given["position"])
        return f"{DATA}\n{chunk_text(chunk, MAX_CHUNK_CHARACTERS)}"
    memory = scope.session.memory(given.get("memory", _DEFAULT))
    entry = await _existing(scope, memory.provenance(pointer(given["path"])))
    if isinstance(entry, str):
        return entry
    now = value_text(entry.value) if entry.exists else "it has no value now"
    lines = [DATA, f"{entry.path}: {now}"]
    changes = 0
    async for one in entry:
        changes += 1
        if changes > _MAX_CHANGES:
            lines.append("Older changes are not shown.")
            break
        said = f"Revision {one.revision.revision} ({one.amendment.kind}, {one.amendment.op})"
        lines.append(f"{said}, {one.amendment.created_at:%Y-%m-%d %H:%M} UTC, read:")
        chunks = sorted(one.chunks, key=lambda chunk: chunk.position != one.best_position)
        lines += [f"- {_source(chunk)}" for chunk in chunks[:_MAX_CHUNKS]] or ["- no source"]
        if len(chunks) > _MAX_CHUNKS or one.chunks_truncated:
            lines.append("- and others; why with a position shows one")
    if not changes:
        lines.append("No change is recorded for it.")
    return "\n".join(lines)


async def list_memories(scope: ToolScope, _: Arguments) -> str:
    """Returns the memories of the session."""
    try:
        found = [progress_text(one) for one in await scope.session.memories()]
    except NotFound as error:
        if error.reason != "SESSION_NOT_FOUND":
            raise
        found = []
    return "\n".join(found) or _NOTHING


async def edit_memory(scope: ToolScope, given: Arguments) -> str:
    """Sets or removes an entry by hand."""
    memory = scope.session.memory(given.get("memory", _DEFAULT))
    path = pointer(given["path"])
    edit = Edit.put(path, given["value"]) if "value" in given else Edit.remove(path)
    edited = await memory.edit([edit], comment="by a tool", request_id=uuid4().hex)
    return f"Done: revision {edited.info.revision} of memory {memory.id}."


async def rollback_memory(scope: ToolScope, given: Arguments) -> str:
    """Restores an earlier revision."""
    memory = scope.session.memory(given.get("memory", _DEFAULT))
    done = await memory.rollback(given["revision"], comment="by a tool", request_id=uuid4().hex)
    return f"Done: revision {done.revision} of memory {memory.id} is as {given['revision']} was."


async def _existing(scope: ToolScope, read: Awaitable[Any]) -> Any:
    """Returns what is read, or a text if there is no such session or memory."""
    try:
        return await read
    except NotFound as error:
        if error.reason == "SESSION_NOT_FOUND":
            return _NOTHING
        if error.reason != "MEMORY_NOT_FOUND":
            raise
        said = str(error)
    names = [one.id for one in await scope.session.memories()]
    if not names:
        return "There is no memory yet: recall reads what was remembered as it was said."
    return f"{said}. There are: {', '.join(names)}"


async def _unverified(scope: ToolScope, memory: str, prefix: str) -> list[str]:
    """Returns the entries of a memory that rest on sources that are not verified."""
    found = await scope.session.recall(
        tokens=_TRUST_TOKENS, memories=[memory], sections=["memory"], mode="words"
    )
    return [
        _keys(one.path)
        for one in found.parts
        if one.trust != "trusted" and (one.path.startswith(prefix) or prefix.startswith(one.path))
    ]


def _source(chunk: Chunk) -> str:
    return chunk_text(chunk, MAX_SOURCE_CHARACTERS)


def _keys(path: str) -> str:
    """Returns the keys of a normalized path, as recall shows them."""
    inner = path.removeprefix("$").removeprefix("[").removesuffix("]")
    return " / ".join(one.strip("'") for one in inner.split("]["))
