"""Games of the reliability experiment, and their results."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.reliability import tasks
from evaluation.reliability.context_strategies import Retrieval
from evaluation.reliability.experiment import STRATEGIES, period_of
from evaluation.reliability.game_models import ScriptedGameModel
from evaluation.reliability.outcomes import GameResult, LengthSummary, summarize
from evaluation.reliability.playing import Spent, fit
from evaluation.reliability.prompts import Step
from evaluation.reliability.report import Report
from evaluation.reliability.scripted import UNKNOWN, ScriptedModel
from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.ranking import ranked
from tests.unit.evaluation.games import STATE_TOKENS, played


def pieces_tokens(task: tasks.Task) -> int:
    """Returns the least tokens of a full history at the end."""
    return sum(estimate_tokens(text) for text in (task.prompt, *task.observations))


async def test_without_loss_a_summary_never_forgets() -> None:
    results = await played(["recursive"], tasks.make_all([1, 30, 80], 4, seed=3))
    assert len(results) == 12
    assert all(one.is_right for one in results)
    for one in results:
        assert one.keeping.calls == one.length
        assert one.acting.calls == one.length + 1


async def test_a_full_history_fails_exactly_when_its_beginning_is_cut() -> None:
    todo = tasks.make_all([10, 20, 25, 30, 40, 60], 4, seed=5)
    results = await played(["full-history"], todo, window_tokens=1200)
    whole = await played(["full-history"], todo, window_tokens=1_000_000)
    longest = {(one.length, one.number): one.longest for one in whole}
    outcomes = set()
    for one in results:
        is_cut = longest[one.length, one.number] > 1200
        assert one.is_right is not is_cut
        assert one.answer == (UNKNOWN if is_cut else one.gold)
        assert one.keeping == Spent()
        outcomes.add(is_cut)
    assert outcomes == {True, False}
    assert all(one.is_right for one in whole)


async def test_what_is_written_again_and_again_goes_wrong() -> None:
    results = await played(["recursive"], tasks.make_all([60], 30, seed=2), loss=0.05)
    # What is written 60 times is kept with a probability of 0.95 ** 60, which is 0.05.
    assert sum(one.is_right for one in results) <= 8


async def test_retrieval_sees_few_steps_of_a_long_task() -> None:
    todo = tasks.make_all([10, 150], 5, seed=4)
    results = await played(["retrieval"], todo)
    short = [one for one in results if one.length == 10]
    long = [one for one in results if one.length == 150]
    # It takes 20 pieces: of ten steps that is all.
    assert all(one.is_right for one in short)
    assert sum(one.is_right for one in long) <= 2
    assert all(one.longest <= 2048 for one in long)


async def test_retrieval_ranks_as_the_other_evaluation_does() -> None:
    task = tasks.make(40, 1, seed=6)
    game_model = ScriptedGameModel(ScriptedModel(seed=1, loss=0.0, state_tokens=STATE_TOKENS))
    context_strategy = Retrieval(
        task.prompt, pieces=6, window_tokens=100_000, game_model=game_model
    )
    pieces = [task.prompt]
    for observation in task.observations:
        expected = sorted(ranked(observation, pieces)[:6])
        assert await context_strategy.context(observation) == [
            pieces[number] for number in expected
        ]
        step = Step(observation=observation, thought="I watch.", action="watch on")
        await context_strategy.record(step)
        pieces.append(step.text)


async def test_tokens_are_those_of_prompts_and_replies() -> None:
    (result,) = await played(["full-history"], [tasks.make(30, 1, seed=1)])
    assert result.tokens == result.acting.tokens + result.keeping.tokens
    assert result.acting.calls == 31
    # Every context is read again at each step.
    assert result.acting.input_tokens > 30 / 2 * pieces_tokens(tasks.make(30, 1, seed=1))


@given(
    sizes=st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=20),
    window=st.integers(min_value=1, max_value=200),
)
def test_a_window_takes_the_newest_pieces(sizes: list[int], window: int) -> None:
    pieces = ["x " * size for size in sizes]
    taken = fit(pieces, window, lambda text: len(text) // 2)
    assert sum(len(one) // 2 for one in taken) <= window
    if sizes[-1] <= window:
        assert taken == pieces[len(pieces) - len(taken) :]
        left = pieces[: len(pieces) - len(taken)]
        assert not left or sum(len(one) // 2 for one in [left[-1], *taken]) > window
    else:
        assert len(taken) == 1
        assert pieces[-1].endswith(taken[0])


def test_strategies_and_their_periods() -> None:
    assert [period_of(name) for name in STRATEGIES] == [None, None, None, 10, 20]
    assert period_of("pcc-1000") == 1000
    for name in ("pcc-0", "pcc-1001", "pcc-", "pcc-10 ", "full", ""):
        with pytest.raises(ValueError, match=f"there is no strategy '{name}'"):
            period_of(name)


def game(length: int, number: int, *, right: bool, tokens: int = 100) -> GameResult:
    return GameResult(
        strategy="one",
        length=length,
        number=number,
        gold="coin",
        answer="coin" if right else "key",
        is_right=right,
        acting=Spent(calls=1, input_tokens=tokens - 10, output_tokens=0),
        keeping=Spent(calls=1, input_tokens=4, output_tokens=6),
        longest=tokens // 2,
    )


def test_figures() -> None:
    failed = replace(game(20, 3, right=False), failure="the model is away", acting=Spent())
    results = [
        game(20, 1, right=True, tokens=100),
        game(20, 2, right=False, tokens=300),
        failed,
        game(10, 1, right=True),
        game(40, 1, right=True, tokens=500),
        game(40, 2, right=False, tokens=500),
        game(80, 1, right=False),
    ]
    (summary,) = summarize(["another", "one"], results)
    # Of three games at 20 one was won: what is reached after a drop does not count.
    assert summary.horizon == 10
    assert [one.length for one in summary.lengths] == [10, 20, 40, 80]
    assert summary.lengths[1] == LengthSummary(
        length=20,
        games=3,
        failed=1,
        right=1,
        success_rate=1 / 3,
        tokens_per_task=200.0,
        tokens_per_success=400.0,
        longest_context=150,
    )
    assert summary.lengths[3].tokens_per_success is None


@pytest.mark.parametrize(
    ("rates", "expected"),
    [((1.0, 0.3, 0.6), 10), ((1.0, 0.5, 0.6, 0.4, 1.0), 30), ((0.4, 1.0), 0), ((1.0, 1.0), 20)],
)
def test_the_horizon_ends_at_the_first_drop(rates: tuple[float, ...], expected: int) -> None:
    results = [
        game(10 * at, number, right=number <= 10 * rate)
        for at, rate in enumerate(rates, 1)
        for number in range(1, 11)
    ]
    (summary,) = summarize(["one"], results)
    assert summary.horizon == expected


def test_no_horizon_where_nothing_succeeds() -> None:
    (summary,) = summarize(["one"], [game(10, 1, right=False)])
    assert summary.horizon == 0


def test_a_report_holds_every_game(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = Report(path, {"seed": 1}, {"python": "3"}, created="then")
    report.results += [game(10, 1, right=True), game(10, 2, right=False)]
    report.write(summarize(["one"], report.results), updated="now", complete=True)
    found = json.loads(path.read_text())
    assert found["settings"] == {"seed": 1}
    assert found["complete"] is True
    assert found["summaries"][0]["lengths"][0]["success_rate"] == 0.5
    assert [one["is_right"] for one in found["games"]] == [True, False]
    assert found["games"][0]["tokens"] == 100
    assert "games" not in report.head()
