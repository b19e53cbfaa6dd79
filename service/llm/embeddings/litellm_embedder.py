"""Makes vectors by any model that litellm knows, or by an OpenAI-compatible endpoint.

Each call is in the ledger, and begins only if budgets allow it. It is not retried: the indexer
retries later, and a query gets the error.
"""

import asyncio
import hashlib
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import structlog

from service.domain.calls.ledger import Call, CallScope, Lease, Reservation
from service.domain.prompting.flows import Purpose
from service.domain.prompting.tokens import estimate_tokens
from service.domain.spend.prices import most_micro_usd
from service.llm.embeddings.embedding import EmbeddingFailed, TextVector, own_dimensions
from service.llm.embeddings.parts import EmbeddedPart, ends_of, halves_of, parts_of, unit
from service.llm.gateway.metrics import ModelMetrics
from service.llm.providers.failures import ModelFailure, failure_of, secrets_of
from service.llm.providers.library import litellm_library, unrecorded
from service.llm.providers.model_map import provider_of
from service.llm.providers.plans import OutcomeLedger
from service.llm.providers.prices import Prices
from service.settings.config import Config
from service.telemetry.names import GenAiOperation

_log = structlog.get_logger("palimpsest.llm")

#: Texts of one call, and their bytes: below every provider's limits.
CALL_TEXTS = 64
CALL_BYTES = 256 * 1024
#: In the ledger, the prompt's template.
TEMPLATE = "embed/1"
#: By provider: the kind of a text that is a chunk, and of one that is a question.
_INPUT_TYPES = {"cohere": ("search_document", "search_query"), "voyage": ("document", "query")}


class LitellmEmbedder:
    """See `service.llm.embeddings.embedding.Embedder`."""

    def __init__(self, config: Config, ledger: OutcomeLedger) -> None:
        self._config = config
        self._ledger = ledger
        self._name = config.embedding_model
        # Priced as models are, with the endpoint for vectors.
        endpoint = {"model_base_url": config.embedding_base_url}
        self._prices = Prices(config.model_copy(update=endpoint))
        self._types = _INPUT_TYPES.get(provider_of(self._name), (None, None))
        own = own_dimensions(config)
        asked = config.embedding_dimensions
        #: The length that is requested; None: the model's own.
        self._shortened = asked if own is not None and asked != own else None
        self._dimensions = asked or own
        self._secrets = secrets_of(config)
        self._metrics = ModelMetrics()
        self._litellm: Any = None
        self._importing = asyncio.Lock()

    @property
    def model(self) -> str:
        """Its name, and the length of its vectors if that is not the model's own."""
        return f"{self._name}@{self._shortened}" if self._shortened else self._name

    @property
    def dimensions(self) -> int | None:
        """As configured or listed, else that of the first vector."""
        return self._dimensions

    async def warm(self) -> None:
        """Imports litellm now, off the event loop."""
        async with self._importing:
            if self._litellm is None:
                self._litellm = await asyncio.to_thread(litellm_library)

    async def embed_chunks(
        self, texts: Sequence[str], *, scope: CallScope
    ) -> Sequence[Sequence[TextVector]]:
        """See `Embedder`."""
        parts = await asyncio.to_thread(parts_of, texts, self._config.embedding_max_tokens)
        prefix, kind = self._config.embedding_chunk_prefix, self._types[0]
        batch = _Batch(lambda said: self.call([prefix + one for one in said], kind, scope), texts)
        for some in _batches(parts, texts):
            await batch.embed(some)
        if batch.refused is not None and not any(batch.made):
            # All texts are refused, so they are not the reason.
            raise EmbeddingFailed(str(batch.refused), retryable=False) from batch.refused
        return batch.made

    async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
        """See `Embedder`. Only both ends of a long question count."""
        if not text.strip():
            raise EmbeddingFailed("a question without a word has no vector", retryable=False)
        ends = ends_of(text.strip(), self._config.embedding_max_tokens)
        said = self._config.embedding_query_prefix + ends
        try:
            return (await self.call([said], self._types[1], scope))[0]
        except RefusedTexts as refused:
            raise EmbeddingFailed(str(refused), retryable=False) from refused

    async def call(
        self, said: Sequence[str], input_type: str | None, scope: CallScope
    ) -> list[tuple[float, ...]]:
        """Makes one call, with an entry in the ledger."""
        await self.warm()
        key = _key(scope)
        tokens = sum(map(estimate_tokens, said))
        lease = await self._ledger.begin(
            scope,
            key,
            Reservation(
                purpose=Purpose.EMBED,
                model=self._name,
                deployment="",
                tokens=tokens,
                micro_usd=self._price(tokens),
            ),
        )
        assert isinstance(lease, Lease), "no other call has this key"
        start = time.perf_counter()
        failure: Exception | asyncio.CancelledError | None = None
        vectors: list[tuple[float, ...]] = []
        try:
            vectors, tokens = await self._try(said, input_type, tokens)
        except (Exception, asyncio.CancelledError) as error:
            # Also for a cancelled caller the call is recorded first, and its reservation released.
            failure = error
        seconds = time.perf_counter() - start
        self._metrics.record(
            GenAiOperation.EMBEDDINGS,
            self._name,
            Purpose.EMBED,
            seconds,
            error=type(failure).__name__ if failure else None,
            input_tokens=None if failure else tokens,
        )
        call = Call(
            key=key,
            purpose=Purpose.EMBED,
            template=TEMPLATE,
            model=self._name,
            reply=None if failure else "",
            failure=_said(failure) if failure else None,
            input_tokens=0 if failure else tokens,
            predicted_cached_tokens=0,
            reported_cached_tokens=None,
            cache_write_tokens=None,
            output_tokens=0,
            cost_micro_usd=None if failure else self._price(tokens),
            latency_ms=round(seconds * 1000),
        )
        await self._ledger.record(scope, call, lease, last=True)
        if failure is not None:
            raise failure
        return vectors

    async def _try(
        self, said: Sequence[str], input_type: str | None, estimated: int
    ) -> tuple[list[tuple[float, ...]], int]:
        """Returns vectors, and the tokens that were used."""
        try:
            with unrecorded():
                # litellm's own timeout applies between two parts of a response.
                async with asyncio.timeout(self._config.embedding_timeout_seconds):
                    response = await self._litellm.aembedding(**self._arguments(said, input_type))
        except Exception as error:
            # litellm raises the errors of fifty providers; any other is a defect.
            failure = failure_of(
                self._litellm, error, self._name, secrets=self._secrets, prompt=said
            )
            if not isinstance(failure, ModelFailure):
                raise
            if getattr(error, "status_code", None) in _OF_TEXTS:
                raise RefusedTexts(str(failure)) from error
            raise EmbeddingFailed(
                str(failure),
                retryable=failure.retryable,
                retry_seconds=failure.retry_after_seconds,
            ) from error
        used = getattr(getattr(response, "usage", None), "prompt_tokens", None)
        return self._read(response, len(said)), used or estimated

    def _arguments(self, said: Sequence[str], input_type: str | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self._name,
            "input": list(said),
            "timeout": self._config.embedding_timeout_seconds,
            "num_retries": 0,
            "max_retries": 0,
            "caching": False,
        }
        if input_type is not None:
            arguments["input_type"] = input_type
        if self._shortened is not None:
            arguments["dimensions"] = self._shortened
        if self._name.startswith("openai/"):
            arguments["encoding_format"] = "float"
            if self._config.embedding_base_url is not None:
                arguments["api_base"] = self._config.embedding_base_url
                # The protocol always has a key; servers of one's own often ignore it.
                arguments["api_key"] = "none"
        if self._config.embedding_api_key is not None:
            arguments["api_key"] = self._config.embedding_api_key.get_secret_value()
        return arguments

    def _read(self, response: Any, count: int) -> list[tuple[float, ...]]:
        """Returns the vectors of a response. Raises EmbeddingFailed."""
        rows: list[Any] = list(getattr(response, "data", None) or ())
        if len(rows) != count:
            raise EmbeddingFailed(
                f"the model gave {len(rows)} vectors for {count} texts", retryable=True
            )
        vectors: list[tuple[float, ...]] = []
        for row in sorted(rows, key=lambda one: int(one["index"])):
            values = row["embedding"]
            made = unit(values) if isinstance(values, list) and values else None
            if made is None:
                raise EmbeddingFailed("the model gave no vector of numbers", retryable=True)
            self._check(len(made))
            vectors.append(made)
        return vectors

    def _check(self, dimensions: int) -> None:
        if self._dimensions is None:
            self._dimensions = dimensions
        if dimensions != self._dimensions:
            raise EmbeddingFailed(
                f"the model gave a vector of {dimensions} numbers in place of"
                f" {self._dimensions}; see PALIMPSEST_EMBEDDING_DIMENSIONS",
                retryable=False,
            )

    def _price(self, tokens: int) -> int | None:
        prices = self._prices.of(self._name)
        return most_micro_usd(prices, input_tokens=tokens, output_tokens=0)


#: Statuses that are about the texts: the model may accept fewer or others.
_OF_TEXTS = frozenset({400, 413, 422})
#: How often a text that is refused by itself is halved before it gets no vector.
MAX_HALVINGS = 3
#: Refusals of one batch of chunks after which no parts are halved.
MAX_REFUSALS = 40


class RefusedTexts(Exception):
    """The model refuses these texts; the message is one sentence without them."""


class _Batch:
    """Collects the vectors of chunks, as far as the model accepts them.

    A text may be too long by the model's count, or be refused. The others of its call must still
    get their vectors.
    """

    def __init__(
        self,
        call: Callable[[Sequence[str]], Awaitable[list[tuple[float, ...]]]],
        texts: Sequence[str],
    ) -> None:
        self._call = call
        self._texts = texts
        self._refusals = 0
        #: The last refusal, if any.
        self.refused: RefusedTexts | None = None
        #: By text, in the order of their parts.
        self.made: list[list[TextVector]] = [[] for _ in texts]

    async def embed(self, parts: Sequence[EmbeddedPart], halvings: int = 0) -> None:
        """Adds the vectors of parts, in order. Raises EmbeddingFailed if everything is refused."""
        said = [self._texts[one.text][one.from_character : one.to_character] for one in parts]
        try:
            vectors = await self._call(said)
        except RefusedTexts as refused:
            self._refusals += 1
            self.refused = refused
            await self._embed_less(parts, halvings, refused)
            return
        for part, values in zip(parts, vectors, strict=True):
            self.made[part.text].append(
                TextVector(
                    from_character=part.from_character,
                    to_character=part.to_character,
                    values=values,
                )
            )

    async def _embed_less(
        self, parts: Sequence[EmbeddedPart], halvings: int, refused: RefusedTexts
    ) -> None:
        if self._refusals >= MAX_REFUSALS and not any(self.made):
            raise EmbeddingFailed(str(refused), retryable=False) from refused
        if len(parts) > 1:
            middle = len(parts) // 2
            await self.embed(parts[:middle])
            await self.embed(parts[middle:])
            return
        halves = halves_of(parts[0], self._texts[parts[0].text])
        if halvings < MAX_HALVINGS and self._refusals < MAX_REFUSALS and len(halves) > 1:
            for half in halves:
                await self.embed([half], halvings + 1)
            return
        _log.warning("part of a chunk has no vector", cause=str(refused))


def _batches(
    parts: Sequence[EmbeddedPart], texts: Sequence[str]
) -> Iterator[Sequence[EmbeddedPart]]:
    batch: list[EmbeddedPart] = []
    size = 0
    for part in parts:
        own = len(texts[part.text][part.from_character : part.to_character].encode())
        if batch and (len(batch) == CALL_TEXTS or size + own > CALL_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += own
    if batch:
        yield batch


def _key(scope: CallScope) -> bytes:
    # Unique, since vectors are stored with the chunks, and never found in the ledger.
    said = f"{TEMPLATE}:{scope.occasion}:{uuid.uuid4()}"
    return hashlib.sha256(said.encode()).digest()


def _said(failure: BaseException) -> str:
    """Returns only the kind of a defect: its message may contain texts."""
    if isinstance(failure, asyncio.CancelledError):
        return "the call was called off: its vectors are no longer needed"
    if isinstance(failure, EmbeddingFailed | RefusedTexts):
        return str(failure)
    return f"the call broke: {type(failure).__name__}"
