import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.schemas.limits import MAX_SOURCE_BYTES
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import (
    PLACEHOLDER,
    DictType,
    ListType,
    LiteralType,
    Mismatch,
    OptionalType,
    RecordType,
    Scalar,
    Schema,
    TupleType,
    Type,
    fit,
    render,
)
from service.domain.values.errors import SchemaInvalid
from tests.unit.prism.schemas import schemas

#: In the forms of the paper's listings, with words of our own.
NESTED = '''
@dataclasses.dataclass
class FunctionFinder(pg.Object):
    """candidates is keyed by name.
    Never the same twice."""
    @dataclasses.dataclass
    class Description(pg.Object):
        """How a function works."""  # pylint: disable=line-too-long
        purpose: str
        input: str
        """What goes in."""
        score: float  # between 0 and 1
    candidates: dict[str, Description]
'''
ALIASED = """
class Comparison(TypedDict):
    names: tuple[str, str]
    Facet = str
    values: dict[Facet, tuple[str, str]]
    best: Optional[int] = None
    state: Literal["open", 2, True] | None
"""


def test_the_papers_forms_are_read() -> None:
    record = parse_source(NESTED).root
    (candidates,) = record.fields
    assert record.name == "FunctionFinder"
    assert record.doc == "candidates is keyed by name.\nNever the same twice."
    assert isinstance(candidates.type, DictType)
    described = candidates.type.value
    assert isinstance(described, RecordType)
    assert [(field.name, field.doc) for field in described.fields] == [
        ("purpose", ""),
        ("input", "What goes in."),
        ("score", "between 0 and 1"),
    ]


def test_aliases_optionals_and_literals_are_read() -> None:
    fields = {field.name: field.type for field in parse_source(ALIASED).root.fields}
    pair = TupleType(items=(Scalar.STR, Scalar.STR))
    assert fields == {
        "names": pair,
        "values": DictType(value=pair),
        "best": OptionalType(inner=Scalar.INT),
        "state": OptionalType(inner=LiteralType(values=("open", 2, True))),
    }


def test_the_class_that_no_other_uses_is_the_memory() -> None:
    schema = parse_source("class A:\n  x: int\nclass B:\n  a: A\nclass C:\n  b: list[B]\n  a: A")
    assert schema.root.name == "C"
    assert parse_source(render(schema)) == schema


@pytest.mark.parametrize(
    ("source", "line", "column", "about"),
    [
        ("", 1, 1, "no class"),
        ("class A(", 1, 8, "no Python class"),
        ("class A:\n  x: set[int]", 2, 6, "set"),
        ("class A:\n  x: Any", 2, 6, "Any"),
        ("class A:\n  x: dict[int, str]", 2, 11, "keys"),
        ("class A:\n  x: list", 2, 6, "list[str]"),
        ("class A:\n  x: A", 2, 6, "contains itself"),
        ("class A:\n  x: B", 2, 6, "B"),
        ("class A:\n  x: int\n  x: str", 3, 3, "twice"),
        ("class A:\n  pass", 1, 1, "no fields"),
        ("class A:\n  x: int | str", 2, 6, "None"),
        ("class A:\n  def f(self): pass", 2, 3, "methods"),
        ("import os\nclass A:\n  x: int", 1, 1, "imports"),
        ("class A:\n  x: int = open('f')", 2, 12, "nothing is run"),
        ("class A(f()):\n  x: int", 1, 9, "base"),
        ("@f()\nclass A:\n  x: int", 1, 2, "decorator"),
        ("class A:\n  x: f()", 2, 6, "type"),
        ("print(1)\nclass A:\n  x: int", 1, 1, "classes only"),
        ("class A:\n  x: " + "list[" * 40 + "int" + "]" * 40, 2, 176, "nested"),
        ("class A:\n  x: " + "list[" * 17 + "int" + "]" * 17, 2, 3, "nested deeper than 16"),
        ("x" * (MAX_SOURCE_BYTES + 1), 1, 1, "bytes"),
        ("ä" * (MAX_SOURCE_BYTES // 2 + 1), 1, 1, "bytes"),
        ("\0\ud800" * MAX_SOURCE_BYTES, 1, 1, "bytes"),
        ("class A:\n  x: int\0", 1, 1, "NUL"),
        ("class A:\n  x: int # \ud800", 1, 1, "surrogate"),
        ("\n\n  class A:\n    x: set[int]", 4, 8, "set"),
        ("class A:\r\n  ää: set[int]", 2, 7, "set"),
        ("\n  class A:\n    x: int = (", 3, 14, "no Python class"),
        ('class A:\n  x: int\n  """\\0"""\n', 2, 3, "NUL"),
        ("class A:\n  x: Literal['\\ud800']", 2, 14, "surrogate"),
        (f"class A:\n  x: Literal[0x{'f' * 5000}]", 2, 14, "64 digits"),
        ("class A:\n  x: Literal[None]", 2, 6, "at least one"),
        (f"class A:\n  {'x' * 513}: int", 2, 3, "512"),
        ("class A:\n  x: 'int; int'", 2, 6, "no type"),
    ],
)
def test_what_a_schema_cannot_hold_is_refused_with_its_place(
    source: str, line: int, column: int, about: str
) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        parse_source(source)
    assert (refused.value.line, refused.value.column) == (line, column)
    assert about in str(refused.value)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("class A0:\n  x: int\n", "class A{n}:\n  x: A{m}\n  y: A{m}\n"),
        ("class R:\n  A0 = str\n", "  A{n} = tuple[A{m}, A{m}]\n  x{n}: A{n}\n"),
        ("class R:\n  A0 = str\n", "  A{n} = list[A{m}]\n  x{n}: A{n}\n"),
        ("class A0:\n  x: int\n", "class A{n}:\n  x: A{m}\n"),
    ],
)
def test_a_short_source_cannot_stand_for_a_huge_schema(first: str, then: str) -> None:
    def source(levels: int) -> str:
        return first + "".join(then.format(n=n, m=n - 1) for n in range(1, levels))

    assert hash(parse_source(source(5)))
    with pytest.raises(SchemaInvalid, match=r"nested deeper|more than 10000"):
        parse_source(source(200))


@pytest.mark.parametrize("depth", [10, 100, 800, 3000, 9000])
@pytest.mark.parametrize(
    ("opening", "closing"),
    [("list[", "]"), ("(", ")"), ("-", ""), ("int | ", ""), ("a.", ""), ("[", "]"), ("'", "'")],
)
def test_deep_source_is_refused_and_not_fallen_into(opening: str, closing: str, depth: int) -> None:
    for field in ("x: {}", "x: int = {}", "X = {}"):
        deep = field.format(opening * depth + "a" + closing * depth)
        with pytest.raises(SchemaInvalid):
            parse_source(f"class A:\n  y: int\n  {deep}\n  {deep}\n")


@pytest.mark.parametrize(
    "field",
    [
        "x: int" + " | None" * 200,
        "x: int = " + "[" * 200 + "]" * 200,
        "\n  ".join(f"A{n} = A{n + 1}" for n in range(100)) + "\n  A100 = int\n  x: A0",
    ],
)
def test_what_is_read_does_not_depend_on_the_room_on_the_stack(field: str) -> None:
    # Or a memory could be made by the API and not be loaded by a worker.
    with pytest.raises(SchemaInvalid, match=r"too deep|deeper"):
        parse_source(f"class A:\n  {field}\n")


def test_what_is_shown_can_always_be_read() -> None:
    # A memory that was made from a JSON Schema is kept as it is shown.
    aliases = "\n  ".join(f"A{n + 1} = list[A{n} | None]" for n in range(15))
    nested = parse_source(f"class A:\n  A0 = str\n  {aliases}\n  x: A15\n")
    assert parse_source(render(nested)) == nested
    words = ", ".join(f"'{n:0500}'" for n in range(60))
    fields = "\n  ".join(f"x{n}: Word" for n in range(4))
    long = parse_source(f"class A:\n  Word = Literal[{words}]\n  {fields}\n")
    assert len(render(long)) > 100_000
    assert parse_source(render(long)) == long


def test_a_literal_may_hold_negative_numbers_and_none() -> None:
    (field,) = parse_source("class A:\n  x: Literal[-1, 'a', None]").root.fields
    assert field.type == OptionalType(inner=LiteralType(values=(-1, "a")))


def test_an_alias_that_is_called_like_a_class_does_not_use_it() -> None:
    source = "class Bar:\n  Foo = str\n  y: Foo\nclass Foo:\n  x: int"
    assert parse_source(source).root.name == "Foo"


@pytest.mark.parametrize(
    "doc",
    [
        'ends with a quote"',
        'x """',
        '""""',
        "\\",
        '\\"',
        "a\r\nb\rc",
        "a\tb",
        "\\d {x}",
        "a\n\n  b\nc",
        "\n  a\n    b\n\n      c\n  ",
    ],
)
def test_a_docstring_survives_being_shown(doc: str) -> None:
    source = f"class A:\n  {doc!r}\n  x: int\n  {doc!r}\n"
    schema = parse_source(source)
    assert schema.root.doc
    assert parse_source(render(schema)) == schema
    assert render(parse_source(render(schema))) == render(schema)


@pytest.mark.parametrize(
    "source",
    [
        "{run}",
        "class A:\n  x: int = {run}",
        "class A:\n  x: {run}",
        "class A({run}):\n  x: int",
        "@{run}\nclass A:\n  x: int",
        "class A:\n  {run}\n  x: int",
        "class A:\n  x: '{run}'",
        "class A:\n  X = {run}\n  x: X",
    ],
)
def test_source_is_never_run(source: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(SchemaInvalid):
        parse_source(source.format(run=f'open("{trace}", "w")'))
    assert not trace.exists()


@given(st.text(max_size=300))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        schema = parse_source(text)
    except SchemaInvalid as error:
        assert error.line >= 1
        assert error.column >= 1
    else:
        assert schema.root.fields


@given(schemas())
def test_a_schema_survives_being_shown(schema: Schema) -> None:
    shown = render(schema)
    assert parse_source(shown) == schema
    assert render(parse_source(shown)) == shown


#: What people write into sources, and what they leave behind.
FRAGMENTS = st.sampled_from(
    [
        *("# note", "  # a\n", "\n    # b\n", '"""doc"""', '"""\n  two\n   lines\n"""', "'x'"),
        *("class Z:\n", "    y: int\n", "Y = str\n", "int", "list[", "]", " | None", "Literal["),
        *("@dataclass\n", "    ", "\t", "\n", ":", "=", "(", ")", '"', "\\", "é", "\x0c", "\r"),
    ]
)


@given(schemas(), st.data())
def test_any_edited_source_is_refused_or_read_for_good(schema: Schema, data: st.DataObject) -> None:
    source = render(schema)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(source)))
        end = data.draw(st.integers(start, min(start + 8, len(source))))
        source = source[:start] + data.draw(FRAGMENTS) + source[end:]
    try:
        read = parse_source(source)
    except SchemaInvalid:
        return
    assert parse_source(render(read)) == read
    assert render(parse_source(render(read))) == render(read)


LISTS = DictType(value=ListType(item=Scalar.STR))
PAIR = TupleType(items=(Scalar.STR, Scalar.INT))


@pytest.mark.parametrize(
    ("of", "value", "fitted"),
    [
        (Scalar.INT, 3.0, 3),
        (Scalar.FLOAT, 3, 3),
        (Scalar.STR, None, None),
        (Scalar.INT, PLACEHOLDER, PLACEHOLDER),
        (PAIR, ["a", 1], ["a", 1]),
        (OptionalType(inner=Scalar.INT), 4, 4),
        (
            DictType(value=ListType(item=Scalar.STR)),
            {"a": ["b", PLACEHOLDER]},
            {"a": ["b", "????"]},
        ),
    ],
)
def test_values_that_fit(of: Type, value: Any, fitted: Any) -> None:
    assert fit(of, value) == fitted


@pytest.mark.parametrize(
    ("of", "value", "place"),
    [
        (Scalar.INT, "3", "the value"),
        (Scalar.INT, 3.5, "the value"),
        (Scalar.INT, 2.0**53 + 2, "the value"),
        (Scalar.INT, True, "the value"),
        (Scalar.STR, 3, "the value"),
        (Scalar.BOOL, 1, "the value"),
        (LiteralType(values=(1,)), True, "the value"),
        (PAIR, ["a"], "the value"),
        (LISTS, {"a": ["b", 1]}, "the value['a'][1]"),
        (parse_source(NESTED).root, {"candidate": {}}, "the value"),
    ],
)
def test_values_that_do_not_fit_are_named(of: Type, value: Any, place: str) -> None:
    with pytest.raises(Mismatch, match="^" + re.escape(place)):
        fit(of, value)
