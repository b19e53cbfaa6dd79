"""The offline model as a navigator: it goes where the question's rarest words are.

It is no language model and understands neither summaries nor texts. At a node it counts
which summary has most of the question's words, rare ones before others; at a leaf it takes
the sentence, or the option, that fits best, when the text has enough of the words, and goes
back up when it has not. Its reasoning says what was counted.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from service.domain.answers.options import letter_of, likeliest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.contents import (
    ChooseContent,
    LeafContent,
    MergeContent,
    RememberContent,
    TriageContent,
)
from service.llm.offline import plain_text
from service.llm.offline.plain_text import NO_ANSWER, ReadContent
from service.llm.offline.texts import stem, terms

#: A leaf is read for its answer when it has so much of the question's words.
ENOUGH = 0.4
#: A number that texts do not write as a word.
_NUMBER = re.compile(r"\d{2}")
#: Sentences in a row that count as close together.
NEAR_SENTENCES = 3
#: A further child is named when its score is this share of the best.
NEARLY_AS_GOOD = 0.8
#: Words that the reasoning names at most.
NAMED_WORDS = 8

Content = TriageContent | LeafContent | RememberContent | MergeContent | ChooseContent


def complete(content: Content) -> str:
    """The reply to an ask of a navigation."""
    match content:
        case TriageContent():
            return _triage(content)
        case LeafContent():
            return _leaf(content)
        case MergeContent():
            return _merge(content)
        case RememberContent():
            return _remember(content)
        case ChooseContent():
            chosen = likeliest(content.options, content.notes)
            why = "Its words are those that the notes have most of."
            return _reply(content.reasoning, why, answer=_written(chosen, content.options))


def _triage(content: TriageContent) -> str:
    wanted = _wanted(content.query)
    held = [set(terms(summary)) & wanted for summary in content.summaries]
    rarity = _rarity(held)
    scores = [sum(rarity[word] for word in sorted(words)) for words in held]
    best = sorted(content.open, key=lambda number: (-scores[number], number))
    first = best[0]
    # A summary leaves much out: while few of its parts were read, one may still have it.
    is_hopeless = not scores[first] and 2 * len(best) < len(held)
    if content.may_revert and is_hopeless:
        return _reply(content.reasoning, "No summary that is left has a word of it.", action="-1")
    chosen = [n for n in best if n == first or scores[n] > NEARLY_AS_GOOD * scores[first]]
    why = f"Summary {first} has {_listed(held[first])}."
    moves = ", ".join(map(str, chosen[: content.beam]))
    return _reply(content.reasoning, why, action=moves)


def _leaf(content: LeafContent) -> str:
    wanted = _wanted(content.query)
    held = _close(wanted, content.text)
    why = f"Close together, the text has {len(held)} of {len(wanted)} words: {_listed(held)}."
    answer = plain_text.complete(
        ReadContent(query=content.query, options=content.options, texts=(content.text,))
    )
    # What is asked of number 1203 no other number answers. Digits alone may be words there.
    numbers = set() if content.options else {word for word in wanted if _NUMBER.search(word)}
    if answer == NO_ANSWER or len(held) < ENOUGH * len(wanted) or not numbers <= held:
        return _reply(content.reasoning, why, action="-1")
    return _reply(content.reasoning, why, action="-2", answer=_written(answer, content.options))


def _close(wanted: set[str], text: str) -> set[str]:
    """The question's words that stand close together in a text, where most of them do."""
    said = [set(terms(one)) & wanted for one in plain_text.sentences(text)]
    rarity = _rarity(said)
    near = (set().union(*said[at : at + NEAR_SENTENCES]) for at in range(max(len(said), 1)))
    return max(near, key=lambda held: (sum(rarity[word] for word in sorted(held)), len(held)))


def _merge(content: MergeContent) -> str:
    """The answer that most leaves gave, else the one with most words of the question."""
    wanted = _wanted(content.query)
    given = Counter(content.answers)
    best = max(
        range(len(content.answers)),
        key=lambda n: (given[content.answers[n]], len(wanted & set(terms(content.answers[n]))), -n),
    )
    answer = content.answers[best]
    sources = [str(n) for n, one in enumerate(content.answers) if one == answer]
    why = f"Answer {best} was given by {len(sources)} and has most words of the question."
    return _reply(
        content.reasoning, why, answer=_written(answer, content.options), sources=", ".join(sources)
    )


def _remember(content: RememberContent) -> str:
    """The lines with most of the question's words, the nearest first, in their order."""
    wanted = _wanted(content.query)
    lines = [line for note in content.notes for line in note.splitlines() if line.strip()]
    order = sorted(range(len(lines)), key=lambda n: (-len(wanted & set(terms(lines[n]))), -n))
    left = content.max_tokens
    kept: list[int] = []
    for number in order:
        size = estimate_tokens(lines[number] + "\n")
        if size <= left:
            kept.append(number)
            left -= size
    return "\n".join(lines[number] for number in sorted(kept))


def _wanted(query: str) -> set[str]:
    """The words that a question is about; all of them where they all say little."""
    return set(terms(query)) or {stem(word) for word in query.split()}


def _rarity(held: Sequence[set[str]]) -> dict[str, float]:
    holders = Counter(word for words in held for word in words)
    return {word: math.log(1 + len(held) / count) for word, count in holders.items()}


def _written(answer: str, options: Sequence[str]) -> str:
    """An answer as it is asked for: an option with its letter."""
    if answer not in options:
        return answer
    return f"({letter_of(options.index(answer))}) {answer}"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)[:NAMED_WORDS]) or "no word of the question"


def _reply(reasoning: bool, why: str, **parts: str) -> str:
    lines = [f"Reasoning: {why}"] if reasoning else []
    return "\n".join([*lines, *(f"{name.capitalize()}: {part}" for name, part in parts.items())])
