"""Schemas as JSON Schema (2020-12, and the spellings of draft 7 and OpenAPI 3.0).

A part of JSON Schema says the same as class source, and that part is read. Annotations
are ignored, but for descriptions, which are guidance. What would change which values
are valid is refused with its place: a memory that silently forgot a rule of its schema
would be worse than one that was never made. Unknown keywords are refused as well: most are
misspelt. Required parts are no rule here: any part of a memory
may be missing until the text says it.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from service.domain.prism.schemas.json_text import (
    At,
    JsonObject,
    quoted,
    read_object,
    referred,
    refuse,
)
from service.domain.prism.schemas.json_writing import SCALARS
from service.domain.prism.schemas.limits import (
    MAX_FIELDS,
    MAX_NESTING,
    MAX_SHOWN_BYTES,
    Measures,
    checked_literal,
    literal,
    normal_doc,
    optional,
)
from service.domain.prism.schemas.names import RecordNames, class_name, class_name_for, field_fault
from service.domain.prism.schemas.tree import (
    DictType,
    Field,
    ListType,
    LiteralType,
    OptionalType,
    RecordType,
    Schema,
    TupleType,
    Type,
    render,
)
from service.domain.values.errors import SchemaInvalid

#: Steps from the root to a type: references and unions, which are no levels of a value,
#: are steps too.
_MAX_STEPS = 4 * MAX_NESTING

#: Faults of fields that one refusal lists.
_MAX_FAULTS = 10

#: By the name of the type, the values of an enum that are of it.
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int,),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (),
    "array": (),
}
#: Where a reference may lead.
_DEFINITIONS = ("$defs", "definitions")
#: They say nothing about which values are valid, or nothing that a memory minds.
_IGNORED = {
    *_DEFINITIONS,
    *("$schema", "$id", "id", "$anchor", "$comment", "$vocabulary"),
    *("title", "description", "default", "example", "examples", "required"),
    *("deprecated", "readOnly", "writeOnly"),
}
#: With these values they say nothing either.
_EMPTY = {"minItems": 0, "minLength": 0, "minProperties": 0, "uniqueItems": False}
#: What JSON Schema and OpenAPI have besides: some forms below read some of them.
_RULES = {
    *("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"),
    *("$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "dependentSchemas"),
    *("dependentRequired", "dependencies", "discriminator", "enum", "const", "type"),
    *("properties", "patternProperties", "additionalProperties", "propertyNames"),
    *("unevaluatedProperties", "minProperties", "maxProperties"),
    *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
    *("minContains", "maxContains", "minItems", "maxItems", "uniqueItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "format", "contentEncoding"),
    *("contentMediaType", "contentSchema", "nullable"),
}


def parse_json_schema(text: str) -> Schema:
    """Returns the schema that a JSON Schema writes down.

    Raises SchemaInvalid, whose place is a JSON Pointer, or a line and column if the text
    is no JSON. It lists the faults of several fields, the first one's place is its own.
    """
    reader = _DocumentReader(read_object(text))
    try:
        schema = reader.read()
    except RecursionError:
        refuse((), "this is nested too deeply to be read")
    if len(render(schema).encode()) > MAX_SHOWN_BYTES:
        refuse((), f"written out, the schema has more than {MAX_SHOWN_BYTES} bytes")
    return schema


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Hint:
    """What a record may be called that has no title."""

    name: str
    #: The author named this record; the name is not made from a property's.
    written: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _ParsedType:
    """What a part of the document says."""

    type: Type
    #: Guidance that no record holds: the field takes it that the type is of.
    docs: tuple[str, ...] = ()

    def or_null(self, null: bool) -> "_ParsedType":
        """Returns the same, or null if `null`."""
        return dataclasses.replace(self, type=optional(self.type)) if null else self


class _DocumentReader:
    """Reads one document."""

    def __init__(self, document: JsonObject) -> None:
        self._document = document
        self._measures = Measures()
        self._fields = 0
        self._doc_characters = 0
        #: What definitions say, by their place; None while one is being read.
        self._definitions: dict[At, _ParsedType | None] = {}
        defined = [document.get(key) for key in _DEFINITIONS]
        self._names = RecordNames(
            root=class_name(str(document.get("title", ""))) if "properties" in document else "",
            written=[class_name(key) for one in defined if isinstance(one, dict) for key in one],
        )
        #: Parts of the document around what is being read.
        self._steps = 0
        #: What is wrong with fields, by the text that says so: definitions are read again.
        self._faults: dict[str, SchemaInvalid] = {}

    def read(self) -> Schema:
        """Returns the schema of the document."""
        found = self._part(self._document, (), _Hint(name="Memory", written=True))
        self._refuse_faults()
        if not isinstance(found.type, RecordType):
            refuse((), "a memory is an object with properties")
        # Beside a reference to the record may stand more guidance for it.
        doc = self._joined((found.type.doc, *found.docs), ())
        return Schema(root=dataclasses.replace(found.type, doc=doc))

    def _part(self, node: object, at: At, hint: _Hint) -> _ParsedType:
        """Reads a schema within the document."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            refuse(at, f"this stands deeper than {_MAX_STEPS} steps")
        if not isinstance(node, JsonObject):
            refuse(at, "a schema is an object here; true, false and other values say no type")
        rules = self._rules(node, at)
        docs = self._docs(node, at)
        nullable = rules.pop("nullable", False)
        if not isinstance(nullable, bool):
            refuse(at, '"nullable" is true or false')
        if "properties" in rules and "$ref" not in rules:
            found = self._record(node, rules, at, hint, docs)
        else:
            found = self._form(rules, at, hint, nullable)
            if docs:
                found = dataclasses.replace(found, docs=_distinct([docs, found.docs]))
        excess = self._measures.excess(found.type)
        if excess:
            refuse(at, excess)
        self._steps -= 1
        return found.or_null(nullable)

    def _rules(self, node: JsonObject, at: At) -> dict[str, Any]:
        """Returns the keywords that say something."""
        if node.twice is not None:
            refuse(at, f"{quoted(node.twice)} stands there twice")
        for key in ("title", "description"):
            if not isinstance(node.get(key, ""), str):
                refuse(at, f'"{key}" is a text')
        rules = {
            key: value
            for key, value in node.items()
            if not (key in _IGNORED or key.startswith("x-") or _is_empty(key, value))
        }
        for key in rules:
            if key not in _RULES:
                refuse(at, f"{quoted(key)} is no keyword that is known")
        return rules

    def _docs(self, node: JsonObject, at: At) -> tuple[str, ...]:
        try:
            doc = normal_doc(node.get("description", ""))
        except ValueError as error:
            refuse(at, f'"description" holds {error}')
        return (doc,) if doc else ()

    def _joined(self, docs: Iterable[str], at: At) -> str:
        """Joins guidance from several places, each once."""
        doc = "\n".join(dict.fromkeys(one for one in docs if one))
        self._doc_characters += len(doc)
        if self._doc_characters > MAX_SHOWN_BYTES:
            refuse(at, f"the descriptions up to here have more than {MAX_SHOWN_BYTES} bytes")
        return doc

    def _form(self, rules: Mapping[str, Any], at: At, hint: _Hint, nullable: bool) -> _ParsedType:
        if "$ref" in rules:
            return self._reference(rules, at)
        for key in ("allOf", "anyOf", "oneOf"):
            if key in rules:
                return self._joint(key, rules, at, hint)
        if "enum" in rules or "const" in rules:
            return self._literal(rules, at, nullable)
        names = self._type_names(rules, at)
        match [name for name in names if name != "null"]:
            case ["object"]:
                found = self._dict(rules, at, hint)
            case ["array"]:
                found = self._array(rules, at, hint)
            case [name]:
                _allow(rules, at, "type")
                found = _ParsedType(type=SCALARS[name])
            case _:
                refuse(at, '"type" names one type, or one and "null"')
        return found.or_null("null" in names)

    def _type_names(self, rules: Mapping[str, Any], at: At) -> list[str]:
        """Returns what "type" says, or what other keywords imply."""
        written = rules.get("type", [])
        names = written if isinstance(written, list) else [written]
        for name in names:
            if not isinstance(name, str) or name not in _KINDS:
                refuse(at, f'"type" is one of {", ".join(_KINDS)}')
        if not names and not {"properties", "additionalProperties"}.isdisjoint(rules):
            names = ["object"]
        if not names and not {"items", "prefixItems"}.isdisjoint(rules):
            names = ["array"]
        if not names and not {"enum", "const"}.isdisjoint(rules):
            names = list(_KINDS)
        if not names:
            # A rule without a type is the better thing to name.
            _allow(rules, at)
            refuse(at, "there is no type; a schema needs one for every part")
        return list(dict.fromkeys(names))

    def _reference(self, rules: Mapping[str, Any], at: At) -> _ParsedType:
        _allow(rules, at, "$ref")
        target = self._target(rules["$ref"], at)
        key = str(target[1])
        if target not in self._definitions:
            self._definitions[target] = None
            node = self._document[str(target[0])][key]
            hint = _Hint(name=class_name(key), written=True)
            self._definitions[target] = self._part(node, target, hint)
        found = self._definitions[target]
        if found is None:
            refuse(at, f"{quoted(key)} contains itself")
        return found

    def _target(self, reference: object, at: At) -> At:
        if not isinstance(reference, str):
            refuse(at, '"$ref" is a text')
        for part in _DEFINITIONS:
            start = f"#/{part}/"
            defined = self._document.get(part)
            if reference.startswith(start) and isinstance(defined, JsonObject):
                if defined.twice is not None:
                    refuse((part,), f"{quoted(defined.twice)} stands there twice")
                for key in referred(reference, start):
                    if key in defined:
                        return part, key
        if reference == "#":
            refuse(at, "the schema contains itself")
        refuse(at, f'"$ref" is {quoted(reference)}, which is not in the $defs of this document')

    def _joint(self, key: str, rules: Mapping[str, Any], at: At, hint: _Hint) -> _ParsedType:
        """Reads one type in some wrapping, one or null, or literals that are one Literal."""
        _allow(rules, at, key)
        members = rules[key]
        if not isinstance(members, list) or not members:
            refuse(at, f'"{key}" is a list of schemas')
        null = False
        docs: list[tuple[str, ...]] = []
        types: list[Type] = []
        for number, member in enumerate(members):
            if key != "allOf" and isinstance(member, JsonObject) and _is_null(member):
                self._rules(member, (*at, key, number))
                docs.append(self._docs(member, (*at, key, number)))
                null = True
                continue
            found = self._part(member, (*at, key, number), hint)
            docs.append(found.docs)
            types.append(found.type)
        return _ParsedType(type=_one(types, key, at), docs=_distinct(docs)).or_null(null)

    def _literal(self, rules: Mapping[str, Any], at: At, nullable: bool) -> _ParsedType:
        _allow(rules, at, "type", "enum", "const")
        values = rules.get("enum", [rules.get("const")])
        if not isinstance(values, list) or not values:
            refuse(at, '"enum" is a list of values')
        kinds = {kind for name in self._type_names(rules, at) for kind in _KINDS[name]}
        kinds |= {type(None)} if nullable else set()
        for value in values:
            self._check_value(value, kinds, at)
        if "const" in rules:
            const = rules["const"]
            if not any(type(value) is type(const) and value == const for value in values):
                refuse(at, '"const" is none of "enum"')
            values = [const]
        kept = [value for value in values if value is not None]
        if not kept:
            refuse(at, "a part that can be null only holds nothing")
        return _ParsedType(type=literal(kept)).or_null(len(kept) < len(values))

    def _check_value(self, value: object, kinds: set[type], at: At) -> None:
        if not isinstance(value, str | int | None):
            refuse(at, "a value of an enum is a text, a whole number, a boolean or null")
        if type(value) not in kinds:
            refuse(at, 'a value of "enum" or "const" is not of its "type"')
        try:
            checked_literal(value if value is not None else "")
        except ValueError as error:
            refuse(at, str(error))

    def _dict(self, rules: Mapping[str, Any], at: At, hint: _Hint) -> _ParsedType:
        _allow(rules, at, "type", "additionalProperties", "propertyNames")
        # Keys are texts anyway.
        if rules.get("propertyNames", True) not in (True, {"type": "string"}):
            refuse(at, _cannot_hold("propertyNames"))
        if "additionalProperties" not in rules:
            refuse(at, 'an object has "properties", or "additionalProperties" with a schema')
        found = self._part(rules["additionalProperties"], (*at, "additionalProperties"), hint)
        return dataclasses.replace(found, type=DictType(value=found.type))

    def _array(self, rules: Mapping[str, Any], at: At, hint: _Hint) -> _ParsedType:
        for first, rest in (("prefixItems", "items"), ("items", "additionalItems")):
            if isinstance(rules.get(first), list):
                return self._tuple(rules, at, hint, first, rest)
        _allow(rules, at, "type", "items")
        if "items" not in rules:
            refuse(at, 'an array has "items"')
        found = self._part(rules["items"], (*at, "items"), hint)
        return dataclasses.replace(found, type=ListType(item=found.type))

    def _tuple(
        self, rules: Mapping[str, Any], at: At, hint: _Hint, first: str, rest: str
    ) -> _ParsedType:
        _allow(rules, at, "type", first, rest, "minItems", "maxItems")
        parts = rules[first]
        length = len(parts)
        closed = rules.get(rest) is False or "maxItems" in rules
        if not parts or not closed or rules.get("minItems") != length:
            ends = f'"minItems": {length}, "maxItems": {length}'
            refuse(at, f'"{first}" has a fixed length of at least 1, which is said by {ends}')
        if rules.get("maxItems", length) != length or rules.get(rest, False) is not False:
            refuse(at, f'"{first}" has {length} items and allows others besides')
        found = [self._part(part, (*at, first, n), hint) for n, part in enumerate(parts)]
        docs = _distinct(one.docs for one in found)
        return _ParsedType(type=TupleType(items=tuple(one.type for one in found)), docs=docs)

    def _record(
        self, node: JsonObject, rules: Mapping[str, Any], at: At, hint: _Hint, docs: Iterable[str]
    ) -> _ParsedType:
        names = self._type_names(rules, at)
        if set(names) - {"null"} != {"object"}:
            refuse(at, '"properties" are those of an object')
        closing = ("additionalProperties", "unevaluatedProperties")
        _allow(rules, at, "type", "properties", *closing)
        for key in closing:
            if rules.get(key, False) is not False:
                refuse(at, f'{_cannot_hold(key)} beside "properties"')
        record = self._names.record(
            written=(class_name(node.get("title", "")), hint.name if hint.written else ""),
            made="" if hint.written else hint.name,
            fields=self._properties(rules["properties"], (*at, "properties")),
            doc=self._joined(docs, at),
            root=not at,
        )
        return _ParsedType(type=record).or_null("null" in names)

    def _properties(self, properties: object, at: At) -> tuple[Field, ...]:
        if not isinstance(properties, JsonObject) or not properties:
            refuse(at, '"properties" is an object with at least one property')
        if properties.twice is not None:
            refuse(at, f"{quoted(properties.twice)} stands there twice")
        return tuple(self._checked(name, node, (*at, name)) for name, node in properties.items())

    def _checked(self, name: str, node: object, at: At) -> Field:
        """Reads a field; one that is wrong is noted, and a text replaces it."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            refuse(at, f"there are more than {MAX_FIELDS} fields")
        steps, open_definitions = self._steps, self._open_definitions()
        try:
            return self._field(name, node, at)
        except SchemaInvalid as fault:
            self._faults[str(fault)] = fault
            if len(self._faults) == _MAX_FAULTS:
                self._refuse_faults()
        self._steps = steps
        # What was begun within the field is not being read any more.
        for target in self._open_definitions() - open_definitions:
            del self._definitions[target]
        return Field(name=name, type=SCALARS["string"], doc="")

    def _open_definitions(self) -> set[At]:
        return {target for target, found in self._definitions.items() if found is None}

    def _refuse_faults(self) -> None:
        """Raises SchemaInvalid for all that was noted."""
        if not self._faults:
            return
        first, *others = self._faults.values()
        if not others:
            raise first
        why = str(first).removeprefix(f"{first.pointer}: ")
        listed = "; ".join([why, *map(str, others)])
        raise SchemaInvalid(listed, pointer=first.pointer, field=first.field)

    def _field(self, name: str, node: object, at: At) -> Field:
        fault = field_fault(name)
        if fault:
            refuse(at, fault)
        found = self._part(node, at, _Hint(name=class_name_for(name), written=False))
        return Field(name=name, type=found.type, doc=self._joined(found.docs, at))


def _distinct(docs: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    # What a reference leads to is one object however often it is referred to.
    several = {id(one): one for one in docs}.values()
    return tuple(dict.fromkeys(doc for one in several for doc in one))


def _allow(rules: Mapping[str, Any], at: At, *keys: str) -> None:
    """Refuses what else is said about a type."""
    for key in rules:
        if key not in keys:
            refuse(at, _cannot_hold(key))


def _cannot_hold(key: str) -> str:
    return f'"{key}" says something that a schema cannot hold'


def _is_empty(key: str, value: object) -> bool:
    return key in _EMPTY and type(value) is type(_EMPTY[key]) and value == _EMPTY[key]


def _is_null(member: JsonObject) -> bool:
    rules = [(key, value) for key, value in member.items() if key not in _IGNORED]
    return rules in ([("type", "null")], [("const", None)], [("enum", [None])])


def _one(types: list[Type], key: str, at: At) -> Type:
    """Returns the one type that some are together."""
    if len(types) == 1:
        return types[0]
    inner = [one.inner if isinstance(one, OptionalType) else one for one in types]
    literals = [one for one in inner if isinstance(one, LiteralType)]
    if key == "allOf" or not types or len(literals) < len(types):
        refuse(at, f'"{key}" joins types, and a schema can only join one type and null')
    together = literal(value for one in literals for value in one.values)
    return optional(together) if inner != types else together
