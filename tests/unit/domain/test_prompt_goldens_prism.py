"""The prompts of PRISM memories as they are, word for word, for whoever reviews a change.

PALIMPSEST_TEST_UPDATE=1 writes them anew.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as File

import pytest

from service.domain.flows import ModelAsk
from service.domain.paths import Path
from service.domain.prism import asking as prism
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.memory import PrismMemory
from service.domain.prism.rules import Rules
from service.domain.prism.spec import PrismSpec
from service.domain.schemas.source import parse_source
from tests.unit.logged import logged

PROMPTS = File(__file__).resolve().parents[2] / "recorded" / "prompts"
SOURCE = "class Notes:\n    topics: dict[str, list[str]]\n"
SPEC = PrismSpec(schema_source=SOURCE, task="Keep what is said.", question="When is it open?")
KEY = b"a key that nobody outside knows"


def _memory() -> PrismMemory:
    one, other = (
        Amendment(path=Path(("topics", name)), op=Op.ADD, value=["closed on Mondays"])
        for name in ("museum", "bakery")
    )
    return PrismMemory.create(parse_source(SOURCE)).apply(1, [one]).fold().apply(2, [other])


def _revise(rules: Rules) -> ModelAsk:
    texts = [logged(3, "It opens at nine."), logged(4, "On Sundays at ten.")]
    return next(prism.revise(SPEC, _memory(), texts, marker_key=KEY, rules=rules))[0]


def _consolidate() -> ModelAsk:
    flow = prism.consolidate(SPEC, _memory(), marker_key=KEY, rules=Rules(), budget_tokens=9)
    return next(flow)[0]


def _answer(final_task: str) -> ModelAsk:
    spec = replace(SPEC, final_task=final_task)
    return next(prism.answer(spec, _memory(), "When is it closed?", marker_key=KEY))[0]


ASKS: dict[str, Callable[[], ModelAsk]] = {
    "": lambda: _revise(Rules()),
    ".add-only": lambda: _revise(Rules(add_only=True)),
    ".may-remove": lambda: _revise(Rules(may_remove=True)),
    ".whole": _consolidate,
    ".plain": lambda: _answer(""),
    ".final-task": lambda: _answer("Name the days, and nothing else."),
}


@pytest.mark.parametrize("variant", ASKS)
def test_a_prompt_is_the_one_that_was_reviewed(variant: str) -> None:
    ask = ASKS[variant]()
    kept = PROMPTS / f"{ask.template.replace('/', '.')}{variant}.txt"
    if os.environ.get("PALIMPSEST_TEST_UPDATE"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(ask.text)
    assert ask.text == kept.read_text()
