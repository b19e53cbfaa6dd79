"""One schema as class source, dataclass, TypedDict, pydantic model and JSON Schema."""

import typing
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NotRequired,
    Optional,
    TypedDict,
    Union,
)

import pytest
from pydantic import BaseModel, ConfigDict, Field

from palimpsest import json_schema_of
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import render
from tests.unit.support.taken_schemas import taken

TALE_SOURCE = '''
class Tale:
    """A tale, whatever order
    it is written in:
      - scenes
      - people
    """

    class Scene:
        what: str
        """What happens."""
        when: str | None
        who: list[str]
        """Who is in "it"."""

    class Person:
        """A person."""

        name: str
        kind: Literal["hero", "villain", None]
        home: tuple[float, float]

    scenes: list[Scene]
    """In the order of time,
    all of them."""
    people: dict[str, Person]
    narrator: Person | None
    """Who tells it."""
    pages: int
    true: bool
    score: float
'''


@dataclass
class Tale:
    """A tale, whatever order
    it is written in:
      - scenes
      - people
    """

    @dataclass
    class Scene:
        what: str
        """What happens."""
        when: str | None
        who: list[str] = field(default_factory=list, metadata={"doc": 'Who is in "it".'})

    @dataclass(frozen=True, kw_only=True)
    class Person:
        """A person."""

        name: str
        kind: Literal["hero", "villain", None] = None
        home: tuple[float, float]
        count: ClassVar[int] = 0

    scenes: list[Scene]
    """In the order of time,
    all of them."""
    people: dict[str, Person]
    narrator: Annotated[Optional["Tale.Person"], "Who tells it."]
    pages: int
    true: bool
    score: float = 0.5


class TalePerson(TypedDict):
    """A person."""

    name: str
    kind: Literal["hero", "villain", None]
    home: tuple[float, float]


TalePerson.__name__ = "Person"


class TypedTale(TypedDict, total=False):
    """A tale, whatever order
    it is written in:
      - scenes
      - people
    """

    class Scene(TypedDict):  # type: ignore[misc]
        what: str
        """What happens."""
        when: str | None
        who: Annotated[list[str], 'Who is in "it".']

    scenes: list[Scene]
    """In the order of time,
    all of them."""
    people: dict[str, TalePerson]
    narrator: NotRequired[Annotated[Union[TalePerson, None], "Who tells it."]]  # noqa: UP007
    pages: int
    true: bool
    score: float


TypedTale.__name__ = "Tale"


class Scene(BaseModel):
    what: str = Field(description="What happens.")
    when: str | None = None
    who: list[str] = Field(default_factory=list, description='Who is in "it".')


class Person(BaseModel):
    """A person."""

    name: str
    kind: Literal["hero", "villain", None] = None
    home: tuple[float, float]


class ModelTale(BaseModel):
    """A tale, whatever order
    it is written in:
      - scenes
      - people
    """

    model_config = ConfigDict(title="Tale", use_attribute_docstrings=True)

    scenes: list[Scene]
    """In the order of time,
    all of them."""
    people: dict[str, Person]
    narrator: Person | None = Field(default=None, description="Who tells it.")
    pages: int
    true: bool
    score: float = 0.5


FLAT_SOURCE = """
class Flat:
    a: int | None
    b: dict[str, list[dict[str, bool]]]
    c: Literal[1, "two", True]
    d: list[tuple[str, int]]
"""


@dataclass
class Flat:
    a: int | None
    b: dict[str, list[dict[str, bool]]]
    c: Literal[1, "two", True]
    d: list[tuple[str, int]]


class FlatDict(TypedDict):
    a: int | None
    b: typing.Dict[str, typing.List[typing.Dict[str, bool]]]  # noqa: UP006
    c: Literal[1, "two", True]
    d: list[tuple[str, int]]


class FlatModel(BaseModel):
    a: int | None
    b: dict[str, list[dict[str, bool]]]
    c: Literal[1, "two", True]
    d: list[tuple[str, int]]


FlatDict.__name__ = FlatModel.__name__ = "Flat"
FlatModel.model_config["title"] = "Flat"
FlatModel.model_rebuild(force=True)

SHARED_SOURCE = """
class Shared:
    class Point:
        x: float
    class Line:
        ends: tuple[Point, Point]
    lines: list[Line]
    origin: Point
    # Where it
    # began.
"""


class Point(BaseModel):
    x: float


@dataclass
class Line:
    ends: tuple[Point, Point]


class Shared(TypedDict):
    lines: list[Line]
    origin: Point


class SharedModel(BaseModel):
    model_config = ConfigDict(title="Shared")

    lines: list[Line]
    origin: Point


@pytest.mark.parametrize(
    ("source", "others"),
    [
        (TALE_SOURCE, [Tale, TypedTale, ModelTale, json_schema_of(Tale)]),
        (FLAT_SOURCE, [Flat, FlatDict, FlatModel, FlatModel.model_json_schema()]),
        (SHARED_SOURCE, [Shared, SharedModel]),
    ],
)
def test_all_forms_of_a_schema_are_one(source: str, others: list[Any]) -> None:
    expected = parse_source(source)
    for other in others:
        assert render(taken(other)) == render(expected)
        assert taken(other) == expected
