"""The guide to evaluation: its dataset is read, and it names every option and strategy."""

import inspect
import re
from pathlib import Path

from service.cli.evaluate import evaluate
from service.cli.reliability import reliability
from service.evaluation import datasets
from service.evaluation.reliability.experiment import STRATEGIES
from service.evaluation.strategies import StrategyName

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "evaluation.md"


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
    rows = re.findall(r"^\| `([a-z-]+)` \| ", PAGE.read_text(), re.MULTILINE)
    assert set(StrategyName) <= set(rows)
    games = re.findall(
        r"`([a-zN0-9-]+)`", " ".join(re.findall(r"^\| (`.*?) \| ", PAGE.read_text(), re.MULTILINE))
    )
    assert {*STRATEGIES, "pcc-N"} <= set(games)


def test_every_option_is_named() -> None:
    text = PAGE.read_text()
    for name in (
        *inspect.signature(evaluate).parameters,
        *inspect.signature(reliability).parameters,
    ):
        flag = {"as_json": "json", "reasoning": "no-reasoning"}.get(name, name.replace("_", "-"))
        assert f"--{flag}" in text, flag
