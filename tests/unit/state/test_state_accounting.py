"""The accounting of section 3.3: sums against loops that are run, and against closed forms."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from service.domain.state.accounting import Accounting, account, pcc_formula, standard_formula
from service.domain.state.spec import StateSpec
from tests.support.loops import Held, Simulated, loop, recursive, simulate, sums_of

SIZE = st.integers(1, 2000)


def spec_of(task_tokens: int, period: int = 10) -> StateSpec:
    return StateSpec(task="word" * task_tokens, period=period)


def by_algorithm_1(steps: int, task_tokens: int, period: int, vector: int) -> Sequence[Held]:
    made = [
        Held(to_position=number * period, tokens=vector, newest=number)
        for number in range(1, steps // period + 1)
    ]
    return [Held(to_position=0, tokens=task_tokens, newest=0), *made]


def equal(
    steps: int, task_tokens: int, period: int, step: int, vector: int
) -> tuple[Simulated, Accounting]:
    """Returns a session of steps of one length, and its accounting."""
    revisions = by_algorithm_1(steps, task_tokens, period, vector)
    run = simulate([step] * steps, task_tokens, revisions)
    sums = sums_of(run, compressions=steps // period)
    return run, account(sums, spec_of(task_tokens, period), compression_tokens=0)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[Simulated, int]:
    """Steps of any lengths, compressed, lifted and rolled back anywhere."""
    steps = draw(st.lists(SIZE, min_size=1, max_size=40))
    task_tokens = draw(st.integers(0, 300))
    ends = sorted(draw(st.lists(st.integers(0, len(steps)), max_size=12)))
    revisions = [Held(to_position=0, tokens=task_tokens, newest=0)]
    for number, end in enumerate(ends, 1):
        rolled_back = end == revisions[-1].to_position and draw(st.booleans())
        tokens = task_tokens if rolled_back else draw(SIZE)
        newest = 0 if rolled_back else number
        revisions.append(Held(to_position=end, tokens=tokens, newest=newest))
    return simulate(steps, task_tokens, revisions), len(set(ends) - {0})


@given(sessions(), st.integers(0, 10**6))
def test_sums_are_the_loops_run_context_by_context(
    session: tuple[Simulated, int], compression_tokens: int
) -> None:
    run, compressions = session
    spec = spec_of(run.task_tokens)
    sums = sums_of(run, compressions=compressions)
    found = account(sums, spec, compression_tokens=compression_tokens)
    mean = run.vector_mean(spec.state_tokens)
    summarizing, made = recursive(run, mean)
    pcc = replace(loop(run.pcc, run.steps), compression_tokens=compression_tokens)
    assert replace(found.standard, formula_tokens=0) == loop(run.standard, run.steps)
    assert replace(found.pcc, formula_tokens=0) == pcc
    assert found.recursive == replace(summarizing, compression_tokens=made)
    assert (found.steps, found.task_tokens) == (len(run.steps), run.task_tokens)
    assert found.state_tokens == float(mean)
    total = found.pcc.processed_tokens + compression_tokens
    assert found.standard_ratio == found.standard.processed_tokens / total
    assert found.recursive_ratio == (found.recursive.processed_tokens + made) / total


@given(
    steps=st.integers(1, 120),
    period=st.integers(1, 50),
    step=SIZE,
    vector=SIZE,
    task_tokens=st.integers(0, 2000),
)
def test_steps_of_one_length_come_to_the_closed_forms(
    steps: int, period: int, step: int, vector: int, task_tokens: int
) -> None:
    run, found = equal(steps, task_tokens, period, step, vector)
    triangle = steps * (steps + 1) // 2
    assert found.standard.processed_tokens == steps * task_tokens + step * triangle
    assert found.standard.formula_tokens == found.standard.processed_tokens
    mean = vector if steps >= period else spec_of(0).state_tokens
    read = (steps - 1) * mean
    assert found.recursive.processed_tokens == steps * task_tokens + read + steps * step
    assert found.recursive.compression_tokens == read + steps * step + steps * mean
    periods, rest = divmod(steps, period)
    with_task = min(steps, period)
    stairs = periods * (period * (period + 1) // 2) + rest * (rest + 1) // 2
    exact = with_task * task_tokens + (steps - with_task) * vector + step * stairs
    assert found.pcc.processed_tokens == exact
    assert found.pcc.max_context_tokens <= max(
        vector + period * step, task_tokens + period * step
    ), "the paper's bound"
    assert found.period == (period if periods else 0)
    paper = pcc_formula(steps, Fraction(mean), period, Fraction(step))
    assert found.pcc.formula_tokens == float(paper)
    if rest == 0:
        half_steps = Fraction(steps * step, 2)
        assert exact - paper == half_steps + period * (task_tokens - vector)
    assert max(map(sum, run.standard)) == found.standard.max_context_tokens


@given(st.lists(SIZE, min_size=1, max_size=60), st.integers(1, 20), SIZE, st.integers(0, 500))
def test_real_lengths_come_to_the_formulas_with_each_step_as_often_as_it_is_read(
    steps: list[int], period: int, vector: int, task_tokens: int
) -> None:
    count = len(steps)
    run = simulate(steps, task_tokens, by_algorithm_1(count, task_tokens, period, vector))
    sums = sums_of(run, compressions=count // period)
    found = account(sums, spec_of(task_tokens, period), compression_tokens=0)
    whole = sum(step * (count - number + 1) for number, step in enumerate(steps, 1))
    assert found.standard.processed_tokens == count * task_tokens + whole
    ends = [min(-(-number // period) * period, count) for number in range(1, count + 1)]
    pieces = [
        step * (end - number + 1)
        for number, (step, end) in enumerate(zip(steps, ends, strict=True), 1)
    ]
    first = min(count, period)
    held = first * task_tokens + (count - first) * vector
    assert found.pcc.processed_tokens == held + sum(pieces)


def test_the_papers_sum_is_the_standard_loops() -> None:
    expected = sum(30 + t * Fraction(7, 2) for t in range(1, 26))
    assert standard_formula(25, 30, Fraction(7, 2)) == expected


def test_a_vector_that_no_context_has_yet_stands_for_the_summaries() -> None:
    _, found = equal(10, 4, 10, 100, 60)
    assert found.state_tokens == 60
    assert found.pcc.context_tokens == 10 * 4 + 45 * 100
    assert found.recursive.context_tokens == 10 * 4 + 9 * 60


def test_without_any_vector_the_spec_says_how_large_a_summary_may_be() -> None:
    _, found = equal(9, 4, 10, 100, 60)
    assert (found.state_tokens, found.period) == (500, 0)
    assert found.pcc.formula_tokens == 9 * (500 + 5 * 100)
    assert found.pcc.context_tokens == found.standard.context_tokens


def test_one_step_has_nothing_before_it() -> None:
    _, found = equal(1, 4, 10, 100, 60)
    for one in (found.standard, found.recursive, found.pcc):
        assert (one.context_tokens, one.max_context_tokens, one.processed_tokens) == (4, 4, 104)
    assert found.recursive.compression_tokens == 100 + 500
    assert found.standard_ratio == 1
    assert found.recursive_ratio == 704 / 104


@given(sessions(), st.integers(0, 20_000))
def test_a_system_prompt_is_in_every_context(
    session: tuple[Simulated, int], system_tokens: int
) -> None:
    run, compressions = session
    sums, spec = sums_of(run, compressions=compressions), spec_of(run.task_tokens)
    plain = account(sums, spec, compression_tokens=7)
    found = account(sums, spec, compression_tokens=7, system_tokens=system_tokens)
    count = len(run.steps)
    for name, contexts in (("standard", run.standard), ("pcc", run.pcc)):
        held = [[system_tokens, *context] for context in contexts]
        longer, one = loop(held, run.steps), getattr(found, name)
        assert one.processed_tokens == longer.processed_tokens
        assert one.context_tokens == longer.context_tokens
        assert one.max_context_tokens == longer.max_context_tokens
        added = one.formula_tokens - getattr(plain, name).formula_tokens
        assert round(added) == count * system_tokens
    assert found.recursive.formula_tokens == 0
    added = found.recursive.processed_tokens - plain.recursive.processed_tokens
    assert added == count * system_tokens
    assert found.recursive.compression_tokens == plain.recursive.compression_tokens
    # The more an agent sends besides, the less of it is saved.
    assert abs(found.standard_ratio - 1) <= abs(plain.standard_ratio - 1)
