"""Revises PRISM memories for the offline model: adds salient sentences by topic.

A topic is a heading, a definition of code, a table, or a name that many sentences share. What a
memory has already is not written again, so there is nothing to tidy in what it wrote.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from service.domain.prism.amending import put, remove
from service.domain.prism.schemas.json_writing import to_json_schema
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import PLACEHOLDER
from service.domain.prompting.cutting import shortened
from service.domain.values.json_values import Json, canonical, restore
from service.domain.values.paths import Path
from service.llm.offline.choosing import Passage, passage
from service.llm.offline.filler import fill
from service.llm.offline.prompt import Prompt
from service.llm.offline.texts import Topic, name_words, sections, sentences, terms

#: Topics that one chunk may add to or begin, and sentences that it adds to each.
MAX_TOPICS, MAX_NEW_SENTENCES = 3, 4
#: Entries that a list keeps: one of the memory itself, and one of a topic.
MAX_ENTRIES, MAX_SENTENCES = 200, 12
SENTENCE_CHARACTERS, KEY_CHARACTERS = 300, 80


def revise(prompt: Prompt) -> str:
    """Returns what new chunks change in a memory."""
    held: Any = {}
    for path, value in entries(prompt):
        held = _placed(held, path.tokens, value)
    schema = to_json_schema(parse_source(prompt.plain("SCHEMA")))
    changes: list[Json] = []
    # A NUL can be in a text and not in a memory.
    text = "\n\n".join(prompt.contents("TEXT")).replace("\0", " ")
    for topic in topics(text, prompt.plain("TASK").replace("It serves this question:", "")):
        for at, value in _add(held, _filled(schema, topic), topic.name, Path()):
            changes.append({"op": "add", "path": str(at), "value": canonical(value)})
    return canonical({"changes": changes})


def _filled(schema: dict[str, Any], topic: Topic) -> dict[str, Any]:
    """Fills a memory with a topic; of several dicts of one type only the first.

    It does not know which of them is meant, and would note the same in each.
    """
    filled: dict[str, Any] = fill(schema, schema, "", topic)
    types: list[Json] = []
    for field, node in schema["properties"].items():
        kind = {key: value for key, value in node.items() if key != "description"}
        if "additionalProperties" in kind and kind in types:
            filled.pop(field, None)
        types.append(kind)
    return filled


def _add(
    held: dict[str, Any], new: dict[str, Any], name: str, at: Path
) -> Iterator[tuple[Path, Json]]:
    """Adds what is new of a topic to a memory; yields each addition with its path."""
    names = {name_words(key): key for key in held}
    for field, value in new.items():
        key = names.get(name_words(field), field) if field == name else field
        known = held.get(key)
        if isinstance(value, dict) and (isinstance(known, dict) or not at.tokens):
            held[key] = known if isinstance(known, dict) else {}
            yield from _add(held[key], value, name, at / key)
        elif known in (None, PLACEHOLDER):
            held[key] = value
            yield at / key, value
        elif isinstance(value, list):
            # A list that is shown in part is a dict.
            known = [*known.values()] if isinstance(known, dict) else known
            most = MAX_SENTENCES if at.tokens else MAX_ENTRIES
            fresh = [one for one in value if one not in known][: max(most - len(known), 0)]
            held[key] = [*known, *fresh]
            yield from ((at / key / "-", one) for one in fresh)


def leaves(value: Json, at: Path) -> Iterator[Passage]:
    """Yields the texts and numbers of a part of a memory with their paths."""
    if isinstance(value, dict | list):
        for step, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(child, at / step)
    elif value not in (None, "", PLACEHOLDER):
        keys = [one for one in at.tokens if isinstance(one, str)]
        yield passage(str(value), *at.tokens, keys=keys)


def entries(prompt: Prompt) -> list[tuple[Path, Json]]:
    """Returns what a prompt shows of a memory: all at its root, or entries with their paths."""
    whole, part = prompt.plain("MEMORY"), prompt.plain("ENTRIES")
    lines: list[Any] = [restore(line) for line in (whole or part).split("\n") if line]
    if whole:
        schema, value = parse_source(prompt.plain("SCHEMA")), lines[0]
        for path, new in (change for line in lines[1:] for change in line.items()):
            if path == "remove":
                value = remove(schema, value, Path.parse(new))
            else:
                value = put(schema, value, Path.parse(path), new)
        return [(Path(), value)]
    return [(Path.parse(path), one[path]) for one in lines for path in one]


def _placed(held: Any, steps: Sequence[str | int], value: Json) -> Any:
    """Returns a value with one more part; a list that is shown in part is a dict."""
    if not steps:
        return value
    return {**held, steps[0]: _placed(held.get(steps[0], {}), steps[1:], value)}


def topics(text: str, guidance: str) -> list[Topic]:
    """Returns what a text says about a few things; sentences with words of `guidance` first."""
    parts = sections(text)
    named = [part for part in parts if part.name and part.sentences]
    loose = [one for part in parts if not part.name for one in part.sentences]
    if not (named or loose or re.search(r"[=(){}\[\];]", text)):
        # A short message has few of the words that running text has.
        loose = sentences(text)
    found = [*named, *_loose_topics(loose)][:MAX_TOPICS]
    return [Topic(_key(one.name), _salient(one, guidance)) for one in found]


def _key(heading: str) -> str:
    """Returns a heading as a key: without numbering, an article and quotes."""
    bare = " ".join(word.strip("\"'`*_") for word in heading.split())
    key = re.sub(r"^[\d.\s]*(?:(?:Table:|The|An?)\s+)?", "", bare)
    return shortened(key or heading, KEY_CHARACTERS, len)


def _loose_topics(said: Sequence[str]) -> list[Topic]:
    """Returns topics of text without headings: its commonest names, or its commonest word."""
    words = Counter(word for one in said for word in re.findall(r"[\w-]+", one) if terms(word))
    common = [word for word, count in words.most_common() if word[0].isupper() and count > 1]
    names = common[: MAX_TOPICS - 1] or [word for word, _ in words.most_common(1)]
    return [Topic(name, tuple(one for one in said if name in one or not common)) for name in names]


def _salient(topic: Topic, guidance: str) -> tuple[str, ...]:
    """Returns the sentences with most words of the name and the guidance, in their order."""
    said = [*dict.fromkeys(shortened(one, SENTENCE_CHARACTERS, len) for one in topic.sentences)]
    asked = set(terms(f"{topic.name} {guidance}"))
    best = sorted(said, key=lambda one: len(asked.intersection(terms(one))), reverse=True)
    return tuple(one for one in said if one in best[:MAX_NEW_SENTENCES])
