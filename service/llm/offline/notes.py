"""Revises PRISM memories for the offline model: adds salient sentences by topic.

A topic is a heading, a definition of code, a table, or a name that many sentences share. What a
memory has already is not written again, so there is nothing to tidy in what it wrote.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from service.domain.prism.amending import replay
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.schemas.json_writing import to_json_schema
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import PLACEHOLDER
from service.domain.prompting.cutting import shortened
from service.domain.values.json_values import Json, canonical, restore
from service.domain.values.paths import Path
from service.llm.offline.choosing import DEFINITION, Passage, passage
from service.llm.offline.filler import fill
from service.llm.offline.prompt import Prompt
from service.llm.offline.texts import Topic, name_words, sections, terms

#: Topics that one chunk may add to or begin, and sentences that it adds to each.
MAX_TOPICS, MAX_NEW_SENTENCES = 3, 3
#: Entries that a list keeps: one of the memory itself, and one of a topic.
MAX_ENTRIES, MAX_SENTENCES = 200, 12
SENTENCE_CHARACTERS, KEY_CHARACTERS = 300, 80

#: A word in quotes, or capital letters where no sentence begins.
_NAME = re.compile(
    r"(?<=[\"'`])[A-Za-z_][\w.]{1,40}(?=[\"'`])"
    r"|(?<![.!?\"'] )(?<!^)\b[A-Z][a-z]+(?:\s+[A-Z][a-z]+){0,3}\b"
)

#: Keys and indexes from the memory's root; "-" appends.
Steps = tuple[str | int, ...]


def revise(prompt: Prompt) -> str:
    """Returns what new chunks change in a memory."""
    shown = entries(prompt)
    held: Any = {}
    for steps, value in shown:
        held = _placed(held, steps, value)
    is_part = any(steps for steps, _ in shown)
    may_update = '"update" for a path' in prompt.instructions
    schema = to_json_schema(parse_source(prompt.plain("SCHEMA")))
    changes: list[Json] = []
    # A NUL can be in a text and not in a memory.
    text = "\n\n".join(prompt.texts("TEXT")).replace("\0", " ")
    for topic in topics(text, prompt.plain("TASK").replace("It serves this question:", "")):
        merged = _merged(held, fill(schema, schema, "", topic), topic.name)
        for at, op, value in _changes(held, merged, may_update and not is_part):
            if may_update or op is not Op.UPDATE:
                changes.append({"op": op.value, "path": str(Path(at)), "value": canonical(value)})
        held = merged
    return canonical({"changes": changes})


def _merged(held: Any, new: Any, name: str, level: int = 0) -> Any:
    """Returns a value with what is new of a name; what it has already it keeps."""
    if isinstance(new, dict):
        merged = dict(held or {})
        names = {name_words(key): key for key in merged}
        for key, part in new.items():
            same = names.get(name_words(key), key) if key == name else key
            merged[same] = _merged(merged.get(same), part, name, level + 1)
        return merged
    if isinstance(new, list):
        # Of a list that is shown in part there is a dict.
        known = [*held.values()] if isinstance(held, dict) else held or []
        most = MAX_ENTRIES if level == 1 else MAX_SENTENCES
        return [*known, *[one for one in new if one not in known][: max(most - len(known), 0)]]
    return new if held in (None, PLACEHOLDER) else held


def _changes(
    held: Any, new: Any, may_rewrite: bool, at: Steps = ()
) -> Iterator[tuple[Steps, Op, Json]]:
    """Yields what makes one value of another; an entry is written anew where that is allowed."""
    is_open = len(at) < 2 or not (may_rewrite or held is None)
    if isinstance(new, dict) and is_open:
        for key, part in new.items():
            yield from _changes((held or {}).get(key), part, may_rewrite, (*at, key))
    elif isinstance(new, list) and is_open:
        yield from (((*at, "-"), Op.ADD, one) for one in new[len(held or ()) :])
    elif new != held:
        yield at, Op.ADD if held is None else Op.UPDATE, new


def leaves(value: Json, at: Steps) -> Iterator[Passage]:
    """Yields the texts and numbers of a part of a memory with their paths."""
    if isinstance(value, dict | list):
        for step, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(child, (*at, step))
    elif value not in (None, "", PLACEHOLDER):
        yield passage(str(value), *at, keys=[step for step in at if isinstance(step, str)])


def entries(prompt: Prompt) -> list[tuple[Steps, Json]]:
    """Returns what a prompt shows of a memory: all at its root, or entries with their paths."""
    whole, part = prompt.plain("MEMORY"), prompt.plain("ENTRIES")
    lines: list[Any] = [restore(line) for line in (whole or part).split("\n") if line]
    if whole:
        schema = parse_source(prompt.plain("SCHEMA"))
        return [((), replay(schema, lines[0], map(_amendment, lines[1:])))]
    return [(Path.parse(path).tokens, one[path]) for one in lines for path in one]


def _amendment(line: dict[str, Any]) -> Amendment:
    ((path, value),) = line.items()
    if path == "remove":
        return Amendment(path=Path.parse(value), op=Op.REMOVE, value=None)
    return Amendment(path=Path.parse(path), op=Op.UPDATE, value=value)


def _placed(held: Any, steps: Steps, value: Json) -> Any:
    """Returns a value with one more part; a list that is shown in part is a dict."""
    if not steps:
        return value
    return {**held, steps[0]: _placed(held.get(steps[0], {}), steps[1:], value)}


def topics(text: str, guidance: str) -> list[Topic]:
    """Returns what a text says about a few things; sentences with words of `guidance` first."""
    parts = sections(text)
    named = [part for part in parts if part.name and part.sentences]
    loose = [one for part in parts if not part.name for one in part.sentences]
    return [
        Topic(_key(one.name), _salient(one, guidance))
        for one in [*named, *_loose_topics(loose)][:MAX_TOPICS]
    ]


def _key(heading: str) -> str:
    """Returns a heading as a key: without numbering, an article and quotes."""
    bare = " ".join(word.strip("\"'`*_") for word in heading.split())
    key = re.sub(r"^[\d.\s]*(?:(?:The|An?)\s+)?", "", bare)
    return shortened(key or heading, KEY_CHARACTERS, len)


def _loose_topics(said: Sequence[str]) -> Iterator[Topic]:
    """Yields topics of text without headings: its commonest names, or else its commonest words."""
    names = Counter(name for one in said for name in {*_NAME.findall(one)} if terms(name))
    common = sorted((one for one in names if names[one] > 1), key=lambda one: (-names[one], one))
    rest = list(said)
    for name in common[: MAX_TOPICS - 1]:
        if about := [one for one in rest if name in one]:
            rest = [one for one in rest if name not in one]
            yield Topic(name, tuple(about))
    if said and not common:
        words = Counter(word for one in said for word in re.findall(r"[\w-]+", one) if terms(word))
        yield Topic(" ".join(word for word, _ in words.most_common(2)), tuple(said))


def _salient(topic: Topic, guidance: str) -> tuple[str, ...]:
    """Returns the best sentences in the order of the text, each once."""
    said = [*dict.fromkeys(shortened(one, SENTENCE_CHARACTERS, len) for one in topic.sentences)]
    subject, wanted = set(terms(topic.name)), set(terms(guidance))

    def salience(number: int) -> float:
        held, is_whole = set(terms(said[number])), said[number].rstrip("\"')]")[-1:] in ".!?"
        worth = 1.5 * len(held & subject) + len(held & wanted) - number / len(said)
        return worth + 2 * (is_whole + bool(DEFINITION.match(said[number])))

    best = sorted(range(len(said)), key=salience, reverse=True)[:MAX_NEW_SENTENCES]
    return tuple(said[number] for number in sorted(best))
