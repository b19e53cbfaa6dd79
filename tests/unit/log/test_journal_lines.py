"""The erasure journal: its lines are chained, and what was changed is noticed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from pydantic import ValidationError

from service.domain.log.erasures import ErasureKind
from service.domain.log.journal_lines import JournalBroken, JournalEntry, journal_key
from service.settings.config import Limits
from service.usecases.operations.journal_file import JournalFile

KEY = journal_key(b"token key")


def entry(number: int) -> JournalEntry:
    return JournalEntry(
        tenant_id=UUID(int=1),
        erasure_id=UUID(int=number),
        kind=ErasureKind.SESSION,
        target_session=UUID(int=100 + number),
        target_item=UUID(int=100 + number),
        detail={"positions": [[1, 3]]},
        principal="key:ä",
        requested_at=datetime(2026, 11, 27, 1, 2, 3, 4, tzinfo=UTC),
    )


def filled(tmp_path: Path) -> JournalFile:
    file = JournalFile(tmp_path / "erasures.journal", KEY)
    file.append([entry(1), entry(2)])
    file.append([entry(3)])
    return file


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    file = filled(tmp_path)
    assert list(file.read()) == [entry(1), entry(2), entry(3)]
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert list(JournalFile(tmp_path / "none", KEY).read()) == []


def cut_first(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def swapped(lines: list[bytes]) -> list[bytes]:
    return [lines[1], lines[0], lines[2]]


def changed(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b"key:", b"kez:"), *lines[1:]]


def garbage(lines: list[bytes]) -> list[bytes]:
    return [*lines, b"[]\n"]


def too_long(lines: list[bytes]) -> list[bytes]:
    return [*lines, b"x" * 2_000_000 + b"\n"]


@pytest.mark.parametrize("broken", [cut_first, swapped, changed, garbage, too_long])
def test_a_change_is_noticed(tmp_path: Path, broken: Callable[[list[bytes]], list[bytes]]) -> None:
    file = filled(tmp_path)
    lines = file.path.read_bytes().splitlines(keepends=True)
    file.path.write_bytes(b"".join(broken(lines)))
    with pytest.raises(JournalBroken, match="line "):
        list(file.read())


def test_the_journal_of_another_deployment_is_refused(tmp_path: Path) -> None:
    other = JournalFile(filled(tmp_path).path, journal_key(b"another"))
    with pytest.raises(JournalBroken, match="line 1 was changed, or is of another deployment"):
        list(other.read())


def test_a_line_that_is_too_long_is_refused_before_it_is_written(tmp_path: Path) -> None:
    file = filled(tmp_path)
    before = file.path.read_bytes()
    long = replace(entry(4), detail={"positions": list(range(10**6, 10**6 + 200_000))})
    with pytest.raises(JournalBroken, match="its line would be longer than 1048576 bytes"):
        file.append([long])
    assert file.path.read_bytes() == before


def test_the_largest_redaction_that_settings_allow_fits_a_line(tmp_path: Path) -> None:
    detail = {
        "positions": list(range(10**11, 10**11 + 50_000)),
        "keep_out": [[500, f"{number:064x}"] for number in range(5000)],
        "exports": [{"export": str(UUID(int=1)), "begun_at": "2026" * 8, "head": 10**11}] * 100,
        "imports": [{"session": str(UUID(int=1)), "export": str(UUID(int=2))}] * 100,
        "imports_before": 10**11,
    }
    file = filled(tmp_path)
    file.append([replace(entry(4), detail=detail)])
    assert list(file.read())[-1].detail == detail
    for above in ({"max_redacted_chunks": 50_001}, {"max_kept_out": 5001}):
        with pytest.raises(ValidationError, match="less than or equal to"):
            Limits.model_validate(above)


def test_a_line_whose_writer_died_is_written_over(tmp_path: Path) -> None:
    file = filled(tmp_path)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole + b'{"at": "2026-')
    assert [one.erasure_id.int for one in file.read()] == [1, 2, 3]
    file.append([entry(4)])
    assert [one.erasure_id.int for one in file.read()] == [1, 2, 3, 4]
    # Only the first line was begun.
    file.path.write_bytes(whole[:20])
    file.append([entry(5)])
    assert [one.erasure_id.int for one in file.read()] == [5]
