"""Retrieval in state memories: the steps, by the vectors over them, that fit a question best.

State memories keep no index of words: the log of the session is read for each question, once
and inside the database, for whether a word occurs in it anywhere. That shows which vectors
can be among the best; their words are counted as those of a tree's leaves are.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from service.domain.prompting.tokens import TOKEN_BYTES
from service.domain.search.ranking import Ranking, promising
from service.usecases.answers.readers.tree_retrieval import NodeText, best, scored, wanted_words
from storage.engine.database import Transaction
from storage.state import views
from storage.state.views import Placed
from storage.tree import word_counts

#: Vectors whose text is read for its words, for each piece that is wanted.
READ_FOR_ONE = 2


#: What has text under vectors, by their revisions.
Read = Callable[[Sequence[int]], Awaitable[Sequence[NodeText]]]


async def best_pieces(
    tx: Transaction,
    session_key: UUID,
    placed: Sequence[Placed],
    tail: Sequence[NodeText],
    *,
    read: Read,
    query: str,
    count: int,
) -> Sequence[str]:
    """Returns the ids of the `count` pieces that fit best, best first.

    What has none of the query's words is left out; the earlier wins a tie.
    """
    words = await wanted_words(tx, query)
    if not words:
        return []
    ranges = [(one.from_position, one.to_position) for one in placed]
    held = await views.read_range_words(tx, session_key, ranges, words)
    in_tail = await word_counts.count_in_texts(tx, [piece.text for piece in tail], words)
    holders = Counter(words[at] for one in held for at in one.words)
    holders.update(word for occurrences in in_tail for word in occurrences)
    ranking = Ranking(
        texts=len(held) + len(tail),
        tokens=sum(one.bytes // TOKEN_BYTES for one in held) + sum(one.tokens for one in tail),
        holders=holders,
    )
    able = [number for number, one in enumerate(held) if one.words]
    bounds = [
        ranking.bounds([words[at] for at in held[n].words], held[n].bytes // TOKEN_BYTES)
        for n in able
    ]
    chosen = sorted(able[at] for at in promising(bounds, count, READ_FOR_ONE * count))
    pieces = await read([placed[number].revision for number in chosen])
    in_pieces = await word_counts.count_in_texts(tx, [piece.text for piece in pieces], words)
    return best(scored(ranking, (*pieces, *tail), (*in_pieces, *in_tail)), count)
