"""When the doctor is content, and when it is not."""

import pytest

from service.domain.operations import doctor
from service.domain.operations.doctor import Finding, MemoryCounts, Severity

CONTENT = MemoryCounts(
    total=3,
    stalled=(),
    causes=(),
    held=(),
    failing=(),
    failing_by="",
    stuck=(),
    behind=2,
    slowest="s/m",
)
NEWEST, KNOWN = "0007", frozenset({"0006", "0007"})


def counts(**changes: object) -> MemoryCounts:
    values = {name: getattr(CONTENT, name) for name in MemoryCounts.__dataclass_fields__}
    return MemoryCounts(**{**values, **changes})


@pytest.mark.parametrize(
    ("found", "level"),
    [
        ("0007", Severity.OK),
        ("0006", Severity.BAD),
        # Before the first migration: of a release before version 1.
        ("0005", Severity.BAD),
        (None, Severity.BAD),
        ("0008", Severity.WARN),
        ("a_branch", Severity.WARN),
    ],
)
def test_a_database_that_is_behind_is_bad_and_one_ahead_is_reported(
    found: str | None, level: Severity
) -> None:
    assert doctor.judge_migration(found, NEWEST, KNOWN).level is level


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}, Severity.OK),
        ({"fsync": "off", "full_page_writes": "on", "synchronous_commit": "on"}, Severity.BAD),
        ({"fsync": "on", "full_page_writes": "off", "synchronous_commit": "on"}, Severity.BAD),
        ({"fsync": "on", "full_page_writes": "on", "synchronous_commit": "off"}, Severity.WARN),
    ],
)
def test_settings_that_lose_acks_are_reported(settings: dict[str, str], level: Severity) -> None:
    assert doctor.judge_durability(settings).level is level


@pytest.mark.parametrize(
    ("off", "round_trip", "level"),
    [
        (1.9, 0.0, Severity.OK),
        (-2.1, 0.0, Severity.WARN),
        (2.1, 0.0, Severity.WARN),
        (3.0, 2.5, Severity.OK),
    ],
)
def test_a_clock_is_off_only_as_far_as_can_be_known(
    off: float, round_trip: float, level: Severity
) -> None:
    assert doctor.judge_clock(off, round_trip).level is level


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [Severity.OK]),
        ({"stuck": ("s/m",)}, [Severity.BAD]),
        ({"stalled": ("s/m",), "held": ("s/n",)}, [Severity.BAD, Severity.WARN]),
        ({"failing": ("s/m",), "failing_by": "x failed"}, [Severity.WARN]),
        ({"behind": 10_000}, [Severity.OK]),
        ({"behind": 10_001}, [Severity.WARN]),
    ],
)
def test_memories_that_do_not_continue_are_reported(
    changes: dict[str, object], expected: list[Severity]
) -> None:
    found = doctor.judge_memories(counts(**changes), backlog_chunks=100_000)
    assert [one.level for one in found] == expected


def test_of_many_memories_some_are_named() -> None:
    names = tuple(f"s/m{number}" for number in range(5))
    (found,) = doctor.judge_memories(
        counts(stalled=names, causes=(("no key", 4), ("no room", 1))), backlog_chunks=100
    )
    assert found.level is Severity.BAD
    assert found.said == "s/m0, s/m1, s/m2 and 2 more gave up: 4 by: no key; 1 by: no room"
    assert "memory retry --all" in found.advice


def queue(**changes: float) -> list[Finding]:
    held = {"queued": 0, "running": 0, "oldest_seconds": 0.0, "workers": 1, "silent": 0}
    return doctor.judge_queue(**{**held, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [Severity.OK, Severity.OK]),
        ({"queued": 5, "oldest_seconds": 61.0}, [Severity.WARN, Severity.OK]),
        ({"workers": 0}, [Severity.OK, Severity.WARN]),
        ({"workers": 0, "queued": 1}, [Severity.OK, Severity.BAD]),
        ({"workers": 0, "running": 1}, [Severity.OK, Severity.BAD]),
        ({"silent": 1}, [Severity.OK, Severity.WARN]),
    ],
)
def test_work_without_workers_is_bad(changes: dict[str, float], expected: list[Severity]) -> None:
    assert [one.level for one in queue(**changes)] == expected


def test_what_is_not_ok_says_what_to_do() -> None:
    found = [
        doctor.judge_server("14.1", 140_001),
        doctor.judge_role("x", unfit="the login x is a superuser", open_tables=()),
        doctor.judge_role("x", unfit="", open_tables=("chunk",)),
        doctor.judge_pending("answers", 3, 1, 700.0),
        doctor.judge_intents(2, 1),
        doctor.judge_index(1, 10_001, "", ""),
        doctor.judge_index(0, 0, "", "refused"),
        doctor.judge_index(1, 1, "no such language", ""),
    ]
    assert all(one.level is not Severity.OK and one.advice for one in found)


QUIET = {
    "log_statement": "none",
    "log_min_duration_statement": "-1",
    "log_min_duration_sample": "-1",
    "log_parameter_max_length": "-1",
    "log_parameter_max_length_on_error": "0",
    "log_error_verbosity": "terse",
}


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        ({}, ""),
        ({"log_error_verbosity": "default"}, "set log_error_verbosity = terse"),
        ({"log_statement": "all"}, "set log_parameter_max_length = 0"),
        ({"log_statement": "ddl"}, ""),
        ({"log_min_duration_statement": "0"}, "set log_parameter_max_length = 0"),
        ({"log_min_duration_sample": "250", "log_parameter_max_length": "0"}, ""),
        ({"log_parameter_max_length_on_error": "64"}, ""),
        (
            {"log_parameter_max_length_on_error": "64", "log_error_verbosity": "verbose"},
            "set log_error_verbosity = terse, log_parameter_max_length_on_error = 0",
        ),
    ],
)
def test_a_server_that_logs_texts_is_reported(settings: dict[str, str], advised: str) -> None:
    found = doctor.judge_logged(QUIET | settings)
    assert (found.level is Severity.WARN, found.advice) == (bool(advised), advised)
