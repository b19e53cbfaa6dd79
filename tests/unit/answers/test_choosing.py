"""Choosing how to read: the rules as a table, and what a choice says."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.answers.browse.spec import (
    ALL_ACTIONS,
    BrowseAction,
    BrowseOption,
    BrowseRequest,
    QuerySubject,
    ReadingOrder,
    Understanding,
)
from service.domain.answers.choosing import (
    HYBRID_LEAVES,
    PROMPT_TOKENS,
    REPLY_TOKENS,
    Choice,
    MemoryFacts,
    SessionFacts,
    choose,
    fallback,
    obvious,
    problem_of,
)
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.prism.spec import PrismSpec
from service.domain.spend.prices import ModelPrices
from service.domain.state.spec import StateSpec
from service.domain.tree.spec import TreeSpec
from service.domain.values.memory_specs import MemorySpec, ReaderName
from tests.support.prices import PLAIN

LOG = SessionFacts(head=1000, log_tokens=400_000, whole_tokens=None)
SHAPES: dict[type[MemorySpec], dict[str, int]] = {
    PrismSpec: {"shown_tokens": 2000},
    TreeSpec: {"shown_tokens": 2000, "leaf_tokens": 1000, "levels": 3},
    StateSpec: {"shown_tokens": 3000, "leaf_tokens": 1000, "levels": 4},
}
NAMES = {PrismSpec: "notes", TreeSpec: "book", StateSpec: "run"}


def memory(kind: type[MemorySpec], **changes: Any) -> MemoryFacts:
    values: dict[str, Any] = {
        "memory_id": UUID(int=list(SHAPES).index(kind) + 1),
        "name": NAMES[kind],
        "spec": kind,
        "applied_position": 1000,
        "revision": 7,
        "window_tokens": 32_768,
        **SHAPES[kind],
        **changes,
    }
    return MemoryFacts(**values)


NOTES, BOOK, RUN = map(memory, (PrismSpec, TreeSpec, StateSpec))


def facts(*memories: MemoryFacts, **changes: Any) -> SessionFacts:
    return replace(LOG, memories=memories, **changes)


def about(subject: QuerySubject, **changes: Any) -> Understanding:
    plain = Understanding(
        subject=subject, option=BrowseOption.RANK, order=ReadingOrder.FORWARD, query="in words"
    )
    return replace(plain, **changes)


def taken(choice: Choice) -> str:
    """Reader and memory, or reader, option and order."""
    if choice.memory is not None:
        return f"{choice.reader} {choice.memory.name}"
    request = choice.browsing
    return choice.reader if request is None else f"dciso {request.option} {request.order}"


@pytest.mark.parametrize(
    ("subject", "memories", "expected"),
    [
        (QuerySubject.STATE, (NOTES, BOOK, RUN), "prism notes"),
        (QuerySubject.STATE, (BOOK, RUN), "pcc run"),
        (QuerySubject.STATE, (NOTES, replace(RUN, shown_tokens=500)), "pcc run"),
        (QuerySubject.STATE, (BOOK,), "dciso rank forward"),
        (QuerySubject.STATE, (), "dciso rank forward"),
        (QuerySubject.FACT, (NOTES, BOOK, RUN), "prism notes"),
        (QuerySubject.FACT, (BOOK, RUN), "dciso rank forward"),
        (QuerySubject.FACT, (NOTES, RUN), "prism notes"),
        (QuerySubject.FACT, (replace(NOTES, shown_tokens=50_000), RUN), "dciso rank forward"),
        (QuerySubject.FACT, (replace(BOOK, levels=1, shown_tokens=9),), "dciso rank forward"),
        (QuerySubject.OVERVIEW, (NOTES, BOOK, RUN), "prism notes"),
        (QuerySubject.OVERVIEW, (BOOK, RUN), "memwalker book"),
        (QuerySubject.OVERVIEW, (RUN,), "dciso independent forward"),
        (QuerySubject.CODE, (NOTES, BOOK, RUN), "dciso rank forward"),
    ],
)
def test_what_a_question_is_about_decides(
    subject: QuerySubject, memories: tuple[MemoryFacts, ...], expected: str
) -> None:
    session = facts(*memories)
    assert obvious(session) is None
    assert taken(choose(session, about(subject))) == expected


@pytest.mark.parametrize("subject", [QuerySubject.STATE, QuerySubject.CODE])
def test_without_retrieval_the_log_is_scanned_from_its_end(subject: QuerySubject) -> None:
    request = BrowseRequest(actions=ALL_ACTIONS - {BrowseAction.RETRIEVE})
    understood = about(subject, option=BrowseOption.SCAN)
    assert taken(choose(replace(LOG, browsing=request), understood)) == "dciso scan backward"


@pytest.mark.parametrize(
    ("subject", "memories", "expected"),
    [
        (QuerySubject.FACT, (BOOK,), "memwalker book"),
        (QuerySubject.FACT, (NOTES, BOOK), "prism notes"),
        (QuerySubject.FACT, (RUN,), "dciso rank forward"),
        (QuerySubject.CODE, (BOOK,), "dciso scan backward"),
    ],
)
def test_while_a_search_leaves_chunks_out_others_are_preferred(
    subject: QuerySubject, memories: tuple[MemoryFacts, ...], expected: str
) -> None:
    choice = choose(facts(*memories, unsearched=1234), about(subject))
    assert taken(choice) == expected
    assert "; no search reads 1,234 of its chunks yet." in choice.reason


@pytest.mark.parametrize(
    ("subject", "memories", "expected"),
    [
        (QuerySubject.FACT, (BOOK, RUN), "memwalker book"),
        (QuerySubject.FACT, (replace(NOTES, shown_tokens=5000), BOOK), "prism notes"),
        (QuerySubject.FACT, (RUN,), None),
        (QuerySubject.FACT, (replace(BOOK, stopped="is stalled"),), None),
        # No leaf of a tree has what code goes on with.
        (QuerySubject.CODE, (BOOK,), None),
        (QuerySubject.OVERVIEW, (BOOK,), None),
    ],
)
def test_where_the_search_has_no_answer_a_memory_is_read(
    subject: QuerySubject, memories: tuple[MemoryFacts, ...], expected: str | None
) -> None:
    choice = choose(facts(*memories), about(subject))
    second = choice.otherwise
    assert (None if second is None else taken(second)) == expected
    if second is not None:
        assert taken(choice) == "dciso rank forward"
        assert second.reason.startswith("The search has no answer; so the ")


def test_what_retrieval_names_has_room_in_one_prompt() -> None:
    choice = choose(facts(), about(QuerySubject.FACT))
    assert choice.expected_tokens == 2457 + PROMPT_TOKENS + REPLY_TOKENS
    many = BrowseRequest(option=BrowseOption.RANK, pieces=100)
    choice = choose(facts(browsing=many), about(QuerySubject.FACT))
    assert choice.expected_tokens == 12_800 + 101 * (PROMPT_TOKENS + REPLY_TOKENS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"applied_position": 950}, ""),
        ({"applied_position": 949}, "is 51 chunks behind"),
        ({"stopped": "is stalled at position 7"}, "is stalled at position 7"),
        ({"stopped": "is held by a budget"}, "is held by a budget"),
        ({"sealed": True, "applied_position": 500}, "is 500 chunks behind"),
    ],
)
def test_a_memory_that_is_not_near_is_not_chosen(changes: dict[str, Any], problem: str) -> None:
    held = replace(NOTES, **changes)
    session = facts(held)
    assert problem_of(held, session) == problem
    choice = choose(session, about(QuerySubject.STATE))
    assert (choice.reader is ReaderName.PRISM) == (problem == "")
    assert problem in choice.reason


def test_a_short_log_is_near_within_a_few_chunks() -> None:
    session = replace(facts(), head=10)
    assert problem_of(replace(NOTES, applied_position=2), session) == ""
    assert problem_of(replace(NOTES, applied_position=1), session) == "is 9 chunks behind"


def test_a_memory_is_as_fresh_as_was_asked_for() -> None:
    held = replace(NOTES, applied_position=998)
    assert (
        taken(choose(facts(held, wanted_position=998), about(QuerySubject.STATE))) == "prism notes"
    )
    choice = choose(facts(held, wanted_position=999), about(QuerySubject.STATE))
    assert taken(choice) == "dciso rank forward"
    assert "memory 'notes' is not as far as was asked for" in choice.reason
    assert taken(choose(facts(RUN, wanted_position=1000), about(QuerySubject.STATE))) == "pcc run"


def test_a_log_that_fits_is_read_whole_without_understanding() -> None:
    choice = obvious(facts(NOTES, BOOK, whole_tokens=812))
    assert choice is not None
    assert (choice.reader, choice.memory, choice.expected_tokens) == (ReaderName.WHOLE, None, 812)
    assert choice.reason == "All of the log fits into one prompt of 812 tokens."


def test_a_named_memory_is_read_by_the_reader_of_its_kind() -> None:
    for name, expected in (("notes", "prism notes"), ("book", "memwalker book")):
        choice = obvious(facts(NOTES, BOOK, RUN, named=name, whole_tokens=812))
        assert choice is not None
        assert taken(choice) == expected
    session = facts(NOTES, BOOK, RUN, named="run")
    assert obvious(session) is None, "its context or its levels"
    found = {one: taken(choose(session, about(one))) for one in QuerySubject}
    assert found == {
        QuerySubject.STATE: "pcc run",
        QuerySubject.FACT: "memwalker run",
        QuerySubject.OVERVIEW: "pcc run",
        QuerySubject.CODE: "pcc run",
    }


def test_a_named_memory_that_cannot_be_read_leaves_the_log() -> None:
    stalled = replace(NOTES, stopped="is stalled at position 7")
    session = facts(stalled, BOOK, named="notes")
    assert obvious(session) is None
    choice = choose(session, about(QuerySubject.FACT))
    assert taken(choice) == "dciso rank forward"
    assert "memory 'notes' is stalled at position 7" in choice.reason
    whole = obvious(replace(session, whole_tokens=812))
    assert whole is not None
    assert whole.reader is ReaderName.WHOLE
    assert "memory 'notes' is stalled at position 7" in whole.reason


def test_a_context_that_passes_its_window_is_not_read() -> None:
    long = replace(RUN, shown_tokens=30_000)
    choice = choose(facts(long), about(QuerySubject.STATE))
    assert choice.reader is ReaderName.DCISO
    assert "the context of memory 'run' does not fit the window" in choice.reason
    choice = obvious(facts(long, named="run")) or choose(facts(long), about(QuerySubject.STATE))
    assert taken(choice) == "memwalker run"


def priced(usd: float) -> ModelPrices:
    return replace(PLAIN, input_usd=usd)


def test_the_price_breaks_ties_and_not_the_tokens() -> None:
    dear, cheap = priced(10e-6), priced(1e-6)
    notes, run = replace(NOTES, prices=cheap), replace(RUN, prices=dear, shown_tokens=500)
    assert taken(choose(facts(notes, run), about(QuerySubject.STATE))) == "prism notes"
    unknown = replace(run, prices=None)
    assert taken(choose(facts(notes, unknown), about(QuerySubject.STATE))) == "pcc run"


def test_a_fact_begins_at_leaves_that_retrieval_names() -> None:
    choice = choose(facts(BOOK, browses=False), about(QuerySubject.FACT))
    assert choice.navigation == NavigationRequest(hybrid_leaves=HYBRID_LEAVES)
    choice = choose(facts(BOOK), about(QuerySubject.OVERVIEW))
    assert choice.navigation == NavigationRequest()


def test_who_says_how_to_navigate_has_it_navigated() -> None:
    asked = NavigationRequest(options=("a", "b"), beam=2)
    choice = choose(facts(NOTES, RUN, navigation=asked), about(QuerySubject.STATE))
    assert (taken(choice), choice.navigation) == ("memwalker run", asked)
    choice = choose(facts(NOTES, navigation=asked), about(QuerySubject.STATE))
    assert taken(choice) == "prism notes"


def test_what_the_question_says_of_browsing_stays() -> None:
    asked = BrowseRequest(
        option=BrowseOption.CARRY, window_tokens=2048, pieces=3, order=ReadingOrder.BACKWARD
    )
    understood = about(QuerySubject.FACT, option=BrowseOption.CARRY)
    choice = choose(facts(browsing=asked), understood)
    assert choice.browsing == replace(asked, rewritten_query="in words")
    some = BrowseRequest(actions=ALL_ACTIONS - {BrowseAction.RETRIEVE, BrowseAction.MERGE})
    choice = choose(facts(browsing=some), about(QuerySubject.FACT, option=BrowseOption.SCAN))
    assert choice.browsing is not None
    assert choice.browsing.problem() == ""
    assert choice.browsing.actions == some.actions


def test_where_nothing_browses_the_log_can_only_be_read_whole() -> None:
    choice = choose(facts(browses=False), about(QuerySubject.FACT))
    assert (choice.reader, choice.memory) == (ReaderName.WHOLE, None)


def test_the_second_choice_is_what_retrieval_names() -> None:
    choice = fallback(facts(NOTES), "Memory 'notes' has no answer")
    assert taken(choice) == "dciso rank forward"
    assert choice.reason == "Memory 'notes' has no answer; so the log itself is browsed."
    some = BrowseRequest(actions=ALL_ACTIONS - {BrowseAction.RETRIEVE})
    assert taken(fallback(facts(browsing=some), "It")) == "dciso carry forward"
    some = BrowseRequest(option=BrowseOption.DYNAMIC)
    assert taken(fallback(facts(browsing=some), "It")) == "dciso dynamic forward"


def test_a_reason_says_what_was_weighed() -> None:
    choice = choose(facts(NOTES, BOOK), about(QuerySubject.OVERVIEW))
    assert choice.reason == (
        "The question is about the whole; the memory 'notes' is read, about 2,900 tokens"
        " against 12,500 for the tree 'book', 547,600 for all of the log, piece by piece."
    )
    assert choice.expected_tokens == 2900


@given(
    subject=st.sampled_from(list(QuerySubject)),
    option=st.sampled_from([one for one in BrowseOption if one is not BrowseOption.AUTO]),
    kept=st.lists(
        st.tuples(
            st.sampled_from(list(SHAPES)),
            st.integers(0, 1000),
            st.sampled_from(["", "is stalled"]),
        ),
        max_size=4,
    ),
    head=st.integers(0, 1000),
    wanted=st.integers(0, 1000),
)
def test_what_is_chosen_can_be_read(
    subject: QuerySubject,
    option: BrowseOption,
    kept: list[tuple[type[MemorySpec], int, str]],
    head: int,
    wanted: int,
) -> None:
    memories = [
        memory(kind, applied_position=min(at, head), stopped=stopped) for kind, at, stopped in kept
    ]
    session = replace(LOG, head=head, memories=memories, wanted_position=min(wanted, head))
    choice = choose(session, about(subject, option=option))
    if choice.memory is None:
        assert choice.browsing is not None
        assert choice.browsing.problem() == ""
    else:
        assert problem_of(choice.memory, session) == ""
    assert choice.expected_tokens > 0
    assert choice.reason.endswith(".")
