"""A small executable model of the service: what a log and a memory must be.

Plain Python without I/O, clocks or locks, written from what the guides promise and not
from the service's code: the checker of histories and the state machines hold the service
against it. It knows nothing of schemas but what paths say, so it is not for memories with
tuples.
"""

import json
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

#: (path, op, value as JSON or None), as `history.FinalRevision` has them.
Amendment = tuple[str, str, str | None]


class Refusal(Exception):
    """The service must say no; the argument is the reason."""

    @property
    def reason(self) -> str:
        """As ErrorReason in the proto."""
        return str(self.args[0])


@dataclass(slots=True)
class Producer:
    """A producer of a session's log."""

    #: Highest epoch that was seen.
    epoch: int = 0
    #: Position of each sequence, from 1 on.
    positions: "array[int]" = field(default_factory=lambda: array("q"))

    @property
    def last(self) -> int:
        """Its last sequence; 0 without one."""
        return len(self.positions)


class Log:
    """A session's log: positions from 1 on, each with a producer's sequence."""

    def __init__(self) -> None:
        self.producers: dict[str, Producer] = {}
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        # In arrays, since a campaign writes a million.
        self._owners = array("L")
        self._sequences = array("q")
        #: What each chunk says, or its substitute.
        self.contents: list[str] = []
        #: What was appended by a request of the client's, and where the first chunk is.
        self.requests: dict[str, tuple[tuple[str, ...], int]] = {}

    @property
    def head(self) -> int:
        """The last position; 0 of an empty log."""
        return len(self._owners)

    def place(self, position: int) -> tuple[str, int] | None:
        """Producer and sequence of what is at a position; None where nothing is."""
        if not 1 <= position <= self.head:
            return None
        return self._names[self._owners[position - 1]], self._sequences[position - 1]

    def position(self, producer: str, sequence: int) -> int | None:
        """Returns where a chunk is; None where it is not."""
        known = self.producers.get(producer)
        if known is None or not 1 <= sequence <= known.last:
            return None
        return known.positions[sequence - 1]

    def open(self, producer: str, epoch: int, expected_head: int | None = None) -> int:
        """Opens a producer, which fences its lower epochs; its last sequence."""
        known = self.producers.get(producer)
        if expected_head is not None and expected_head != self.head:
            raise Refusal("HEAD_MISMATCH")
        if known is not None and epoch < known.epoch:
            raise Refusal("PRODUCER_FENCED")
        known = self._producer(producer)
        known.epoch = max(known.epoch, epoch)
        return known.last

    def append(
        self,
        producer: str,
        epoch: int,
        sequences: Sequence[int],
        contents: Sequence[str],
        expected_head: int | None = None,
    ) -> int:
        """Appends a batch, all of it or nothing; the position of its last chunk."""
        known = self.producers.get(producer) or Producer(epoch=epoch)
        if epoch < known.epoch:
            raise Refusal("PRODUCER_FENCED")
        if expected_head is not None and expected_head != self.head:
            raise Refusal("HEAD_MISMATCH")
        expected = min(sequences[0], known.last + 1)
        if list(sequences) != list(range(expected, expected + len(sequences))):
            raise Refusal("SEQUENCE_GAP")
        for sequence, content in zip(sequences, contents, strict=True):
            if sequence <= known.last:
                held = self.contents[known.positions[sequence - 1] - 1]
                if held != content:
                    raise Refusal("SEQUENCE_CONTENT_CHANGED")
        for sequence, content in zip(sequences, contents, strict=True):
            if sequence > known.last:
                self.add(producer, sequence, content)
        known = self._producer(producer)
        known.epoch = max(known.epoch, epoch)
        return known.positions[sequences[-1] - 1]

    def request(
        self, request_id: str | None, contents: Sequence[str], expected_head: int | None = None
    ) -> int:
        """Appends a batch without a producer, all of it or nothing; its last chunk's position."""
        if request_id is not None and request_id in self.requests:
            held, first = self.requests[request_id]
            if held != tuple(contents):
                raise Refusal("REQUEST_CONTENT_CHANGED")
            return first + len(held) - 1
        if expected_head is not None and expected_head != self.head:
            raise Refusal("HEAD_MISMATCH")
        if request_id is not None:
            self.requests[request_id] = (tuple(contents), self.head + 1)
        for content in contents:
            self.add("", self._producer("").last + 1, content)
        return self.head

    def add(self, producer: str, sequence: int, content: str = "") -> bool:
        """Puts a chunk at the next position; whether it is its producer's next one."""
        known = self._producer(producer)
        self._owners.append(self._numbers[producer])
        self._sequences.append(sequence)
        self.contents.append(content)
        if sequence != known.last + 1:
            return False
        known.positions.append(self.head)
        return True

    def _producer(self, name: str) -> Producer:
        if name not in self.producers:
            self.producers[name] = Producer()
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self.producers[name]


class FoldError(Exception):
    """An amendment that cannot be applied to what is there."""


#: Marks, as null does, a value that is not known yet, and is replaced by any other.
_UNKNOWN = "????"
_STEP = re.compile(r"\['((?:[^'\\]|\\.)*)'\]|\[(\d+)\]", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-f]{4}|.)", re.DOTALL)
_LETTERS = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


# A path is looked at more than once while its revision is.
@lru_cache(maxsize=10_000)
def parse_path(text: str) -> tuple[str | int, ...]:
    """Returns the keys and indexes of a normalized path (RFC 9535, section 2.7)."""
    tokens: list[str | int] = []
    at = 1
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise FoldError(f"{text} is no normalized path")
        tokens.append(_unescaped(step[1]) if step[2] is None else int(step[2]))
        at = step.end()
    return tuple(tokens)


def _unescaped(key: str) -> str:
    def letter(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _LETTERS.get(code, code)

    return _ESCAPED.sub(letter, key) if "\\" in key else key


def canonical(value: Any) -> str:
    """Returns the one text of a value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fold(value: Any, amendments: Iterable[Amendment]) -> Any:
    """Returns the value behind the amendments; `value` is changed. Raises FoldError."""
    for path, op, text in amendments:
        tokens = parse_path(path)
        if op == "remove":
            _remove(value, tokens, path)
        elif not tokens:
            value = _read(text)
        else:
            _put(value, tokens, _read(text), path)
    return value


def _read(text: str | None) -> Any:
    if text is None:
        raise FoldError("an amendment has no value")
    return json.loads(text)


def _put(here: Any, tokens: tuple[str | int, ...], new: Any, path: str) -> None:
    for token, below in pairwise(tokens):
        inner = _get(here, token)
        if inner is None or inner == _UNKNOWN:
            inner = {} if isinstance(below, str) else []
            _set(here, token, inner, path)
        here = inner
    _set(here, tokens[-1], new, path)


def _get(here: Any, token: str | int) -> Any:
    return here[token] if _has(here, token) else None


def _set(here: Any, token: str | int, new: Any, path: str) -> None:
    if isinstance(here, list) and token == len(here):
        here.append(new)
    elif _has(here, token) or (isinstance(here, dict) and isinstance(token, str)):
        here[token] = new
    else:
        raise FoldError(f"nothing can be put at {path}")


def _has(here: Any, token: str | int | None) -> bool:
    if isinstance(here, dict):
        return token in here
    return isinstance(here, list) and isinstance(token, int) and token < len(here)


def _remove(here: Any, tokens: tuple[str | int, ...], path: str) -> None:
    for token in tokens[:-1]:
        here = _get(here, token)
    last = tokens[-1] if tokens else None
    if not _has(here, last):
        raise FoldError(f"nothing is at {path} that could be removed")
    del here[last]


#: Kinds of revisions that read chunks, and those that read none. A step of a tree, which
#: takes text without a call, is one that reads.
READING = ("step", "skip")
STAYING = (
    *("create", "build", "seal", "episode"),
    *("fold", "consolidation", "edit", "rollback", "schema"),
)


@dataclass(slots=True)
class Chain:
    """The revisions of a memory of any kind: no gap, no repeat, each position read once."""

    revision: int = -1
    #: All positions up to here are applied.
    cursor: int = 0

    def commit(
        self, *, revision: int, parent: int | None, begin: int, end: int, kind: str
    ) -> list[tuple[str, str]]:
        """Accepts the next revision in any case; returns which promises it breaks, and how."""
        wrong = []
        if revision != self.revision + 1:
            wrong.append(("revisions", f"revision {revision} comes behind {self.revision}"))
        if parent is not None and parent != revision - 1:
            wrong.append(("revisions", f"revision {revision} has the parent {parent}"))
        if (revision == 0) != (kind == "create") or kind not in READING + STAYING:
            wrong.append(("revisions", f"revision {revision} is of kind {kind}"))
        if begin != self.cursor:
            what = f"revision {revision} begins behind {begin}, not {self.cursor}"
            wrong.append(("applied-once", what))
        if end < begin or (end > begin) != (kind in READING):
            wrong.append(("applied-once", f"revision {revision}, a {kind}, reads ({begin}, {end}]"))
        self.revision, self.cursor = revision, end
        return wrong


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The value of a memory at a revision."""

    #: As canonical JSON.
    text: str
    #: Whether the order of its keys is known.
    is_ordered: bool


@dataclass(slots=True)
class Value:
    """The value of a PRISM memory, revision by revision."""

    value: Any = field(default_factory=dict)
    #: Whether the order of the keys is known: a fold may move them.
    is_ordered: bool = True

    def apply(
        self, kind: str, amendments: Sequence[Amendment], restored: Snapshot | None = None
    ) -> None:
        """Applies the next revision; `restored` is what a rollback restores. Raises FoldError."""
        if restored is not None:
            self.value, self.is_ordered = json.loads(restored.text), restored.is_ordered
            return
        if kind == "fold":
            self.is_ordered = False
        self.value = fold(self.value, amendments)

    def snapshot(self) -> Snapshot:
        """Returns what it is now."""
        return Snapshot(text=canonical(self.value), is_ordered=self.is_ordered)

    def equals(self, text: str) -> bool:
        """Returns whether `text` is this value; where the order of keys was not known it is now."""
        if self.is_ordered:
            return canonical(self.value) == text
        told = json.loads(text)
        if _sorted(told) != _sorted(self.value) or canonical(told) != text:
            return False
        self.value, self.is_ordered = told, True
        return True


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vector:
    """What a state vector covers: positions (after, to], of which (begin, to] are new."""

    after: int
    begin: int
    end: int


class Levels:
    """The vectors of a state memory that cover its log, level by level."""

    def __init__(self) -> None:
        #: By level from 1 up: revisions of what it made since it began.
        self.runs: list[list[int]] = [[]]
        self._made: dict[int, Vector] = {}
        self._past: dict[int, list[list[int]]] = {}
        #: Whether a rollback removed what the vectors no longer cover.
        self.has_rolled_back = False

    def step(self, revision: int, begin: int, end: int) -> Vector:
        """Steps were compressed; the vector that this makes."""
        return self._add(revision, 1, begin, end)

    def episode(self, revision: int, level: int) -> tuple[Vector | None, list[int]]:
        """Returns all of the level below became one of `level`: the vector, and its children."""
        if not 2 <= level <= len(self.runs) + 1 or not self.runs[level - 2]:
            return None, []
        children = self.runs[level - 2]
        begin, end = self._made[children[0]].begin, self._made[children[-1]].end
        self.runs[level - 2] = []
        return self._add(revision, level, begin, end), children

    def rollback(self, restored: int) -> None:
        """Restores what was in use at an earlier revision."""
        self.runs = [list(run) for run in self._past.get(restored, [[]])]
        self.has_rolled_back = True

    def keep(self, revision: int) -> None:
        """Remembers what is in use at a revision."""
        self._past[revision] = [list(run) for run in self.runs]

    def in_use(self) -> list[Vector]:
        """Returns one of each level that has any, the highest first."""
        return [self._made[run[-1]] for run in reversed(self.runs) if run]

    def _add(self, revision: int, level: int, begin: int, end: int) -> Vector:
        while len(self.runs) < level:
            self.runs.append([])
        run = self.runs[level - 1]
        after = self._made[run[-1]].after if run else begin
        self._made[revision] = Vector(after=after, begin=begin, end=end)
        run.append(revision)
        return self._made[revision]
