"""Fills JSON Schemas with what is said about one thing.

It understands neither. What it finds nothing for it leaves out, where the schema allows that.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from service.domain.answers.response_schemas import referred
from service.domain.prism.schemas.tree import PLACEHOLDER
from service.llm.offline.texts import Topic, stem, terms

#: Levels that it goes down: a schema may hold itself.
MAX_LEVELS = 12

_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,18})(?:\.\d{1,18})?(?!\w)")
_NO = re.compile(
    r"\b(?:no|not|never|none|nobody|nothing|false|neither|cannot|without)\b|n['’]t\b", re.IGNORECASE
)
_ITEM = re.compile(r"(?<!\s)\s*(?:[,;\n]|(?:,\s*)?\band\b)\s*(?:[*•–-]\s+)?")
_WORD = re.compile(r"[A-Z]?[^\W_A-Z]+|[A-Z]+")
#: Names that ask for a topic's name; all others may ask for what is said.
_NAMING = frozenset(["name", "title", "term", "topic", "key", "person", "entity", "subject"])


def fill(schema: Any, node: Any, field: str, topic: Topic, level: int = 0) -> Any:
    """Returns what a place of a schema gets; None when nothing fits."""
    if not isinstance(node, Mapping) or level > MAX_LEVELS:
        return None
    kind = node.get("type", "object" if "properties" in node else "string")
    others = [{**node, "type": one} for one in kind] if isinstance(kind, list) else []
    if "$ref" in node:
        others = [referred(schema, node["$ref"])]
    elif "properties" not in node:
        others = node.get("oneOf") or node.get("anyOf") or node.get("allOf") or others
    inner = partial(fill, schema, level=level + 1)
    if not others:
        return _filled(node, kind, field, topic, inner)
    found = (inner(one, field, topic) for one in others)
    return next((one for one in found if one is not None), None)


def _filled(
    node: Mapping[str, Any], kind: str, field: str, topic: Topic, inner: Callable[..., Any]
) -> Any:
    words = {stem(one) for one in _WORD.findall(field)}
    said = [one for one in topic.sentences if words & set(terms(one))]
    said = said or ([] if topic.name else [*topic.sentences])
    match kind:
        case _ if "const" in node or "enum" in node:
            return _closest(node.get("enum") or [node["const"]], topic)
        case "object" if topic.name and "properties" not in node:
            value = inner(node.get("additionalProperties"), "", topic)
            return None if value is None else {topic.name: value}
        case "object":
            parts = node.get("properties", {}).items()
            found = {key: inner(one, key, topic) for key, one in parts}
            # A required part that is not found is null, even where that does not fit.
            needed = dict.fromkeys(node.get("required", ()))
            return needed | {key: one for key, one in found.items() if one is not None}
        case "array" if "prefixItems" in node:
            values = [inner(one, field, topic) for one in node["prefixItems"]]
            return tuple(PLACEHOLDER if one is None else one for one in values)
        case "array":
            values = [inner(node.get("items"), field, one) for one in _entries(node, topic, said)]
            once = [one for n, one in enumerate(values) if one not in (None, *values[:n])]
            return once[: node.get("maxItems")]
        case "string" if topic.name:
            return topic.name if field in _NAMING else (*said, *topic.sentences)[0]
        case "string":
            return " ".join(said)[: node.get("maxLength")] or None
        case "integer" | "number":
            return _number(" ".join(said), whole=kind == "integer")
        case "boolean" if not topic.name:
            return not _NO.search(" ".join(said))
    return None


def _entries(node: Mapping[str, Any], topic: Topic, said: Sequence[str]) -> list[Topic]:
    """Returns what each entry of a list is filled from."""
    if not topic.name:
        items = (one.strip().rstrip(".") for one in _ITEM.split(" ".join(said)))
        return [Topic("", (one,)) for one in items if one]
    if node.get("items", {}).get("type") != "string":
        return [topic]
    return [Topic(topic.name, (one,)) for one in topic.sentences]


def _number(text: str, *, whole: bool) -> int | float | None:
    values = (float(one.replace(",", "")) for one in _NUMBER.findall(text))
    value = next((one for one in values if one.is_integer() or not whole), None)
    return int(value) if value is not None and value.is_integer() else value


def _closest(options: list[Any], topic: Topic) -> Any:
    """Returns the option with most words of the text, by their share; the first of several."""
    said = {stem(word) for one in topic.sentences for word in _WORD.findall(one)}
    words = [{stem(word) for word in _WORD.findall(str(one))} for one in options]
    fits = [len(one & said) / max(len(one), 1) for one in words]
    # What an answer does not say is the first option; a memory leaves it open.
    if not any(fits) and (topic.name or None in options):
        return None
    return options[fits.index(max(fits))]
