"""Datasets: documents with questions, one JSON object a line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluation.words import holds, normalized, telling
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.cutting import split
from service.domain.prompting.tokens import estimate_tokens

#: Bytes of a line, and documents of a file.
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_DOCUMENTS = 100_000
#: Tokens of a chunk of a document that comes as one text.
TEXT_CHUNK_TOKENS = 400
#: What the service takes as a query, and as options.
MAX_QUERY_BYTES = 8192
MAX_OPTION_BYTES = 1000
MAX_OPTIONS = 26
#: What the service takes as a role: names of speakers are cut to it.
MAX_ROLE_CHARACTERS = 64
#: Digits of a number that is written as a text; Python itself refuses to read some thousand.
MAX_NUMBER_DIGITS = 18

_PARTS = ("chunks", "turns", "steps", "text")


class DatasetError(Exception):
    """A dataset cannot be read; the message is one sentence with the line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question and the answers that are right."""

    #: 1, 2, 3 … within its document.
    number: int
    text: str
    #: Answers that are right, at least one; with options each is one of them.
    golds: tuple[str, ...]
    #: The options of a multiple-choice question, 2 or more; else empty.
    options: tuple[str, ...] = ()
    #: Positions of the chunks that hold the answer; empty when unknown.
    evidence: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A text and the questions about it."""

    #: Unlike any other's of the dataset.
    id: str
    #: In the order of the log: the first gets position 1.
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...]

    @property
    def characters(self) -> int:
        """Length of the text."""
        return sum(len(chunk.as_text()) for chunk in self.chunks)


def read(path: Path) -> Sequence[Document]:
    """Returns the documents of a file. Raises DatasetError."""
    found: list[Document] = []
    lines: dict[str, int] = {}
    for number, line in _lines(path):
        document = _parsed(line, f"{path.name}, line {number}")
        if document.id in lines:
            raise DatasetError(
                f"{path.name}, line {number}: the id {document.id!r} is that of line"
                f" {lines[document.id]} already"
            )
        lines[document.id] = number
        found.append(document)
        if len(found) > MAX_DOCUMENTS:
            raise DatasetError(f"{path.name} has more than {MAX_DOCUMENTS:,} documents")
    if not any(document.questions for document in found):
        raise DatasetError(f"{path.name} has no questions")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                at = f"{path.name}, line {number}"
                if len(raw) > MAX_LINE_BYTES:
                    raise DatasetError(f"{at} has more than {MAX_LINE_BYTES:,} bytes")
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DatasetError(f"{at} is not UTF-8 at byte {error.start}") from error
                if line.strip():
                    yield number, line
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error


class _Wrong(Exception):
    """A value is not what it should be; says where and what."""


def _parsed(line: str, at: str) -> Document:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        # Its own text counts lines within this line.
        wrong = f"{error.msg} at character {error.pos + 1}"
        raise DatasetError(f"{at} is not JSON: {wrong}") from error
    except ValueError as error:
        raise DatasetError(f"{at} is not JSON: {error}") from error
    except RecursionError as error:
        raise DatasetError(f"{at} is nested too deeply") from error
    try:
        return _document(value)
    except _Wrong as wrong:
        raise DatasetError(f"{at}: {wrong}") from None


def _document(value: Any) -> Document:
    if not isinstance(value, dict):
        raise _Wrong("a document is a JSON object")
    chunks, places = _chunks(value)
    asked = _list(value.get("questions", []), "questions")
    questions = tuple(_question(one, number, places) for number, one in enumerate(asked, start=1))
    if "steps" in value:
        questions = _with_evidence(questions, chunks)
    return Document(id=_text(value.get("id"), "id"), chunks=chunks, questions=questions)


def _with_evidence(questions: Sequence[Question], chunks: Sequence[Chunk]) -> tuple[Question, ...]:
    """Runs of agents come without evidence: it is every step that has a right answer in it."""
    texts = [normalized(chunk.as_text()) for chunk in chunks]
    return tuple(
        one
        if one.evidence
        else replace(
            one,
            evidence=frozenset(
                position
                for position, text in enumerate(texts, start=1)
                if holds(text, telling(one.golds))
            ),
        )
        for one in questions
    )


class _Places:
    """Positions of what a dataset calls by numbers of its own."""

    def __init__(self) -> None:
        self._sections: dict[int, int] = {}
        self._turns: dict[int, int] = {}

    def add(self, section: object, turn: object, position: int) -> None:
        """Remembers where a part of the document went."""
        for held, number in ((self._sections, section), (self._turns, turn)):
            if isinstance(number, int) and not isinstance(number, bool):
                held[number] = position

    def sections(self, numbers: Sequence[int]) -> frozenset[int]:
        """Positions of sections, by their `n`."""
        return frozenset(self._sections[n] for n in numbers if n in self._sections)

    def turns(self, first: int, last: int) -> frozenset[int]:
        """Positions of turns from `first` to `last`, both included, by their `i`."""
        return frozenset(
            position for number, position in self._turns.items() if first <= number <= last
        )


def _chunks(value: Mapping[str, Any]) -> tuple[tuple[Chunk, ...], _Places]:
    named = [name for name in _PARTS if name in value]
    if len(named) != 1:
        raise _Wrong(f"a document has its text in one of {', '.join(_PARTS)}")
    name = named[0]
    places = _Places()
    if name == "text":
        pieces = split(_text(value[name], name), TEXT_CHUNK_TOKENS, estimate_tokens)
        return tuple(Chunk(kind=ChunkKind.TEXT, text=one) for one in pieces if one.strip()), places
    made: list[Chunk] = []
    for number, part in enumerate(_list(value[name], name)):
        at = f"{name}[{number}]"
        if not isinstance(part, dict):
            raise _Wrong(f"{at} is not an object")
        chunk = _READ[name](part, at)
        # The log keeps nothing that is empty.
        if not chunk.is_empty():
            made.append(chunk)
            places.add(part.get("n", number + 1), part.get("i", number), len(made))
    if not made:
        raise _Wrong(f"{name} holds no text")
    return tuple(made), places


def _text_chunk(part: Mapping[str, Any], at: str) -> Chunk:
    return Chunk(kind=ChunkKind.TEXT, text=_string(part.get("text"), f"{at}.text"))


def _turn_chunk(part: Mapping[str, Any], at: str) -> Chunk:
    return Chunk(
        kind=ChunkKind.MESSAGE,
        role=_text(part.get("speaker"), f"{at}.speaker")[:MAX_ROLE_CHARACTERS],
        text=_string(part.get("text"), f"{at}.text"),
    )


def _step_chunk(part: Mapping[str, Any], at: str) -> Chunk:
    return Chunk(
        kind=ChunkKind.STEP,
        observation=_string(part.get("observation", ""), f"{at}.observation"),
        thought=_string(part.get("thought", ""), f"{at}.thought"),
        action=_string(part.get("action", ""), f"{at}.action"),
        observed_first=_flag(part.get("observed_first", False), f"{at}.observed_first"),
    )


_READ = {"chunks": _text_chunk, "turns": _turn_chunk, "steps": _step_chunk}


def _question(value: Any, number: int, places: _Places) -> Question:
    at = f"questions[{number - 1}]"
    if not isinstance(value, dict):
        raise _Wrong(f"{at} is not an object")
    text = _bounded(_text(value.get("q"), f"{at}.q"), MAX_QUERY_BYTES, f"{at}.q")
    options = _options(value.get("options", []), f"{at}.options")
    said = [value["gold"]] if "gold" in value else []
    said += _list(value.get("golds", []), f"{at}.golds")
    if not said:
        raise _Wrong(f"{at} has no gold")
    golds = tuple(dict.fromkeys(_text(one, f"{at}.gold") for one in said))
    return Question(
        number=number,
        text=text,
        golds=tuple(dict.fromkeys(_option_of(gold, options, at) for gold in golds)),
        options=options,
        evidence=_evidence(value.get("evidence"), f"{at}.evidence", places),
    )


def _options(value: Any, at: str) -> tuple[str, ...]:
    options = tuple(
        _bounded(_text(one, f"{at}[{number}]"), MAX_OPTION_BYTES, f"{at}[{number}]")
        for number, one in enumerate(_list(value, at))
    )
    if len(options) == 1 or len(options) > MAX_OPTIONS:
        raise _Wrong(f"{at} has {len(options)} options; 2 to {MAX_OPTIONS} are taken")
    if len(set(options)) < len(options):
        raise _Wrong(f"{at} has an option twice")
    return options


def _option_of(gold: str, options: tuple[str, ...], at: str) -> str:
    """Returns, of options, the one that a gold answer names by its text or its letter."""
    if not options or gold in options:
        return gold
    letter = gold.strip().strip("().").upper()
    if len(letter) == 1 and 0 <= ord(letter) - ord("A") < len(options):
        return options[ord(letter) - ord("A")]
    raise _Wrong(f"{at}.gold is none of the options")


def _evidence(value: Any, at: str, places: _Places) -> frozenset[int]:
    """Evidence of the two forms that are known; whatever else a dataset says is not used."""
    if value is None:
        return frozenset()
    if not isinstance(value, dict):
        raise _Wrong(f"{at} is not an object")
    found = places.sections(
        [_number(one, f"{at}.sections") for one in _list(value.get("sections", []), at)]
    )
    for span in _list(value.get("turn_spans", []), f"{at}.turn_spans"):
        ends = [_number(one, f"{at}.turn_spans") for one in _list(span, f"{at}.turn_spans")]
        if len(ends) != 2:
            raise _Wrong(f"{at}.turn_spans has a span without two ends")
        found |= places.turns(ends[0], ends[1])
    return found


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Wrong(f"{at} is not a list")
    return value


def _flag(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"{at} is neither true nor false")
    return value


def _string(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"{at} is not a text")
    if "\0" in value:
        raise _Wrong(f"{at} holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Wrong(f"{at} holds half of a surrogate pair") from None
    return value


def _text(value: Any, at: str) -> str:
    if value is None:
        raise _Wrong(f"{at} is missing")
    found = _string(value, at)
    if not found.strip():
        raise _Wrong(f"{at} is empty")
    return found


def _bounded(text: str, max_bytes: int, at: str) -> str:
    if len(text.encode()) > max_bytes:
        raise _Wrong(f"{at} has more than {max_bytes:,} bytes")
    return text


def _number(value: Any, at: str) -> int:
    # Some datasets write their numbers as texts.
    if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_NUMBER_DIGITS:
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Wrong(f"{at} holds what is no whole number")
    return value
