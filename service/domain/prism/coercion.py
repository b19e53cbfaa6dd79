"""Coercion: a value of another kind taken for what it says, when nothing of it is lost.

What is taken can be written back as it was: "3" is 3, "3.0" and "03" are not.
"""

from service.domain.prism.schemas.tree import (
    PLACEHOLDER,
    DictType,
    ListType,
    LiteralType,
    Mismatch,
    OptionalType,
    RecordType,
    Scalar,
    TupleType,
    Type,
    fit,
)
from service.domain.values.json_values import MAX_NUMBER_CHARACTERS, Json, canonical


def coerce(of: Type, value: Json) -> Json:
    """Converts `value` to the type, also from another kind where that loses nothing.

    Text and what it spells out (numbers, true, false), and one value for a list of it.
    Raises Mismatch, with the reason of `fit`.
    """
    return fit(of, _coerced(of, value))


def _coerced(of: Type, value: Json) -> Json:
    """Converts as much of `value` as has the type's kind in other form; the rest stays as it is."""
    if value is None or value == PLACEHOLDER:
        return value
    match of:
        case OptionalType():
            return _coerced(of.inner, value)
        case Scalar.STR:
            return canonical(value) if isinstance(value, bool | int | float) else value
        case Scalar.BOOL | Scalar.INT | Scalar.FLOAT if isinstance(value, str):
            return _spelled(of, value)
        case LiteralType() if not isinstance(value, dict | list):
            return _option(of, value)
        case ListType():
            items = value if isinstance(value, list) else [value]
            return [_coerced(of.item, item) for item in items]
        case TupleType() if isinstance(value, list) and len(value) == len(of.items):
            return [_coerced(item, part) for item, part in zip(of.items, value, strict=True)]
        case DictType() if isinstance(value, dict):
            return {key: _coerced(of.value, part) for key, part in value.items()}
        case RecordType() if isinstance(value, dict):
            types = {field.name: field.type for field in of.fields}
            return {
                key: _coerced(types[key], part) if key in types else part
                for key, part in value.items()
            }
    return value


def _spelled(of: Type, text: str) -> Json:
    """Returns what `text` spells out, if that is written the same way again; else `text`."""
    if len(text) > MAX_NUMBER_CHARACTERS:
        return text
    if of is Scalar.BOOL:
        return {"true": True, "false": False}.get(text, text)
    for read in (int, float) if of is Scalar.FLOAT else (int,):
        try:
            number = read(text)
            if canonical(number) == text:
                return fit(of, number)
        except (ValueError, Mismatch):
            # Not that kind of number, or one that JSON does not have.
            continue
    return text


def _option(of: LiteralType, value: Json) -> Json:
    written = value if isinstance(value, str) else canonical(value)
    for one in of.values:
        if written == (one if isinstance(one, str) else canonical(one)):
            return one
    return value
