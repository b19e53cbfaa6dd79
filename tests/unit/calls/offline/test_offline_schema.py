"""The offline model's schema: small, valid and honest."""

from textwrap import indent

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


def test_it_has_one_dict_of_sentences_by_topic() -> None:
    (field,) = generate(MUSEUMS, "When is the ship museum closed?").root.fields
    assert (field.name, describe(field.type)) == ("topics", "dict[str, list[str]]")
    assert generate("船の記録", "どの船が来ましたか") == generate("Hotels.", "How old?")


def test_it_says_that_no_language_model_made_it() -> None:
    assert generate("Ships.", "Which ship?").root.doc.startswith("Made without a language model")


def test_the_guide_shows_what_it_makes() -> None:
    query = "When is the ship museum closed, and what is the price of a ticket?"
    assert MUSEUMS in GUIDE
    assert query in GUIDE
    (ask,) = next(generation.generate(MUSEUMS, query, marker_key=b"key"))
    assert indent(complete(ask), "    ") in GUIDE
