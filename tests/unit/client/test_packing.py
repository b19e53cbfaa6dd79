"""Bytes of frameworks in the metadata of chunks."""

import random
from dataclasses import replace

import pytest

from palimpsest._values_log import Chunk
from palimpsest.integrations._packing import VALUE_CHARACTERS, Packing

PACKING = Packing(mark="record", values=3, max_bytes=20_000)
#: What does not compress, and so takes several chunks.
LARGE = random.Random(7).randbytes(6000)


def chunks_of(data: bytes, first: int = 1) -> list[Chunk]:
    """Returns the chunks of data, as they are read from a log."""
    return [
        Chunk(kind="text", text="x", metadata={"kind": "blob", **marks}, position=first + number)
        for number, marks in enumerate(PACKING.pieces(data, "it"))
    ]


@pytest.mark.parametrize("data", [b"", b"a", b"\0\xff", LARGE, b"word " * 3000])
def test_bytes_come_back_as_they_were(data: bytes) -> None:
    chunks = chunks_of(data)
    for chunk in chunks:
        assert len(chunk.metadata) <= 7
        assert all(len(value) <= VALUE_CHARACTERS for value in chunk.metadata.values())
        assert chunk.metadata.keys() - PACKING.keys == {"kind"}
    assert list(PACKING.whole(chunks)) == [(data, chunks)]


def test_what_lacks_a_chunk_is_not_read() -> None:
    chunks = chunks_of(LARGE)
    assert len(chunks) == 3
    for missing in range(3):
        rest = [one for number, one in enumerate(chunks) if number != missing]
        assert not list(PACKING.whole(rest))
    # Of one that was forgotten only its place is left.
    redacted = replace(chunks[1], metadata={}, text="")
    assert not list(PACKING.whole([chunks[0], redacted, chunks[2]]))


def test_data_of_writers_at_once_is_kept_apart() -> None:
    one, other = chunks_of(LARGE), chunks_of(LARGE[::-1], first=10)
    mixed = [chunk for pair in zip(one, other, strict=True) for chunk in pair]
    assert [data for data, _ in PACKING.whole(mixed)] == [LARGE, LARGE[::-1]]


@pytest.mark.parametrize("data", [b"a" * 20_001, random.Random(7).randbytes(20_000)])
def test_too_much_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="it has more than 20000 bytes"):
        list(PACKING.pieces(data, "it"))


def test_what_is_damaged_or_too_large_is_no_data() -> None:
    large = Packing(mark="record", values=3, max_bytes=10**6)
    bomb = [
        Chunk(kind="text", text="x", metadata=marks, position=7)
        for marks in large.pieces(b"a" * 100_000, "it")
    ]
    with pytest.raises(ValueError, match="position 7 is damaged or too large"):
        list(PACKING.whole(bomb))
