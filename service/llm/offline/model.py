"""The offline model: deterministic, extractive, no network.

It is no language model and says so by its name. It takes the same asks as any model
and replies in the same form: it picks salient sentences, headings, names and
definitions by ordinary text statistics, fills whatever schema it is given, and answers
with the sentences of the memory that fit the question best, word for word. The schemas
that it makes itself are in `schema`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.domain.answers.browse.contents import (
    CloseContent,
    CondenseContent,
    GuessContent,
    PieceContent,
    UnderstandContent,
)
from service.domain.answers.shaping import ShapeContent
from service.domain.answers.whole import WholeContent
from service.domain.prism.amending import value_at
from service.domain.prism.asking import AnswerContent, ConsolidateContent, ReviseContent
from service.domain.prism.schemas.generation import SchemaContent
from service.domain.prism.schemas.tree import (
    PLACEHOLDER,
    DictType,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    OptionalType,
    RecordType,
    StrType,
    TupleType,
    Type,
)
from service.domain.search.reranking import RerankContent
from service.domain.state.asking import ContextAnswerContent
from service.domain.state.contents import CompressStepsContent, CompressVectorsContent
from service.domain.tree.contents import (
    ChooseContent,
    CompressContent,
    LeafContent,
    MergeContent,
    RememberContent,
    SummarizeContent,
    TriageContent,
)
from service.domain.values.json_values import Json, canonical
from service.domain.values.paths import Path
from service.llm.offline import (
    answers,
    browse,
    navigation,
    plain_text,
    reranking,
    schema,
    shaping,
    states,
    summaries,
)
from service.llm.offline.answers import DEFINITION
from service.llm.offline.consolidation import tidied
from service.llm.offline.plain_text import CarryContent, ReadContent
from service.llm.offline.replies import ReplyPath, behind, changes
from service.llm.offline.texts import Section, cut, name_words, sections, stem, terms

#: Topics that one chunk may add to or begin.
MAX_TOPICS = 3
#: Sentences that one chunk adds to a topic.
MAX_NEW_SENTENCES = 3
#: Sentences that a topic keeps.
MAX_SENTENCES = 12
#: Entries that a list keeps.
MAX_ENTRIES = 200
SENTENCE_CHARACTERS = 300
KEY_CHARACTERS = 80

_QUOTED = re.compile(r"[\"'`]{1,2}([A-Za-z_][\w.]{1,40})[\"'`]{1,2}")
_NAME = re.compile(r"(?<![.!?\"'] )(?<!^)\b[A-Z][a-z]+(?:\s+[A-Z][a-z]+){0,3}\b")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NAMING_FIELDS = {"name", "title", "term", "topic", "key", "person", "entity", "subject", "word"}


def complete(content: object) -> str:
    """The reply to an ask's content. Raises TypeError for content it does not know."""
    match content:
        case ReviseContent():
            return _revise(content)
        case ConsolidateContent():
            return _consolidate(content)
        case AnswerContent() | ContextAnswerContent() | WholeContent():
            return answers.complete(content)
        case SchemaContent():
            return schema.complete(content)
        case ReadContent() | CarryContent():
            return plain_text.complete(content)
        case ShapeContent():
            return shaping.complete(content)
        case SummarizeContent() | CompressContent():
            return summaries.complete(content)
        case CompressStepsContent() | CompressVectorsContent():
            return states.complete(content)
        case TriageContent() | LeafContent() | RememberContent() | MergeContent() | ChooseContent():
            return navigation.complete(content)
        case (
            UnderstandContent()
            | PieceContent()
            | CloseContent()
            | CondenseContent()
            | GuessContent()
        ):
            return browse.complete(content)
        case RerankContent():
            return reranking.complete(content)
    raise TypeError(f"the offline model does not know {type(content).__name__}")


@dataclass(frozen=True, slots=True)
class _Topic:
    """What a chunk says about one thing, the most salient first."""

    name: str
    sentences: tuple[str, ...]


def _revise(content: ReviseContent) -> str:
    # A NUL can be in a text and not in a memory.
    text = "\n\n".join(text for _, text in content.chunks).replace("\0", " ")
    topics = _topics(text, f"{content.task} {content.question}")
    updates: list[tuple[ReplyPath, Json]] = []
    additions: list[tuple[ReplyPath, Json]] = []
    for path, value, exists in _fill_record(content.schema.root, content.value, topics, ()):
        if exists and content.add_only:
            additions += behind(path, value_at(content.value, Path(path)), value)
        else:
            (updates if exists else additions).append((path, value))
    return changes(updates=updates, additions=additions)


def _consolidate(content: ConsolidateContent) -> str:
    updates, removals = tidied(content.schema.root, content.value)
    return changes(updates=updates, removals=removals)


# What a chunk is about


def _topics(text: str, guidance: str) -> list[_Topic]:
    wanted = set(terms(guidance))
    found: list[_Topic] = []
    parts = sections(text)
    for part in parts:
        if part.heading:
            best = _salient(part.sentences, set(terms(part.heading)), wanted)
            if best:
                found.append(_Topic(_key(part.heading), tuple(best)))
    loose = tuple(one for part in parts if not part.heading for one in part.sentences)
    if loose:
        found += _loose_topics(Section(heading="", sentences=loose), wanted)
    return found[:MAX_TOPICS]


def _key(heading: str) -> str:
    """A heading as a key: without articles, quotes and numbering."""
    key = re.sub(r"^[\d.\s]+", "", heading)
    key = re.sub(r"[\"'`*_]{1,2}(\S+?)[\"'`*]{1,2}", r"\1", key)
    key = re.sub(r"^(?:The|An?)\s+", "", key.strip())
    return cut(key or heading, KEY_CHARACTERS)


def _loose_topics(part: Section, wanted: set[str]) -> list[_Topic]:
    """Topics of text without headings: the terms that most sentences share."""
    holders: Counter[str] = Counter()
    shown: dict[str, str] = {}
    plain: dict[str, str] = {}
    for sentence in part.sentences:
        named = [*_QUOTED.findall(sentence), *_NAME.findall(sentence)]
        for name in dict.fromkeys(one for one in named if terms(one)):
            holders[stem(name)] += 2
            shown.setdefault(stem(name), name)
        for word in sentence.split():
            for term in terms(word)[:1]:
                holders[term] += 1
                plain.setdefault(term, word.strip(".,;:!?\"'()[]*_`"))
    names = [(count, term) for term, count in holders.items() if term in shown and count >= 4]
    names.sort(key=lambda pair: (-pair[0], pair[1]))
    found: list[_Topic] = []
    used: set[str] = set()
    for _, term in names[: MAX_TOPICS - 1]:
        about = [
            s
            for s in part.sentences
            if shown[term] in s and cut(s, SENTENCE_CHARACTERS) not in used
        ]
        best = _salient(about, {term}, wanted)
        used.update(best)
        if best:
            found.append(_Topic(cut(shown[term], KEY_CHARACTERS), tuple(best)))
    if not found:
        best = _salient(part.sentences, set(), wanted)
        common = [plain[term] for term, _ in holders.most_common(2) if term in plain]
        if best and common:
            found.append(_Topic(cut(" ".join(common), KEY_CHARACTERS), tuple(best)))
    return found


def _salient(sentences: Sequence[str], subject: set[str], wanted: set[str]) -> list[str]:
    """The best sentences, in the order of the text, each once."""
    sentences = list(dict.fromkeys(cut(one, SENTENCE_CHARACTERS) for one in sentences))
    scored = [
        (_salience(sentence, number, len(sentences), subject, wanted), number)
        for number, sentence in enumerate(sentences)
    ]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:MAX_NEW_SENTENCES]
    return [sentences[number] for _, number in sorted(best, key=_second)]


def _second(pair: tuple[float, int]) -> int:
    return pair[1]


def _salience(sentence: str, number: int, count: int, subject: set[str], wanted: set[str]) -> float:
    held = set(terms(sentence))
    return (
        2.0 * bool(DEFINITION.match(sentence))
        + 1.5 * len(held & subject)
        + 1.0 * len(held & wanted)
        + 1.0 * (1 - number / count)
        - 2.0 * (not sentence.rstrip("\"')]").endswith((".", "!", "?")))
    )


# Filling a schema

_Change = tuple[ReplyPath, Json, bool]


def _fill_record(
    record: RecordType, value: Json, topics: Sequence[_Topic], at: ReplyPath
) -> Iterator[_Change]:
    held = value if isinstance(value, dict) else {}
    for field in record.fields:
        yield from _fill(field.type, field.name, held.get(field.name), topics, (*at, field.name))


def _fill(
    of: Type, name: str, held: Json, topics: Sequence[_Topic], at: ReplyPath
) -> Iterator[_Change]:
    known = held not in (None, PLACEHOLDER)
    match of:
        case OptionalType():
            yield from _fill(of.inner, name, held, topics, at)
        case DictType():
            yield from _fill_dict(of, held if isinstance(held, dict) else {}, topics, at)
        case ListType():
            yield from _fill_list(of, held if isinstance(held, list) else [], topics, at)
        case RecordType():
            yield from _fill_record(of, held, topics, at)
        case _ if not known and topics:
            value = _value(of, name, topics[0])
            if value != PLACEHOLDER:
                yield at, value, held is not None


def _fill_dict(
    of: DictType, held: dict[str, Json], topics: Sequence[_Topic], at: ReplyPath
) -> Iterator[_Change]:
    names = {_normal(key): key for key in held}
    for topic in topics:
        key = names.get(_normal(topic.name))
        if key is None:
            yield (*at, topic.name), _value(of.value, "", topic), False
            continue
        merged = _merge(of.value, held[key], topic)
        if merged is not None and merged != held[key]:
            yield (*at, key), merged, True


def _fill_list(
    of: ListType, held: list[Json], topics: Sequence[_Topic], at: ReplyPath
) -> Iterator[_Change]:
    known = {canonical(item) for item in held}
    end = len(held)
    for topic in topics:
        if isinstance(of.item, StrType):
            new: list[Json] = list(topic.sentences)
        else:
            new = [_value(of.item, "", topic)]
        for item in new:
            if canonical(item) not in known and item != PLACEHOLDER and end < MAX_ENTRIES:
                known.add(canonical(item))
                yield (*at, end), item, False
                end += 1


def _normal(key: str) -> str:
    return name_words(key) or key.casefold()


def _merge(of: Type, held: Json, topic: _Topic) -> Json:
    """What is known with what is new; None when the type does not grow."""
    match of:
        case ListType(item=StrType()):
            old = held if isinstance(held, list) else []
            new = [s for s in topic.sentences if s not in old]
            return [*old, *new][:MAX_SENTENCES]
        case RecordType() if isinstance(held, dict):
            filled = _value(of, "", topic)
            assert isinstance(filled, dict), "a record's value is a dict"
            merged = {
                key: filled.get(key, value) if value in (None, PLACEHOLDER) else value
                for key, value in held.items()
            }
            for field in of.fields:
                if isinstance(field.type, ListType) and isinstance(field.type.item, StrType):
                    merged[field.name] = _merge(field.type, held.get(field.name), topic)
            return merged
        case StrType() if held in (None, PLACEHOLDER):
            return _value(of, "", topic)
    return None


def _value(of: Type, name: str, topic: _Topic) -> Json:
    """A value for a field `name` from what is said about a topic."""
    match of:
        case OptionalType():
            return _value(of.inner, name, topic)
        case StrType():
            return topic.name if name.casefold() in _NAMING_FIELDS else _fitting(name, topic)
        case ListType(item=StrType()):
            return list(topic.sentences)
        case RecordType():
            return {field.name: _value(field.type, field.name, topic) for field in of.fields}
        case TupleType():
            return [_value(item, name, topic) for item in of.items]
        case IntType() | FloatType():
            return _number(of, name, topic)
        case LiteralType():
            said = " ".join(topic.sentences).casefold()
            named = (v for v in of.values if isinstance(v, str) and v.casefold() in said)
            return next(named, PLACEHOLDER)
        case DictType():
            return {topic.name: _value(of.value, "", topic)}
        case ListType():
            return [_value(of.item, "", topic)]
    # A bool cannot be picked out of a text.
    return PLACEHOLDER


def _fitting(name: str, topic: _Topic) -> str:
    """The sentence that says most about a field, else the first."""
    wanted = {stem(part) for part in re.split(r"[_\W]+", name) if part}
    return max(topic.sentences, key=lambda sentence: len(wanted & set(terms(sentence))))


def _number(of: Type, name: str, topic: _Topic) -> Json:
    wanted = {stem(part) for part in re.split(r"[_\W]+", name) if part}
    for sentence in topic.sentences:
        number = _NUMBER.search(sentence)
        if number and wanted & set(terms(sentence)):
            if isinstance(of, FloatType):
                return float(number[0])
            if "." not in number[0] and len(number[0]) <= 18:
                return int(number[0])
    return PLACEHOLDER
