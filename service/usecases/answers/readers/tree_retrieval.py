"""Retrieval in trees: the leaves and pieces of the tail whose words fit a question best."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.search.ranking import Ranking, promising
from storage.engine.database import Transaction
from storage.tree import word_counts
from storage.tree.word_counts import Holder, Totals

#: Words of a question that are looked for: of more, the longest, which are the rarest as a
#: rule.
MAX_WORDS = word_counts.MAX_WORDS
#: Leaves whose words are counted. There are more to count only where a question has no
#: words but such as nearly all leaves have.
MAX_COUNTED = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeText:
    """What has text: a node, or a piece of the tail."""

    node_id: str
    text: str
    tokens: int


async def best_leaves(
    tx: Transaction,
    key: tuple[UUID, UUID],
    *,
    revision: int,
    tail: Sequence[NodeText],
    query: str,
    count: int,
) -> Sequence[str]:
    """Returns the ids of the `count` leaves, and pieces of the tail, that fit best, best first.

    Of the tree `key` (session_key, memory_id) as of a revision. What has none of the
    query's words is left out; the earlier wins a tie.
    """
    words = await wanted_words(tx, query)
    totals = await word_counts.read_totals(tx, key, revision)
    holders = await word_counts.read_holders(tx, key, revision, words)
    in_tail = await word_counts.count_in_texts(tx, [piece.text for piece in tail], words)
    ranking = _ranking(words, totals, holders, tail, in_tail)
    chosen = _chosen(ranking, words, holders, count)
    numbers = [leaf.number for leaf in chosen]
    in_leaves = await word_counts.count_in_leaves(tx, key, numbers, words) if numbers else {}
    found = [
        (ranking.score(in_leaves[leaf.number], leaf.text_tokens), f"0.{leaf.number}")
        for leaf in chosen
    ]
    return best([*found, *scored(ranking, tail, in_tail)], count)


def scored(
    ranking: Ranking, texts: Sequence[NodeText], occurrences: Sequence[Mapping[str, int]]
) -> list[tuple[float, str]]:
    """Returns the scores and ids of the texts that have words of a question."""
    return [
        (ranking.score(found, text.tokens), text.node_id)
        for text, found in zip(texts, occurrences, strict=True)
        if found
    ]


def best(found: Sequence[tuple[float, str]], count: int) -> Sequence[str]:
    """Returns the `count` ids with the highest scores; the earlier wins a tie."""
    return [node_id for _, node_id in sorted(found, key=lambda one: -one[0])[:count]]


async def wanted_words(tx: Transaction, query: str) -> Sequence[str]:
    """Returns the words of a question that are looked for; of many, the rarest as a rule."""
    words = await word_counts.words_of(tx, query)
    return sorted(words, key=lambda word: (-len(word), word))[:MAX_WORDS]


def _ranking(
    words: Sequence[str],
    totals: Totals,
    holders: Sequence[Holder],
    tail: Sequence[NodeText],
    in_tail: Sequence[Mapping[str, int]],
) -> Ranking:
    counts = Counter(words[at] for leaf in holders for at in leaf.words)
    counts.update(word for occurrences in in_tail for word in occurrences)
    return Ranking(
        texts=totals.leaves + len(tail),
        tokens=totals.text_tokens + sum(piece.tokens for piece in tail),
        holders=counts,
    )


def _chosen(
    ranking: Ranking, words: Sequence[str], holders: Sequence[Holder], count: int
) -> Sequence[Holder]:
    """Returns the leaves that can be among the best, whose words are worth counting."""
    bounds = [
        ranking.bounds((words[at] for at in leaf.words), leaf.text_tokens) for leaf in holders
    ]
    return [holders[index] for index in sorted(promising(bounds, count, MAX_COUNTED))]
