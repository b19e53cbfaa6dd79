"""Tracing: statements of an answer are followed back to the vector that first had them."""

import pytest

from service.domain.state.tracing import MAX_STATEMENTS, linked, origin, source, statements
from service.domain.state.vectors import StateVector
from tests.unit.state.contexts import chain, context, vector

#: The state of a game after each ten steps, as a model writes it down anew each time.
STATES = (
    "Goal: find the red key. Ann has a map.",
    "Goal: find the red key. Ann has a map. The red key is in box 3.",
    "Goal: find the red key. Ann has a map. The red key is in box 3. It rains.",
    "Goal: find the red key. Ann has a map. The red key is in box 7. It rains.",
    "Goal: find the red key. Ann has a map. The red key is in box 7. The rain is over.",
)


def back(texts: tuple[str, ...] = STATES) -> list[StateVector]:
    return [*reversed(chain(*texts)), vector(0, "Find the red key.")]


@pytest.mark.parametrize(
    ("statement", "around", "revision"),
    [
        ("The red key is in box 7.", "", 4),
        ("It is in box 7.", "Where is the red key?", 4),
        ("7", "In which box is the red key?", 4),
        ("Ann has a map.", "Who has a map?", 1),
        ("Ann", "Who has a map?", 1),
        ("The rain is over.", "", 5),
        ("The goal is to find the red key.", "What is the goal?", 1),
        ("To find the red key.", "What is to be done?", 0),
    ],
)
def test_the_oldest_vector_that_still_says_it_is_its_origin(
    statement: str, around: str, revision: int
) -> None:
    way = back()
    assert way[origin(statement, way, around=around)].revision == revision


def test_what_changed_and_came_back_is_where_it_came_back() -> None:
    way = back(("The door is open.", "The door is shut.", "The door is open."))
    assert way[origin("The door is open.", way)].revision == 3


def test_other_words_for_the_same_are_followed_while_some_stay() -> None:
    way = back(
        ("It rains.", "Box 7 has the red key inside.", "The red key is kept in box 7, it seems.")
    )
    assert way[origin("The red key is in box 7.", way)].revision == 2


def test_the_first_vector_may_be_the_only_one() -> None:
    assert origin("Ann has a map.", chain("Ann has a map.")) == 0
    assert origin("Ann", [*chain("Ann has a map."), vector(0, "")]) == 0


def test_children_of_an_episode_are_looked_through_for_the_newest_that_says_it() -> None:
    children = chain("Ann has a map.", "Ann has a map. It rains.", "It rains.", "All is well.")
    way = children[::-1]
    assert way[origin("Ann has a map.", way, from_first=False)].revision == 1
    assert way[origin("It rains.", way, from_first=False)].revision == 2
    assert origin("Zebras.", way, from_first=False) in range(4)


def test_a_way_ends_where_a_level_began_anew() -> None:
    again = [
        vector(1, "a", begin=0, end=10),
        vector(2, "b", begin=10, end=20),
        vector(4, "c", after=20, begin=20, end=30),
        vector(5, "d", after=20, begin=30, end=40),
        vector(6, "e", after=20, begin=40, end=50),
    ][::-1]
    way, is_all = linked(again)
    assert ([one.revision for one in way], is_all) == ([6, 5, 4], True)
    way, is_all = linked(again[:2])
    assert ([one.revision for one in way], is_all) == ([6, 5], False)
    assert linked([]) == ([], False)


def test_a_statement_is_from_the_part_of_the_context_that_has_most_of_it() -> None:
    episode = vector(3, "Ann has a map.", end=20, level=2, children=(1, 2))
    current = vector(4, "The red key is in box 7.", after=20, begin=20, end=30)
    held = context([episode, current], ["Ben has a rope.", "The red key is in box 9."])
    assert source("Ann has a map.", held, ()) == episode
    assert source("It is in box 7.", held, (), around="Where is the red key?") == current
    assert source("It is in box 9.", held, (), around="Where is the red key?") is None
    assert source("Ben has a rope.", held, ()) is None
    assert source("Zebras are striped.", held, ()) is None


def test_a_step_that_is_named_goes_before_a_vector_that_says_the_same() -> None:
    held = context([vector(1, "It rains.", end=10)], ["It rains."])
    assert source("It rains.", held, ()) == held.state.current
    assert source("It rains.", held, (11,)) is None


def test_of_two_vectors_that_say_it_the_later_is_right() -> None:
    above = vector(3, "It rains.", end=20, level=2, children=(1, 2))
    held = context([above, vector(4, "It rains.", after=20, begin=20, end=30)])
    assert source("It rains.", held, ()) == held.state.current


def test_the_words_of_the_question_alone_are_no_source() -> None:
    held = context([vector(1, "Where is the red key? Nobody knows.", end=10)])
    assert source("Lisbon", held, (), around="Where is the red key?") is None


def test_one_word_of_a_statement_is_no_source() -> None:
    held = context([vector(1, "Ann has a map. Day 9.", end=10)])
    assert source("It is day 7.", held, (), around="Which day was it?") is None
    assert source("It is day 9.", held, (), around="Which day is it?") == held.state.current


def test_an_answer_is_traced_sentence_by_sentence() -> None:
    assert statements("Ann has 3.5 maps. (It rains.) Ann has 3.5 maps.\n- Ben?\n…") == (
        "Ann has 3.5 maps.",
        "(It rains.",
        "- Ben?",
    )
    assert statements("是。不是。") == ("是。", "不是。")
    assert statements("7") == ("7",)
    assert statements("…") == ()
    assert len(statements("".join(f"It is {n}. " for n in range(50)))) == MAX_STATEMENTS
