"""Classes that say more than a memory can keep: all of it is reported, or becomes guidance."""

import uuid
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from palimpsest import json_schema_of
from palimpsest._lenient_schemas import loosened
from service.domain.prism.schemas.tree import render
from service.domain.values.errors import SchemaInvalid
from tests.unit.support.taken_schemas import taken


class Address(BaseModel):
    """Where it is."""

    zip: str = Field(pattern="^[0-9]{5}$", description="Its code.")


class Person(BaseModel):
    """The person meant."""

    addresses: dict[str, Address]
    born: datetime
    seen: date | None = None
    age: int = Field(ge=0, lt=150)
    name: str = Field(min_length=1, max_length=80)
    key: int | str
    amount: Decimal
    tags: set[str]
    anything: Any
    bare: dict  # type: ignore[type-arg]
    listed: list  # type: ignore[type-arg]
    id: uuid.UUID
    kind: Literal["a", "b"]
    pair: tuple[int, str]
    maybe: float | int | None


@dataclass
class Plain:
    """The person meant."""

    born: datetime
    seen: date | None
    key: int | str
    amount: Decimal
    tags: set[str]
    anything: Any
    bare: dict  # type: ignore[type-arg]
    listed: list  # type: ignore[type-arg]
    id: uuid.UUID
    addresses: dict[str, Address]


def test_a_model_becomes_a_schema_with_guidance() -> None:
    shown = render(taken(json_schema_of(Person, lenient=True)))
    for said in (
        "born: str",
        "a date and time as in 2026-11-22T17:40:00Z",
        "seen: str | None",
        "a date as in 2026-11-22",
        "age: int",
        "at least 0; less than 150",
        "at least 1 characters; at most 80 characters",
        "key: str",
        "integer or string, as a text",
        "tags: list[str]",
        "each once",
        "anything: str",
        "bare: dict[str, str]",
        "listed: list[str]",
        "in the form uuid",
        "addresses: dict[str, Address]",
        "Its code.",
        "matches ^[0-9]{5}$",
        "pair: tuple[int, str]",
        "maybe: float | None",
    ):
        assert said in shown, said


def test_so_does_a_dataclass() -> None:
    shown = render(taken(json_schema_of(Plain, lenient=True)))
    for said in ("born: str", "seen: str | None", "key: str", "tags: list[str]", "listed: list"):
        assert said in shown, said
    assert "matches ^[0-9]{5}$" in shown


def test_what_needs_no_help_stays_as_it_is() -> None:
    strict, lenient = json_schema_of(Kept), json_schema_of(Kept, lenient=True)
    assert render(taken(lenient)) == render(taken(strict))


@dataclass
class Kept:
    """All of this a memory can hold."""

    words: list[str]
    number: int | None
    pairs: list[tuple[str, float]]
    of: dict[str, dict[str, bool]]
    kind: Literal["a", "b"] | None


def test_all_that_is_wrong_with_a_class_is_reported_at_once() -> None:
    with pytest.raises(TypeError) as refused:
        json_schema_of(Plain)
    for field in ("born", "seen", "key", "amount", "tags", "anything", "bare", "listed", "id"):
        assert f"Plain.{field}: " in str(refused.value)
    assert "lenient=True" in str(refused.value), "what to do"


def test_the_service_reports_all_that_is_wrong_with_a_document() -> None:
    with pytest.raises(SchemaInvalid) as refused:
        taken(Person)
    assert refused.value.pointer == "/$defs/Address/properties/zip"
    for place in (
        '/properties/born: "format" says',
        "/properties/seen",
        "/properties/age: ",
        "/properties/name: ",
        "/properties/key: ",
        "/properties/tags: ",
        '/$defs/Address/properties/zip: "pattern" says',
    ):
        assert place in str(refused.value), place
    assert str(refused.value).count("/properties/born: ") == 1


def test_so_many_faults_are_enough() -> None:
    document = {
        "title": "Many",
        "properties": {f"x{at}": {"type": "string", "pattern": "a"} for at in range(500)},
    }
    with pytest.raises(SchemaInvalid) as refused:
        taken(document)
    assert str(refused.value).count("/properties/") <= 10


def test_a_wrong_definition_is_reported_once() -> None:
    refers = {"$ref": "#/$defs/Wrong"}
    document = {
        "title": "Twice",
        "properties": {"a": refers, "b": refers, "c": {"type": "array", "items": refers}},
        "$defs": {"Wrong": {"type": "integer", "minimum": 3}},
    }
    with pytest.raises(SchemaInvalid) as refused:
        taken(document)
    assert str(refused.value).count("minimum") == 1
    assert "contains itself" not in str(refused.value)


def test_what_has_no_nearest_type_is_refused() -> None:
    document = {
        "title": "Either",
        "properties": {
            "x": {
                "anyOf": [
                    {"title": "A", "properties": {"a": {"type": "string"}}, "type": "object"},
                    {"title": "B", "properties": {"b": {"type": "string"}}, "type": "object"},
                ]
            }
        },
    }
    with pytest.raises(SchemaInvalid, match="joins types"):
        taken(loosened(document))
