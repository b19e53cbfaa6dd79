"""The line that models read before a chunk with a thread, a source or a time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prism.pacing import SizedChunk, pieces
from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.triggers import SizedStep
from service.domain.tree.segmenting import joined, piece_of
from tests.unit.support.logged import logged_chunk

PLAIN = Chunk(kind=ChunkKind.TEXT, text="It opens at nine.", metadata={"a": "b"})
STEP = Chunk(kind=ChunkKind.STEP, observation="o", action="a", observed_first=True)
AT = datetime(2026, 5, 3, 12, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))


def test_a_chunk_without_one_reads_and_hashes_as_before() -> None:
    # Digests that a release without threads made.
    assert PLAIN.digest().hex() == (
        "1e04945dbf45204b213094b26d99e76b292cfdc7a1f3cf0b53d0affecaf3bb06"
    )
    assert STEP.digest().hex() == (
        "3aee0c6cede56d623b49b21bfc4fe1fa66e728690585bc54f9cea93e04d15fbb"
    )
    assert PLAIN.as_text() == PLAIN.text
    assert STEP.as_text() == "Observation: o\nAction: a"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"thread": "support-17"}, '[thread "support-17"]\n'),
        ({"source": "user:42"}, '[source "user:42"]\n'),
        ({"occurred_at": AT}, "[occurred at 2026-05-03T10:00:00Z]\n"),
        (
            {"thread": "t", "source": "s", "occurred_at": AT},
            '[occurred at 2026-05-03T10:00:00Z, source "s", thread "t"]\n',
        ),
        ({"thread": 'x", source "boss"] \\ é😀'}, '[thread "x\\", source \\"boss\\"] \\\\ é😀"]\n'),
        (
            {"occurred_at": datetime(1, 1, 1, tzinfo=UTC)},
            "[occurred at 0001-01-01T00:00:00Z]\n",
        ),
    ],
)
def test_what_is_known_stands_before_the_content(fields: dict[str, object], line: str) -> None:
    for chunk in (PLAIN, STEP, Chunk(kind=ChunkKind.MESSAGE, role="user", text="hi")):
        with_heading: Chunk = replace(chunk, **fields)  # type: ignore[arg-type]
        assert with_heading.as_text() == line + chunk.as_text()


def test_every_field_has_a_part_in_the_digest() -> None:
    later = AT + timedelta(microseconds=1)
    variants = [
        PLAIN,
        replace(PLAIN, thread="a"),
        replace(PLAIN, source="a"),
        replace(PLAIN, thread="a", source="a"),
        replace(PLAIN, thread="aa"),
        replace(PLAIN, occurred_at=AT),
        replace(PLAIN, occurred_at=later),
        replace(PLAIN, thread="a", occurred_at=AT),
        replace(STEP, thread="a"),
        replace(STEP, thread="a", observed_first=False),
    ]
    assert len({one.digest() for one in variants}) == len(variants)
    assert replace(PLAIN, occurred_at=AT.astimezone(UTC)).digest() == variants[5].digest()


def test_each_method_reads_it_and_counts_it() -> None:
    first = logged_chunk(1, replace(PLAIN, text="One. " * 40, thread="t"))
    second = logged_chunk(2, replace(PLAIN, text="Two."))
    assert SizedChunk.of(first, estimate_tokens).tokens == estimate_tokens(first.chunk.as_text())
    parts = pieces(first, 20, estimate_tokens)
    assert len(parts) > 1
    assert "".join(one.chunk.text for one in parts).startswith('[thread "t"]\nOne. One.')
    assert SizedStep.of(first).text == first.chunk.as_text()
    # A heading begins a line, and so does a sentence after another; other text continues.
    assert joined([piece_of(second), piece_of(second)]) == "Two.\nTwo."
    half = piece_of(logged_chunk(3, replace(PLAIN, text="and a half.")))
    assert joined([piece_of(second), half]) == "Two.and a half."
    assert joined([piece_of(second), piece_of(first)]) == f"Two.\n{first.chunk.as_text()}"
