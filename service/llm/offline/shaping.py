"""The offline model as a writer of JSON: it puts an answer's words into a schema's places.

It understands neither. A string gets the whole answer, or the part of it that stands behind
the field's name; a number the first number; a list the answer's parts; true and false go by
yes and no; of several allowed values it takes the one with most words of the answer. What
it finds nothing for it leaves out, where the schema allows that.
"""

import re
from collections.abc import Mapping
from typing import Any

from service.domain.answers.response_schemas import referred
from service.domain.answers.shaping import ShapeContent
from service.domain.values.json_values import Json, canonical
from service.llm.offline.plain_text import sentences
from service.llm.offline.texts import name_words, terms

#: Levels that it goes down: a schema may hold itself.
MAX_LEVELS = 12
#: Entries of a list.
MAX_ENTRIES = 100

_NUMBER = re.compile(r"(?<![\w.])-?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\w)|(?<![\w.])-?\d+(?:\.\d+)?")
_NO = re.compile(
    r"\b(?:no|not|never|none|nobody|nothing|false|neither|cannot|without)\b|n['’]t\b", re.I
)
_ITEM = re.compile(r"(?<!\s)\s*(?:[,;\n]|(?:,\s*)?\band\b)\s*(?:[*•–-]\s+)?")
#: Names that ask for the answer itself.
_WHOLE = frozenset({"answer", "text", "value", "result", "response", "summary"})

_MISSING = object()


def complete(content: ShapeContent) -> str:
    """The reply to an ask for an answer's form."""
    value = _Filler(content).fill(content.schema, "", content.answer, 0)
    return canonical(None if value is _MISSING else value)


class _Filler:
    """Fills one schema."""

    def __init__(self, content: ShapeContent) -> None:
        self._schema = content.schema

    def fill(self, schema: Any, name: str, text: str, level: int) -> Any:
        """What a schema's place gets from a text; _MISSING when nothing fits."""
        if not isinstance(schema, Mapping) or level > MAX_LEVELS:
            return text if schema is True and text else _MISSING
        if "const" in schema:
            return schema["const"]
        if isinstance(schema.get("enum"), list):
            return _closest(schema["enum"], text)
        if "$ref" in schema:
            return self.fill(referred(self._schema, schema["$ref"]), name, text, level + 1)
        for keyword in ("oneOf", "anyOf", "allOf"):
            if isinstance(schema.get(keyword), list) and not schema.get("properties"):
                return self._first(schema[keyword], name, text, level)
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        options = kinds if isinstance(kinds, list) else [kinds]
        return self._first(
            [{**schema, "type": kind} for kind in options], name, text, level, own=True
        )

    def _first(self, schemas: Any, name: str, text: str, level: int, *, own: bool = False) -> Any:
        """What the first schema that finds something gets; null only when nothing else does."""
        null: Any = _MISSING
        for schema in schemas:
            kind = schema.get("type") if isinstance(schema, Mapping) else None
            if kind == "null":
                null = None
                continue
            found = (
                self._one(schema, kind, name, text, level)
                if own
                else self.fill(schema, name, text, level + 1)
            )
            if found is not _MISSING:
                return found
        return null

    def _one(self, schema: Mapping[str, Any], kind: Any, name: str, text: str, level: int) -> Any:
        match kind:
            case "object":
                return self._object(schema, text, level)
            case "array":
                return self._array(schema, name, text, level)
            case "string":
                return _string(schema, name, text)
            case "integer" | "number":
                return _number(name, text, whole=kind == "integer")
            case "boolean":
                return not _NO.search(_about(name, text)) if text else _MISSING
        return _MISSING

    def _object(self, schema: Mapping[str, Any], text: str, level: int) -> Json:
        named = schema.get("properties")
        required = schema.get("required", [])
        found: dict[str, Json] = {}
        for key, inner in named.items() if isinstance(named, Mapping) else ():
            value = self.fill(inner, key, text, level + 1)
            if value is not _MISSING:
                found[key] = value
            elif key in required:
                found[key] = _empty(inner)
        return found

    def _array(self, schema: Mapping[str, Any], name: str, text: str, level: int) -> Json:
        inner = schema.get("items", True)
        most = schema.get("maxItems", MAX_ENTRIES)
        entries: list[Json] = []
        for part in _items(_about(name, text)):
            value = self.fill(inner, name, part, level + 1)
            if value is not _MISSING and value not in entries:
                entries.append(value)
        return entries[: most if isinstance(most, int) else MAX_ENTRIES]


def _string(schema: Mapping[str, Any], name: str, text: str) -> Any:
    said = _about(name, text).strip()
    most = schema.get("maxLength")
    if isinstance(most, int):
        said = said[:most]
    return said if said else _MISSING


def _number(name: str, text: str, *, whole: bool) -> Any:
    for match in _NUMBER.finditer(_about(name, text)):
        value = float(match[0].replace(",", ""))
        if value.is_integer():
            return int(value)
        if not whole:
            return value
    return _MISSING


def _about(name: str, text: str) -> str:
    """What a text says behind a name ("Price: 4 pence."), else the sentences with its words."""
    words = name_words(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name))
    if not words or words in _WHOLE:
        return text
    labelled = re.search(
        rf"(?:^|\n|[.;]\s){re.escape(name).replace('_', '[ _]')}\s*[:=]\s*([^\n;]+)", text, re.I
    )
    if labelled:
        return labelled[1]
    wanted = set(words.split())
    fitting = [one for one in sentences(text) if wanted & set(terms(one))]
    return " ".join(fitting) or text


def _items(text: str) -> list[str]:
    parts = [part.strip().rstrip(".") for part in _ITEM.split(text)]
    return [part for part in parts if part][:MAX_ENTRIES]


def _closest(options: list[Any], text: str) -> Any:
    """The option with most words of the text, by their share; the first of several."""
    if not options:
        return _MISSING
    said = set(terms(text)) | set(text.casefold().split())

    def fit(option: Any) -> float:
        words = str(option).casefold().replace("_", " ").split()
        stems = set(terms(" ".join(words))) or set(words)
        return len(stems & said) / max(len(stems), 1)

    best = max(options, key=fit)
    return None if None in options and fit(best) == 0 else best


def _empty(schema: Any) -> Json:
    """What stands for nothing where something has to stand.

    Of numbers, and of yes and no, null: it does not fit, and nothing is made up.
    """
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = kind if isinstance(kind, list) else [kind]
    if "null" in kinds:
        return None
    return [] if "array" in kinds else "" if "string" in kinds else None
