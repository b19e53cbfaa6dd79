"""Quotes and replies that once took for ever to look for, or could not be read."""

from pathlib import Path

import pytest

from evaluation.datasets import DatasetError, read
from service.domain.answers.browse.quoting import located
from service.domain.answers.browse.replies import split_reply
from service.domain.answers.response_schemas import referred
from service.domain.prompting.asking import Unusable
from service.usecases.answers.readers.spans import quoted


def test_a_quote_of_signs_that_could_divide_a_line_of_them_in_any_way() -> None:
    assert quoted("_" * 60, "_ " * 30 + "x") is None
    assert quoted("a " * 100_000, "a " * 199 + "b") is None
    assert quoted("a " * 100_000 + "a b", "a " * 199 + "b") == (199_604, 200_003)


def test_words_too_far_apart_are_no_quote() -> None:
    assert quoted("one" + "." * 12 + "two", "one two") == (0, 18)
    assert quoted("one" + "." * 13 + "two", "one two") is None
    assert quoted("a b a b c", "a b c") == (4, 9)
    assert quoted("a b" + "-" * 20 + "a b c", "b a") is None


def test_blanks_between_words_are_gone_over_once() -> None:
    text = "a" + " " * 400
    assert located(text * 600, "a " * 400 + "b") is None
    assert located("x  one\n\n“two”  y", 'one "two"') == (3, 13)


def test_a_reply_nested_deeper_than_can_be_written_is_refused() -> None:
    reply = '{"text": ' + "[" * 400 + "]" * 400 + "}"
    with pytest.raises(Unusable, match="broken JSON"):
        split_reply(reply)


def test_a_number_of_thousands_of_digits_refers_to_nothing() -> None:
    with pytest.raises(ValueError, match="refers to nothing in the schema"):
        referred({"allOf": [{}]}, "#/allOf/" + "9" * 5000)
    assert referred({"allOf": [{}, {"a": 1}]}, "#/allOf/1") == {"a": 1}


def test_evidence_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    sections = "9" * 5000
    file.write_text(
        '{"id": "a", "text": "b", "questions": [{"q": "c", "gold": "d",'
        f' "evidence": {{"sections": ["{sections}"]}}}}]}}'
    )
    with pytest.raises(DatasetError, match="no whole number"):
        read(file)
