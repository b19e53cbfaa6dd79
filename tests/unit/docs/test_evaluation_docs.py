"""The guide to evaluation: its dataset is read, and it names every option and strategy."""

import inspect
import re
from pathlib import Path

from evaluation import datasets
from evaluation.cli.questions import evaluate
from evaluation.cli.recall import recall
from evaluation.cli.reliability import reliability
from evaluation.cli.search import search
from evaluation.reliability.experiment import STRATEGIES
from evaluation.schemas import GENERAL
from evaluation.searching import SearchWay
from evaluation.strategies import FIGURE_3, USUAL, StrategyName
from service.domain.prism.schemas.source import parse_source
from tests import ROOT

PAGE = ROOT / "docs" / "guides" / "evaluation.md"


def test_the_dataset_is_read(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "guide.jsonl"
    path.write_text(block)
    fox, meeting, run, page = datasets.read(path)
    assert fox.questions[0].golds == ("Ann", "Ann did")
    assert fox.questions[0].evidence == {1}
    assert meeting.questions[0].golds == ("the boat",)
    assert meeting.questions[0].evidence == {1}
    assert run.chunks[0].action == "open[door]"
    assert page.chunks[0].text == "The harbour museum is closed on Mondays."


def test_every_strategy_has_its_row() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ", PAGE.read_text(), re.MULTILINE)
    assert set(StrategyName) <= set(rows)
    assert set(SearchWay) - {"reranked"} <= set(rows)
    games = re.findall(
        r"`([a-zN0-9-]+)`", " ".join(re.findall(r"^\| (`.*?) \| ", PAGE.read_text(), re.MULTILINE))
    )
    assert {*STRATEGIES, "pcc-N"} <= set(games)


def test_the_groups_are_as_it_says() -> None:
    text = PAGE.read_text()
    assert f"`{','.join(USUAL)}`" in text
    (block,) = re.findall(r"^    palimpsest eval .*--figure3.*?\n\n(.*?)\n\n", text, re.M | re.S)
    for name in FIGURE_3:
        assert name in block, name


def test_the_general_schema_is_one_that_the_service_takes() -> None:
    assert parse_source(GENERAL).root.name == "Notes"


def test_every_option_is_named() -> None:
    text = PAGE.read_text()
    for name in (
        *inspect.signature(evaluate).parameters,
        *inspect.signature(search).parameters,
        *inspect.signature(recall).parameters,
        *inspect.signature(reliability).parameters,
    ):
        called = {"as_json": "json", "reasoning": "no-reasoning", "settings_path": "config"}
        flag = called.get(name, name.replace("_", "-"))
        assert f"--{flag}" in text, flag
