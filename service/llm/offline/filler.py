"""The filler of schemas: it puts what is said about one thing into a JSON Schema's places.

It understands neither. What it finds nothing for it leaves out, where the schema allows that.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.domain.answers.response_schemas import referred
from service.domain.prism.schemas.tree import PLACEHOLDER
from service.llm.offline.texts import Topic, stem, terms

#: Levels that it goes down: a schema may hold itself.
MAX_LEVELS = 12
#: Entries of a list.
MAX_ENTRIES = 100
#: Nothing was found.
MISSING: Any = object()

_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,18})(?:\.\d{1,18})?(?!\w)")
_NO = re.compile(
    r"\b(?:no|not|never|none|nobody|nothing|false|neither|cannot|without)\b|n['’]t\b", re.IGNORECASE
)
_ITEM = re.compile(r"(?<!\s)\s*(?:[,;\n]|(?:,\s*)?\band\b)\s*(?:[*•–-]\s+)?")
_WORD = re.compile(r"[A-Z]?[^\W_A-Z]+|[A-Z]+")
#: Names that ask for a topic's name; all others may ask for what is said.
_NAMING = frozenset(["name", "title", "term", "topic", "key", "person", "entity", "subject"])


@dataclass(frozen=True, slots=True)
class Filler:
    """Fills the places of one schema."""

    schema: Mapping[str, Any]

    def plain(self, node: Any) -> Any:
        """Returns a place of a memory without a reference, and without null beside its type."""
        while "$ref" in node or "anyOf" in node:
            node = referred(self.schema, node["$ref"]) if "$ref" in node else node["anyOf"][0]
        return node

    def fill(self, node: Any, field: str, topic: Topic, level: int = 0) -> Any:
        """Returns what a place gets; MISSING when nothing fits."""
        if not isinstance(node, Mapping) or level > MAX_LEVELS:
            return MISSING
        if "const" in node or "enum" in node:
            return _closest(node.get("enum") or [node["const"]], topic)
        if "$ref" in node:
            return self.fill(referred(self.schema, node["$ref"]), field, topic, level + 1)
        kind = node.get("type", "object" if "properties" in node else "string")
        others = [{**node, "type": one} for one in kind] if isinstance(kind, list) else None
        if "properties" not in node:
            others = node.get("oneOf") or node.get("anyOf") or node.get("allOf") or others
        if not others:
            return self._one(node, kind, field, topic, level + 1)
        values = [self.fill(one, field, topic, level + 1) for one in others]
        # Null counts only where nothing else was found, and is no news of a memory.
        found = [one for one in values if one is not MISSING and one is not None]
        return next(iter(found), MISSING if topic.name or None not in values else None)

    def _one(self, node: Mapping[str, Any], kind: str, field: str, topic: Topic, level: int) -> Any:
        said = _about(topic, field) or (() if topic.name else topic.sentences)
        match kind:
            case "object":
                return self._object(node, topic, level)
            case "array" if "prefixItems" in node:
                parts = (self.fill(one, field, topic, level) for one in node["prefixItems"])
                return [PLACEHOLDER if part is MISSING else part for part in parts]
            case "array":
                inner = node.get("items", {})
                entries = _entries(topic, field, of_texts=inner.get("type") == "string")
                values = [self.fill(inner, field, entry, level) for entry in entries]
                once = [one for n, one in enumerate(values) if one not in (MISSING, *values[:n])]
                return once[: node.get("maxItems", MAX_ENTRIES)]
            case "string" if topic.name:
                return topic.name if field in _NAMING else (*said, *topic.sentences)[0]
            case "string":
                return " ".join(said)[: node.get("maxLength")] or MISSING
            case "integer" | "number":
                return _number(" ".join(said), whole=kind == "integer")
            case "boolean" if not topic.name:
                return not _NO.search(" ".join(said))
        return None if kind == "null" else MISSING

    def _object(self, node: Mapping[str, Any], topic: Topic, level: int) -> Any:
        if topic.name and "properties" not in node:
            value = self.fill(node.get("additionalProperties"), "", topic, level)
            return MISSING if value is MISSING else {topic.name: value}
        found = {
            key: self.fill(inner, key, topic, level)
            for key, inner in node.get("properties", {}).items()
        }
        # Of what has to be there null: it may not fit, and nothing is made up.
        needed = node.get("required", ())
        found |= {key: None for key in needed if found.get(key, MISSING) is MISSING}
        return {key: value for key, value in found.items() if value is not MISSING}


def _about(topic: Topic, field: str) -> tuple[str, ...]:
    """Returns what is said of a field: after its name, as in "Price: 4", or with its words."""
    words = {stem(one) for one in _WORD.findall(field)}
    for one in topic.sentences:
        name, said, value = one.partition(":")
        if said and {stem(word) for word in _WORD.findall(name)} == words:
            return (value.strip(),)
    return tuple(one for one in topic.sentences if words & set(terms(one)))


def _entries(topic: Topic, field: str, *, of_texts: bool) -> list[Topic]:
    """Returns what each entry of a list is filled from."""
    if topic.name:
        return [Topic(topic.name, (one,)) for one in topic.sentences] if of_texts else [topic]
    items = _ITEM.split(" ".join(_about(topic, field) or topic.sentences))
    return [Topic("", (bare,)) for one in items if (bare := one.strip().rstrip("."))]


def _number(text: str, *, whole: bool) -> Any:
    for match in _NUMBER.finditer(text):
        value = float(match[0].replace(",", ""))
        if value.is_integer() or not whole:
            return int(value) if value.is_integer() else value
    return MISSING


def _closest(options: list[Any], topic: Topic) -> Any:
    """The option with most words of the text, by their share; the first of several."""
    said = {word for one in topic.sentences for word in (*terms(one), *one.casefold().split())}

    def fit(option: Any) -> float:
        words = {stem(word) for word in _WORD.findall(str(option).casefold())}
        return len(words & said) / max(len(words), 1)

    found = max(options, key=fit)
    return found if fit(found) else MISSING if topic.name else None if None in options else found
