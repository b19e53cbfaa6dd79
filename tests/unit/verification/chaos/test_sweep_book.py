"""The book of a sweep: what is set next, and what is known after its end."""

import json
from pathlib import Path

import pytest

from verification.chaos.switches import Action
from verification.sweep.book import SPREAD, Book, pairs_of

POINTS = (STEP, TREE) = ("commit.step:committed", "commit.tree:committed")
ACTIONS = (Action.RAISE, Action.KILL)
PAIRS = pairs_of(1, POINTS, ACTIONS, one_each=False)


def fire(book: Book, *, but: str | None = None) -> str | None:
    """Sets and fires what comes next."""
    pair = book.next([] if but is None else [but])
    if pair is None:
        return None
    book.set(pair)
    book.fired(pair)
    return pair[0]


@pytest.mark.prove
def test_all_pairs_fire_as_often_as_is_wanted() -> None:
    book = Book(PAIRS, 3)
    assert book.missing() == 12
    while fire(book) is not None:
        assert not book.missing() or not book.is_done()
    assert book.is_done()
    assert book.table() == {point: {"raise": 3, "kill": 3} for point in POINTS}


def test_what_has_fired_least_is_next() -> None:
    book = Book(PAIRS, 10)
    fired = [fire(book) for _ in range(4)]
    assert sorted(one for one in fired if one) == sorted(2 * POINTS)


def test_no_pair_runs_far_ahead_of_one_that_is_not_reached() -> None:
    book = Book(PAIRS, 10)
    while fire(book, but=TREE) is not None:
        pass
    assert book.table() == {STEP: {"raise": SPREAD, "kill": SPREAD}}
    # What is set and has not fired yet counts as well.
    pair = book.next([])
    assert pair is not None
    assert pair[0] == TREE


def test_a_point_that_is_not_reached_is_given_up_and_delays_no_other() -> None:
    book = Book(PAIRS, 10)
    for action in ACTIONS:
        book.give_up((TREE, action))
    while fire(book) is not None:
        pass
    assert book.is_done()
    assert book.table() == {STEP: {"raise": 10, "kill": 10}}


def test_a_second_run_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    first = Book(PAIRS, 2, path)
    for _ in range(3):
        fire(first)
    first.save()
    second = Book(PAIRS, 2, path)
    assert second.missing() == 5
    assert second.least()[1] == 0
    while fire(second) is not None:
        pass
    second.save()
    assert (second.run.total(), second.total()) == (5, 8)
    saved = json.loads(path.read_text())
    assert saved == {point: {"raise": 2, "kill": 2} for point in POINTS}
    assert [one.name for one in tmp_path.iterdir()] == ["book.json"]


def test_a_point_that_is_no_more_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    path.write_text(json.dumps({"gone.now": {"raise": 5}, STEP: {"raise": 1}}))
    book = Book(PAIRS, 2, path)
    assert book.total() == 1


def test_one_action_for_each_point_is_the_seeds_choice() -> None:
    chosen = [pairs_of(seed, POINTS, ACTIONS, one_each=True) for seed in range(20)]
    assert all({point for point, _ in one} == set(POINTS) for one in chosen)
    assert len({tuple(one) for one in chosen}) > 1
    assert chosen[7] == pairs_of(7, POINTS, ACTIONS, one_each=True)
