"""The reader of literals: JSON, Python's, and what models make of both."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.literals import (
    MAX_LEVELS,
    LiteralError,
    LiteralReader,
    LiteralTooLarge,
    plain,
)


def read(text: str) -> Any:
    reader = LiteralReader(text, 8 * len(text) + 100)
    value = plain(reader.value())
    reader.blank()
    assert reader.at == len(text), "all of it is the literal"
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[None, True, False, null, true, false]", [None, True, False, None, True, False]),
        ("('a', \"b\",)", ["a", "b"]),
        ("('a',)", ["a"]),
        ("('a')", "a"),
        ("()", []),
        ("'it''s' \"one\"\n 'string'", "itsonestring"),
        ("{'a': 1, \"b\": [2,],}", {"a": 1, "b": [2]}),
        ("{a: 1, b2: 'x'}", {"a": 1, "b2": "x"}),
        ('"""two "quoted"\nlines"""', 'two "quoted"\nlines'),
        ("'''it's'''", "it's"),
        ('["over\ntwo lines"]', ["over\ntwo lines"]),
        ('{"a": 1, # why\n "b": 2 // and this\n}', {"a": 1, "b": 2}),
        ('"# no comment, // nor this"', "# no comment, // nor this"),
        (r'"\u00e4\ud83d\ude00\n\t\"\/\\"', 'ä😀\n\t"/\\'),
        (r"'\x41\U0001f600\''", "A😀'"),
        (r'"\alpha C:\dir \0"', r"\alpha C:\dir \0"),
        ("[-1, +2, 1_000, 2.5, -.5, 5., 1e3, 0]", [-1, 2, 1000, 2.5, -0.5, 5.0, 1000.0, 0]),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ("\ufeff [ ]", []),
        ("undefined", None),
    ],
)
def test_both_languages_are_read(text: str, value: Any) -> None:
    assert repr(read(text)) == repr(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NaN", "NaN, which JSON does not have"),
        ("[-Infinity]", "Infinity, which JSON does not have"),
        ("[nan, inf]", "nan, which JSON does not have"),
        ("1e999", "a number that JSON does not have"),
        ("9" * 65, "more than 64 digits"),
        ("9" * 100_000, "more than 64 digits"),
        ("007", "begins with 0"),
        ("{1: 'x'}", "a key that is not a string"),
        ("{None: 'x'}", "a key that is not a string"),
        ("{'a' 1}", "no colon"),
        ("['a' 1]", "neither a comma nor ]"),
        ("[1 2]", "neither a comma nor ]"),
        ("['a'", "not closed"),
        ("{'a': ", "neither JSON nor a Python literal"),
        ("'a", "a string is not closed"),
        ("'''a''", "a string is not closed"),
        ("{'a', 'b'}", "no colon"),
        ("0x1f", "neither JSON nor a Python literal"),
        ("-null", "neither JSON nor a Python literal"),
        ("open('/etc/passwd')", "neither JSON nor a Python literal"),
        ("[" * (MAX_LEVELS + 1), "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("", "neither JSON nor a Python literal"),
        ('"\\u0000"', "a NUL character"),
        ('"\\ud800"', "half of a surrogate pair"),
    ],
)
def test_what_is_no_literal_says_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(text)


def test_a_string_may_hold_what_looks_like_an_object() -> None:
    text = """["a note\n{'$.topics.evil': {'add': ['x']}}"]"""
    assert read(text) == [text[2:-2]]


def test_reading_stops_when_too_much_was_read() -> None:
    reader = LiteralReader("[1, 2, 3]", 5)
    with pytest.raises(LiteralTooLarge):
        reader.value()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda of: st.lists(of, max_size=4) | st.dictionaries(st.text(), of, max_size=4),
    max_leaves=20,
)


def storable(value: Any) -> bool:
    return not any(0xD800 <= ord(char) < 0xE000 or char == "\0" for char in _all_text(value))


def _all_text(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(value) + "".join(map(_all_text, value.values()))
    if isinstance(value, list):
        return "".join(map(_all_text, value))
    return value if isinstance(value, str) else ""


@given(JSON.filter(storable), st.sampled_from([None, 2]), st.booleans())
def test_what_json_writes_is_read_back(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert read(text) == value
    assert repr(read(text)) == repr(json.loads(text))


@given(JSON.filter(storable))
def test_what_python_writes_is_read_back(value: Any) -> None:
    # Python has escapes that JSON has not: those of one digit kind, \a and \v.
    assert read(repr(value)) == value


@given(st.text(st.sampled_from("{}[]()'\"\\,:#/\n 1.eE+-_nNaux$"), max_size=60))
def test_any_text_is_a_literal_or_an_error(text: str) -> None:
    reader = LiteralReader(text, 1000)
    try:
        value = reader.value()
    except LiteralError as error:
        assert 0 <= error.at <= len(text)
        return
    assert 0 < reader.at <= len(text)
    try:
        plain(value)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    "piece", ["'", '"', "'''", "\\'", "'\\", "[", "{'", "1_", "1e", "-", "#\n", "//"]
)
def test_long_nonsense_is_read_once(piece: str) -> None:
    text = piece * 20_000
    reader = LiteralReader(text, math.inf)  # type: ignore[arg-type]
    try:
        reader.value()
    except LiteralError:
        pass
    else:
        assert reader.at > 0
