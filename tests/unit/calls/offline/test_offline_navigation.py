"""The offline model navigates by the question's words, and says so."""

from service.domain.answers.trajectory import (
    NoAnswer,
)
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.contents import (
    LeafContent,
    MergeContent,
    RememberContent,
    TriageContent,
)
from service.llm.offline.model import complete
from tests.unit.tree.navigating import Run, Tree, run

SUMMARIES = ("The fox slept by the sea.", "Ann fed the fox at night.", "Ben mended a net.")
TEXT = "The sea was grey. Ann fed the fox at night. It slept. Ben mended the old net."


def triage(query: str, **changes: object) -> str:
    content = {
        "query": query,
        "summaries": SUMMARIES,
        "open": (0, 1, 2),
        "may_revert": True,
        "beam": 1,
        "reasoning": True,
    }
    return complete(TriageContent(**content | changes))  # type: ignore[arg-type]


def leaf(query: str, *options: str, text: str = TEXT, reasoning: bool = True) -> str:
    return complete(
        LeafContent(query=query, options=options, text=text, notes="", reasoning=reasoning)
    )


def test_it_goes_where_the_rarest_words_are() -> None:
    assert triage("Who fed the fox?") == "Reasoning: Summary 1 has fed, fox.\nAction: 1"
    assert triage("Who mended what?", reasoning=False) == "Action: 2"


def test_it_chooses_among_what_is_open() -> None:
    assert triage("Who fed the fox?", open=(0, 2)).endswith("Action: 0")
    assert triage("Who fed the fox?", open=(0, 1, 2), beam=2).endswith("Action: 1")
    assert triage("Where is the fox?", beam=2).endswith("Action: 0, 1")


def test_it_goes_up_when_little_is_left_and_nothing_fits() -> None:
    assert triage("Who fed the fox?", open=(2,)).endswith("Action: -1")
    assert triage("Who fed the fox?", open=(2,), may_revert=False).endswith("Action: 2")
    assert triage("What is a volcano?").endswith("Action: 0")


def test_it_answers_with_a_sentence() -> None:
    said = leaf("Who fed the fox?")
    assert said.endswith("Action: -2\nAnswer: Ann fed the fox at night.")
    assert said.startswith("Reasoning: Close together, the text has 2 of 2 words: fed, fox.")
    assert leaf("Who fed the fox?", reasoning=False).startswith("Action: -2")


def test_it_leaves_a_text_that_has_too_few_of_the_words() -> None:
    assert leaf("When did the volcano near Naples erupt?").endswith("Action: -1")
    assert leaf("Who fed the wolf in the woods?").endswith("Action: -1")
    assert leaf("Who?", text="...").endswith("Action: -1")


def test_it_chooses_the_option_that_the_text_has() -> None:
    assert leaf("What did Ben mend?", "a fox", "the old net").endswith("Answer: (B) the old net")
    assert leaf("What did Ben mend?", "a car", "a house").endswith("Action: -1")


def test_it_merges_by_what_most_said() -> None:
    answers = ("the sea", "the net", "the net")
    merge = MergeContent(query="What?", options=(), answers=answers, reasoning=False)
    assert complete(merge) == "Answer: the net\nSources: 1, 2"


def test_it_remembers_the_lines_that_fit() -> None:
    notes = ("A tale of the sea.\nAnn has a fox.", "Ben is poor.\nAnn is at home.")
    said = complete(RememberContent(query="Where is Ann?", notes=notes, max_tokens=10))
    assert said == "Ann has a fox.\nAnn is at home."
    assert estimate_tokens(said) <= 10


def navigated(query: str, **arguments: object) -> Run:
    tree = Tree((("The sea was grey.", "Ann fed the fox at night."), ("Ben mended a net.", "Bye.")))
    for name, view in tree.views.items():
        below = [text for leaf, text in tree.texts.items() if leaf.startswith(name)]
        object.__setattr__(view, "summary", " ".join(below))
    return run(tree, lambda ask: complete(ask.content), query=query, **arguments)  # type: ignore[arg-type]


def test_its_replies_are_moves() -> None:
    got = navigated("Who fed the fox?")
    assert (got.result.text, got.result.leaves) == ("Ann fed the fox at night.", ("r.0.1",))
    assert got.result.statistics.invalid_actions == 0
    none = navigated("When did the volcano near Naples erupt?")
    assert none.result.no_answer is NoAnswer.NOT_FOUND
    assert none.result.statistics.invalid_actions == 0


def test_it_keeps_to_a_beam_and_to_options() -> None:
    got = navigated("Who mended a net?", beam=2, options=("Ann", "Ben"))
    assert got.result.text == "Ben"
    assert got.result.statistics.invalid_actions == 0
