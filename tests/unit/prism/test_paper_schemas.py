"""Schemas of the shapes that the PRISM paper shows, in words of our own.

Listings 1 to 6 are its appendices A and B; the others are in the prompts of its
appendix D. The paper prints some of them with an indentation that is no Python's.
"""

import pytest

from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import (
    DictType,
    ListType,
    RecordType,
    Scalar,
    Schema,
    TupleType,
    render,
)
from service.domain.values.errors import SchemaInvalid

LISTING_1 = '''
@dataclasses.dataclass
class Novel:
    """Keys are yours to choose. Values
    are sentences about the plot, and
    about nothing else."""
    notes: dict[str, list[str]]
'''
LISTING_2 = '''
@dataclasses.dataclass
class Finder:
    """suspects is keyed by the name of a
    method and holds Suspect objects."""
    @dataclasses.dataclass
    class Suspect:
        """goal says what it is for. steps
        say how it goes about it (i.e. in which order
        )."""
        goal: str
        given: str
        gives: str
        steps: str
    suspects: dict[str, Suspect]
'''
LISTING_3 = '''
@dataclasses.dataclass
class Tables(pg.Object):
    """tables is a list of Table objects. One
        for each."""

    @dataclasses.dataclass
    class Table(pg.Object):
        """Each of columns is one column with
            its type. In figures
                you work out what the question needs."""
        title: str
        about: str
        columns: list[str]
        figures: list[str]
        related: list[str]

    tables: list[Table]

'''
LISTING_4 = """
@dataclasses.dataclass
class Story:
    @dataclasses.dataclass
        class Scene:
            happenings: str
            people: str
            places: str
            things: str
        scenes: dict[str, Scene]
"""
LISTING_5 = """
@dataclasses.dataclass
class Likeness:
    scores: dict[str, float]
"""
LISTING_6 = """
@dataclasses.dataclass
class Partial(pg.Object):
    facts: dict[str, list[str]]
"""
COMPARISON = """
class Versus:
    rivals: tuple[str, str]
    Aspect = str
    table: dict[Aspect, tuple[str, str]]
"""
SUMMARY = """
class Place(TypedDict):
    aspects: dict[str, list[str]] # By aspect, with what is said of it.
"""
TABLE_MEMORY = '''
class Known(pg.Object):
    """sheets is keyed by the title of a sheet."""

    class Sheet(pg.Object):
        """gist is short. hints help with the
        question.""" # pylint: disable=line-too-long
        gist: str
        hints: list[str]

    sheets: dict[str, Sheet]
'''
DESCRIPTOR = '''
class Methods(pg.Object):
    """known is keyed by name.""" # # pylint: disable=line-too-long

    class Method(pg.Object):
        """goal is what it is for.""" # pylint: disable=line-too-long
        goal: str
        steps: str

    known: dict[str, Method]
'''
TWO_LISTS = '''

class Versus:
    """aspects are those that both
        have, e.g. weight."""
    class Sides:
        """left and right belong to the
            aspect."""
        left: list[str]
        right: list[str]

    aspects: dict[str, Sides]

'''
DOC_THAT_ENDS_BELOW = '''
class Place(TypedDict):
    """By aspect, with what is said of it
    """
    aspects: dict[str, list[str]]
'''
TOP = '''
class Best:
    """people is a list of Score objects."""
    class Score:
        """who, and how much."""
        who: str
        amount: float


    people: list[Score]
'''
MATCHES = '''
class Likely:
    """What is known of methods."""
    class Method:
        """called is its name."""
        called: str
        hits: list[str]


    methods: list[Method]
'''
BOOK = '''
class Tale:
    """A tale, whatever order it is
    told in."""

    class Scene:
        """One scene. They stand in their
        order."""
        what: str
        """What happens."""
        when: str
        """When it happens, if the text says so
        """
        who: list[str]
        """Who is in it."""

    class Person:
        """Somebody."""
        name: str
        """Their name."""
        wants: list[str]
        """What they are after."""

    scenes: list[Scene]
    """All scenes, in the order of time."""
    people: dict[str, Person]
    """Everybody, by
    name."""
'''
QUERY = '''
class Query:
    """What a question needs.
    Not whole sheets.
    """

    class Thing:
        """A thing of the question.
        For 'ships' it would be a ship.
        """
        name: str # What it is called (e.g., "ship")
        columns: list[str] # Columns that matter to the
                           # question
        rows: list[dict[str, str]] # Rows that matter, by column

    things: list[Thing]

    # For questions that add up (COUNT, SUM, etc.):
    sums: dict[str, float] # e.g., {"count": 7}
'''

ALL = {name: text for name, text in globals().items() if name.isupper() and isinstance(text, str)}


def fields(record: RecordType) -> dict[str, str]:
    return {field.name: field.doc for field in record.fields}


def inner(schema: Schema, name: str) -> RecordType:
    field = schema.root.field(name)
    assert field is not None
    of = field.type
    assert isinstance(of, DictType | ListType)
    record = of.value if isinstance(of, DictType) else of.item
    assert isinstance(record, RecordType)
    return record


@pytest.mark.parametrize("name", ALL)
def test_the_papers_shapes_are_read_and_shown(name: str) -> None:
    schema = parse_source(ALL[name])
    shown = render(schema)
    assert parse_source(shown) == schema
    assert render(parse_source(shown)) == shown


def test_the_handcrafted_listings() -> None:
    novel = parse_source(LISTING_1).root
    assert novel.fields[0].type == DictType(value=ListType(item=Scalar.STR))
    assert novel.doc == (
        "Keys are yours to choose. Values\nare sentences about the plot, and\nabout nothing else."
    )
    suspect = inner(parse_source(LISTING_2), "suspects")
    assert list(fields(suspect)) == ["goal", "given", "gives", "steps"]
    tables = parse_source(LISTING_3)
    assert list(fields(inner(tables, "tables"))) == [
        "title",
        "about",
        "columns",
        "figures",
        "related",
    ]
    assert tables.root.doc == "tables is a list of Table objects. One\nfor each."


def test_a_decorator_may_stand_anywhere_above_its_class() -> None:
    story = parse_source(LISTING_4)
    assert story.root.name == "Story"
    assert list(fields(inner(story, "scenes"))) == ["happenings", "people", "places", "things"]


def test_the_other_generated_listings() -> None:
    assert parse_source(LISTING_5).root.fields[0].type == DictType(value=Scalar.FLOAT)
    assert parse_source(LISTING_6).root.name == "Partial"


def test_aliases_hold_within_their_class() -> None:
    pair = TupleType(items=(Scalar.STR, Scalar.STR))
    rivals, table = parse_source(COMPARISON).root.fields
    assert (rivals.type, table.type) == (pair, DictType(value=pair))


def test_guidance_of_fields_is_found_wherever_it_stands() -> None:
    assert fields(parse_source(SUMMARY).root) == {"aspects": "By aspect, with what is said of it."}
    book = parse_source(BOOK)
    assert fields(book.root) == {
        "scenes": "All scenes, in the order of time.",
        "people": "Everybody, by\nname.",
    }
    assert fields(inner(book, "scenes"))["when"] == "When it happens, if the text says so"
    query = parse_source(QUERY)
    assert fields(query.root) == {
        "things": "",
        "sums": 'For questions that add up (COUNT, SUM, etc.):\ne.g., {"count": 7}',
    }
    assert fields(inner(query, "things")) == {
        "name": 'What it is called (e.g., "ship")',
        "columns": "Columns that matter to the\nquestion",
        "rows": "Rows that matter, by column",
    }


def test_notes_to_tools_are_no_guidance() -> None:
    assert parse_source(DESCRIPTOR).root.doc == "known is keyed by name."
    source = """
class A:
    # pylint: disable=invalid-name
    # The kind.
    kind: str  # type: ignore[misc]
    # type: which of the three
    other: str  # noqa: E501
"""
    assert fields(parse_source(source).root) == {
        "kind": "The kind.",
        "other": "type: which of the three",
    }


def test_comments_belong_to_the_field_that_they_touch() -> None:
    source = """
class A:
    # About no field.

    # About x,
    #
    # in two lines.
    x: dict[  # from
        str,
        # to
        int,
    ]  # about x too
        # indented like nothing around it
    y: int
    # Below the last.
"""
    assert fields(parse_source(source).root) == {
        "x": "About x,\nin two lines.\nfrom\nto\nabout x too",
        "y": "",
    }


#: As listings 2 and 3 are printed: what belongs to the outer class is not indented.
FLAT = '''
@dataclasses.dataclass
class Outer:
    """inner is a list of Inner objects."""
@dataclasses.dataclass
class Inner:
    """One of them."""
    name: str
    inner: list[Inner]
'''


NESTED = '''
class Outer:
    """inner is a list of Inner objects."""
    class Inner:
        """One of them."""
        name: str
    inner: list[Inner]
'''


def test_a_class_that_was_flattened_is_read_as_it_was_meant() -> None:
    assert parse_source(FLAT) == parse_source(NESTED)
    again = FLAT + "    count: int\n"
    assert parse_source(again) == parse_source(NESTED + "    count: int\n")
    quoted = FLAT.replace("list[Inner]", "dict[str, 'Inner']")
    assert parse_source(quoted) == parse_source(NESTED.replace("list[", "dict[str, "))


@pytest.mark.parametrize(
    ("source", "line", "about"),
    [
        (FLAT.replace("    name: str\n", ""), 3, "Outer has no fields; what belongs to it is"),
        (FLAT.replace("class Outer:", "class Outer:\n    name: str"), 10, "Inner contains itself"),
        (
            "class Outer:\n    class Inner:\n        name: str\n        inner: list[Inner]\n",
            4,
            "Inner contains itself; a field of Outer is indented like the classes in Outer",
        ),
        ("class A:\n    class B:\n        x: int\n", 1, "A has no fields"),
    ],
)
def test_what_could_only_be_guessed_is_refused(source: str, line: int, about: str) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        parse_source(source)
    assert about in refused.value.message
    assert refused.value.line == line


@pytest.mark.parametrize(
    "source",
    [
        "class Outer:\n  x: list[Inner]\nclass Inner:\n  y: str\n",
        "class Inner:\n  y: str\nclass Outer:\n  x: list[Inner]\n",
        "class Outer:\n  x: list['Inner']\n  class Inner:\n    y: str\n",
        "class Outer:\n  class Inner:\n    y: str\n  x: list[Inner]\n",
        "class Outer:\n  x: Many\n  Many = list[Inner]\n  class Inner:\n    y: Text\nText = str\n",
    ],
)
def test_classes_may_stand_in_any_order(source: str) -> None:
    inner_record = parse_source("class Inner:\n  y: str\n").root
    schema = parse_source(source)
    assert schema.root.name == "Outer"
    assert schema.root.fields[0].type == ListType(item=inner_record)


@pytest.mark.parametrize(
    ("source", "line", "about"),
    [
        ("class A:\n  x: B\nclass B:\n  y: A\n", 4, "A contains itself"),
        ("class A:\n  x: B\nclass B:\n  y: int\nclass B:\n  z: int\n", 5, "defined twice"),
        ("class A:\n  x: B\nclass B:\n  y: B\n", 4, "B contains itself$"),
        ("X = list[X]\nclass A:\n  x: X\n", 1, "X is no type"),
        ("X = Y\nY = X\nclass A:\n  x: X\n", 2, "X is no type"),
        ("class str:\n  x: int\n", 1, "'str' is a type"),
        ("class A:\n  x: str\n  class str:\n    x: int\n", 3, "'str' is a type"),
    ],
)
def test_names_mean_one_thing(source: str, line: int, about: str) -> None:
    with pytest.raises(SchemaInvalid, match=about) as refused:
        parse_source(source)
    assert refused.value.line == line


def test_what_says_nothing_may_be_there() -> None:
    source = "class A(TypedDict, total=False):\n  x: NotRequired[int]\n  ...\n"
    assert parse_source(source) == parse_source("class A:\n  x: int\n")
