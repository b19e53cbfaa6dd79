"""Schemas: as class source, as JSON Schema, and as a model's reply that holds one."""

import json
from collections.abc import Sequence
from typing import Any

from service.domain.prism.schemas.generation import read_schema
from service.domain.prism.schemas.json_source import parse_json_schema
from service.domain.prism.schemas.json_writing import to_json_schema
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Schema, render
from service.domain.values.errors import SchemaInvalid
from service.domain.values.json_values import canonical
from service.rpc.convert.specs import schema_of
from tests.support.replies import SOURCE
from verification.fuzz.mutations import json_of, text_of
from verification.fuzz.runs import Broken, Target

_SOURCES = (
    SOURCE,
    "class A:\n    a: str\n",
    'class Shop:\n    """What it sells."""\n    goods: dict[str, list[str]]\n    on: bool | None\n',
    "Name = Literal['a', 'b', 1]\nclass A(BaseModel):\n    x: Name  # one\n    y: Optional[int]\n",
    "@dataclass\nclass Part:\n    # how much\n    weight: float\nclass All(TypedDict):\n    parts:"
    " List[Part]\n    pair: Tuple[str, int]\n",
    "    class Deep:\n        class In:\n            t: Dict[str, 'In2']\n        class In2:\n"
    "            s: Union[str, None]\n        a: In\n        b: NotRequired[list['In']]\n",
)
_SOURCE_NOISE = (
    *("class ", "class A:\n    ", ":", "str", "list[", "dict[str, ", "Optional[", "| None", "]"),
    *("Literal[", "'", '"""', "#", "# type: ignore", "    ", "\t", "@x(", ")\n", "A", "pass\n"),
    *("import os\n", "def f(): ", "= 3", "Field(description='x')", "lambda: 0", "(", "...", "\\\n"),
    *("-", "~", "not ", "f'{", "b'", "*", "**", "async ", "await ", "yield ", ":=", ";", "\f"),
)
_JSON_SCHEMAS: tuple[Any, ...] = (
    {
        "title": "Shop",
        "type": "object",
        "description": "What it sells.",
        "properties": {
            "goods": {"type": "array", "items": {"$ref": "#/$defs/Good"}},
            "open": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "kind": {"enum": ["a", "b", 3, None]},
            "pair": {
                "type": "array",
                "prefixItems": [{"type": "string"}, {"type": "integer"}],
                "minItems": 2,
                "maxItems": 2,
            },
            "prices": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        },
        "required": ["goods"],
        "$defs": {
            "Good": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "of": {"$ref": "#/$defs/Part"}},
            },
            "Part": {"type": "object", "properties": {"weight": {"type": "number"}}},
        },
    },
    {"type": "object", "properties": {"a": {"type": "string", "description": "x"}}},
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"a~/b": {"allOf": [{"$ref": "#/definitions/x y"}], "description": "d"}},
        "definitions": {"x y": {"const": "only"}},
    },
    # A few lines that expand to a great many.
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/L0"}},
        "$defs": {
            f"L{n}": {
                "type": "object",
                "properties": {k: {"$ref": f"#/$defs/L{n + 1}"} for k in "ab"},
            }
            for n in range(20)
        }
        | {"L20": {"type": "string"}},
    },
)
_WORDS: tuple[Any, ...] = (
    *("type", "properties", "items", "$ref", "$defs", "definitions", "enum", "const", "title"),
    *("description", "additionalProperties", "prefixItems", "minItems", "maxItems", "nullable"),
    *("anyOf", "oneOf", "allOf", "required", "string", "object", "array", "null", "integer"),
    *("#/$defs/Good", "#/$defs/Part", "#", "#/properties/a", "#/$defs/%47ood", "pattern", "x-note"),
    *({"type": "string"}, {"$ref": "#/$defs/Good"}, {"const": 1}, ["string", "null"], "__class__"),
)
_REPLIES = (
    *(f"Here it is:\n```python\n{one}\n```\nI hope it helps." for one in _SOURCES),
    "from typing import *\n" + _SOURCES[2],
    "~~~\nclass A:\n    a: str\n~~~\n```\nclass B:\n    a: A\n```",
    "<think>\nclass A:\n</think>\nclass B:\n    b: int\n\nThat is all.",
)
_FENCES = (*_SOURCE_NOISE, "```", "```python\n", "~~~\n", "\n```\n", "<think>", "</think>\n")


def check_schema(schema: Schema) -> None:
    """Raises Broken where a schema that was taken is not what it should be."""
    shown = render(schema)
    if parse_source(shown) != schema or render(parse_source(shown)) != shown:
        raise Broken("a schema that is shown is read again as it was")
    written = canonical(to_json_schema(schema))
    if "\0" in shown or "\0" in written:
        raise Broken("a schema can be stored")


def _source(text: str) -> bool:
    check_schema(schema_of(text, ""))
    return True


def _json(text: str) -> bool:
    schema = schema_of("", text)
    check_schema(schema)
    again = parse_json_schema(json.dumps(to_json_schema(schema)))
    if render(again) != render(schema):
        raise Broken("a schema that is written as JSON Schema is read again as it was")
    return True


def _reply(text: str) -> bool:
    if not parse_source(source := read_schema(text)) or read_schema(source) != source:
        raise Broken("the schema of a reply is read again as it was")
    return True


TARGETS: Sequence[Target] = (
    Target(
        name="schema-source",
        make=lambda rng: text_of(rng, _SOURCES, _SOURCE_NOISE),
        check=_source,
        refusals=(SchemaInvalid,),
    ),
    Target(
        name="json-schema",
        make=lambda rng: json_of(rng, _JSON_SCHEMAS, _WORDS),
        check=_json,
        refusals=(SchemaInvalid,),
    ),
    Target(
        name="schema-replies",
        # What a model may write: some four thousand tokens.
        make=lambda rng: text_of(rng, _REPLIES, _FENCES, most=20_000),
        check=_reply,
        refusals=(SchemaInvalid,),
    ),
)
