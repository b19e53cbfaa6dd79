"""Files and times that commands read: limits of what is read, and refusals."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from palimpsest import MAX_JSON_BYTES, MAX_SOURCE_BYTES, JsonText
from service.cli.files import read_schema, read_text
from service.cli.output import CommandError
from service.cli.search import moment


def test_a_schema_may_be_as_long_as_the_service_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "schema"
    file.write_text("#" * MAX_SOURCE_BYTES)
    assert len(read_schema(str(file))) == MAX_SOURCE_BYTES
    file.write_text("{" + " " * (MAX_JSON_BYTES - 1))
    assert isinstance(read_schema(str(file)), JsonText)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#" * (MAX_SOURCE_BYTES + 1), "has more than 65536 bytes of class source"),
        ("ä" * (MAX_SOURCE_BYTES // 2 + 1), "has more than 65536 bytes of class source"),
        ("{" + " " * MAX_JSON_BYTES, "has more than 262144 bytes"),
    ],
)
def test_a_schema_that_no_request_may_carry_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "schema"
    file.write_text(text)
    with pytest.raises(CommandError) as refused:
        read_schema(str(file))
    assert str(refused.value) == f"{file} {said}"


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(CommandError, match="/dev/zero has more than 10 bytes"):
        read_text("/dev/zero", 10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soon", "--since: 'soon' is no time such as"),
        ("0001-01-01T00:00+14:00", "is not within the years 1 to 9999 of UTC"),
        ("9999-12-31T23:59-14:00", "is not within the years 1 to 9999 of UTC"),
    ],
)
def test_a_time_that_no_request_may_carry_is_refused(text: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        moment("--since", text)


@pytest.mark.parametrize(
    "text", ["2026-11-30T12:00", "2026-11-30T12:00Z", "2026-11-30T14:00+02:00"]
)
def test_a_time_without_a_zone_is_of_utc(text: str) -> None:
    assert moment("--since", text) == datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert moment("--since", "") is None
