"""Composes what fits a query of a session's memories and log into one text within a budget.

The text has up to three sections, each only where it has something: what memories know, oldest
entries first; the chunks that fit best, by position; the newest chunks that no memory has read.
So it changes at its end first, and a provider's prefix cache keeps the rest.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from service.domain.access.trust import Trust
from service.domain.answers.citations import best_excerpt
from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.prompting.tokens import TOKEN_BYTES, estimate_tokens

#: Shares of the budget that memories, and the newest chunks, take before the best chunks do.
#: What a section leaves over goes to the others.
MEMORY_SHARE = 0.5
UNREAD_SHARE = 0.25
#: The first where a memory does not fit into it: the lower an entry ranks, the less it is worth.
ENTRIES_SHARE = 0.25
#: The second where there is no memory, so that all chunks are unread.
NEWEST_SHARE = 0.1
#: The most of what is left when its turn comes that one of the best chunks takes whole.
WHOLE_SHARE = 0.7
#: What a longer one takes, of which the part that fits best is shown.
CHUNK_SHARE = 0.5
#: Chunks are not cut to less, in bytes.
LEAST_BYTES = 160

#: A shorter text may mean something else elsewhere: it is no repetition because it is the same.
TELLING_CHARACTERS = 20

#: What marks a place where text of a chunk was left out.
_CUT = "…"
_INDENT = "\n  "
#: What is said of an unverified source, as the readers' prompts say it.
_UNVERIFIED = "unverified source"
_NUMBER = re.compile(r"\d+")
_ASKS = re.compile(r"[?？]\W*$")
_ENDS = re.compile(r"[.!?…。！？:;]\W*$|\n\s*$")
_BEGINS_WITHIN = re.compile(r"[^\w\n]*[a-zß-öø-ÿ]")
#: Where these look, at an end of a text: a long text of full stops would take them minutes.
_END_CHARACTERS = 100


class RecallKind(StrEnum):
    """The section that a part of a recalled text belongs to."""

    MEMORY = "memory"
    CHUNK = "chunk"
    UNREAD = "unread"


_HEADINGS = {RecallKind.CHUNK: "# Earlier", RecallKind.UNREAD: "# Latest"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallEntry:
    """An entry of a memory, or a vector, or a summary."""

    memory: str
    #: Where it is in the memory.
    path: str
    #: 0, 1, 2 …: the parts of a long value.
    number: int = 0
    #: The keys of the path, and the value, in words.
    text: str
    #: The value alone, where it is a text; a chunk that says the same is left out.
    said: str = ""
    #: The revision that wrote it.
    revision: int
    #: The chunks that the revision read; both 0: none.
    first_position: int
    last_position: int
    #: How well it fits; compares entries of one recall only, 0: it was not looked for.
    score: float = 0.0
    #: That of the least trusted of those chunks.
    trust: Trust = Trust.TRUSTED


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallHit:
    """A chunk that a search found."""

    position: int
    score: float
    #: The characters of its text that fit best; both 0: none in particular.
    from_character: int = 0
    to_character: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallPart:
    """A part of a recalled text."""

    kind: RecallKind
    #: The text of the entry or chunk, or of the part of it that is shown.
    text: str
    first_position: int
    last_position: int
    score: float = 0.0
    #: The memory, path and revision of an entry; empty for a chunk.
    memory: str = ""
    path: str = ""
    number: int = 0
    revision: int = 0
    #: The characters of the chunk's text that are shown; both 0: all.
    from_character: int = 0
    to_character: int = 0
    #: How much the chunk is trusted, or the least trusted one that the entry rests on.
    trust: Trust = Trust.TRUSTED


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallMaterial:
    """What a recall chooses from."""

    query: str
    #: The entries of each memory in its order, best first for the query.
    entries: Sequence[RecallEntry]
    #: Best first.
    hits: Sequence[RecallHit]
    #: Hits and their neighbours, by position.
    chunks: Mapping[int, LoggedChunk]
    #: The newest chunks that no memory has read, by position.
    unread: Sequence[LoggedChunk]
    #: Whether there is a memory, whatever it has.
    has_memory: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RecalledText:
    """A text within a budget, and what it consists of."""

    text: str
    #: In the order of the text.
    parts: Sequence[RecallPart]
    #: By `estimate_tokens`.
    tokens: int


def compose(material: RecallMaterial, max_tokens: int) -> RecalledText:
    """Returns the text of at most `max_tokens`, by `estimate_tokens`.

    Entries of memories come first, up to their share, then the newest chunks, up to theirs, then
    the best chunks with the neighbours that complete them. What is left shows more of chunks that
    were cut, then further entries, then further new chunks.
    """
    block = _Block(max_tokens * TOKEN_BYTES)
    are_whole = fit_whole(material.entries, max_tokens)
    share = MEMORY_SHARE if are_whole else ENTRIES_SHARE
    waiting = block.add_entries(material.entries, int(block.left * share))
    share = UNREAD_SHARE if material.has_memory else NEWEST_SHARE
    older = block.add_unread(material, int(max_tokens * TOKEN_BYTES * share))
    block.add_hits(material)
    block.extend(material.query)
    block.add_entries(waiting, block.left)
    block.add_unread(replace(material, unread=older), block.left)
    return block.finish()


def fit_whole(entries: Sequence[RecallEntry], max_tokens: int) -> bool:
    """Returns whether all of these entries have room in the share of memories."""
    share = int(max_tokens * TOKEN_BYTES * MEMORY_SHARE)
    return not _Block(share).add_entries(entries, share)


def completes(chunk: Chunk, beside: Chunk, side: int) -> bool:
    """Returns whether a chunk is completed by the one before it (side -1) or after it (1).

    Both of one thread. A question and the message after it complete each other; a text that begins
    or ends within a sentence is completed by the text there; an action by the step after it, which
    may have its observation.
    """
    if chunk.thread != beside.thread:
        return False
    if chunk.kind is ChunkKind.STEP:
        return side > 0 and not chunk.observation
    if chunk.kind is ChunkKind.MESSAGE:
        asked = chunk if side > 0 else beside
        return asked.kind is ChunkKind.MESSAGE and bool(_ASKS.search(_end_of(asked.text)))
    if side > 0:
        return _ENDS.search(_end_of(chunk.text)) is None
    return _BEGINS_WITHIN.match(chunk.text[:_END_CHARACTERS]) is not None


def _end_of(text: str) -> str:
    return text[-_END_CHARACTERS:]


class _Block:
    """A text that is being put together."""

    def __init__(self, max_bytes: int) -> None:
        #: Bytes that are free.
        self.left = max_bytes
        self._lines: dict[tuple[RecallKind, str], list[tuple[RecallPart, str]]] = {}
        self._chunks: set[int] = set()
        #: The texts of chunks that are shown.
        self._texts: set[str] = set()
        #: What entries say, with the chunks that they rest on.
        self._said: dict[str, list[range]] = {}
        #: The chunks of which a part is shown, the best first, each with the index of its line.
        self._cut: list[tuple[RecallKind, int, LoggedChunk, RecallHit]] = []

    def add_entries(self, entries: Sequence[RecallEntry], share: int) -> Sequence[RecallEntry]:
        """Adds all entries if they fit a share, else the first ones; returns the others."""
        floor = self.left - min(share, self.left)
        return [one for one in entries if not self._add_entry(one, floor)]

    def _add_entry(self, entry: RecallEntry, floor: int) -> bool:
        part = RecallPart(
            kind=RecallKind.MEMORY,
            text=entry.text,
            first_position=entry.first_position,
            last_position=entry.last_position,
            score=entry.score,
            memory=entry.memory,
            path=entry.path,
            number=entry.number,
            revision=entry.revision,
            trust=entry.trust,
        )
        mark = f"({_UNVERIFIED}) " if entry.trust is Trust.UNVERIFIED else ""
        added = self._add(part, f"- {mark}{_indented(entry.text)}", floor)
        if added:
            rests_on = range(entry.first_position, entry.last_position + 1)
            for text in {entry.text, entry.said or entry.text}:
                self._said.setdefault(text, []).append(rests_on)
        return added

    def add_unread(self, material: RecallMaterial, share: int) -> Sequence[LoggedChunk]:
        """Adds the newest chunks, up to a share; returns the older ones."""
        floor = self.left - min(share, self.left)
        for number in range(len(material.unread), 0, -1):
            logged = material.unread[number - 1]
            if logged.position in self._chunks:
                continue
            whole = RecallHit(position=logged.position, score=0.0)
            # The newest is cut where it is too long: without it a reply makes no sense.
            is_newest = number == len(material.unread)
            most = self.left - floor
            if not self._add_chunk(
                RecallKind.UNREAD, logged, whole, material.query, most if is_newest else 0, floor
            ):
                return material.unread[:number]
        return ()

    def add_hits(self, material: RecallMaterial) -> None:
        """Adds the best chunks, each with the neighbours that complete it."""
        for hit in material.hits:
            logged = material.chunks.get(hit.position)
            if logged is None or self._is_repeated(logged):
                continue
            fits = _size(logged.chunk.as_text()) <= self.left * WHOLE_SHARE
            most = int(self.left * (WHOLE_SHARE if fits else CHUNK_SHARE))
            most = max(most, LEAST_BYTES)
            if not self._add_chunk(RecallKind.CHUNK, logged, hit, material.query, most):
                continue
            for side in (-1, 1):
                beside = material.chunks.get(hit.position + side)
                if beside is not None and completes(logged.chunk, beside.chunk, side):
                    whole = RecallHit(position=beside.position, score=0.0)
                    self._add_chunk(RecallKind.CHUNK, beside, whole, material.query, most // 2)

    def _is_repeated(self, logged: LoggedChunk) -> bool:
        """Returns whether a chunk says word for word what an entry or another chunk says.

        Where that is a short text, only an entry that rests on the chunk repeats it.
        """
        text, chunk = _text_of(logged), logged.chunk
        rests_on = self._said.get(text, []) + self._said.get(chunk.text, [])
        if any(logged.position in one for one in rests_on):
            return True
        is_said = bool(rests_on) or text in self._texts
        return is_said and len(chunk.text) >= TELLING_CHARACTERS

    def _add_chunk(
        self,
        kind: RecallKind,
        logged: LoggedChunk,
        hit: RecallHit,
        query: str,
        most: int,
        floor: int = 0,
    ) -> bool:
        """Adds a chunk, or the best part of it that has `most` bytes; 0: only all of it."""
        if logged.position in self._chunks:
            return True
        room = self.left - floor - self._heading_bytes(kind, "")
        shown = _line_of(kind, logged, hit, query, most, room)
        if shown is None or not self._add(*shown, floor):
            return False
        self._chunks.add(logged.position)
        self._texts.add(_text_of(logged))
        if shown[0].to_character:
            self._cut.append((kind, len(self._lines[kind, ""]) - 1, logged, hit))
        return True

    def extend(self, query: str) -> None:
        """Shows more of the chunks that were cut, the best first, as long as there is room."""
        for kind, at, logged, hit in self._cut:
            lines = self._lines[kind, ""]
            room = self.left + len(lines[at][1].encode())
            longer = _line_of(kind, logged, hit, query, room, room)
            if longer is not None and len(longer[1]) > len(lines[at][1]):
                self.left = room - len(longer[1].encode())
                lines[at] = longer

    def _add(self, part: RecallPart, line: str, floor: int) -> bool:
        size = len(line.encode()) + 1 + self._heading_bytes(part.kind, part.memory)
        if size > self.left - floor:
            return False
        self.left -= size
        self._lines.setdefault((part.kind, part.memory), []).append((part, line))
        return True

    def _heading_bytes(self, kind: RecallKind, memory: str) -> int:
        """Returns the bytes of a section's heading, if the section has nothing yet."""
        if (kind, memory) in self._lines:
            return 0
        return len(_heading(kind, memory).encode()) + 2

    def finish(self) -> RecalledText:
        """Returns the text."""
        self._join_unread()
        parts: list[RecallPart] = []
        sections: list[str] = []
        for (kind, memory), lines in sorted(self._lines.items(), key=_place):
            lines.sort(key=_order_of([part for part, _ in lines]))
            parts += (part for part, _ in lines)
            sections.append("\n".join([_heading(kind, memory), *(line for _, line in lines)]))
        text = "\n\n".join(sections)
        return RecalledText(text=text, parts=parts, tokens=estimate_tokens(text))

    def _join_unread(self) -> None:
        """Moves chunks from between the newest ones to these."""
        newest = self._lines.get((RecallKind.UNREAD, ""))
        found = self._lines.pop((RecallKind.CHUNK, ""), [])
        if newest:
            first = min(part.first_position for part, _ in newest)
            newest += (
                (replace(part, kind=RecallKind.UNREAD), line)
                for part, line in found
                if part.first_position > first
            )
            found = [one for one in found if one[0].first_position < first]
        if found:
            self._lines[RecallKind.CHUNK, ""] = found


def _place(section: tuple[tuple[RecallKind, str], object]) -> tuple[int, str]:
    (kind, memory), _ = section
    return list(RecallKind).index(kind), memory


def _order_of(
    parts: Sequence[RecallPart],
) -> Callable[[tuple[RecallPart, str]], tuple[int, str, int]]:
    """Returns the key that sorts a section: entries by revision, chunks by position.

    A long value in several parts stays together, where the newest of them is.
    """
    newest: dict[str, int] = {}
    for part in parts:
        newest[part.path] = max(part.revision, newest.get(part.path, 0))

    def order(line: tuple[RecallPart, str]) -> tuple[int, str, int]:
        part = line[0]
        if part.kind is not RecallKind.MEMORY:
            return part.first_position, "", 0
        path = _NUMBER.sub(lambda number: number[0].zfill(9), part.path)
        return newest[part.path], path, part.number

    return order


def _text_of(logged: LoggedChunk) -> str:
    """Returns a chunk's text as it is shown, without the line before it."""
    return logged.chunk.as_text()[len(logged.chunk.heading()) :]


def _heading(kind: RecallKind, memory: str) -> str:
    return _HEADINGS.get(kind) or f"# Memory {memory}"


def _line_of(
    kind: RecallKind, logged: LoggedChunk, hit: RecallHit, query: str, most: int, room: int
) -> tuple[RecallPart, str] | None:
    """Returns a chunk as the text shows it, or the part of it that fits best.

    The part's text has `most` bytes, or with 0 it is whole, and its line has `room`. None where
    neither is possible.
    """
    heading = logged.chunk.heading()
    offset, said = len(heading), heading.strip("[]\n")
    level = _UNVERIFIED if logged.trust is Trust.UNVERIFIED else ""
    mark = f"[{', '.join(filter(None, (str(logged.position), said, level)))}] "
    text = logged.chunk.as_text()[offset:]
    room -= len(mark.encode()) + 1
    best = max(hit.from_character - offset, 0), max(hit.to_character - offset, 0)
    start, end = _shown(text, best, query, min(most or room, room))
    is_cut = end - start < len(text)
    if is_cut and (not most or end == start):
        return None
    part = RecallPart(
        kind=kind,
        text=text[start:end],
        first_position=logged.position,
        last_position=logged.position,
        score=hit.score,
        from_character=offset + start if is_cut else 0,
        to_character=offset + end if is_cut else 0,
        trust=logged.trust,
    )
    before, after = _CUT if start else "", _CUT if end < len(text) else ""
    return part, f"{mark}{before}{_indented(part.text)}{after}"


def _indented(text: str) -> str:
    """Returns a text none of whose further lines begins as a heading or an entry does."""
    return _INDENT.join(text.splitlines())


def _shown(text: str, best: tuple[int, int], query: str, max_bytes: int) -> tuple[int, int]:
    """Returns the characters of a text to show: all, or a part of `max_bytes`.

    The part has the characters `best`, if there are any, as far as they have room; else it is the
    one that fits the query best.
    """
    if _size(text) <= max_bytes:
        return 0, len(text)
    if max_bytes < LEAST_BYTES:
        return 0, 0
    begin, until = best if best[1] else (0, len(text))
    room = max_bytes - 2 * len(_CUT.encode())
    if _size(text[begin:until]) <= room:
        return _widened(text, begin, until, room)
    found = text[begin:until]
    # In characters, as many as have those bytes on average; then fewer.
    characters = room * len(found) // max(_size(found), 1)
    excerpt = best_excerpt(query, found, max(characters, 1))
    while _size(excerpt) > room:
        excerpt = excerpt[: len(excerpt) * room // _size(excerpt) - 1]
    start = text.find(excerpt, begin)
    return (start, start + len(excerpt)) if excerpt and start >= 0 else (0, 0)


def _widened(text: str, begin: int, until: int, room: int) -> tuple[int, int]:
    """Returns a part of a text with as many words around it as have room, half on each side."""
    step = max((room - _size(text[begin:until])) // 2, 0)
    before = text[max(begin - step, 0) : begin]
    # Whole words, unless the text begins there.
    start = begin - len(before) if step >= begin else begin - len(before.partition(" ")[2])
    after = text[until : until + step]
    end = until + len(after) if until + step >= len(text) else until + len(after.rpartition(" ")[0])
    # A character has a byte or more.
    return (start, end) if _size(text[start:end]) <= room else (begin, until)


def _size(text: str) -> int:
    """Returns the bytes of a text with its further lines indented."""
    return len(_indented(text).encode())


def neighbours(hits: Iterable[RecallHit]) -> Iterator[int]:
    """Yields the positions of hits, then of those beside them, by the best hits first."""
    best = [hit.position for hit in hits]
    seen: set[int] = set()
    for position in (*best, *(one for at in best for one in (at - 1, at + 1))):
        if position > 0 and position not in seen:
            seen.add(position)
            yield position
