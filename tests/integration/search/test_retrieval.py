"""Which leaves fit a question best, compared with a plain BM25."""

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Sequence

import pytest

from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.answers.readers import tree_retrieval
from service.usecases.answers.readers.tree_retrieval import NodeText, best_leaves
from storage.engine.database import Database
from tests.integration.support.tree_rows import KEY, TREE, make_tree

TAIL = ("the wolf went to the sea", "a needle and a thread")


def plain_bm25(texts: Sequence[str], query: str) -> list[float]:
    """Returns the formula as the books have it, over all texts."""
    words = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    lengths = [estimate_tokens(text) for text in texts]
    mean = sum(lengths) / len(lengths)
    scores = []
    for held, length in zip(words, lengths, strict=True):
        score = 0.0
        for word in set(re.findall(r"\w+", query.lower())):
            holders = sum(1 for other in words if word in other)
            weight = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
            count = held[word]
            score += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length / mean))
        scores.append(score)
    return scores


def vocabulary() -> list[str]:
    return [f"w{number}" for number in range(40)]


async def find(
    database: Database, query: str, count: int, *, tail: Sequence[str] = TAIL, revision: int = 2
) -> list[str]:
    pieces = [
        NodeText(node_id=f"t.{number}", text=text, tokens=estimate_tokens(text))
        for number, text in enumerate(tail, 1)
    ]
    async with database.transaction(DEFAULT_TENANT) as tx:
        return list(
            await best_leaves(
                tx, (KEY, TREE), revision=revision, tail=pieces, query=query, count=count
            )
        )


async def test_leaves_are_ranked_as_plain_bm25_ranks_them(database: Database) -> None:
    chance = random.Random(5)
    weights = [1 / (rank + 1) for rank in range(40)]
    leaves = [
        " ".join(chance.choices(vocabulary(), weights, k=chance.randint(5, 60))) for _ in range(60)
    ]
    await make_tree(database, leaves, tail=TAIL)
    for _ in range(25):
        query = " ".join(chance.sample(vocabulary(), 4)) + " the needle?"
        scores = plain_bm25([*leaves, *TAIL], query)
        names = [f"0.{n + 1}" for n in range(60)] + ["t.1", "t.2"]
        expected = sorted(zip(scores, names, strict=True), key=lambda pair: -pair[0])
        wanted = [name for score, name in expected[:7] if score > 0]
        assert await find(database, query, 7) == wanted


async def test_what_has_no_word_of_the_question_is_no_hit(database: Database) -> None:
    await make_tree(database, ["the king and the goose", "a mill by a river"], tail=TAIL)
    assert await find(database, "zebra?", 5) == []
    assert await find(database, "?!", 5) == []
    assert await find(database, "River, needle", 5) == ["0.2", "t.2"]
    assert await find(database, "goose", 5, tail=()) == ["0.1"]


async def test_a_question_may_hold_anything(database: Database) -> None:
    await make_tree(database, ["o'brien said c:\\temp & ran", "nothing"], tail=())
    for query in ("O'Brien", "c:\\temp", "'; DROP TABLE tree_node; --'", "ran | ! & <-> :*", "\\'"):
        assert set(await find(database, query, 3, tail=())) <= {"0.1"}
    assert await find(database, "said O'Brien", 3, tail=()) == ["0.1"]


async def test_leaves_of_later_revisions_are_not_there(database: Database) -> None:
    await make_tree(database, ["the king", "the goose"], tail=TAIL)
    assert await find(database, "king", 5, tail=(), revision=0) == []


async def test_of_a_long_question_the_longest_words_count(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_tree(database, ["an elephant", "a b c d", "the house"], tail=())
    monkeypatch.setattr(tree_retrieval, "MAX_WORDS", 1)
    assert await find(database, "a b c d elephant", 5, tail=()) == ["0.1"]


async def test_a_long_tail_of_many_words_can_be_searched(database: Database) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = ("".join(name) for name in itertools.product(letters, repeat=4))
    # Of an address PostgreSQL makes three words: more than it can hold of such a text.
    many = " ".join(f"{name[:2]}.{name[2:]}/{name}" for name in itertools.islice(names, 36_000))
    await make_tree(database, ["the king"], tail=())
    assert await find(database, "aa.ab", 5, tail=[many]) == ["t.1"]
