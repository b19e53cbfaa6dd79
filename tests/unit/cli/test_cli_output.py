"""What the command line prints: text from outside does nothing to a terminal."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

import palimpsest
from palimpsest._convert import value_of
from palimpsest._memories import memory
from palimpsest._spend import usage_report
from palimpsest.v1 import billing_service_pb2, memories_pb2
from service.cli import cost, output
from service.cli.memory.output import revision_line
from service.cli.progress import Bar

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\rfine"


def test_control_characters_are_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(HOSTILE)
    output.out.print(output.tree_of(HOSTILE, {HOSTILE: HOSTILE, "list": [HOSTILE]}))
    with pytest.raises(SystemExit):
        output.fail(HOSTILE)
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert not {char for char in shown if char < " " or "\x7f" <= char <= "\x9f"} - {"\n"}
    assert "\\x1b[2J" in shown
    assert "fine" in shown


@given(text=st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_other_texts_are_printed_as_they_are(text: str) -> None:
    assert output.plain(text) == text


def test_lines_end_only_where_we_end_them() -> None:
    assert output.plain("a\nb\tc") == "a\nb\tc"


def revision(**rest: object) -> palimpsest.Revision:
    given_ = {
        "revision": 7,
        "kind": "step",
        "positions": palimpsest.PositionRange(first=4, last=5),
        "comment": "",
        "restored_revision": None,
        "schema_source": "",
        "amendment_count": 0,
        "rejection_count": 0,
        "value_digest": b"\x01" * 32,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        **rest,
    }
    return palimpsest.Revision(**given_)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rest", "line"),
    [
        ({}, "r7 step [4-5]"),
        (
            {"amendment_count": 1, "positions": palimpsest.PositionRange(first=4, last=4)},
            "r7 step [4] 1 amendment",
        ),
        ({"amendment_count": 2, "rejection_count": 3}, "r7 step [4-5] 2 amendments 3 rejected"),
        ({"kind": "edit", "positions": None, "comment": "by\nme"}, "r7 edit (by me)"),
        ({"amendment_count": 1, "expired": True}, "r7 step [4-5] 1 amendment expired"),
        ({"kind": "rollback", "positions": None, "restored_revision": 0}, "r7 rollback to r0"),
    ],
)
def test_a_revision_is_one_line(rest: dict[str, object], line: str) -> None:
    assert revision_line(revision(**rest)) == line
    assert json.loads(json.dumps(output.plain_json(revision(**rest))))["revision"] == 7


def test_a_line_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "press :key: and [bold]read\tthe [/red] sign :warning: \\"
    output.show(text)
    assert capsys.readouterr().out == text + "\n"
    output.say(":key:")
    output.out.print(output.tree_of(":key:", {":key:": ":key:"}))
    captured = capsys.readouterr()
    assert captured.err == ":key:\n"
    assert captured.out.count(":key:") == 3


NUMBERS = ("1,828,123", "190,054,321", "0.000012")


def wide_table(texts: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for at in range(texts):
        table.add_column(f"text {at}")
    for at in range(len(NUMBERS) * 2):
        table.add_column(f"number {at}", justify="right")
    table.add_row(*["a question of several [b]words[/b] " * 2] * texts, *NUMBERS, *NUMBERS)
    return table


def test_a_piped_table_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_table(wide_table(3))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert "…" not in printed[1]
    assert printed[1].split()[-6:] == [*NUMBERS, *NUMBERS]
    assert printed[1].count("a question of several words a question of several words") == 3


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_terminal_is_so_narrow_that_numbers_are_cut(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = Console(force_terminal=True, width=width, soft_wrap=True, color_system=None)
    monkeypatch.setattr(output, "out", narrow)
    output.show_table(wide_table(1))
    printed = capsys.readouterr().out
    assert "…" not in printed
    for number in NUMBERS:
        assert printed.count(number) == 2
    rows = printed.splitlines()
    if width == 120:
        assert len(rows) > 2, "texts are folded where that helps"
        assert max(map(len, rows)) <= width
    else:
        assert len(rows) == 2


async def test_a_piped_list_is_whole_and_as_json_has_every_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def rows() -> AsyncIterator[palimpsest.Revision]:
        yield revision(comment="[b]" + "long " * 60)

    columns = ("kind", ">revision", "comment")
    for as_json in (False, True):
        await output.show_list(
            rows(),
            lambda one: [(one.kind, str(one.revision), one.comment)],
            columns,
            as_json=as_json,
        )
    *table, line = capsys.readouterr().out.splitlines()
    assert [one.split()[0] for one in table] == ["kind", "step"]
    assert table[1].count("long") == 60
    assert "[b]long" in table[1]
    assert json.loads(line) == {
        **{name: getattr(revision(), name) for name in ("revision", "kind")},
        "positions": {"first": 4, "last": 5},
        "restored_revision": None,
        "schema_source": "",
        "amendment_count": 0,
        "rejection_count": 0,
        "comment": "[b]" + "long " * 60,
        "value_digest": "01" * 32,
        "created_at": "2026-01-01T00:00:00+00:00",
        "expired": False,
    }


def test_calls_of_no_memory_are_the_sessions_and_other_blanks_stay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = billing_service_pb2.CostReport()
    line = billing_service_pb2.ListUsageResponse.Line(
        purpose=billing_service_pb2.CALL_PURPOSE_ANSWER
    )
    used = usage_report(report.total, [line, billing_service_pb2.ListUsageResponse.Line()])
    cost._print_cost(value_of(palimpsest.CostReport, report), used, "", False)
    _, answer, nothing, *_ = capsys.readouterr().out.splitlines()
    assert answer.split()[:3] == ["(session)", "answer", "0"]
    assert nothing.split()[:2] == ["(session)", "0"]


def test_an_empty_log_is_read_and_not_of_unknown_length() -> None:
    with Bar("revising") as bar:
        bar.show_memory(memory(memories_pb2.Memory(id="m")), 0)
        (task,) = bar._progress.tasks
        assert (task.completed, task.total) == (0, 0)
