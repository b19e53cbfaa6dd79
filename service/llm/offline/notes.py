"""The offline model as a keeper of PRISM memories: it writes down salient sentences by topic.

A topic is a heading, a definition of code, a table, or a name that many sentences share. What a
memory has already is not written again, so there is nothing to tidy in what it wrote.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.domain.prism.amending import replay
from service.domain.prism.amendments import Amendment, Op
from service.domain.prism.schemas.json_writing import to_json_schema
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import PLACEHOLDER
from service.domain.values.json_values import Json, canonical, restore
from service.domain.values.paths import Path
from service.llm.offline.choosing import DEFINITION, Passage, passage
from service.llm.offline.filler import Filler
from service.llm.offline.prompt import Prompt
from service.llm.offline.texts import Topic, cut, name_words, sections, stem, terms

#: Topics that one chunk may add to or begin, and sentences that it adds to each.
MAX_TOPICS, MAX_NEW_SENTENCES = 3, 3
#: Entries that a list keeps: one of the memory itself, and one of a topic.
MAX_ENTRIES, MAX_SENTENCES = 200, 12
SENTENCE_CHARACTERS, KEY_CHARACTERS = 300, 80

_QUOTED = re.compile(r"[\"'`]{1,2}([A-Za-z_][\w.]{1,40})[\"'`]{1,2}")
_NAME = re.compile(r"(?<![.!?\"'] )(?<!^)\b[A-Z][a-z]+(?:\s+[A-Z][a-z]+){0,3}\b")

_EDGES = ".,;:!?\"'()[]*_`"

#: Keys and indexes from the memory's root; "-" appends.
Steps = tuple[str | int, ...]


def revise(prompt: Prompt) -> str:
    """Returns what new chunks change in a memory."""
    shown = entries(prompt)
    held: Any = {}
    for steps, value in shown:
        held = _placed(held, steps, value)
    filler = Filler(to_json_schema(parse_source(prompt.plain("SCHEMA"))))
    is_part = any(steps for steps, _ in shown)
    may_update = '"update" for a path' in prompt.instructions
    reviser = _Reviser(filler, is_part, may_update and not is_part)
    # A NUL can be in a text and not in a memory.
    text = "\n\n".join(prompt.texts("TEXT")).replace("\0", " ")
    for topic in topics(text, prompt.plain("TASK").replace("It serves this question:", "")):
        held = reviser.merge(filler.schema, held, filler.fill(filler.schema, "", topic), ())
    changes = (one for one in reviser.changes if may_update or one["op"] != Op.UPDATE)
    return canonical({"changes": list(changes)})


def leaves(prompt: Prompt) -> list[Passage]:
    """Returns the texts and numbers of a memory with their paths."""
    return [one for steps, value in entries(prompt) for one in _leaves(value, steps)]


def _leaves(value: Json, at: Steps) -> Iterator[Passage]:
    if isinstance(value, dict | list):
        for step, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(child, (*at, step))
    elif value not in (None, "", PLACEHOLDER):
        yield passage(str(value), *at, keys=[step for step in at if isinstance(step, str)])


def entries(prompt: Prompt) -> list[tuple[Steps, Json]]:
    """Returns what a prompt shows of a memory: all at its root, or entries with their paths."""
    lines: list[Any] = [
        restore(line)
        for line in (prompt.plain("MEMORY") or prompt.plain("ENTRIES")).split("\n")
        if line
    ]
    if prompt.plain("MEMORY"):
        schema = parse_source(prompt.plain("SCHEMA"))
        return [((), replay(schema, lines[0], map(_amendment, lines[1:])))]
    return [(Path.parse(path).tokens, one[path]) for one in lines for path in one]


def _amendment(line: dict[str, Any]) -> Amendment:
    ((path, value),) = line.items()
    if path == "remove":
        return Amendment(path=Path.parse(value), op=Op.REMOVE, value=None)
    return Amendment(path=Path.parse(path), op=Op.UPDATE, value=value)


def _placed(held: Any, steps: Steps, value: Json) -> Any:
    """A value with one more part; a list of which only parts are shown is a dict of them."""
    if not steps:
        return value
    return {**held, steps[0]: _placed(held.get(steps[0], {}), steps[1:], value)}


@dataclass(frozen=True, slots=True)
class _Reviser:
    """Puts what topics say where a memory does not have it yet."""

    filler: Filler
    #: Whether the memory is shown in part, so that no list is known to its end.
    is_part: bool
    #: Whether what is there may be updated, of which all is shown.
    may_rewrite: bool
    changes: list[dict[str, Json]] = field(default_factory=list)

    def merge(self, node: Any, held: Any, new: Any, at: Steps) -> Any:
        """Returns a value with what is new, and notes the changes."""
        node = self.filler.plain(node)
        if node.get("type") == "object":
            held = dict(held) if isinstance(held, dict) else {}
            names = {_normal(key): key for key in held}
            for key, part in new.items():
                inner = node.get("properties", {}).get(key)
                same = key if inner else names.get(_normal(key), key)
                if inner:
                    held[same] = self.merge(inner, held.get(same), part, (*at, same))
                elif same not in held:
                    held[same] = self._note(Op.ADD, (*at, same), part)
                else:
                    held[same] = self._merge_entry(node, held[same], part, (*at, same))
            return held
        if "items" in node:
            known = [*held.values()] if isinstance(held, dict) else [*(held or ())]
            most = MAX_ENTRIES if len(at) == 1 else MAX_SENTENCES
            for item in [one for one in new if one not in known][: max(most - len(known), 0)]:
                end = "-" if self.is_part else len(known)
                known.append(self._note(Op.ADD, (*at, end), item))
            return known
        if held is None or held == PLACEHOLDER:
            return self._note(Op.ADD if held is None else Op.UPDATE, at, new)
        return held

    def _merge_entry(self, node: Any, held: Any, new: Any, at: Steps) -> Any:
        """Merges an entry of a dict: it is written anew where that is allowed."""
        quiet = replace(self, changes=[] if self.may_rewrite else self.changes)
        merged = quiet.merge(node["additionalProperties"], held, new, at)
        is_new = self.may_rewrite and quiet.changes
        return self._note(Op.UPDATE, at, merged) if is_new else merged

    def _note(self, op: Op, at: Steps, value: Json) -> Json:
        path = f"{Path(at[:-1])}[-]" if at[-1] == "-" else str(Path(at))
        self.changes.append({"op": op.value, "path": path, "value": canonical(value)})
        return value


def _normal(key: str) -> str:
    return name_words(key) or key.casefold()


def topics(text: str, guidance: str) -> list[Topic]:
    """Returns what a text says about a few things; sentences with words of `guidance` first."""
    wanted = set(terms(guidance))
    parts = sections(text)
    found = [
        Topic(_key(part.name), _salient(part.sentences, set(terms(part.name)), wanted))
        for part in parts
        if part.name and part.sentences
    ]
    loose = [one for part in parts if not part.name for one in part.sentences]
    return [*found, *_loose_topics(loose, wanted)][:MAX_TOPICS]


def _key(heading: str) -> str:
    """A heading as a key: without articles, quotes and numbering."""
    key = re.sub(r"^[\d.\s]+", "", heading)
    key = re.sub(r"[\"'`*_]{1,2}(\S+?)[\"'`*]{1,2}", r"\1", key)
    key = re.sub(r"^(?:The|An?)\s+", "", key.strip())
    return cut(key or heading, KEY_CHARACTERS)


def _loose_topics(said: Sequence[str], wanted: set[str]) -> Iterator[Topic]:
    """Topics of text without headings: the names that most sentences share, else the words."""
    holders = Counter(terms(word)[0] for one in said for word in one.split() if terms(word))
    named: dict[str, str] = {}
    for one in said:
        for name in dict.fromkeys([*_QUOTED.findall(one), *_NAME.findall(one)]):
            if terms(name):
                holders[stem(name)] += 2
                named.setdefault(stem(name), name)
    names = sorted(
        (one for one in named if holders[one] >= 4), key=lambda one: (-holders[one], one)
    )
    rest = list(said)
    for term in names[: MAX_TOPICS - 1]:
        if about := [one for one in rest if named[term] in one]:
            best = _salient(about, {term}, wanted)
            rest = [one for one in rest if cut(one, SENTENCE_CHARACTERS) not in best]
            yield Topic(cut(named[term], KEY_CHARACTERS), best)
    if not names and holders:
        words = {
            terms(word)[0]: word.strip(_EDGES)
            for one in said
            for word in one.split()
            if terms(word)
        }
        common = " ".join(words[term] for term, _ in holders.most_common(2) if term in words)
        yield Topic(cut(common, KEY_CHARACTERS), _salient(said, set(), wanted))


def _salient(said: Sequence[str], subject: set[str], wanted: set[str]) -> tuple[str, ...]:
    """The best sentences, in the order of the text, each once."""
    said = list(dict.fromkeys(cut(one, SENTENCE_CHARACTERS) for one in said))

    def salience(number: int) -> float:
        held, one = set(terms(said[number])), said[number]
        is_whole = one.rstrip("\"')]").endswith((".", "!", "?"))
        fits = 1.5 * len(held & subject) + len(held & wanted) + 2.0 * bool(DEFINITION.match(one))
        return fits - number / len(said) - 2.0 * (not is_whole)

    best = sorted(range(len(said)), key=lambda number: -salience(number))[:MAX_NEW_SENTENCES]
    return tuple(said[number] for number in sorted(best))
