"""A run continues from its report, which is whole at any moment, with the same settings only."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.report import FORMAT, Build, Report, ReportError
from evaluation.strategies import Spent
from tests.unit.evaluation.results import result, walk


def head(**settings: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run_id": settings.pop("run_id", "first"),
        "complete": False,
        "settings": {"limit": 3, "strategies": ["memwalker"], "concurrency": 4, **settings},
        "versions": {"palimpsest": "0.1.0"},
    }


def test_a_report_that_is_read_again_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = Report.begin(path, head())
    report.add(result(1, walk=walk(), options=("a", "b"), score=0.5))
    report.add(result(4, pieces=3, chosen="dciso-rank", gold_cited=1.0))
    report.add(result(2, failure="it broke"))
    report.built(
        Build(strategy="memwalker", document="d", place="p", spent=Spent(calls=1), seconds=0.5)
    )
    report.write(complete=True)

    again = Report.resume(path, head(run_id="second", strategies=["retrieval"], concurrency=1))
    assert list(again.results) == list(report.results)
    assert list(again.builds) == list(report.builds)
    assert again.run_id == "first", "it finds its sessions again"
    assert again.is_done("memwalker", "d", 1)
    assert not again.is_done("memwalker", "d", 2), "what failed is asked again"
    assert not again.is_done("memwalker", "d", 3)
    assert again.to_json()["complete"] is False
    assert [one.name for one in tmp_path.iterdir()] == ["report.json"]


def test_a_result_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    report = Report.begin(None, head())
    report.add(result(1, failure="it broke"))
    report.add(result(1, score=1.0))
    (only,) = report.results
    assert (only.failure, only.score) == ("", 1.0)
    build = Build(strategy="m", document="d", place="kept", spent=Spent(calls=1), seconds=1.0)
    for one in (build, replace(build, place="other"), replace(build, spent=Spent(calls=2))):
        report.built(one)
    found = {one.place: (one.spent.calls, one.seconds) for one in report.builds}
    # The ledger of what is kept counts all; what is made again is paid again.
    assert found == {"kept": (2, 2.0), "other": (1, 1.0)}


def test_it_is_readable_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = Report.begin(path, head())
    assert json.loads(path.read_text())["questions"] == []
    report.add(result(1, answer='He said "so"\n\x00 ü'))
    report.write()
    assert json.loads(path.read_text())["questions"][0]["answer"] == 'He said "so"\n\x00 ü'


@pytest.mark.parametrize(
    ("held", "about"),
    [
        (None, "is not there"),
        ("{", "it is not JSON"),
        ("[]", "is no report of this release"),
        (json.dumps({**head(), "format": 0, "questions": [], "builds": []}), "of another release"),
        (json.dumps({**head(), "format": 1, "questions": [], "builds": []}), "of another release"),
        (json.dumps({**head(), "questions": [{}], "builds": []}), "no report of this release"),
        (json.dumps({**head(limit=9), "questions": [], "builds": []}), "was made with limit 9"),
        (
            json.dumps({**head(), "versions": {}, "questions": [], "builds": []}),
            "another version of palimpsest",
        ),
    ],
)
def test_what_cannot_be_continued(tmp_path: Path, held: str | None, about: str) -> None:
    path = tmp_path / "report.json"
    if held is not None:
        path.write_text(held)
    with pytest.raises(ReportError, match=about):
        Report.resume(path, head())
    assert held is None or path.read_text() == held, "it is left as it is"


def test_a_report_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("mine")
    with pytest.raises(ReportError, match="--resume goes on with it"):
        Report.begin(path, head())
    assert path.read_text() == "mine"
    with pytest.raises(ReportError, match="cannot write"):
        Report.begin(tmp_path / "none" / "report.json", head())


@pytest.mark.parametrize("part", ["settings", "versions"])
def test_a_report_whose_settings_are_none_is_refused(tmp_path: Path, part: str) -> None:
    path = tmp_path / "report.json"
    head = {"run_id": "r", "settings": {"a": 1}, "versions": {"python": "3"}}
    Report.begin(path, head)
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, part: [["a", 1]]}))
    with pytest.raises(ReportError, match="is no report of this release"):
        Report.resume(path, head)
