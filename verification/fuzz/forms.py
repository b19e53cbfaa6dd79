"""Forms: the JSON Schemas that clients want answers in, and values checked against them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.answers.shaping import read_value
from service.domain.values.json_values import canonical
from service.usecases.answers.response_forms import checker, read_form
from verification.fuzz.mutations import json_of, text_of
from verification.fuzz.runs import SECONDS, Broken, Target

_FORMS: tuple[Any, ...] = (
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 20},
            "ages": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
            "kind": {"enum": ["a", "b", None]},
            "price": {"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 0},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    {"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"t": {"$ref": "#"}}}}},
    {"anyOf": [{"type": "string"}, {"type": "array", "contains": {"const": 3}, "minContains": 2}]},
    {
        "allOf": [{"$ref": "#/$defs/a0"}],
        "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(12)}
        | {"a12": {"type": "null"}},
    },
    {
        "type": "object",
        "unevaluatedProperties": False,
        "oneOf": [
            {"properties": {"a": {"type": "string"}}},
            {"if": {"required": ["b"]}, "then": {"properties": {"b": {"minimum": 3}}}},
        ],
        "dependentRequired": {"a": ["b"]},
        "propertyNames": {"maxLength": 3},
    },
    {"type": "string", "pattern": "(a+)+$"},
    {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}, True]},
)
_WORDS: tuple[Any, ...] = (
    *("type", "properties", "items", "$ref", "$defs", "enum", "const", "pattern", "multipleOf"),
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contains", "uniqueItems", "format"),
    *("unevaluatedItems", "unevaluatedProperties", "prefixItems", "required", "$id", "$anchor"),
    *("dependentSchemas", "minProperties", "maxItems", "$dynamicRef", "$schema", "object", "array"),
    *("#", "#/$defs/T", "#/$defs/a0", "#/allOf/0", "#/anyOf/" + "9" * 5000, "#/$defs/a%30", "//x"),
    *(
        "^(a|a)*$",
        "(?<=a+)b",
        "\\p{L}+",
        "[[:alpha:]]",
        "(((a{1,99}){1,99}){1,99})",
        "(?P<n>",
        "x{2,1}",
    ),
    *({"$ref": "#"}, {"$ref": "#/$defs/a1"}, True, False, {}, {"not": {}}, 1e-300, 3),
)
_VALUES: tuple[Any, ...] = (
    {"name": "ada", "ages": [3, 4], "kind": None, "price": 1.25},
    {"t": {"t": {"t": {}}}},
    [3, 3, "x"],
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
    {"a": "x", "b": 2, "long name": 0},
    [[1], [1.0], [True], {"a": 1}],
    None,
)
_AROUND = (
    *("```json\n", "\n```", "Here it is: ", "{", "}", "[", "]", '"'),
    "<think>x</think>\n",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shaping:
    """A schema and a reply that is to fit it."""

    form: str
    reply: str

    def __len__(self) -> int:
        return len(self.form) + len(self.reply)


def _made(rng: random.Random) -> Shaping:
    reply = json_of(rng, _VALUES)
    if rng.random() < 0.3:
        reply = text_of(rng, (f"Here:\n```json\n{reply}\n```", reply), _AROUND)
    return Shaping(form=json_of(rng, _FORMS, _WORDS), reply=reply)


def _check(made: Shaping) -> bool:
    fault = checker(read_form(made.form))
    value, said = read_value(made.reply, fault)
    if said:
        return False
    canonical(value).encode()
    if "\0" in canonical(value) or fault(value):
        raise Broken("a value that is taken fits and can be stored")
    return True


TARGETS: Sequence[Target] = (
    # Bounded by steps and by the time of patterns, which are limits of the service.
    Target(
        name="forms",
        make=_made,
        check=_check,
        refusals=(ValueError,),
        calls=2_000_000,
        seconds=3 * SECONDS,
    ),
)
