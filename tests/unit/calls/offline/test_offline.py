"""The offline model fills any schema and answers with the right sentence."""

from dataclasses import replace
from datetime import UTC, datetime
from pydoc_data.topics import topics
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palimpsest._splitting import split
from service.domain.access.trust import Trust
from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.prism import asking as prism
from service.domain.prism.amendments import Rules
from service.domain.prism.memory import PrismMemory
from service.domain.prism.replies import read_answer
from service.domain.prism.revisions import parse_reply
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import render
from service.domain.prism.spec import PrismSpec
from service.llm.offline import notes
from service.llm.offline.model import complete
from tests.unit.support.logged import logged, logged_chunk

KEY = b"a key that nobody outside knows"

SCHEMAS = [
    "class A:\n    topics: dict[str, list[str]]",
    "class A:\n    notes: list[str]",
    "class A:\n    summary: str\n    about: str | None",
    "class A:\n    facts: dict[str, str]",
    "class P:\n    name: str\n    role: str\n    years: int\nclass A:\n    people: list[P]",
    "class F:\n    purpose: str\n    lines: list[str]\nclass A:\n    found: dict[str, F]",
    "class A:\n    pairs: dict[str, tuple[str, str]]\n    kind: Literal['open', 'closed']",
    "class B:\n    price: float\n    open: bool\nclass A:\n    b: B",
    "class A:\n    nested: dict[str, dict[str, list[str]]]",
    "class A:\n    title: str\n    years: int | None\n    price: float | None",
    "class P:\n    name: str\n    said: list[str]\nclass A:\n    who: dict[str, P]\n    s: list[P]",
    "class A:\n    kind: Literal[1, 2] | None\n    where: tuple[str, int]\n    flags: list[bool]",
]
TEXT = """The harbour museum
==================

The harbour museum is a collection of old ships. It was founded by Ada Lovelace in 1843.
Its years of closure were 12. The price of a ticket is 9.50 euros for everyone.
"""


def revise(source: str, texts: list[str]) -> PrismMemory:
    return revise_with(source, [logged(number, text) for number, text in enumerate(texts, start=1)])


def revise_with(source: str, log: list[LoggedChunk]) -> PrismMemory:
    schema = parse_source(source)
    memory = PrismMemory.create(schema)
    for number, chunk in enumerate(log, start=1):
        spec = PrismSpec(schema_source=source)
        (ask,) = next(prism.revise(spec, memory, [chunk], marker_key=KEY, rules=Rules()))
        reply = complete(ask)
        assert reply == complete(ask), "it is deterministic"
        revision = parse_reply(reply, schema, memory.value)
        assert revision.rejections == ()
        memory = memory.apply(number, revision.amendments)
    return memory


def answer(memory: PrismMemory, query: str) -> tuple[str, list[str]]:
    spec = PrismSpec(schema_source=render(memory.schema))
    flow = prism.answer(spec, memory, query, marker_key=KEY, window_tokens=1_000_000)
    (ask,) = next(flow)
    said = read_answer(complete(ask))
    assert said is not None
    return said.text, list(said.sources)


@pytest.mark.parametrize("source", SCHEMAS)
def test_it_fills_the_schema_it_is_given(source: str) -> None:
    memory = revise(source, [TEXT, TEXT + "The harbour museum is closed on Mondays, it is said."])
    assert memory.value


def test_it_extends_what_it_knows_and_repeats_nothing() -> None:
    more = TEXT + "\nThe harbour museum is closed on Mondays during the whole winter.\n"
    memory = revise(SCHEMAS[0], [TEXT, more, more])
    value: Any = memory.value
    sentences = value["topics"]["harbour museum"]
    assert any("Mondays" in one for one in sentences)
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Ingrid moved to Bergen.", ("Ingrid moved to Bergen.",)),
        ("user: I like fish\n\nuser: and bread", ("user: I like fish", "user: and bread")),
        # All of a text that has one subject, also what does not name it.
        (
            "The harbour is open from six to ten.\n\nThe keeper of the lighthouse is called Lund.",
            (
                "The harbour is open from six to ten.",
                "The keeper of the lighthouse is called Lund.",
            ),
        ),
        ("count = 3\nprint(count)", ()),
    ],
)
def test_a_short_text_is_kept_and_code_is_not(text: str, kept: tuple[str, ...]) -> None:
    assert tuple(one for topic in notes.topics(text, "") for one in topic.sentences) == kept


def test_it_keeps_what_was_said_and_not_when_and_where() -> None:
    said = "The billing service lost its database because the disk was full."
    told = Chunk(
        kind=ChunkKind.TEXT,
        text=said,
        source='a "log"',
        thread="t]",
        occurred_at=datetime(2026, 11, 1, tzinfo=UTC),
    )
    one = logged_chunk(1, told)
    for trust in (Trust.TRUSTED, Trust.UNVERIFIED):
        memory = revise_with(SCHEMAS[1], [replace(one, trust=trust)])
        assert memory.value == {"notes": [said]}


def test_names_that_differ_in_a_little_word_are_different_topics() -> None:
    def about(word: str) -> str:
        title = f"The {word} statement"
        return (
            f"{title}\n{'=' * len(title)}\n\nThe {word} statement is one that does things {word}."
        )

    words = ("with", "while", "for", "if")
    memory = revise(SCHEMAS[0], [about(word) for word in words])
    value: Any = memory.value
    assert list(value["topics"]) == [f"{word} statement" for word in words]
    for word in words:
        text, paths = answer(memory, f"What does a {word} statement do?")
        assert text == f"The {word} statement is one that does things {word}."
        assert paths == [f"$['topics']['{word} statement'][0]"]


@pytest.mark.parametrize("source", SCHEMAS[:2])
def test_what_a_text_says_twice_is_kept_once(source: str) -> None:
    memory = revise(source, [TEXT + TEXT.partition("\n\n")[2]])
    assert memory.value_json.count("was founded by Ada Lovelace") == 1


def test_what_a_memory_cannot_hold_is_left_out() -> None:
    heading = "The har\0bour\n==========\n\nThe har\0bour is a place where it is quiet."
    assert "\0" not in revise(SCHEMAS[0], [heading]).value_json


@pytest.fixture(scope="module")
def reference() -> PrismMemory:
    return revise(SCHEMAS[0], [piece for text in topics.values() for piece in split(text)])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("What does the assert statement do?", "insert debugging assertions"),
        ("What is a lambda expression?", "anonymous functions"),
        ("What does the global statement mean?", "entire current code block"),
        ("When is the finally clause of a try statement executed?", '"finally" clause is executed'),
        ("How does a with statement call __enter__ and __exit__?", "will always be called"),
        ("What is the for statement used for?", "iterate over the elements"),
        ("What does the if statement do?", "conditional execution"),
    ],
)
def test_it_answers_from_the_right_place(reference: PrismMemory, query: str, said: str) -> None:
    text, paths = answer(reference, query)
    assert said in text
    assert paths


def test_it_says_when_the_memory_does_not_say(reference: PrismMemory) -> None:
    assert answer(reference, "Zebra xylophone?") == ("", [])


def test_the_memory_stays_small(reference: PrismMemory) -> None:
    # A third of the text; 465 KB of it make about 130 KB, whatever Python's release.
    assert len(reference.value_json) < sum(map(len, topics.values())) / 3
    value: Any = reference.value
    assert max(map(len, value["topics"])) <= notes.KEY_CHARACTERS
    for sentences in value["topics"].values():
        assert len(set(sentences)) == len(sentences) <= notes.MAX_SENTENCES
        assert max(map(len, sentences)) <= notes.SENTENCE_CHARACTERS


@given(st.text(), st.sampled_from(SCHEMAS), st.text())
@example("_", SCHEMAS[0], "_")
def test_any_text_and_question_will_do(text: str, source: str, query: str) -> None:
    answer(revise(source, [text, f"Heading\n====\n\n{text}\n\nIt is {text} and so on."]), query)
