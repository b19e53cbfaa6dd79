"""Reads litellm's bundled list of models from its file.

Importing litellm takes seconds. With this the API server, and a worker before its first call, know
windows and prices without it.
"""

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from service.settings.config import Config

#: How many models a process remembers: clients name them, and may name any number.
KNOWN_MODELS = 1000

_FILE = "model_prices_and_context_window_backup.json"

#: Providers of which litellm says that all their models keep to a schema.
_ALWAYS_STRUCTURED = frozenset({"predibase", "fireworks_ai", "lm_studio", "nebius", "databricks"})
#: Levels of effort that the list has flags for.
_LISTED_EFFORTS = ("none", "minimal", "xhigh", "max")
#: Before Bedrock's names: the route, and the region.
_BEDROCK_ROUTE = re.compile(r"(?:converse_like|converse|invoke)/")
_BEDROCK_REGION = re.compile(r"(?:us|eu|apac|global|jp|au|ca|us-gov)\.")


@dataclass(frozen=True, kw_only=True, slots=True)
class MapEntry:
    """An entry of the list; None for what it does not say."""

    #: litellm's name of the provider, with the variants of one provider kept apart.
    provider: str
    #: US dollars for a token; 0 or more.
    input_usd: float | None
    output_usd: float | None
    #: US dollars for a token read from the cache, or written to it.
    cached_usd: float | None
    written_usd: float | None
    #: US dollars for a token written for an hour.
    written_hour_usd: float | None
    #: Default length of the vectors of an embedding model.
    vector_size: int | None
    #: Tokens of the longest prompt.
    window_tokens: int | None
    #: Tokens of the longest reply.
    output_tokens: int | None
    #: Shorter prefixes are not cached.
    min_tokens: int | None
    #: Whether it writes replies by a JSON Schema.
    structured: bool | None
    #: Whether its provider enforces schemas by a parameter, not by a tool.
    native_schemas: bool
    #: Whether it takes OpenAI's explicit breakpoints.
    breakpoints: bool
    #: Whether it can think before it replies, and whether it always does.
    reasons: bool
    always_reasons: bool
    #: Whether it takes temperature and top_p.
    samples: bool | None
    #: By level of effort, whether it takes it; None if the list does not say.
    efforts: Mapping[str, bool | None]
    #: All levels, if the list has them.
    effort_levels: Sequence[str] | None
    #: The default level; "" if the list does not say.
    default_effort: str


def library_folder() -> Path | None:
    """Returns where litellm is installed, if it is, without importing it."""
    spec = importlib.util.find_spec("litellm")
    return Path(spec.origin).parent if spec and spec.origin else None


def entry_of(model: str) -> MapEntry | None:
    """Returns the entry of a model by provider/name, or by name alone, if there is one."""
    entries = _entries()
    provider = model.partition("/")[0] if "/" in model else None
    for name in _names(model):
        entry = entries.get(name)
        # A name without its provider may be another provider's model.
        listed = () if entry is None else (entry.provider, _plain_provider(entry.provider))
        if entry and (name == model or provider is None or provider in listed):
            return entry
    return None


def provider_of(model: str) -> str:
    """Returns the provider in a model's name, else the list's; "" if there is none."""
    if "/" in model:
        return model.partition("/")[0]
    entry = entry_of(model)
    return _plain_provider(entry.provider) if entry else ""


def keeps_to_schemas(model: str) -> bool:
    """Returns whether a model keeps to a JSON Schema, according to litellm."""
    if provider_of(model) in _ALWAYS_STRUCTURED:
        return True
    entry = entry_of(model)
    if entry is None:
        return False
    if entry.structured is None and "/" in model:
        # The entry with its provider may say less than the one without.
        bare = _entries().get(model.partition("/")[2])
        return bool(bare and bare.structured)
    return bool(entry.structured)


def _names(model: str) -> Iterator[str]:
    """Yields the names that a model may have in the list, the best first."""
    yield model
    provider, _, name = model.partition("/")
    if not name:
        provider, name = "", model
    yield name
    if provider == "bedrock":
        name = _BEDROCK_ROUTE.sub("", name, count=1)
        yield name
        yield _BEDROCK_REGION.sub("", name, count=1)
    if name.startswith("ft:"):
        # A tuned model: ft:BASE:ORGANISATION:NAME:ID.
        yield ":".join(name.split(":")[:2])


def _plain_provider(provider: str) -> str:
    return "bedrock" if provider == "bedrock_converse" else provider.partition("-")[0]


@lru_cache(maxsize=1)
def _entries() -> Mapping[str, MapEntry]:
    folder = library_folder()
    if folder is None:
        return {}
    listed: dict[str, dict[str, Any]] = json.loads((folder / _FILE).read_bytes())
    return {name: _entry(said) for name, said in listed.items() if name != "sample_spec"}


def _entry(said: Mapping[str, Any]) -> MapEntry:
    window = said.get("max_input_tokens") or said.get("max_tokens")
    most = said.get("max_output_tokens")
    least = said.get("prompt_cache_min_tokens")
    vector_size = said.get("output_vector_size")
    return MapEntry(
        provider=said.get("litellm_provider") or "",
        input_usd=said.get("input_cost_per_token"),
        output_usd=said.get("output_cost_per_token"),
        cached_usd=said.get("cache_read_input_token_cost"),
        written_usd=said.get("cache_creation_input_token_cost"),
        written_hour_usd=said.get("cache_creation_input_token_cost_above_1hr"),
        vector_size=int(vector_size) if vector_size else None,
        window_tokens=int(window) if window else None,
        output_tokens=int(most) if isinstance(most, int | float) and most > 0 else None,
        min_tokens=int(least) if least else None,
        structured=said.get("supports_response_schema"),
        native_schemas=said.get("supports_native_structured_output") is True
        or said.get("supports_bedrock_native_structured_output") is True,
        breakpoints=said.get("supports_prompt_cache_breakpoint") is True,
        reasons=said.get("supports_reasoning") is True,
        always_reasons=said.get("thinking_always_on") is True,
        samples=said.get("supports_sampling_params"),
        efforts={one: said.get(f"supports_{one}_reasoning_effort") for one in _LISTED_EFFORTS},
        effort_levels=said.get("reasoning_effort_levels"),
        default_effort=said.get("default_reasoning_effort") or "",
    )


#: How the names of OpenAI's hosts end.
_OPENAI_HOST = "api.openai.com"


class Served:
    """Knows where the models of one configuration are served."""

    def __init__(self, config: Config) -> None:
        self._has_own = bool(config.model_base_url)
        self._deployments = {one.model: one for one in reversed(config.deployments)}

    def name(self, model: str) -> str:
        """Returns litellm's name of a model there; the deployments of a model are alike."""
        deployment = self._deployments.get(model)
        return deployment.target if deployment else model

    def is_own(self, model: str) -> bool:
        """Returns whether a server of one's own serves it, by OpenAI's protocol."""
        deployment = self._deployments.get(model)
        if deployment is None:
            return self._has_own and model.startswith("openai/")
        base = urlsplit(deployment.api_base or "").hostname
        is_openais = base is None or base.endswith(_OPENAI_HOST)
        return deployment.target.startswith("openai/") and not is_openais
