"""Schemas from Python's own classes: dataclasses, TypedDicts and pydantic models.

    @dataclass
    class Museum:
        facts: dict[str, list[str]]
        \"\"\"What is said, by aspect.\"\"\"

    json_schema_of(Museum)

Docstrings are guidance to the model: a class's own, and for its fields those that stand
under them, texts in `Annotated[…]`, and "doc" or "description" in a field's metadata.
"""

import dataclasses
import datetime
import decimal
import enum
import json
import keyword
import types
import typing
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from palimpsest._class_docs import class_doc, field_docs
from palimpsest._lenient_schemas import loosened

#: A schema as `create_memory` takes it: a class, a JSON Schema, or class source.
Schema = type | Mapping[str, Any] | str


class JsonText(str):
    """A JSON Schema as a text, which is passed on as it is."""


#: Bytes of class source, and of a JSON Schema as a text; the service takes no more.
MAX_SOURCE_BYTES = 64 * 1024
MAX_JSON_BYTES = 256 * 1024
#: Levels of types within one another, aliases included.
MAX_DEPTH = 64

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}
#: They say whether a part may be missing; any part of a memory may.
_QUALIFIERS = {typing.Required, typing.NotRequired, typing.Final}


def schema_fields(schema: Schema) -> dict[str, str]:
    """Returns the field of a PrismSpec for this schema, and its value.

    {"schema_source": …} for class source, {"json_schema": …}, a JSON text, for the rest.
    Raises TypeError or ValueError, naming class and field, for what cannot be a schema.
    """
    if isinstance(schema, JsonText):
        return {"json_schema": bounded(str(schema), MAX_JSON_BYTES)}
    if isinstance(schema, str):
        return {"schema_source": bounded(schema, MAX_SOURCE_BYTES)}
    document = schema if isinstance(schema, Mapping) else json_schema_of(schema)
    try:
        text = json.dumps(dict(document), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this JSON Schema cannot be written as JSON: {error}") from error
    return {"json_schema": bounded(text, MAX_JSON_BYTES)}


def bounded(text: str, most: int) -> str:
    """Returns the schema, if it has at most so many bytes. Raises ValueError."""
    # Half of a surrogate pair is refused where it would be sent.
    if len(text) > most or len(text.encode(errors="replace")) > most:
        raise ValueError(f"the schema has more than {most} bytes")
    return text


def json_schema_of(cls: type, *, lenient: bool = False) -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a dataclass, a TypedDict or a pydantic model.

    A pydantic model writes its own. `lenient` chooses the nearest type for types that no memory
    has, and turns rules such as ranges and patterns into guidance to the model. Raises TypeError
    or ValueError, naming class and field of everything that cannot be expressed.
    """
    if _is_model(cls):
        document = _model_schema(cls)
    elif _is_record(cls):
        writer = _Writer(lenient=lenient)
        document = writer.record(cls)
        writer.raise_faults()
        if writer.definitions:
            document = {**document, "$defs": writer.definitions}
    else:
        name = getattr(cls, "__name__", repr(cls))
        raise TypeError(f"{name} is no dataclass, no TypedDict and no pydantic model")
    return loosened(document) if lenient else document


def _is_model(of: object) -> bool:
    return isinstance(of, type) and hasattr(of, "model_json_schema")


def _is_typed_dict(of: object) -> bool:
    # Not `typing.is_typeddict`: it does not know those of typing_extensions.
    return isinstance(of, type) and issubclass(of, dict) and hasattr(of, "__required_keys__")


def _is_record(of: object) -> bool:
    return isinstance(of, type) and (dataclasses.is_dataclass(of) or _is_typed_dict(of))


def _model_schema(cls: Any, ref_template: str = "#/$defs/{model}") -> dict[str, Any]:
    try:
        document: dict[str, Any] = cls.model_json_schema(ref_template=ref_template)
    except (RuntimeError, NameError) as error:
        # What pydantic raises for types without a JSON Schema, or not yet defined.
        raise TypeError(f"{cls.__name__} has no JSON Schema: {error}") from error
    return document


class _Writer:
    """Writes the records that one class uses."""

    def __init__(self, *, lenient: bool) -> None:
        self.definitions: dict[str, Any] = {}
        self._lenient = lenient
        self._faults: list[Exception] = []
        self._keys: dict[type, str] = {}
        #: Classes being written, from the outermost.
        self._open: list[type] = []

    def record(self, cls: type) -> dict[str, Any]:
        """Returns the schema of a dataclass or a TypedDict."""
        self._open.append(cls)
        hints = _hints(cls)
        if dataclasses.is_dataclass(cls):
            hints = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
        if not hints:
            raise ValueError(f"{cls.__name__} has no fields")
        docs = field_docs(cls)
        properties = {}
        depth = len(self._open)
        for name, hint in hints.items():
            try:
                properties[name] = self._field(cls, name, hint, docs.get(name, ()))
            except (TypeError, ValueError) as fault:
                # Reported with those of the other fields.
                del self._open[depth:]
                self._faults.append(fault)
        self._open.pop()
        return {
            "title": cls.__name__,
            **_described([class_doc(cls)]),
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }

    def raise_faults(self) -> None:
        """Raises TypeError or ValueError for what is wrong with fields, all at once."""
        if not self._faults:
            return
        first, *others = self._faults
        listed = "; ".join(dict.fromkeys(map(str, [first, *others])))
        if isinstance(first, TypeError) and not self._lenient:
            listed += " (json_schema_of(…, lenient=True) takes the nearest type)"
        raise type(first)(listed) from first

    def _field(self, cls: type, name: str, hint: Any, docs: Iterable[str]) -> dict[str, Any]:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{cls.__name__}.{name}: this cannot be the name of a field")
        written = self._type(hint, f"{cls.__name__}.{name}", 0)
        return {**written, **_described([written.get("description", ""), *docs])}

    def _type(self, hint: Any, where: str, depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            raise ValueError(f"{where}: its type is nested deeper than {MAX_DEPTH} levels")
        if isinstance(hint, type) and hint in _SCALARS:
            return {"type": _SCALARS[hint]}
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            values = _enum([member.value for member in hint], where)
            return {**values, **_described([class_doc(hint)])}
        if _is_model(hint) or _is_record(hint):
            return self._reference(hint, where)
        # A NewType, and the alias that a `type` statement makes.
        meant = getattr(hint, "__supertype__", getattr(hint, "__value__", None))
        if meant is not None:
            return self._type(meant, where, depth + 1)
        return self._generic(hint, where, depth + 1)

    def _generic(self, hint: Any, where: str, depth: int) -> dict[str, Any]:
        arguments = typing.get_args(hint)
        match typing.get_origin(hint):
            case typing.Annotated:
                written = self._type(arguments[0], where, depth)
                texts = [text for text in arguments[1:] if isinstance(text, str)]
                return {**written, **_described([written.get("description", ""), *texts])}
            case origin if origin in _QUALIFIERS:
                return self._type(arguments[0], where, depth)
            case typing.Literal:
                return _enum(arguments, where)
            case typing.Union | types.UnionType:
                return self._union(arguments, where, depth)
            case origin if origin is list:
                return {"type": "array", "items": self._type(arguments[0], where, depth)}
            case origin if origin is dict:
                if arguments[0] is not str:
                    _refuse(where, "the keys of a dict are str")
                value = self._type(arguments[1], where, depth)
                return {"type": "object", "additionalProperties": value}
            case origin if origin is tuple and arguments:
                return self._tuple(arguments, where, depth)
        if self._lenient and (near := self._near(hint, where, depth)) is not None:
            return near
        name = getattr(hint, "__name__", repr(hint))
        if hint in (list, dict, tuple):
            _refuse(where, f"say what {name} holds, for example {_EXAMPLES[name]}")
        _refuse(where, f"{hint!r} is no type that a schema knows")

    def _near(self, hint: Any, where: str, depth: int) -> dict[str, Any] | None:
        """Returns the nearest JSON Schema of a type that no memory has; None for others."""
        for known, near in _NEAR.items():
            if hint is known:
                return dict(near)
        if typing.get_origin(hint) in (set, frozenset):
            items = self._type(typing.get_args(hint)[0], where, depth)
            return {"type": "array", "items": items, "uniqueItems": True}
        return None

    def _union(self, members: tuple[Any, ...], where: str, depth: int) -> dict[str, Any]:
        if self._lenient:
            known = [one for one in members if one is not types.NoneType]
            null = [{"type": "null"}] if len(known) < len(members) else []
            return {"anyOf": [*(self._type(one, where, depth) for one in known), *null]}
        rest = [member for member in members if member is not types.NoneType]
        if len(rest) != 1 or len(rest) == len(members):
            _refuse(where, "only a type or None can be joined with |")
        return {"anyOf": [self._type(rest[0], where, depth), {"type": "null"}]}

    def _tuple(self, arguments: tuple[Any, ...], where: str, depth: int) -> dict[str, Any]:
        if len(arguments) == 2 and arguments[1] is ...:
            # Any number of one type is what a list is.
            return {"type": "array", "items": self._type(arguments[0], where, depth)}
        items = [self._type(item, where, depth) for item in arguments]
        ends = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": items, **ends}

    def _reference(self, cls: type, where: str) -> dict[str, Any]:
        if cls in self._open:
            raise ValueError(f"{where}: {cls.__name__} contains itself, which no schema can")
        if cls not in self._keys:
            key = self._free_key(cls.__name__)
            self._keys[cls] = key
            # Before its parts, so that no other class takes the key.
            self.definitions[key] = {}
            self.definitions[key] = self._model(cls, key) if _is_model(cls) else self.record(cls)
        return {"$ref": f"#/$defs/{self._keys[cls]}"}

    def _model(self, cls: type, key: str) -> dict[str, Any]:
        # Its definitions get names that ours cannot have.
        document = _model_schema(cls, f"#/$defs/{key}.{{model}}")
        for name, definition in document.pop("$defs", {}).items():
            self.definitions[f"{key}.{name}"] = definition
        return document

    def _free_key(self, name: str) -> str:
        number, key = 1, name
        while key in self.definitions:
            number += 1
            key = f"{name}{number}"
        return key


#: Types that only `lenient` accepts, and their JSON Schema.
_NEAR: dict[Any, dict[str, Any]] = {
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    datetime.timedelta: {"type": "string", "format": "duration"},
    decimal.Decimal: {"type": "number"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    bytes: {"type": "string"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    set: {"type": "array", "uniqueItems": True},
    frozenset: {"type": "array", "uniqueItems": True},
    dict: {"type": "object"},
    Any: {},
    object: {},
}
_EXAMPLES = {"list": "list[str]", "dict": "dict[str, str]", "tuple": "tuple[str, str]"}


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise TypeError(f"{cls.__name__}: its fields' types are not known: {error}") from error


def _described(docs: Iterable[str]) -> dict[str, str]:
    doc = "\n".join(dict.fromkeys(one for one in docs if one))
    return {"description": doc} if doc else {}


def _enum(values: Iterable[object], where: str) -> dict[str, Any]:
    listed = list(values)
    for value in listed:
        # An Enum's member may be a str as well; JSON would not show it.
        if isinstance(value, enum.Enum) or not isinstance(value, str | int | None):
            _refuse(where, f"{value!r} is no text, whole number, bool or None")
    return {"enum": listed}


def _refuse(where: str, why: str) -> NoReturn:
    raise TypeError(f"{where}: {why}")
