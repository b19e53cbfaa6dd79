"""The offline model as a browser: it takes the sentences that have the query's rarest words.

It is no language model. What a query is about it takes from a few words of it; what a piece
says that helps are its sentences with most of the query's words, word for word; the answer
is the best of those. A piece without enough of the words says nothing: null.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from service.domain.answers.browse.contents import (
    BrowseContent,
    CloseContent,
    CondenseContent,
    GuessContent,
    PieceContent,
    UnderstandContent,
)
from service.domain.answers.browse.spec import BrowseAction, BrowseOption, QuerySubject
from service.domain.answers.browse.wording import SAID, chosen_among
from service.domain.prompting.tokens import estimate_tokens
from service.llm.offline.plain_text import sentences
from service.llm.offline.texts import stem, terms

#: A piece is of use when some of its sentences in a row have so much of the query's words.
ENOUGH = 0.25
#: … is answered from, where reading ends with the first that is.
ENDING = 0.6
#: … and has the answer, as far as words can say that.
PLENTY = 0.7
#: Sentences in a row that count as close together.
NEAR_SENTENCES = 3
#: A further sentence must score this share of the best.
SECOND_BEST = 0.7
#: Sentences of a note, and of a short answer.
NOTE_SENTENCES = 4
ANSWER_SENTENCES = 2
#: Sentences of a long answer.
LONG_SENTENCES = 12

_OVERVIEW = re.compile(
    r"\b(?:how many|how often|list|all|every|each|which ones|summar\w+|overview|compare|comparison"
    r"|difference|differ|total|count|most|least|main (?:points?|topics?))\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"\b(?:how many|how often|list|all|every|each|count|total)\b", re.IGNORECASE)
_STATE = re.compile(
    r"\b(?:now|current|currently|latest|last|newest|present|today|still|so far|most recent)\b",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"[{};]\s*$|^[ \t]*+(?:def|class|import|from|return|public|private|static|void|for|while|if)\b"
    r".*[:({]"
    r"|\b(?:complete|continue|next line of)\b.{0,30}\bcode\b|\b\w++\([^)]{0,200}\)\s*[:{]",
    re.IGNORECASE | re.MULTILINE,
)


def complete(content: BrowseContent) -> str:
    """The reply to an ask of browsing."""
    match content:
        case UnderstandContent():
            return _understand(content)
        case PieceContent():
            return _piece(content)
        case CloseContent():
            return _close(content)
        case CondenseContent():
            return _condense(content)
        case GuessContent():
            return _guess(content)


def _understand(content: UnderstandContent) -> str:
    subject, wishes, order = _wishes(content.query)
    option = next((one for one in wishes if one in content.options), content.options[0])
    chosen = {"option": option.value} if len(content.options) > 1 else {}
    query = " ".join(content.query.split())
    return _object(subject=subject.value, **chosen, order=order, query=query)


def _wishes(query: str) -> tuple[QuerySubject, tuple[BrowseOption, ...], str]:
    """What a query is about, the options that suit it, best first, and the order."""
    if _CODE.search(query):
        return QuerySubject.CODE, (BrowseOption.SCAN, BrowseOption.RANK), "backward"
    if _OVERVIEW.search(query):
        if _COUNTED.search(query):
            return QuerySubject.OVERVIEW, (BrowseOption.INDEPENDENT, BrowseOption.CARRY), "forward"
        return QuerySubject.OVERVIEW, (BrowseOption.CARRY, BrowseOption.INDEPENDENT), "forward"
    if _STATE.search(query):
        return QuerySubject.STATE, (BrowseOption.SCAN, BrowseOption.RANK), "backward"
    return QuerySubject.FACT, (BrowseOption.RANK, BrowseOption.SCAN), "forward"


@dataclass(frozen=True, slots=True)
class _Said:
    """A sentence, and where it is from."""

    #: A chunk's number, or a note's; 0 for what was noted before.
    of: int
    text: str
    #: Stems, each once.
    words: frozenset[str]


def _said(texts: Iterable[tuple[int, str]]) -> list[_Said]:
    return [_Said(of, one, frozenset(terms(one))) for of, text in texts for one in sentences(text)]


def _scores(said: Sequence[_Said], wanted: set[str]) -> list[float]:
    """How much of the query each sentence has: rare words count more."""
    holders = Counter(word for one in said for word in one.words)
    rarity = {word: math.log(1 + len(said) / holders[word]) for word in wanted if holders[word]}
    # In one order: the same sums may differ in their last digit.
    return [sum(rarity[word] for word in sorted(one.words & wanted)) for one in said]


def _best(said: Sequence[_Said], wanted: set[str], most: int) -> list[_Said]:
    """The sentences that fit best, best first; none when none has a word of it."""
    scores = _scores(said, wanted)
    # Of two with the same words the shorter one says it more plainly.
    order = sorted(range(len(said)), key=lambda at: (-scores[at], len(said[at].text), at))
    chosen: dict[str, _Said] = {}
    for at in order:
        if not scores[at] or scores[at] < SECOND_BEST * scores[order[0]] or len(chosen) == most:
            break
        chosen.setdefault(said[at].text, said[at])
    return list(chosen.values())


def _piece(content: PieceContent) -> str:
    wanted = _wanted(content)
    said = _said(content.parts)
    share = _share(said, wanted)
    offers = content.offers

    def does(action: BrowseAction, texts: Sequence[str], quoted: Sequence[_Said]) -> str:
        return _written(SAID[action] if chosen_among(offers) else "", texts, quoted)

    if (
        BrowseAction.RETRIEVE in offers
        and share < PLENTY
        and not content.notes
        and content.parts[0][0] == 1
    ):
        # Once, at the beginning of the log: it does not remember that it has searched.
        return does(BrowseAction.RETRIEVE, [content.look_for or content.query], [])
    found = _best(said, wanted, NOTE_SENTENCES) if share >= _enough(offers) else []
    if not found and BrowseAction.MOVE in offers:
        return does(BrowseAction.MOVE, [], [])
    # Where it may not pass a piece it takes its beginning.
    found = found or said[:1]
    if BrowseAction.ANSWER in offers and (share >= PLENTY or not _extracting(offers)):
        return does(BrowseAction.ANSWER, [one.text for one in found[:ANSWER_SENTENCES]], found)
    if BrowseAction.APPEND in offers:
        return does(BrowseAction.APPEND, _within(found, content.max_tokens), found)
    if BrowseAction.MERGE in offers:
        before = _said((0, note) for note in content.notes)
        merged = _best([*before, *found], wanted, LONG_SENTENCES)
        return does(BrowseAction.MERGE, _within(merged or before, content.max_tokens), found)
    return does(BrowseAction.AGGREGATION, _within(found, content.max_tokens), found)


def _extracting(offers: Sequence[BrowseAction]) -> bool:
    return BrowseAction.APPEND in offers or BrowseAction.MERGE in offers


def _enough(offers: Sequence[BrowseAction]) -> float:
    """What a piece must have of the query: more, where reading ends with it."""
    return ENOUGH if _extracting(offers) else ENDING


def _share(said: Sequence[_Said], wanted: set[str]) -> float:
    """Of the query's words, how many stand close together where most of them do."""
    held = [one.words & wanted for one in said]
    near = (frozenset().union(*held[at : at + NEAR_SENTENCES]) for at in range(len(held)))
    return max((len(words) for words in near), default=0) / max(len(wanted), 1)


def _close(content: CloseContent) -> str:
    wanted = _wanted(content)
    said = _said(enumerate(content.notes, 1) if content.notes else content.parts)
    action = _ending(content)
    most = ANSWER_SENTENCES if action is BrowseAction.ANSWER else LONG_SENTENCES
    found = _best(said, wanted, most) or (said[:most] if content.notes else [])
    if not found:
        return _written("", [], [])
    if action is BrowseAction.AGGREGATION:
        found = sorted(found, key=said.index)
    named = SAID[action] if chosen_among(content.offers) else ""
    texts = list(dict.fromkeys(one.text for one in found))
    if not content.notes:
        return _written(named, texts, found)
    chosen = {"action": named} if named else {}
    sources = sorted({one.of for one in found})
    return _object(**chosen, text=" ".join(texts), sources=sources)


def _ending(content: CloseContent) -> BrowseAction:
    """How the answer is to be: where both are offered, long for what concerns the whole."""
    if len(content.offers) == 1:
        return content.offers[0]
    is_long = _wishes(content.query)[0] is QuerySubject.OVERVIEW
    return BrowseAction.AGGREGATION if is_long else BrowseAction.ANSWER


def _guess(content: GuessContent) -> str:
    """The option with most of the words that are known; without any the first."""
    known = set(terms(" ".join(content.texts)))
    shared = [len(known.intersection(terms(option))) for option in content.options]
    return _object(option=ascii_uppercase[shared.index(max(shared))])


def _condense(content: CondenseContent) -> str:
    said = _said(enumerate(content.notes, 1))
    found = _best(said, _wanted(content), len(said)) or said
    return _object(text=" ".join(_within(found, content.max_tokens)))


def _within(said: Sequence[_Said], tokens: int) -> list[str]:
    """The first of these sentences that have at most so many tokens together; one at least."""
    kept: list[str] = []
    for one in said:
        tokens -= estimate_tokens(one.text + " ")
        if kept and tokens < 0:
            break
        kept.append(one.text)
    return kept


def _written(action: str, texts: Sequence[str], quoted: Sequence[_Said]) -> str:
    chosen = {"action": action} if action else {}
    quotes = [{"chunk": one.of, "words": one.text} for one in quoted if one.of]
    return _object(**chosen, text=" ".join(texts), quotes=quotes)


def _object(**parts: Any) -> str:
    return json.dumps(parts, ensure_ascii=False)


def _wanted(content: PieceContent | CloseContent | CondenseContent) -> set[str]:
    """The words that a query is about; all of them where they all say little."""
    query = f"{content.query} {content.look_for}"
    return set(terms(query)) or {stem(word) for word in query.split()}
