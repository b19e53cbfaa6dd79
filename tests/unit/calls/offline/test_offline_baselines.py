"""The offline model reads plain text: sentences of it, word for word."""

from service.domain.prompting.tokens import estimate_tokens
from service.llm.offline.model import complete
from service.llm.offline.plain_text import CarryContent, ReadContent

TEXT = "The sea was grey. Ann fed the fox at night. The fox slept. Ben mended the old net."


def read(query: str, *options: str, texts: tuple[str, ...] = (TEXT,)) -> str:
    return complete(ReadContent(query=query, options=options, texts=texts))


def test_the_sentence_with_the_questions_rare_words() -> None:
    assert read("Who fed the fox?") == "Ann fed the fox at night."
    assert read("Who mended the net?", texts=("Nothing here.", TEXT)) == "Ben mended the old net."


def test_a_text_that_does_not_say() -> None:
    assert read("When did the volcano erupt?") == "no answer"
    assert read("Why?", texts=()) == "no answer"
    assert read("Where?", "Paris", "London") == "no answer"


def test_the_option_that_stands_near() -> None:
    assert read("What did Ben mend?", "a fox", "a net", "the sea") == "a net"


def test_what_is_carried_is_within_its_size_and_in_order() -> None:
    long = " ".join(f"Person {n} went to the old harbour {n} times." for n in range(200))
    said = complete(CarryContent(carried=TEXT, text=long, max_tokens=80))
    assert 40 <= estimate_tokens(said) <= 80
    places = [f"{TEXT} {long}".index(one) for one in said.replace(". ", ".|").split("|")]
    assert places == sorted(places)


def test_it_says_the_same_each_time() -> None:
    content = CarryContent(carried="", text=TEXT * 9, max_tokens=40)
    assert complete(content) == complete(content)
