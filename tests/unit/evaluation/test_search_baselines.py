"""Plain ways to search, which the service's are compared with."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from evaluation.datasets import Document
from evaluation.search_baselines import BASELINES, Baselines, by_words, local_embedder, rank_fused
from evaluation.searching import SearchWay
from service.domain.log.chunks import Chunk, ChunkKind
from service.llm.embeddings.embedding import CannotEmbed, TextVector
from service.settings.config import Config
from tests.unit.evaluation.results import document

TEXTS = ("The foxes ran home.", "A boat is old.", "The fox has a boat, and the boat a fox.", " ")


class Embedder:
    """Knows two words: each is a direction."""

    model = "test/two-words"
    dimensions = 2

    async def warm(self) -> None:
        """Nothing to load."""

    async def embed_chunks(self, texts: Sequence[str], *, scope: Any) -> Any:
        return [
            [TextVector(from_character=0, to_character=len(text), values=vector(text))]
            if text.strip()
            else []
            for text in texts
        ]

    async def embed_query(self, text: str, *, scope: Any) -> tuple[float, ...]:
        return vector(text)


def vector(text: str) -> tuple[float, float]:
    fox, boat = float("fox" in text), float("boat" in text)
    length = (fox**2 + boat**2) ** 0.5 or 1.0
    return fox / length, boat / length


def written(*queries: str) -> Document:
    """Returns the texts, and these questions about them."""
    held = document("d", len(queries))
    return replace(
        held,
        chunks=tuple(Chunk(kind=ChunkKind.TEXT, text=text) for text in TEXTS),
        questions=tuple(
            replace(one, text=query) for one, query in zip(held.questions, queries, strict=True)
        ),
    )


async def test_every_way_ranks_every_question() -> None:
    found = await Baselines(Embedder()).rank(written("Which fox?", "boats"), BASELINES)
    assert set(found) == set(BASELINES)
    # Words as they are: there is no "boats", and foxes are no fox.
    assert found[SearchWay.BM25S] == [[3], []]
    assert sorted(found[SearchWay.STEMMED][0]) == [1, 3]
    assert sorted(found[SearchWay.STEMMED][1]) == [2, 3]
    assert found[SearchWay.COSINE] == [[1, 3, 2], [2, 3, 1]]
    assert [one[-1] for one in found[SearchWay.RRF]] == [2, 1]


async def test_only_what_is_asked_for_is_ranked() -> None:
    found = await Baselines(None).rank(written("fox"), [SearchWay.STEMMED])
    assert set(found) == {SearchWay.STEMMED}
    assert set(await Baselines(Embedder()).rank(written("fox"), [SearchWay.RRF])) == {SearchWay.RRF}


@pytest.mark.parametrize(
    ("texts", "query"),
    [(["the", " "], "fox"), (["the fox"], "the"), (["a fox"], "?!"), ([], "fox")],
)
def test_without_words_nothing_is_found(texts: list[str], query: str) -> None:
    assert [list(one) for one in by_words(texts, [query], None)] == [[]]


def test_ranks_are_fused() -> None:
    assert rank_fused([[1, 2, 3], [3, 4]]) == [3, 1, 2, 4]
    assert rank_fused([[], []]) == []


def test_vectors_need_a_model_in_this_process() -> None:
    assert local_embedder(Config(embedding_model="openai/any")) is None
    with pytest.raises(CannotEmbed, match="no local model"):
        local_embedder(Config(embedding_model="local/none"))
