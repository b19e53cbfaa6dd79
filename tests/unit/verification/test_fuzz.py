"""A short run of every target of the fuzzer; `python -m verification.fuzz` makes long ones."""

import re

import pytest

from service.domain.prism.amendments import Rules
from service.domain.values.json_values import parse
from tests.support.replies import CORPUS, STATE
from verification.fuzz import patterns, revisions, runs
from verification.fuzz.__main__ import TARGETS

#: Where an input takes longer than the others'.
FEWER = {
    "revisions": 200,
    "schema-replies": 200,
    "patterns": 60,
}


@pytest.mark.prove
@pytest.mark.parametrize("name", TARGETS)
def test_hostile_inputs_keep_every_promise(name: str) -> None:
    inputs = FEWER.get(name, 1000)
    result = runs.run(TARGETS[name], inputs, seed=1)
    assert result.inputs == inputs
    assert result.taken > inputs // 50, "the inputs are near enough to what is taken"
    assert result.most_calls > 0


@pytest.mark.parametrize("name", TARGETS)
def test_the_same_seed_makes_the_same_inputs(name: str) -> None:
    def made() -> list[str]:
        return [repr(TARGETS[name].make(runs.seeded(name, 5, number))) for number in range(20)]

    assert made() == made()
    assert len(set(made())) > 8


def test_patterns_are_found_in_what_holds_itself() -> None:
    pattern = re.compile("a+")
    value: dict[str, object] = {"in": [(pattern,)]}
    value["self"] = [value]
    assert list(patterns.within(value)) == [pattern]


@pytest.mark.parametrize("number", range(len(CORPUS)))
def test_the_replies_that_it_starts_from_are_realistic(number: int) -> None:
    rules = Rules(may_remove=True)
    revision = revisions.check(CORPUS[number], parse(STATE), rules, tidies=False)
    says_nothing = CORPUS[number] == '{"changes": []}' or number == len(CORPUS) - 1
    assert bool(revision.amendments) is not says_nothing


def test_an_input_that_takes_too_much_work_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs.count_calls(lambda: [len("x") for _ in range(100)]) >= 100
    monkeypatch.setattr(runs, "CALLS_A_CHARACTER", 0)
    busy = runs.Target(name="busy", make=str, check=lambda made: bool(sorted(made)), calls=0)
    with pytest.raises(runs.Broken, match="calls"):
        runs.run(busy, 1, seed=0)


def test_an_error_that_is_none_of_ours_is_reported() -> None:
    broken = runs.Target(name="broken", make=str, check=lambda made: bool({}[made]))
    with pytest.raises(KeyError) as caught:
        runs.run(broken, 1, seed=0)
    assert "input 0 of seed 0" in caught.value.__notes__[0]
    assert len(runs.survey(broken, 3, seed=0).findings) == 1, "the same place counts once"


def test_an_input_that_holds_too_much_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BYTES", 1000)
    heavy = runs.Target(name="heavy", make=str, check=lambda made: len(bytes(10**6)) > 0)
    with pytest.raises(runs.Broken, match="bytes"):
        runs.run(heavy, 1, seed=0)
