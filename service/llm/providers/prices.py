"""Prices each model's tokens, and describes its provider's cache.

Prices are from litellm's bundled list, habits of caches from the providers' documents of November
2026. `PALIMPSEST_MODEL_PRICES` overrides both; only that can price a server of one's own.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from service.domain.spend.prices import CacheFamily, ModelPrices
from service.llm.providers.model_map import KNOWN_MODELS, MapEntry, Served, entry_of, provider_of
from service.settings.config import Config
from service.settings.models import ModelSetting, PriceOverride, matching

#: Marks of a prompt, at most, for providers that take marks.
MAX_MARKS = 4
#: How long a prefix is cached if the provider does not say.
TTL_SECONDS = 300
#: Servers of one's own evict the least recently used prefix when they need room.
SERVER_TTL_SECONDS = 3600
#: OpenAI's models with breakpoints cache a prefix for at least half an hour.
BREAKPOINT_TTL_SECONDS = 1800
#: Anthropic's longer lifetime, and the price of writing for it, relative to the input's.
HOUR_SECONDS = 3600
HOUR_WRITE = 2.0
#: The first of OpenAI's models that take breakpoints.
_BREAKPOINTS_FROM = (5, 6)
_GPT = re.compile(r"gpt-(\d+)(?:\.(\d+))?")
#: Those of an unknown provider. Ratios are for models that are not in the list.
_HABITS = ModelPrices(
    family=CacheFamily.PLAIN,
    input_usd=None,
    read=1.0,
    write=1.0,
    output=5.0,
    granularity_tokens=1,
    min_tokens=0,
    ttl_seconds=TTL_SECONDS,
)
#: Free, with the ratios of a common provider, so that memories fold as they would there.
_OFFLINE = replace(_HABITS, input_usd=0.0, read=0.1, write=1.25)
#: Inference servers: a cached token costs about a tenth of the computing, one of the reply several
#: times as much.
_SERVER = replace(_HABITS, ttl_seconds=SERVER_TTL_SECONDS, read=0.1)
_KEYED = replace(_HABITS, family=CacheFamily.KEYED, granularity_tokens=128)
_OPENAI = replace(_KEYED, min_tokens=1024, read=0.5)
_CLAUDE = replace(
    _HABITS,
    family=CacheFamily.EXPLICIT,
    max_marks=MAX_MARKS,
    min_tokens=1024,
    read=0.1,
    write=1.25,
)
_BREAKPOINTS = replace(_CLAUDE, ttl_seconds=BREAKPOINT_TTL_SECONDS)
_NOVA = replace(_CLAUDE, read=0.25, write=1.0)
_GEMINI = replace(_HABITS, min_tokens=1024, read=0.1)

_PROVIDERS = {
    "offline": _OFFLINE,
    "openai": _OPENAI,
    "azure": _OPENAI,
    "azure_ai": _OPENAI,
    "gemini": _GEMINI,
    "vertex_ai": _GEMINI,
    "deepseek": replace(_HABITS, read=0.1),
    "xai": replace(_KEYED, read=0.25),
    "hosted_vllm": replace(_SERVER, granularity_tokens=16),
    "ollama": _SERVER,
    "ollama_chat": _SERVER,
    "llamafile": _SERVER,
    "lm_studio": _SERVER,
    "xinference": _SERVER,
}
#: Providers that serve Anthropic's models with their marks.
_CLAUDE_PROVIDERS = frozenset({"anthropic", "bedrock", "vertex_ai", "azure_ai"})
#: Providers for which litellm passes OpenAI's breakpoints on.
_BREAKPOINT_PROVIDERS = frozenset({"openai", "azure_ai"})


class Prices:
    """Keeps the prices of the models of one process."""

    def __init__(self, config: Config) -> None:
        self._overrides = config.model_prices
        self._settings = config.model_settings
        self.served = Served(config)
        #: Returns the prices of a model, by provider/name. Reads litellm's list the first time.
        self.of: Callable[[str], ModelPrices] = lru_cache(KNOWN_MODELS)(self._find)

    def are_set(self, model: str) -> bool:
        """Returns whether the price of a model is configured."""
        override: PriceOverride | None = matching(self._overrides, model)
        return override is not None and override.is_priced

    def listed_as(self, model: str) -> str | None:
        """Returns the name by which litellm may know the price.

        None if a price is configured, for a server of one's own, and for a model that is not in the
        list, for which litellm may report 0.
        """
        if self.served.is_own(model) or self.are_set(model):
            return None
        served = self.served.name(model)
        return None if entry_of(served) is None else served

    def _find(self, model: str) -> ModelPrices:
        served = self.served.name(model)
        # A model of this name at an endpoint of one's own need not be OpenAI's.
        entry = None if self.served.is_own(model) else entry_of(served)
        if entry is None and provider_of(served) == "azure":
            # The name of a deployment says nothing; its prices are OpenAI's.
            entry = entry_of(model)
        habits = _SERVER if self.served.is_own(model) else _habits(served, entry)
        found = habits if entry is None else _listed(entry, habits)
        setting: ModelSetting | None = matching(self._settings, model)
        if setting is not None and setting.cache_ttl == "1h" and habits is _CLAUDE:
            write = HOUR_WRITE
            if entry is not None and entry.written_hour_usd and entry.input_usd:
                write = _ratio(entry.written_hour_usd, entry.input_usd)
            found = replace(found, ttl_seconds=HOUR_SECONDS, write=write, mark_ttl="1h")
        override: PriceOverride | None = matching(self._overrides, model)
        return found if override is None else _overridden(found, override)


def _habits(model: str, entry: MapEntry | None) -> ModelPrices:
    provider = provider_of(model)
    name = model.lower()
    if provider in _CLAUDE_PROVIDERS and ("claude" in name or provider == "anthropic"):
        return _CLAUDE
    if provider == "bedrock":
        return _NOVA if "amazon.nova" in name else _HABITS
    if provider in _BREAKPOINT_PROVIDERS:
        # A model that is newer than the list is known by its version.
        found = _GPT.match(model.rpartition("/")[2])
        is_new = found and (int(found[1]), int(found[2] or 0)) >= _BREAKPOINTS_FROM
        if is_new if entry is None else entry.breakpoints:
            return _BREAKPOINTS
    return _PROVIDERS.get(provider, _HABITS)


def _listed(entry: MapEntry, habits: ModelPrices) -> ModelPrices:
    """Returns the prices in litellm's list, with the habits of the provider's cache."""
    found = replace(habits, min_tokens=entry.min_tokens or habits.min_tokens)
    usd = entry.input_usd
    if not usd:
        # Computing has to be saved even if it is free: the habits' ratios apply.
        return found if usd is None else replace(found, input_usd=usd)
    return replace(
        found,
        input_usd=usd,
        read=1.0 if entry.cached_usd is None else min(_ratio(entry.cached_usd, usd), 1.0),
        # 0 means "no extra price": writing then costs as much as an input token.
        write=_ratio(entry.written_usd, usd) if entry.written_usd else 1.0,
        output=habits.output if entry.output_usd is None else _ratio(entry.output_usd, usd),
    )


def _ratio(usd: float, input_usd: float) -> float:
    # Rounded, so that a tenth is a tenth and two machines decide alike.
    return round(usd / input_usd, 6)


def _overridden(found: ModelPrices, over: PriceOverride) -> ModelPrices:
    if over.family is not None and over.family is not found.family:
        marks = MAX_MARKS if over.family is CacheFamily.EXPLICIT else 0
        found = replace(found, family=over.family, max_marks=marks)
    if over.input_usd_per_million is not None:
        found = replace(found, input_usd=over.input_usd_per_million / 1_000_000)
    named = over.model_dump(
        exclude_none=True, exclude={"family", "input_usd_per_million"}, mode="python"
    )
    return replace(found, **named)
