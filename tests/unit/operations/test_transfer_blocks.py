"""Tests what the lines of an export may have, before anything is stored of them."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.operations.transfer import blocks, records
from service.domain.operations.transfer.blocks import (
    BlockReader,
    BlockWriter,
    Check,
    ExportPlace,
    FileInvalid,
    Header,
)
from service.domain.operations.transfer.shapes import ShapeRefused, count_values

MAX_BYTES = 64 * 1024 * 1024
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def nodes(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(nodes(one) for one in inner)


@given(value=JSON, plain=st.booleans())
def test_no_value_is_missed(value: Any, plain: bool) -> None:
    line = json.dumps(value, ensure_ascii=plain).encode()
    # Empty lists and objects count twice at most.
    assert nodes(value) <= count_values(line) <= 2 * nodes(value)


@pytest.mark.parametrize("line", [b'"' + b'\\"' * 500_000, b'"' * 999_999, b"\\" * 999_999, b'"\\'])
def test_lines_that_are_no_json_are_read_once(line: bytes) -> None:
    assert count_values(line) == 1


def test_too_many_values_and_levels_are_refused() -> None:
    with pytest.raises(ShapeRefused, match="250,000 values"):
        count_values(b"[" + b"0," * 250_000 + b"0]")
    count_values(b"[" * 64 + b"]" * 64)
    count_values(b"[" + b"{}," * 1000 + b"{}]")
    with pytest.raises(ShapeRefused, match="too deeply"):
        count_values(b"[" * 65 + b"]" * 65)


def test_a_block_with_too_many_values_is_refused_before_its_end() -> None:
    reader = BlockReader(max_block_bytes=MAX_BYTES)
    line = b'{"record":"chunk","metadata":[' + b"0," * 200_000 + b"0]}\n"
    assert list(reader.feed(line * 2)) == []
    with pytest.raises(FileInvalid, match="values") as found:
        list(reader.feed(line))
    assert (found.value.line, found.value.message) == (4, "its block has more than 500,000 values")


def test_values_of_blocks_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_BLOCK_VALUES", 20)
    reader, writer = BlockReader(max_block_bytes=MAX_BYTES), BlockWriter()
    for _ in range(5):
        for _ in range(2):
            writer.add({"record": "chunk", "metadata": {"a": "1", "b": "2"}})
        assert len(list(reader.feed(writer.close(ExportPlace(kind="chunk"))))) == 1


def header(**fields: Any) -> bytes:
    """Returns the line of a header whose checksum is right."""
    made = Header(session="s", export_id=uuid4(), exported_at=datetime.now(UTC), head=1, memories=0)
    value = json.loads(made.to_line())
    del value["sha256"]
    return blocks._sealed({**value, **fields})


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "fields",
    [
        {"head": 10**30},
        {"memories": 2**63},
        {"head": True},
        {"exported_at": "0001-01-01T00:00:00+14:00"},
        {"exported_at": "2026-01-01T00:00:00"},
        {"exported_at": 7},
        {"novel": nested(900)},
    ],
)
def test_a_header_out_of_range_is_refused(fields: Mapping[str, Any]) -> None:
    assert Header.from_line(header()).head == 1
    with pytest.raises(FileInvalid, match=r"incomplete|deeply"):
        Header.from_line(header(**fields))


def test_a_record_of_any_depth_is_refused() -> None:
    with pytest.raises(FileInvalid, match="too deeply"):
        Check.from_line(json.dumps({"record": nested(900)}).encode())


@pytest.mark.parametrize(
    ("of", "text", "found"),
    [
        ("date", "2024-W01-1", "2024-01-01"),
        ("date", "20240101", "2024-01-01"),
        ("timestamptz", "2024-W01-1T00:00:00+01:00", "2023-12-31T23:00:00+00:00"),
    ],
)
def test_dates_are_written_as_the_database_reads_them(of: str, text: str, found: str) -> None:
    field = records.RecordField(name="at", type=of)
    assert field.from_json(text) == found
