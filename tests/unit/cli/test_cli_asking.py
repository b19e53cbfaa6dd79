"""An answer as plain JSON."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from palimpsest import Answer, CharacterRange, Citation, ReadPoint, Usage
from service.cli.answer import answer_json


def answer(**said: Any) -> Answer:
    return Answer(
        **{
            "id": "1",
            "query": "Who?",
            "state": "done",
            "text": "Ann.",
            "citations": (),
            "read_point": ReadPoint(revision=0, applied_position=1, read_token="r"),
            "model": "a/b",
            "cause": "",
            "usage": Usage(
                calls=1,
                input_tokens=1,
                predicted_cached_tokens=0,
                failed_calls=0,
                reported_cached_tokens=0,
                unreported_calls=1,
                cache_write_tokens=0,
                output_tokens=1,
                cost_micro_usd=0,
                unpriced_calls=1,
            ),
            "created_at": datetime(2026, 1, 1, tzinfo=UTC),
            **said,
        }
    )


def test_that_there_is_no_answer_is_printed_for_every_reader() -> None:
    for reader in ("whole", "dciso", "prism"):
        assert answer_json(answer(reader=reader, no_answer="not_found"))["no_answer"] == "not_found"
    assert answer_json(answer())["no_answer"] is None


def test_a_citation_has_its_characters_where_the_answer_has_a_span() -> None:
    cited = Citation(position=1, characters=None, path="", revision=0, excerpt="Ann")
    span = replace(cited, characters=CharacterRange(start=0, end=3))
    of_chunk, of_span = answer_json(answer(citations=(cited, span)))["citations"]
    assert of_chunk["characters"] is None
    assert of_span["characters"] == {"start": 0, "end": 3}


def test_a_value_of_null_is_not_the_absence_of_one() -> None:
    assert answer_json(answer(has_value=True))["value"] is None
    assert "value" not in answer_json(answer())
