"""Reading a model's reply: what it proposes, made into amendments and rejections.

Reading is total: whatever the text, the result is a list of valid amendments and a
list of rejections with their reasons. The format is that of the PRISM paper's prompt
(appendix D), taken as models really write it.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from service.domain.amending import MISSING, put, settle, value_at
from service.domain.amendments import Amendment, Op, Rejection, Revision
from service.domain.json_values import Json, canonical, checked
from service.domain.paths import MAX_PATH_CHARACTERS, Path
from service.domain.schema import Schema, fit

#: Characters of a reply that are read.
MAX_REPLY_CHARACTERS = 1_000_000
#: Proposals of a reply that are considered.
MAX_PROPOSALS = 500
#: Objects of a reply that are read, empty ones included.
MAX_OBJECTS = 1000
#: The value of one amendment as canonical JSON, in bytes.
MAX_VALUE_BYTES = 64 * 1024
#: Characters of a proposal that a rejection repeats.
MAX_PROPOSAL_CHARACTERS = 2000

#: Characters of a rejection's reason.
MAX_REASON_CHARACTERS = 1000

# What repeats is bounded: a model that has lost its way writes blanks without end.
_HEADER = (
    r"^[ \t>*#_`.)\d-]{0,16}\[?[ \t]{0,4}(?i:OBJECTS?[ \t]{1,4}(?:FOR|TO)[ \t]{1,4}"
    r"(?P<op>UPDATE|ADD))\b[ \t]{0,4}\]?"
)
#: Another header of the prompt, where a section ends, or where an object begins.
_NEXT = re.compile(
    rf"{_HEADER}|(?P<other>^[ \t]{{0,16}}\[[A-Z][A-Z _]{{1,40}}\][ \t]{{0,16}}$)|(?P<object>\{{)",
    re.MULTILINE,
)
#: Where reading goes on behind an object that is broken: a line with a new one.
_RESTART = re.compile(
    rf"{_HEADER}|^[ \t`*,\[-]{{0,16}}\{{[ \t]{{0,4}}[\"'][ \t]{{0,4}}[$/]", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class _Proposal:
    """One path and value, as the model wrote them."""

    path: str
    op: Op
    value: Json

    def __str__(self) -> str:
        return canonical({self.path: {self.op.value: self.value}})


def parse_reply(
    text: str, schema: Schema, value: Json, *, max_memory_bytes: int = 1024 * 1024
) -> Revision:
    """What `text` proposes for a memory that holds `value`. Never raises.

    Proposals apply one after the other: a later one sees what earlier ones did. An
    invalid one is rejected by itself and does not sink its neighbours.
    """
    judge = _Judge(schema, value, max_memory_bytes)
    for found in _proposals(text[:MAX_REPLY_CHARACTERS]):
        if isinstance(found, Rejection):
            judge.rejections.append(found)
        else:
            judge.hear(found)
        if len(judge.amendments) + len(judge.rejections) >= MAX_PROPOSALS:
            judge.reject(text[-200:], f"a reply has at most {MAX_PROPOSALS} proposals")
            break
    if len(text) > MAX_REPLY_CHARACTERS:
        judge.reject(text[-200:], f"a reply has at most {MAX_REPLY_CHARACTERS} characters")
    return Revision(amendments=tuple(judge.amendments), rejections=tuple(judge.rejections))


@dataclass(slots=True)
class _Judge:
    """Checks proposals against the schema and the memory as it changes."""

    schema: Schema
    value: Json
    max_memory_bytes: int
    amendments: list[Amendment] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    #: At least the size of `value`; made exact when it passes the limit.
    bytes_at_most: int = -1

    def hear(self, proposal: _Proposal) -> None:
        """Takes a proposal in, or rejects it."""
        try:
            amendment, after = self._amend(proposal)
        except ValueError as error:
            self.reject(str(proposal), str(error))
            return
        self.amendments.append(amendment)
        self.value = after

    def reject(self, proposal: str, reason: str) -> None:
        """Notes a rejection."""
        self.rejections.append(_rejection(proposal, reason))

    def _amend(self, proposal: _Proposal) -> tuple[Amendment, Json]:
        path, of = settle(self.schema, self.value, Path.parse(proposal.path))
        if len(str(path)) > MAX_PATH_CHARACTERS:
            raise ValueError(f"the path is longer than {MAX_PATH_CHARACTERS} characters")
        if not path.tokens:
            raise ValueError("the memory as a whole cannot be replaced; name a field")
        new = fit(of, proposal.value)
        size = len(canonical(new).encode())
        if size > MAX_VALUE_BYTES:
            raise ValueError(f"the value has {size} bytes; the limit is {MAX_VALUE_BYTES}")
        held = value_at(self.value, path)
        op = Op.ADD if held is MISSING else Op.UPDATE
        # Compared as text: in Python 1 equals True and 1.0.
        if held is not MISSING and canonical(held) == canonical(new):  # type: ignore[arg-type]
            raise ValueError("it changes nothing")
        after = put(self.schema, self.value, path, new)
        self._check_size(after, _growth(self.value, after, path))
        return Amendment(path=path, op=op, value=new, op_corrected=op is not proposal.op), after

    def _check_size(self, after: Json, added: int) -> None:
        if self.bytes_at_most < 0:
            self.bytes_at_most = len(canonical(self.value).encode())
        if self.bytes_at_most + added > self.max_memory_bytes:
            exact = len(canonical(after).encode())
            if exact > self.max_memory_bytes:
                raise ValueError(
                    f"the memory would have {exact} bytes; the limit is {self.max_memory_bytes}"
                )
            self.bytes_at_most = exact
        else:
            self.bytes_at_most += added


def _growth(before: Json, after: Json, path: Path) -> int:
    """By how many bytes `after` is larger at most: the topmost part that is new."""
    here = Path()
    for token in path.tokens:
        here /= token
        if not isinstance(value_at(before, here), dict | list):
            break
    made = value_at(after, here)
    assert made is not MISSING
    return len(canonical({str(here.tokens[-1]): made}).encode())  # type: ignore[dict-item]


def _rejection(proposal: str, reason: str) -> Rejection:
    # A reply is any text; what is kept of it has to be storable.
    shown = proposal[:MAX_PROPOSAL_CHARACTERS].replace("\0", "\ufffd")
    return Rejection(
        proposal=shown.encode(errors="replace").decode(), reason=reason[:MAX_REASON_CHARACTERS]
    )


def _proposals(text: str) -> Iterator[_Proposal | Rejection]:
    """Every path and value of the reply, in order."""
    headed = any(match["op"] for match in _NEXT.finditer(text))
    op: Op | None = None
    at = restart = objects = 0
    while found := _NEXT.search(text, at):
        at = found.end()
        if found["op"]:
            op = Op(found["op"].lower())
        elif found["other"]:
            op = None
        elif op or not headed:
            # Objects are passed as a whole: a value may hold what looks like a header.
            objects += 1
            if objects > MAX_OBJECTS:
                yield _rejection(text[at:], f"a reply has at most {MAX_OBJECTS} objects")
                return
            if restart < at:
                # Kept for the objects up to it: looking anew for each takes too long.
                line = _RESTART.search(text, at)
                restart = line.start() if line else len(text)
            at, pairs = _object(text, found.start(), restart)
            if isinstance(pairs, Rejection):
                yield pairs
            else:
                for path, entry in pairs:
                    yield _proposal(path, entry, op)


def _proposal(path: str, entry: Json, op: Op | None) -> _Proposal | Rejection:
    if isinstance(entry, dict) and len(entry) == 1:
        name, value = next(iter(entry.items()))
        if name.strip().lower() in ("add", "update"):
            # The memory decides between the two in the end; the header says what
            # the model meant, and the key when there is no header.
            return _Proposal(path, op or Op(name.strip().lower()), value)
    if op is None:
        return _rejection(canonical({path: entry}), "it says neither add nor update")
    return _Proposal(path, op, entry)


_Pairs = list[tuple[str, Json]]


def _object(text: str, at: int, restart: int) -> tuple[int, _Pairs | Rejection]:
    """What the object that begins at `at` says, and where reading goes on.

    One that is broken ends at `restart`, where a new line begins another, so that it
    does not take its neighbours with it.
    """
    end = _end_of_object(text, at, restart)
    if end is None:
        return restart, _rejection(text[at:restart], "the object is not closed")
    try:
        return end, _read_object(text[at:end])
    except ValueError as error:
        return end, _rejection(text[at:end], str(error))


def _read_object(text: str) -> _Pairs:
    try:
        pairs = _JSON.decode(text)
    except (ValueError, RecursionError):
        pairs = _read_python(text)
    if not isinstance(pairs, _Object):
        raise ValueError("it is no object")
    found: _Pairs = []
    for key, value in pairs.pairs:
        if not isinstance(key, str):
            raise ValueError("a path that is no string")
        found.append((key, checked(_plain(value, 0))))
    return found


@dataclass(frozen=True, slots=True)
class _Object:
    """An object with all its pairs: a path may be there twice."""

    pairs: list[tuple[object, object]]


def _pairs(pairs: list[tuple[str, object]]) -> _Object:
    return _Object(list(pairs))


_JSON = json.JSONDecoder(object_pairs_hook=_pairs)


def _plain(value: object, depth: int) -> object:
    if depth > 100:
        raise ValueError("nested too deeply")
    if isinstance(value, _Object):
        if not all(isinstance(key, str) for key, _ in value.pairs):
            raise ValueError("a key that is not a string")
        return {key: _plain(child, depth + 1) for key, child in value.pairs}
    if isinstance(value, list):
        return [_plain(child, depth + 1) for child in value]
    return value


def _read_python(text: str) -> object:
    """Reads what is not quite JSON: Python's literals, with JSON's names among them."""
    try:
        with warnings.catch_warnings():
            # An escape that Python does not know is the model's business.
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text.strip(), mode="eval")
        return _literal(tree.body, 0)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError("it is neither JSON nor a Python literal") from error


_NAMES = {"null": None, "true": True, "false": False}


def _literal(node: ast.expr, depth: int) -> object:
    if depth > 100:
        raise ValueError("nested too deeply")
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element, depth + 1) for element in elements]
        case ast.Dict(keys=keys, values=values):
            pairs: list[tuple[object, object]] = []
            for key, child in zip(keys, values, strict=True):
                if key is None:
                    raise ValueError("it is neither JSON nor a Python literal")
                pairs.append((_literal(key, depth + 1), _literal(child, depth + 1)))
            return _Object(pairs)
    raise ValueError("it is neither JSON nor a Python literal")


_INTERESTING = re.compile(r"[{}\"'\\]")


def _end_of_object(text: str, start: int, stop: int) -> int | None:
    """Where the object that begins at `start` ends; None when it does not.

    Only what is JSON may go on behind `stop`.
    """
    try:
        return _JSON.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        pass
    depth = 0
    quote = ""
    at = start
    while match := _INTERESTING.search(text, at, stop):
        char = match[0]
        at = match.end()
        if char == "\\":
            at += 1
        elif quote:
            if char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        else:
            depth += 1 if char == "{" else -1
            if depth == 0:
                return at
    return None
