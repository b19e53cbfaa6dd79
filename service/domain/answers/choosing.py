"""Chooses the reader of a question and the memory that it reads, and says why.

A table has tiers of ways for each subject that task understanding names. The first tier with a
possible way counts, and in it the way with the lowest price, estimated from sizes alone. A fact is
looked up by a search, and in a memory only where that has no answer.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from service.domain.answers.browse.prompts import LEAST_RANKED_TOKENS
from service.domain.answers.browse.spec import (
    BrowseOption,
    BrowseRequest,
    QuerySubject,
    ReadingOrder,
    Understanding,
)
from service.domain.answers.browse.understanding import CHOSEN, choosable
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.spend.prices import ModelPrices
from service.domain.values.memory_specs import MemorySpec, ReaderName, Way

#: A memory is near the head when it is no more chunks behind than this, or than this share
#: of the log, whichever is more.
NEAR_CHUNKS = 8
NEAR_SHARE = 0.05
#: What a prompt has besides what it reads, and a reply; in tokens.
PROMPT_TOKENS = 600
REPLY_TOKENS = 300
#: Leaves that a navigation is expected to read.
EXPECTED_LEAVES = 2
#: The share of the log that a scan is expected to read before it finds the answer.
EXPECTED_SCAN = 0.5
#: The share of the window that is left for text in a prompt of browsing.
PIECE_SHARE = 0.6
#: Leaves that retrieval names where a fact is looked for in a tree.
HYBRID_LEAVES = 4


#: Which ways serve what a question is about, the better tiers first.
RULES: Mapping[QuerySubject, tuple[tuple[Way, ...], ...]] = {
    QuerySubject.STATE: ((Way.CONTEXT, Way.PRISM), (Way.RANK, Way.SCAN, Way.TREE)),
    # What stands in few places is looked up: a way down a tree reads more, and is lost where no
    # single leaf answers. A tree is read where the search has no answer.
    QuerySubject.FACT: ((Way.RANK, Way.PRISM), (Way.TREE, Way.LEVELS)),
    QuerySubject.OVERVIEW: ((Way.TREE, Way.PRISM, Way.ALL), (Way.CONTEXT,)),
    QuerySubject.CODE: ((Way.RANK, Way.SCAN), (Way.CONTEXT,)),
}
#: The same while a search would leave chunks out.
RULES_WITHOUT_INDEX = {
    **RULES,
    QuerySubject.FACT: ((Way.TREE, Way.PRISM), (Way.RANK, Way.LEVELS)),
    QuerySubject.CODE: ((Way.SCAN,), (Way.CONTEXT,)),
}
#: Where a search has no answer to a fact, one of these may.
AFTER_SEARCH = (Way.PRISM, Way.TREE)
_ABOUT = {
    QuerySubject.STATE: "how things are now",
    QuerySubject.FACT: "a fact",
    QuerySubject.OVERVIEW: "the whole",
    QuerySubject.CODE: "code that goes on",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFacts:
    """A memory, as far as a choice needs to know it."""

    memory_id: UUID
    name: str
    spec: type[MemorySpec]
    #: The last position that it has read, and where a question reads it.
    applied_position: int
    revision: int
    #: Why it does not go on ("is stalled at position 7"); empty when it does.
    stopped: str = ""
    sealed: bool = False
    #: Tokens of what one prompt over it shows: a PRISM memory's value, a working context;
    #: of a tree those of a node's children.
    shown_tokens: int = 0
    #: Tokens of a leaf, and levels of nodes above the leaves; of trees and levels.
    leaf_tokens: int = 0
    levels: int = 0
    #: The window of the model that reads it, in tokens.
    window_tokens: int
    prices: ModelPrices | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionFacts:
    """A session, as far as a choice needs to know it."""

    #: The last position that counts: the head when the question came.
    head: int
    #: Tokens of the log, estimated.
    log_tokens: int
    #: Tokens of prompt and reply when it is read whole; None: that does not fit.
    whole_tokens: int | None
    memories: Sequence[MemoryFacts] = ()
    #: The memory that the question names; empty: none.
    named: str = ""
    #: What a chosen memory must have applied; 0: it need not.
    wanted_position: int = 0
    #: What the question says of navigating and browsing; None: nothing.
    navigation: NavigationRequest | None = None
    browsing: BrowseRequest | None = None
    #: Whether the log can be browsed.
    browses: bool = True
    #: Chunks that no search reads yet: they are not indexed, and too many to be read without.
    unsearched: int = 0
    #: Prices of the model that browses.
    prices: ModelPrices | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The reader that was chosen, and its memory."""

    reader: ReaderName
    #: None: the log itself is read.
    memory: MemoryFacts | None = None
    navigation: NavigationRequest | None = None
    browsing: BrowseRequest | None = None
    #: One sentence.
    reason: str
    #: Tokens of prompts and replies.
    expected_tokens: int
    #: What is read where this has no answer; None: for a memory the log, for the log nothing.
    otherwise: "Choice | None" = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderCandidate:
    """A way that could be taken."""

    way: Way
    memory: MemoryFacts | None
    input_tokens: int
    output_tokens: int
    #: US dollars; None when the price is not known.
    usd: float | None

    @property
    def tokens(self) -> int:
        """Tokens of prompts and replies."""
        return self.input_tokens + self.output_tokens


def obvious(facts: SessionFacts) -> Choice | None:
    """Returns the choice if the question's subject does not matter, else None.

    A named memory is read by the one reader of its kind, and a log that fits is read whole.
    """
    named = _of_memories(facts) if facts.named else []
    if len(named) == 1:
        reason = f"The question names memory {facts.named!r}."
        return _chosen(named[0], facts, None, reason)
    if named:
        return None
    if facts.whole_tokens is not None:
        fits = f"All of the log fits into one prompt of {facts.whole_tokens:,} tokens"
        reason = "; ".join([fits, *_problems(facts)]) if facts.named else fits
        return Choice(
            reader=ReaderName.WHOLE, reason=f"{reason}.", expected_tokens=facts.whole_tokens
        )
    return None


def choose(facts: SessionFacts, understanding: Understanding) -> Choice:
    """Returns the choice for a question that has been understood."""
    candidates = _of_memories(facts)
    if facts.navigation is not None:
        # A question that says how to navigate is navigated, if any memory can be.
        navigable = [one for one in candidates if one.way in (Way.TREE, Way.LEVELS)]
        candidates = navigable or candidates
    else:
        # Otherwise a state memory's levels are read only if the question names it.
        candidates = [one for one in candidates if one.way is not Way.LEVELS or facts.named]
    narrowed = bool(candidates) and (bool(facts.named) or facts.navigation is not None)
    if not narrowed and facts.browses:
        candidates += _of_log(facts, understanding)
    if not candidates:
        reason = "; ".join(["There is nothing but the log", *_problems(facts)])
        return Choice(
            reader=ReaderName.WHOLE, reason=f"{reason}.", expected_tokens=facts.log_tokens
        )
    best, others = _best(candidates, facts, understanding.subject)
    reason = _reason(best, others, facts, understanding)
    choice = _chosen(best, facts, understanding, reason)
    if best.way is Way.RANK and understanding.subject is QuerySubject.FACT:
        return replace(choice, otherwise=_after_search(candidates, facts, understanding))
    return choice


def _after_search(
    candidates: Sequence[ReaderCandidate], facts: SessionFacts, understanding: Understanding
) -> Choice | None:
    """Returns the memory that is read where the search has no answer; None: there is none."""
    able = [one for one in candidates if one.way in AFTER_SEARCH]
    if not able:
        return None
    best, _ = _cheapest(able)
    return _chosen(
        best, facts, understanding, f"The search has no answer; so {_name(best)} is read."
    )


def fallback(facts: SessionFacts, why: str) -> Choice:
    """Returns browsing after the first choice found nothing; `why` has no full stop.

    It reads what retrieval names if the question allows that: the cheapest way.
    """
    allowed = choosable(facts.browsing or BrowseRequest())
    option = next(one for one in CHOSEN if one in allowed or not allowed.intersection(CHOSEN))
    understanding = Understanding(
        subject=QuerySubject.FACT, option=option, order=ReadingOrder.FORWARD, query=""
    )
    best = _of_log(facts, understanding)[0]
    return _chosen(best, facts, understanding, f"{why}; so the log itself is browsed.")


def _best(
    candidates: Sequence[ReaderCandidate], facts: SessionFacts, subject: QuerySubject
) -> tuple[ReaderCandidate, list[ReaderCandidate]]:
    """Returns the best way, and those that it was compared with."""
    rules = RULES_WITHOUT_INDEX if facts.unsearched else RULES
    for tier in rules[subject]:
        able = [one for way in tier for one in candidates if one.way is way]
        if able:
            return _cheapest(able)
    # The others serve less well, and are all there is.
    return _cheapest(candidates)


def _cheapest(able: Sequence[ReaderCandidate]) -> tuple[ReaderCandidate, list[ReaderCandidate]]:
    priced = all(one.usd is not None for one in able) and any(one.usd for one in able)
    best = min(able, key=lambda one: (one.usd if priced else one.tokens) or 0)
    return best, [one for one in able if one is not best]


# What could be taken


def problem_of(memory: MemoryFacts, facts: SessionFacts) -> str:
    """Returns why a memory cannot be chosen; empty when it can."""
    if memory.stopped:
        return memory.stopped
    lag = max(facts.head - memory.applied_position, 0)
    if memory.spec.has_whole_log:
        return ""
    if memory.applied_position < facts.wanted_position:
        return "is not as far as was asked for"
    if lag > max(NEAR_CHUNKS, int(NEAR_SHARE * facts.head)):
        return f"is {lag:,} chunks behind"
    return ""


def _of_memories(facts: SessionFacts) -> list[ReaderCandidate]:
    return [
        _of_memory(way, memory, facts)
        for memory in facts.memories
        if (not facts.named or memory.name == facts.named) and not problem_of(memory, facts)
        for way in memory.spec.ways
        if way is not Way.CONTEXT or _fits(memory)
    ]


def _fits(memory: MemoryFacts) -> bool:
    return memory.shown_tokens + PROMPT_TOKENS + 2 * REPLY_TOKENS <= 0.8 * memory.window_tokens


def _of_memory(way: Way, memory: MemoryFacts, facts: SessionFacts) -> ReaderCandidate:
    calls, read = 1, memory.shown_tokens
    if way in (Way.TREE, Way.LEVELS):
        calls = memory.levels + EXPECTED_LEAVES
        read = memory.levels * memory.shown_tokens + EXPECTED_LEAVES * memory.leaf_tokens
    return _candidate(way, memory, read, calls, memory.prices)


def _of_log(facts: SessionFacts, understanding: Understanding) -> list[ReaderCandidate]:
    """Returns the ways of browsing that the question allows."""
    request = facts.browsing or BrowseRequest()
    allowed = choosable(request)
    ways = [way for way in (Way.RANK, Way.ALL, Way.SCAN) if _option(way, understanding) in allowed]
    if not ways:
        ways = [_way(understanding.option)]
    room = PIECE_SHARE * request.window_tokens
    pieces = max(math.ceil(facts.log_tokens / room), 1)
    found = []
    for way in ways:
        if way is Way.RANK:
            calls, tokens = _ranked(request, room)
        else:
            read = pieces if way is Way.ALL else math.ceil(EXPECTED_SCAN * pieces)
            calls, tokens = read + 1, int(read * room)
        found.append(_candidate(way, None, min(tokens, facts.log_tokens), calls, facts.prices))
    return found


def _ranked(request: BrowseRequest, room: float) -> tuple[int, int]:
    """Returns the calls and the tokens of text that reading what retrieval names takes.

    The pieces are so small that they have room in one prompt, if that is possible.
    """
    least = request.pieces * LEAST_RANKED_TOKENS
    return (1, int(room)) if least <= room else (request.pieces + 1, least)


def _candidate(
    way: Way, memory: MemoryFacts | None, read: int, calls: int, prices: ModelPrices | None
) -> ReaderCandidate:
    input_tokens, output_tokens = read + calls * PROMPT_TOKENS, calls * REPLY_TOKENS
    usd = None
    if prices is not None and prices.input_usd is not None:
        usd = prices.input_usd * (input_tokens + prices.output * output_tokens)
    return ReaderCandidate(
        way=way, memory=memory, input_tokens=input_tokens, output_tokens=output_tokens, usd=usd
    )


def _option(way: Way, understanding: Understanding) -> BrowseOption:
    match way:
        case Way.RANK:
            return BrowseOption.RANK
        case Way.SCAN:
            return BrowseOption.SCAN
    carries = understanding.option is BrowseOption.CARRY
    return BrowseOption.CARRY if carries else BrowseOption.INDEPENDENT


def _way(option: BrowseOption) -> Way:
    return {BrowseOption.RANK: Way.RANK, BrowseOption.SCAN: Way.SCAN}.get(option, Way.ALL)


# What is chosen


def _chosen(
    best: ReaderCandidate, facts: SessionFacts, understanding: Understanding | None, reason: str
) -> Choice:
    if best.memory is None:
        assert understanding is not None, "only a named memory is chosen without"
        return Choice(
            reader=ReaderName.DCISO,
            browsing=_browsing(best.way, facts, understanding),
            reason=reason,
            expected_tokens=best.tokens,
        )
    navigation = None
    if best.way in (Way.TREE, Way.LEVELS):
        is_fact = understanding is not None and understanding.subject is QuerySubject.FACT
        usual = NavigationRequest(hybrid_leaves=HYBRID_LEAVES if is_fact else 0)
        navigation = facts.navigation or usual
    return Choice(
        reader=best.memory.spec.ways[best.way],
        memory=best.memory,
        navigation=navigation,
        reason=reason,
        expected_tokens=best.tokens,
    )


def _browsing(way: Way, facts: SessionFacts, understanding: Understanding) -> BrowseRequest:
    """Returns the request of the question, with what was understood where it leaves that open."""
    request = facts.browsing or BrowseRequest()
    allowed = choosable(request)
    option = _option(way, understanding)
    option = option if option in allowed else understanding.option
    order = understanding.order
    if way is Way.SCAN and understanding.subject in (QuerySubject.STATE, QuerySubject.CODE):
        # What holds now was said last.
        order = ReadingOrder.BACKWARD
    return replace(
        request,
        option=option if request.option is BrowseOption.AUTO else request.option,
        order=order if request.order is ReadingOrder.AUTO else request.order,
        rewritten_query=understanding.query,
    )


def _reason(
    best: ReaderCandidate,
    others: Sequence[ReaderCandidate],
    facts: SessionFacts,
    understanding: Understanding,
) -> str:
    parts = [f"The question is about {_ABOUT[understanding.subject]}"]
    costs = f"about {best.tokens:,} tokens"
    if others:
        costs += " against " + ", ".join(f"{one.tokens:,} for {_name(one)}" for one in others)
    parts.append(f"{_name(best)} is read, {costs}")
    if facts.unsearched:
        parts.append(f"no search reads {facts.unsearched:,} of its chunks yet")
    return "; ".join([*parts, *_problems(facts)]) + "."


def _problems(facts: SessionFacts) -> Iterator[str]:
    """Yields why memories that the question could mean are not read."""
    for memory in facts.memories:
        if facts.named and memory.name != facts.named:
            continue
        if problem := problem_of(memory, facts):
            yield f"memory {memory.name!r} {problem}"
        elif Way.CONTEXT in memory.spec.ways and not _fits(memory):
            yield f"the context of memory {memory.name!r} does not fit the window"


def _name(one: ReaderCandidate) -> str:
    if one.memory is not None:
        names = {
            Way.PRISM: "the memory",
            Way.CONTEXT: "the working context of",
            Way.TREE: "the tree",
            Way.LEVELS: "the levels of",
        }
        return f"{names[one.way]} {one.memory.name!r}"
    return {
        Way.RANK: "what retrieval names of the log",
        Way.ALL: "all of the log, piece by piece",
        Way.SCAN: "the log until it answers",
    }[one.way]
