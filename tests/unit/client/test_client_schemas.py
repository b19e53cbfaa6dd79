import dataclasses
import enum
import json
import subprocess
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    TypedDict,
)

import pytest
import typing_extensions
from pydantic import BaseModel, Field

import palimpsest
from palimpsest import MAX_JSON_BYTES, MAX_SOURCE_BYTES, JsonText, json_schema_of, schema_fields
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import render
from service.domain.values.errors import SchemaInvalid
from tests.unit.support.taken_schemas import taken

SOURCE = "class Flat:\n    a: int\n"


@dataclass
class Flat:
    a: int | None
    b: dict[str, bool]


def test_class_source_and_documents_pass_as_they_are() -> None:
    assert schema_fields(SOURCE) == {"schema_source": SOURCE}
    document = {"title": "Größe", "properties": {"x": {"type": "string"}}}
    (text,) = schema_fields(document).values()
    assert json.loads(text) == document
    assert "Größe" in text


def test_the_docstring_that_a_dataclass_makes_is_no_guidance() -> None:
    assert Flat.__doc__
    assert Flat.__doc__.startswith("Flat(a: int | None")
    assert "description" not in json_schema_of(Flat)

    @dataclass
    class Kept:
        """Kept(like this one)"""

        a: int

    assert json_schema_of(Kept)["description"] == "Kept(like this one)"


@dataclass
class Base:
    """The base."""

    inherited: int
    """From the base."""


@dataclass
class Derived(Base):
    own: int
    """Its own."""


class BaseDict(TypedDict):
    inherited: int
    """From the base."""


class DerivedDict(BaseDict):
    own: int
    """Its own."""


class Extended(typing_extensions.TypedDict):
    inherited: int
    """From the base."""
    own: typing_extensions.NotRequired[int]
    """Its own."""


#: Before, a TypedDict forgets which one it was made from.
since_3_12 = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 tells")


@pytest.mark.parametrize("cls", [Derived, pytest.param(DerivedDict, marks=since_3_12), Extended])
def test_fields_are_inherited_with_their_guidance(cls: type) -> None:
    document = json_schema_of(cls)
    assert "description" not in document
    assert document["properties"] == {
        "inherited": {"type": "integer", "description": "From the base."},
        "own": {"type": "integer", "description": "Its own."},
    }


class Colour(enum.Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Grade(enum.IntEnum):
    ONE = 1


Town = NewType("Town", str)


def test_enums_and_new_types_are_what_they_stand_for() -> None:
    @dataclass
    class Record:
        colour: Colour
        grade: Grade
        town: Town
        many: tuple[Annotated[int, "One of them."], ...]

    expected = parse_source("""
class Record:
    colour: Literal["red", "blue"]  # A colour.
    grade: Literal[1]
    town: str
    many: list[int]  # One of them.
""")
    assert taken(Record) == expected


def test_guidance_from_all_places_is_kept_once() -> None:
    @dataclass
    class Record:
        a: Annotated[int, "One."] = field(metadata={"doc": "Two.", "description": "One."})
        """Three."""

    (a,) = taken(Record).root.fields
    assert a.doc == "One.\nTwo.\nThree."


def test_a_class_without_a_file_has_its_other_guidance() -> None:
    scope: dict[str, Any] = {"dataclass": dataclass, "Annotated": Annotated}
    source = "@dataclass\nclass A:\n  'All.'\n  a: Annotated[int, 'One.']\n  'Lost.'\n"
    exec(source, scope)
    assert taken(scope["A"]) == parse_source("class A:\n  'All.'\n  a: int\n  'One.'\n")


def test_two_classes_of_one_name_get_two_names() -> None:
    def make(kind: type) -> type:
        return dataclasses.make_dataclass("P", [("x", kind)])

    both = dataclasses.make_dataclass("Both", [("a", make(int)), ("b", make(str))])
    assert render(taken(both)).count("class P") == 2
    assert taken(both) == parse_source(
        "class Both:\n  class P:\n    x: int\n  class P2:\n    x: str\n  a: P\n  b: P2\n"
    )


def test_models_within_records_bring_their_own() -> None:
    class Inner(BaseModel):
        x: int

    class Outer(BaseModel):
        inner: Inner
        inners: list[Inner]

    other = dataclasses.make_dataclass("Inner", [("y", str)])
    whole = dataclasses.make_dataclass("Whole", [("a", Outer), ("b", other)])
    assert taken(whole) == parse_source("""
class Whole:
    class Inner:
        x: int
    class Outer:
        inner: Inner
        inners: list[Inner]
    class Inner2:
        y: str
    a: Outer
    b: Inner2
""")


@dataclass
class Node:
    children: "list[Node]"


@dataclass
class Lost:
    x: "Missing"  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Empty:
    pass


Opening = TypedDict("Opening", {"opening hours": str})


def one(hint: Any) -> type:
    return dataclasses.make_dataclass("A", [("x", hint)])


@pytest.mark.parametrize(
    ("cls", "kind", "about"),
    [
        (one(Any), TypeError, r"A\.x: .*Any is no type"),
        (one(set[int]), TypeError, r"A\.x: set\[int\] is no type"),
        (one(Sequence[int]), TypeError, r"A\.x: .*Sequence\[int\] is no type"),
        (one(bytes), TypeError, r"A\.x: .*bytes.* is no type"),
        (one(int | str), TypeError, r"A\.x: only a type or None"),
        (one(int | str | None), TypeError, r"A\.x: only a type or None"),
        (one(None), TypeError, r"A\.x: .*NoneType.* is no type"),
        (one(dict[int, str]), TypeError, r"A\.x: the keys of a dict are str"),
        (one(list), TypeError, r"A\.x: say what list holds, for example list\[str\]"),
        (one(tuple[()]), TypeError, r"A\.x: .* is no type"),
        (one(Literal[b"a"]), TypeError, r"A\.x: b'a' is no text"),
        (one(Literal[Colour.RED]), TypeError, r"A\.x: <Colour.RED: 'red'> is no text"),
        (one(list[Node]), ValueError, r"Node\.children: Node contains itself"),
        (Node, ValueError, r"Node\.children: Node contains itself"),
        (Lost, TypeError, "Lost: .*'Missing' is not defined"),
        (Empty, ValueError, "Empty has no fields"),
        (Opening, ValueError, "Opening.opening hours: .* name"),
        (int, TypeError, "int is no dataclass"),
        (7, TypeError, "7 is no dataclass"),
    ],
)
def test_what_cannot_be_expressed_is_named(cls: Any, kind: type[Exception], about: str) -> None:
    with pytest.raises(kind, match=about):
        schema_fields(cls)


def test_a_model_that_has_no_schema_is_named() -> None:
    class Calling(BaseModel):
        x: typing.Callable[[], None]

    with pytest.raises(TypeError, match="Calling has no JSON Schema"):
        json_schema_of(Calling)


@pytest.mark.parametrize("value", [float("nan"), b"a", {1, 2}])
def test_a_document_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        schema_fields({"default": value})


def test_a_schema_that_no_request_may_carry_is_not_sent() -> None:
    longest = "ä" * (MAX_SOURCE_BYTES // 2)
    assert schema_fields(longest) == {"schema_source": longest}
    long_json = JsonText(" " * (MAX_JSON_BYTES + 1))
    for take in (schema_fields, palimpsest.schema_fields):
        with pytest.raises(ValueError, match="more than 65536 bytes"):
            take(longest + "#")
        with pytest.raises(ValueError, match="more than 262144 bytes"):
            take({"description": long_json})
    with pytest.raises(ValueError, match="more than 262144 bytes"):
        palimpsest.schema_fields(long_json)


async def test_nor_is_one_sent_to_be_checked() -> None:
    async with palimpsest.connect("127.0.0.1:1") as client:
        with pytest.raises(ValueError, match="more than 65536 bytes"):
            await client.check_schema("#" * (MAX_SOURCE_BYTES + 1))
        with pytest.raises(ValueError, match="more than 262144 bytes"):
            await client.check_schema(json_schema="#" * (MAX_JSON_BYTES + 1))


def test_what_only_the_service_can_see_is_refused_there() -> None:
    class Aged(BaseModel):
        age: int = Field(ge=0)

    with pytest.raises(SchemaInvalid) as refused:
        taken(Aged)
    assert refused.value.pointer == "/properties/age"


def test_pydantic_is_not_imported_for_other_classes() -> None:
    program = (
        "import sys, dataclasses, palimpsest as s;"
        "s.json_schema_of(dataclasses.make_dataclass('A', [('x', int)]));"
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
