"""The offline model reads plain text: sentences of it, word for word."""

from evaluation.baselines.prompts import (
    BaselineQuestion,
    NextPart,
    carry_ask,
    read_answer,
    read_ask,
)
from service.domain.prompting.tokens import estimate_tokens
from service.llm.offline.model import complete

TEXT = "The sea was grey. Ann fed the fox at night. The fox slept. Ben mended the old net."


def read(query: str, *options: str, texts: tuple[str, ...] = (TEXT,)) -> str:
    question = BaselineQuestion(query=query, options=options, texts=texts)
    reply = complete(read_ask(question, marker_key=b"key", max_output_tokens=99))
    return read_answer(reply, options)


def carry(carried: str, text: str, max_tokens: int) -> str:
    part = NextPart(carried=carried, text=text, max_tokens=max_tokens)
    return complete(carry_ask(part, marker_key=b"key"))


def test_the_sentence_with_the_questions_rare_words() -> None:
    assert read("Who fed the fox?") == "Ann fed the fox at night."
    assert read("Who mended the net?", texts=("Nothing here.", TEXT)) == "Ben mended the old net."


def test_a_text_that_does_not_say() -> None:
    assert read("When did the volcano erupt?") == ""
    assert read("Why?", texts=()) == ""
    assert read("Where?", "Paris", "London") == ""


def test_the_option_that_stands_near() -> None:
    assert read("What did Ben mend?", "a fox", "a net", "the sea") == "a net"


def test_what_is_carried_is_within_its_size_and_in_order() -> None:
    long = " ".join(f"Person {n} went to the old harbour {n} times." for n in range(200))
    said = carry(TEXT, long, 80)
    assert 40 <= estimate_tokens(said) <= 80
    places = [f"{TEXT} {long}".index(one) for one in said.split("\n")]
    assert places == sorted(places)


def test_it_says_the_same_each_time() -> None:
    assert carry("", TEXT * 9, 40) == carry("", TEXT * 9, 40)
