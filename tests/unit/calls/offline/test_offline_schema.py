"""The offline model's schemas: small, valid, about what is asked, and honest."""

from textwrap import indent

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.domain.prism.asking import AnswerContent, ReviseContent
from service.domain.prism.memory import PrismMemory
from service.domain.prism.replies import read_answer
from service.domain.prism.revisions import parse_reply
from service.domain.prism.schemas.generation import SchemaContent, read_schema
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Field, RecordType, Schema, describe
from service.llm.offline import model as offline
from service.llm.offline import schema as offline_schema
from tests.support.guides import section

GUIDE = section("prism", "Generating a schema")
MUSEUMS = "Opening hours and prices of the museums of a harbour town, from its newspapers."


def generate(domain: str, query: str) -> Schema:
    content = SchemaContent(domain=domain, example_query=query)
    reply = offline.complete(content)
    assert reply == offline.complete(content), "it is deterministic"
    assert read_schema(reply) == reply, "it is written in its one form"
    return parse_source(reply)


def shape(schema: Schema) -> tuple[str, str, dict[str, str]]:
    """The one field, its type, and the fields of what it holds."""
    (field,) = schema.root.fields
    held: list[Field] = []
    value = getattr(field.type, "value", None)
    if isinstance(value, RecordType):
        held = list(value.fields)
    return field.name, describe(field.type), {one.name: describe(one.type) for one in held}


@pytest.mark.parametrize(
    ("domain", "query", "name", "of", "held"),
    [
        (
            "Python's language reference.",
            "What does the assert statement do?",
            "statements",
            "dict[str, list[str]]",
            {},
        ),
        (
            MUSEUMS,
            "When is the ship museum closed, and what is the price of a ticket?",
            "museums",
            "dict[str, Museum]",
            {"facts": "list[str]", "price": "float | None"},
        ),
        (
            "Reviews of hotels.",
            "How many rooms does each hotel have, and how old is it?",
            "hotels",
            "dict[str, Hotel]",
            {"facts": "list[str]", "number_of_rooms": "int | None", "age": "float | None"},
        ),
        (
            "Log books of a harbour.",
            "Which ships brought timber, and how much?",
            "ships",
            "dict[str, Ship]",
            {"facts": "list[str]", "amount": "float | None"},
        ),
        ("Letters of cities.", "How many cities are there?", "cities", "dict[str, list[str]]", {}),
        ("class def", "None? True?", "topics", "dict[str, list[str]]", {}),
        ("船の記録", "どの船が来ましたか", "topics", "dict[str, list[str]]", {}),
    ],
)
def test_it_keys_by_what_is_asked_about_and_counts_what_is_counted(
    domain: str, query: str, name: str, of: str, held: dict[str, str]
) -> None:
    assert shape(generate(domain, query)) == (name, of, held)


def test_it_says_that_no_language_model_made_it() -> None:
    assert generate("Ships.", "Which ship?").root.doc.startswith("Made without a language model")


def test_its_schema_can_be_filled_and_asked() -> None:
    schema = generate(MUSEUMS, "What is the price of a ticket in the ship museum?")
    text = (
        "The ship museum\n====\n\nThe ship museum is a collection of old ships."
        " The price of a ticket is 9.50 euros for everyone.\n"
    )
    content = ReviseContent(schema=schema, task="", question="", value={}, chunks=((1, text),))
    revision = parse_reply(offline.complete(content), schema, {})
    assert revision.rejections == ()
    memory = PrismMemory.create(schema).apply(1, revision.amendments)
    assert '"price":9.5' in memory.value_json
    asked = AnswerContent(
        query="What is the ship museum?", task="", question="", schema=schema, value=memory.value
    )
    said = read_answer(offline.complete(asked))
    assert said is not None
    assert "collection of old ships" in said.text
    assert said.sources


def test_the_guide_shows_what_it_makes() -> None:
    query = "When is the ship museum closed, and what is the price of a ticket?"
    assert MUSEUMS in GUIDE
    assert query in GUIDE
    content = SchemaContent(domain=MUSEUMS, example_query=query)
    assert indent(offline.complete(content), "    ") in GUIDE


@example(domain="", query="\u1fe40")
@given(st.text(), st.text())
def test_any_words_make_a_valid_schema(domain: str, query: str) -> None:
    generate(domain, query)


DIFFICULT = "how many much which of the class None is ǆ ﬁsh İs ß ΐs ŉ str list _x 9 s y x ss"
WORDS = [
    *DIFFICULT.split(),
    *sorted(offline_schema._MEASURES),
    *offline_schema._HOW,
]


@given(st.lists(st.sampled_from(WORDS)), st.lists(st.sampled_from(WORDS)))
def test_any_order_of_difficult_words_makes_a_small_schema(
    domain: list[str], query: list[str]
) -> None:
    schema = generate(" ".join(domain), " ".join(query))
    assert len(shape(schema)[2]) <= 1 + offline_schema.MAX_NUMBERS
