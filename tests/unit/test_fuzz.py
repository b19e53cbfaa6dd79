"""A short run of the fuzzer; `python -m tests.fuzz` makes long ones."""

import random

import pytest

from service.domain.json_values import parse
from service.domain.prism.rules import Rules
from tests import fuzz
from tests.replies import CORPUS, STATE


def test_replies_that_nobody_would_write_keep_every_promise() -> None:
    result = fuzz.fuzz_revisions(2000, seed=1)
    assert result.inputs == 2000
    assert result.amendments > 2000, "the inputs are near enough to replies"
    assert result.rejections > 2000, "and far enough from them"
    assert result.slowest_calls > 0


def test_the_same_seed_makes_the_same_inputs() -> None:
    made = [fuzz.make_input(random.Random(f"5:{number}")) for number in range(50)]
    assert made == [fuzz.make_input(random.Random(f"5:{number}")) for number in range(50)]
    assert len(set(made)) > 40


@pytest.mark.parametrize("number", range(len(CORPUS)))
def test_the_replies_that_it_starts_from_are_realistic(number: int) -> None:
    rules = Rules(may_remove=True)
    revision = fuzz.check(CORPUS[number], parse(STATE), rules, tidies=False)
    assert len(revision.amendments) >= (0 if number == len(CORPUS) - 1 else 1)


def test_an_input_that_takes_too_much_work_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzz.count_calls(lambda: [len("x") for _ in range(100)]) >= 100
    monkeypatch.setattr(fuzz, "CALLS", 0)
    monkeypatch.setattr(fuzz, "CALLS_A_CHARACTER", 0)
    with pytest.raises(fuzz.Broken, match="calls"):
        fuzz.fuzz_revisions(1, seed=0)
