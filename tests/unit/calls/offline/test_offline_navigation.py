"""The offline model navigates by the question's words, and says so."""

import json
from dataclasses import replace
from typing import Any

from service.domain.answers.trajectory import NoAnswer
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.moves import NavigationAnswer
from service.domain.tree.prompts import NavigationPrompts, TreeQuestion
from service.domain.tree.spec import TreeSpec
from service.llm.offline.model import complete
from tests.unit.tree.navigating import Run, Tree, run

SUMMARIES = ("The fox slept by the sea.", "Ann fed the fox at night.", "Ben mended a net.")
TEXT = "The sea was grey. Ann fed the fox at night. It slept. Ben mended the old net."


def prompts(query: str, *options: str, beam: int = 1, **spec: Any) -> NavigationPrompts:
    return NavigationPrompts(
        question=TreeQuestion(query=query, options=options, beam=beam),
        spec=TreeSpec(**spec),
        window_tokens=32_768,
        marker_key=b"key",
        count=estimate_tokens,
    )


def triage(
    query: str,
    *,
    summaries: tuple[str, ...] = SUMMARIES,
    read: tuple[int, ...] = (),
    may_revert: bool = True,
    beam: int = 1,
    **spec: Any,
) -> Any:
    tree = Tree(summaries)
    children = [replace(tree.views[f"r.{n}"], summary=one) for n, one in enumerate(summaries)]
    asked = prompts(query, beam=beam, **spec)
    ask = asked.triage(tree.root, children, notes="", closed=read, may_revert=may_revert)
    return json.loads(complete(ask))


def leaf(query: str, *options: str, text: str = TEXT, **spec: Any) -> Any:
    view = Tree(("a",)).views["r.0"]
    return json.loads(complete(prompts(query, *options, **spec).leaf(view, text, notes="")))


def test_it_goes_where_the_rarest_words_are() -> None:
    said = triage("Who fed the fox?")
    assert said == {"notes": "Summary 1 fits the question best.", "action": ["1"]}
    assert triage("Who mended what?", reasoning=False) == {"action": ["2"]}


def test_it_chooses_among_what_is_open() -> None:
    assert triage("Who fed the fox?", read=(1,))["action"] == ["0"]
    assert triage("Who fed the fox?", beam=2)["action"] == ["1"]
    assert sorted(triage("Where is the fox?", beam=2)["action"]) == ["0", "1"]


def test_of_equal_summaries_it_chooses_the_first() -> None:
    # As of an agent's steps in which nothing happens.
    equal = ("Ben mended a net.", *["Ann fed the fox."] * 3)
    assert triage("Who fed the fox?", summaries=equal)["action"] == ["1"]
    assert triage("Who fed the fox?", summaries=equal, read=(1,))["action"] == ["2"]
    assert triage("Who fed the fox?", summaries=equal, beam=2)["action"] == ["1", "2"]


def test_it_goes_up_when_little_is_left_and_nothing_fits() -> None:
    assert triage("Who fed the fox?", read=(0, 1))["action"] == ["-1"]
    assert triage("Who fed the fox?", read=(0, 1), may_revert=False)["action"] == ["2"]
    assert triage("What is a volcano?")["action"] == ["0"]


def test_it_answers_with_a_sentence() -> None:
    said = leaf("Who fed the fox?")
    assert (said["action"], said["answer"]) == ("-2", "Ann fed the fox at night.")
    assert said["notes"] == "One sentence has 2 of the question's 2 words."
    assert "notes" not in leaf("Who fed the fox?", reasoning=False)


def test_it_leaves_a_text_that_has_too_few_of_the_words() -> None:
    assert leaf("When did the volcano near Naples erupt?")["action"] == "-1"
    assert leaf("Who fed the wolf in the woods?")["action"] == "-1"
    assert leaf("Who?", text="...")["action"] == "-1"


def test_it_chooses_the_option_that_the_text_has() -> None:
    assert leaf("What did Ben mend?", "a fox", "the old net")["answer"] == "(B) the old net"
    assert leaf("What did Ben mend?", "a car", "a house")["action"] == "-1"


def test_what_is_asked_of_a_number_no_other_number_answers() -> None:
    text = "You are in the hall number 8. A lamp hangs there."
    asked = "What hangs in the hall number 1203?"
    assert leaf(asked, text=text)["action"] == "-1"
    assert leaf(asked, text=text.replace("8", "1203"))["action"] == "-2"
    assert leaf("What hangs in the hall number 8?", text=text)["action"] == "-2"
    options = ("A lamp hangs there.", "A door.")
    assert leaf("Is it hall number 1203?", *options, text=text)["action"] == "-2"


def test_it_merges_by_what_most_said() -> None:
    answers = [NavigationAnswer(text=one) for one in ("the sea", "the net", "the net")]
    said = json.loads(complete(prompts("What?", reasoning=False).merge(answers)))
    assert said == {"answer": "the net", "sources": ["1", "2"]}


def test_it_remembers_the_lines_that_fit() -> None:
    notes = ("A tale of the sea.\nAnn has a fox.", "Ben is poor.\nAnn is at home.")
    said = complete(prompts("Where is Ann?", working_memory_tokens=10).remember(notes))
    assert said == "Ann has a fox.\nAnn is at home."
    assert estimate_tokens(said) <= 10


def navigated(query: str, **arguments: object) -> Run:
    tree = Tree((("The sea was grey.", "Ann fed the fox at night."), ("Ben mended a net.", "Bye.")))
    for name, view in tree.views.items():
        below = [text for leaf, text in tree.texts.items() if leaf.startswith(name)]
        object.__setattr__(view, "summary", " ".join(below))
    return run(tree, complete, query=query, **arguments)  # type: ignore[arg-type]


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
