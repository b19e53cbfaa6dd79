"""Vectors by an OpenAI-compatible server: what is sent, what is read, what is in the ledger."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from service.domain.calls.ledger import Call, CallInProgress, CallScope, Lease, Reservation
from service.domain.prompting.flows import ModelReply, Purpose
from service.domain.values.errors import BudgetExhausted, CallBound
from service.llm.embeddings import litellm_embedder
from service.llm.embeddings.embedding import EmbeddingFailed
from service.llm.embeddings.litellm_embedder import LitellmEmbedder
from service.settings.config import Config
from tests.support.fake_embeddings import DIMENSIONS, FakeEmbeddings, fake_embeddings, vector_of
from tests.unit.calls import scripted_calls

SCOPE = CallScope(
    tenant_id=UUID(int=1), session_key=UUID(int=2), memory_id=None, occasion="embed:1-2"
)


@dataclass
class Ledger(scripted_calls.Ledger):
    """Records its calls; refuses them with `refusal`."""

    reserved: list[Reservation] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)
    refusal: Exception | None = None

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | CallInProgress | Lease:
        assert key not in self.keys
        self.keys.add(key)
        if self.refusal is not None:
            raise self.refusal
        self.reserved.append(wanted)
        return Lease(fence=1)

    async def record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        assert last
        self.calls.append(call)
        return call.as_reply()


@pytest.fixture
def server() -> Iterator[FakeEmbeddings]:
    with fake_embeddings() as fake:
        yield fake


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def embedder(server: FakeEmbeddings, ledger: Ledger, **more: object) -> LitellmEmbedder:
    values = {"embedding_model": "openai/words", "embedding_base_url": server.url, **more}
    return LitellmEmbedder(Config.model_validate(values), ledger)


def normal(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    values = vector_of(text, dimensions)
    return [one / math.hypot(*values) for one in values]


async def test_vectors_are_of_length_1_and_belong_to_their_texts(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    made = embedder(server, ledger)
    assert made.model == "openai/words"
    before = made.dimensions
    vectors = await made.embed_chunks(["red apple", "  ", "green pear"], scope=SCOPE)
    assert [len(one) for one in vectors] == [1, 0, 1]
    assert list(vectors[0][0].values) == pytest.approx(normal("red apple"))
    assert list(vectors[2][0].values) == pytest.approx(normal("green pear"))
    assert (vectors[2][0].from_character, vectors[2][0].to_character) == (0, 10)
    assert (before, made.dimensions) == (None, DIMENSIONS)
    assert list(await made.embed_query("red apple", scope=SCOPE)) == pytest.approx(
        normal("red apple")
    )
    assert server.texts == ["red apple", "green pear", "red apple"]
    assert [one.get("dimensions") for one in server.requests] == [None, None]


async def test_each_call_is_in_the_ledger_at_its_price(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    price = {"openai/words": {"input_usd_per_million": 1_000_000}}
    await embedder(server, ledger, model_prices=price).embed_chunks(["a b c"], scope=SCOPE)
    (reserved,) = ledger.reserved
    assert (reserved.purpose, reserved.model) == (Purpose.EMBED, "openai/words")
    assert (reserved.tokens, reserved.micro_usd) == (2, 2_000_000)
    (call,) = ledger.calls
    assert (call.input_tokens, call.cost_micro_usd) == (3, 3_000_000), "as the server counts"
    assert (call.reply, call.failure, call.template) == ("", None, "embed/1")
    # Without a price for a server of one's own there is none, though OpenAI has such a model.
    own = Ledger()
    await embedder(server, own, embedding_model="openai/text-embedding-3-small").embed_query(
        "a", scope=SCOPE
    )
    assert own.calls[0].cost_micro_usd is None


async def test_a_budget_that_refuses_keeps_texts_here(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    ledger.refusal = BudgetExhausted(
        "nothing is left", {}, asked=CallBound(tokens=1, micro_usd=None), resume_seconds=None
    )
    with pytest.raises(BudgetExhausted):
        await embedder(server, ledger).embed_query("one", scope=SCOPE)
    assert server.requests == []


async def test_long_texts_are_sent_in_parts_with_their_spans(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    text = "One sentence of several words. " * 40
    (vectors,) = await embedder(server, ledger, embedding_max_tokens=32).embed_chunks(
        [text], scope=SCOPE
    )
    assert len(vectors) > 5
    spans = [text[one.from_character : one.to_character] for one in vectors]
    assert spans == server.texts
    assert "".join(spans) == text


async def test_prefixes_stand_before_texts_and_not_in_spans(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    made = embedder(
        server, ledger, embedding_query_prefix="query: ", embedding_chunk_prefix="passage: "
    )
    ((vector,),) = await made.embed_chunks(["one"], scope=SCOPE)
    await made.embed_query("two", scope=SCOPE)
    assert server.texts == ["passage: one", "query: two"]
    assert (vector.from_character, vector.to_character) == (0, 3)


async def test_of_a_long_question_both_ends_are_sent(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    made = embedder(server, ledger, embedding_max_tokens=16, embedding_query_prefix="query: ")
    await made.embed_query("Complete this. " + "word " * 99 + "the end", scope=SCOPE)
    (said,) = server.texts
    assert said.startswith("query: Complete this. ")
    assert said.endswith(" the end")
    assert len(said) < 80


async def test_calls_have_bounds(
    server: FakeEmbeddings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(litellm_embedder, "CALL_TEXTS", 3)
    monkeypatch.setattr(litellm_embedder, "CALL_BYTES", 10)
    await embedder(server, ledger).embed_chunks(["a"] * 4 + ["b" * 20, "c" * 8, "d"], scope=SCOPE)
    assert [len(one["input"]) for one in server.requests] == [3, 1, 1, 2]
    assert len(ledger.calls) == 4


async def test_what_is_refused_keeps_no_other_text_from_its_vector(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    bad = "bad " * 16
    server.refuses = lambda text: len(text) > 40 or "☠" in text
    vectors = await embedder(server, ledger).embed_chunks(["one", bad, "☠☠☠", "four"], scope=SCOPE)
    # Halved until it is taken; what never is goes without.
    assert [len(one) for one in vectors] == [1, 2, 0, 1]
    assert "".join(bad[one.from_character : one.to_character] for one in vectors[1]) == bad
    refused = [one for one in ledger.calls if one.failure is not None]
    assert refused
    assert all(bad[:24] not in str(one.failure) and "☠" not in str(one.failure) for one in refused)


async def test_a_server_that_refuses_everything_is_not_asked_for_ever(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    server.refuses = lambda text: True
    with pytest.raises(EmbeddingFailed) as caught:
        await embedder(server, ledger).embed_chunks(
            [f"text {n} " * 20 for n in range(100)], scope=SCOPE
        )
    assert not caught.value.retryable
    assert "text 1 text 1" not in str(caught.value)
    assert len(server.requests) <= litellm_embedder.MAX_REFUSALS + 20


async def test_a_server_that_does_not_run_could_not_be_reached(ledger: Ledger) -> None:
    gone = Config(embedding_model="openai/words", embedding_base_url="http://127.0.0.1:1/v1")
    with pytest.raises(EmbeddingFailed) as caught:
        await LitellmEmbedder(gone, ledger).embed_chunks(["red apple"], scope=SCOPE)
    assert str(caught.value) == (
        "openai/words could not be reached (no connection): Connection error;"
        " check PALIMPSEST_MODEL_BASE_URL, or the deployment's api_base, and the network if it does"
        " not pass"
    )
    assert caught.value.retryable
    assert [call.failure for call in ledger.calls] == [str(caught.value)]


@pytest.mark.parametrize(
    ("status", "headers", "retryable", "seconds"),
    [
        (429, {"Retry-After": "7"}, True, 7.0),
        (500, {}, True, None),
        (401, {}, False, None),
        (404, {}, False, None),
    ],
)
async def test_failures_say_whether_and_when_to_come_again(
    server: FakeEmbeddings,
    ledger: Ledger,
    status: int,
    headers: dict[str, str],
    retryable: bool,
    seconds: float | None,
) -> None:
    server.script = [(status, headers, '{"error": {"message": "token=SECRET"}}')] * 2
    with pytest.raises(EmbeddingFailed) as caught:
        await embedder(server, ledger).embed_chunks(["a", "b"], scope=SCOPE)
    assert (caught.value.retryable, caught.value.retry_seconds) == (retryable, seconds)
    assert "SECRET" not in str(caught.value)
    assert len(server.requests) == 1, "nothing is tried again here"
    assert [one.failure for one in ledger.calls] == [str(caught.value)]


@pytest.mark.parametrize(
    "body",
    [
        '{"object": "list", "data": [], "model": "m", "usage": {"prompt_tokens": 1}}',
        '{"object": "list", "data": [{"index": 0, "embedding": [0.0, 0.0]}], "model": "m",'
        ' "usage": {"prompt_tokens": 1, "total_tokens": 1}}',
        '{"object": "list", "data": [{"index": 0, "embedding": []}], "model": "m",'
        ' "usage": {"prompt_tokens": 1, "total_tokens": 1}}',
    ],
)
async def test_what_is_no_vector_is_not_taken_for_one(
    server: FakeEmbeddings, ledger: Ledger, body: str
) -> None:
    server.script = [(200, {}, body)]
    with pytest.raises(EmbeddingFailed):
        await embedder(server, ledger).embed_query("one", scope=SCOPE)
    assert ledger.calls[0].reply is None


async def test_vectors_of_another_length_are_refused(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    with pytest.raises(EmbeddingFailed, match="64 numbers in place of 32"):
        await embedder(server, ledger, embedding_dimensions=32).embed_query("one", scope=SCOPE)
    server.dimensions = 32
    await embedder(server, ledger, embedding_dimensions=32).embed_query("one", scope=SCOPE)


def test_a_listed_model_is_asked_for_shorter_vectors_and_these_have_a_name() -> None:
    ledger = Ledger()
    whole = LitellmEmbedder(Config(embedding_model="openai/text-embedding-3-small"), ledger)
    assert (whole.model, whole.dimensions) == ("openai/text-embedding-3-small", 1536)
    short = LitellmEmbedder(
        Config(embedding_model="openai/text-embedding-3-small", embedding_dimensions=256), ledger
    )
    assert (short.model, short.dimensions) == ("openai/text-embedding-3-small@256", 256)


async def test_a_question_without_a_word_has_no_vector(
    server: FakeEmbeddings, ledger: Ledger
) -> None:
    with pytest.raises(EmbeddingFailed):
        await embedder(server, ledger).embed_query(" ", scope=SCOPE)
    assert server.requests == []
