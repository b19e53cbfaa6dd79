"""Finds a model's window and tokenizer, from litellm's bundled list and vocabularies.

Nothing is downloaded.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from service.domain.prompting.fitting import PromptTerms
from service.domain.prompting.tokens import estimate_tokens
from service.llm.providers.model_map import KNOWN_MODELS, library_folder
from service.llm.providers.prices import Prices
from service.llm.providers.requests import Requests
from service.settings.config import Config

#: The offline model reads prompts of any length.
OFFLINE_WINDOW_TOKENS = 1_000_000
#: Texts are counted in slices, as a tokenizer takes quadratic time for a text without blanks. A
#: count is too high by at most one token a slice.
SLICE_CHARACTERS = 1000

#: The file in which tiktoken expects each vocabulary that litellm includes, by encoding.
_VOCABULARIES = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "p50k_base": "ec7223a39ce59f226a68acc30dc1af2788490e15",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What a step has to know about its model."""

    #: Tokens of a prompt and its reply together, without the model's thinking.
    window_tokens: int
    #: Counts the tokens of a text, by the model's tokenizer if there is one, else by the estimate
    #: of `service.domain.prompting.tokens`.
    count: Callable[[str], int]

    def terms(self, marker_key: bytes) -> PromptTerms:
        """Returns what flows have to know for their prompts."""
        return {
            "window_tokens": self.window_tokens,
            "count": self.count,
            "marker_key": marker_key,
        }


class Facts:
    """Keeps the facts of the models that one worker process calls."""

    def __init__(self, config: Config) -> None:
        self._requests = Requests(config, Prices(config), warns=False)
        #: Returns the facts of a model, by provider/name. Reads litellm's list the first time.
        self.of: Callable[[str], ModelFacts] = lru_cache(KNOWN_MODELS)(self._find)

    def _find(self, model: str) -> ModelFacts:
        if model.startswith("offline/"):
            return ModelFacts(window_tokens=OFFLINE_WINDOW_TOKENS, count=estimate_tokens)
        # Prompts and replies have to fit without the tokens for thinking.
        window = self._requests.profiles.of(model).window_tokens
        return ModelFacts(
            window_tokens=window - self._requests.besides(model),
            count=tokenizer_of(model) or estimate_tokens,
        )


def tokenizer_of(model: str) -> Callable[[str], int] | None:
    """Returns what counts the tokens of a text for a model, if its vocabulary is here."""
    tiktoken: Any = importlib.import_module("tiktoken")
    library = library_folder()
    if library is None:
        return None
    try:
        name: str = tiktoken.model.encoding_name_for_model(model.rpartition("/")[2])
    except KeyError:
        return None
    bundled = library / "litellm_core_utils" / "tokenizers"
    folder = Path(os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(bundled)))
    if name not in _VOCABULARIES or not (folder / _VOCABULARIES[name]).is_file():
        # tiktoken would download it.
        return None
    encoding: Any = tiktoken.get_encoding(name)

    def count(text: str) -> int:
        return sum(
            len(encoding.encode(text[at : at + SLICE_CHARACTERS], disallowed_special=()))
            for at in range(0, len(text), SLICE_CHARACTERS)
        )

    return count
