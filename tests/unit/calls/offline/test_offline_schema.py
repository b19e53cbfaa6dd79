"""The offline model's schemas: small, valid, about what is asked, and honest."""

from textwrap import indent

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.domain.prism.schemas import generation
from service.domain.prism.schemas.generation import read_schema
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Schema, describe
from service.llm.offline.model import complete
from tests.support.guides import section

GUIDE = section("prism", "Generating a schema")
MUSEUMS = "Opening hours and prices of the museums of a harbour town, from its newspapers."


def generate(domain: str, query: str) -> Schema:
    (ask,) = next(generation.generate(domain, query, marker_key=b"key"))
    reply = complete(ask)
    assert reply == complete(ask), "it is deterministic"
    assert read_schema(reply) == reply, "it is written in its one form"
    return parse_source(reply)


@pytest.mark.parametrize(
    ("domain", "query", "name"),
    [
        (MUSEUMS, "When is the ship museum closed, and what is the price?", "museums"),
        ("Reviews of hotels.", "How old is each of the hotels?", "hotels"),
        ("Log books of a harbour.", "Which ships brought timber?", "ships"),
        ("船の記録", "どの船が来ましたか", "topics"),
    ],
)
def test_it_keys_by_what_is_asked_about(domain: str, query: str, name: str) -> None:
    (field,) = generate(domain, query).root.fields
    assert (field.name, describe(field.type)) == (name, "dict[str, list[str]]")


def test_it_says_that_no_language_model_made_it() -> None:
    assert generate("Ships.", "Which ship?").root.doc.startswith("Made without a language model")


def test_the_guide_shows_what_it_makes() -> None:
    query = "When is the ship museum closed, and what is the price of a ticket?"
    assert MUSEUMS in GUIDE
    assert query in GUIDE
    (ask,) = next(generation.generate(MUSEUMS, query, marker_key=b"key"))
    assert indent(complete(ask), "    ") in GUIDE


@example(domain="", query="\u1fe40")
@given(st.text(), st.text())
def test_any_words_make_a_valid_schema(domain: str, query: str) -> None:
    generate(domain, query)


DIFFICULT = "how many much which of the class None is ǆ ﬁsh İs ß ΐs ŉ str list _x 9 s y x ss"


@given(*(st.lists(st.sampled_from(DIFFICULT.split())) for _ in range(2)))
def test_any_order_of_difficult_words_makes_a_schema(domain: list[str], query: list[str]) -> None:
    assert len(generate(" ".join(domain), " ".join(query)).root.fields) == 1
