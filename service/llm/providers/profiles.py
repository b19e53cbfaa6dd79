"""Describes how to ask each model, and what it refuses.

What litellm's list says of a model counts where it is right. The rest is a table of ours, by
provider and family of models, reviewed against litellm 1.106.2's own adapters and the
providers' documents of November 2026; what is not known of a model is taken so that a call
still works. `PALIMPSEST_MODEL_PROFILES` wins over both.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from service.llm.providers.model_map import (
    KNOWN_MODELS,
    MapEntry,
    entry_of,
    keeps_to_schemas,
    provider_of,
)
from service.llm.providers.served import Served
from service.settings.config import Config
from service.settings.models import matching
from service.settings.profiles import Effort, Extras, ProfileOverride, Sampling, SchemaMode

#: Tokens for thinking, besides those for the reply. OpenAI advises 25,000 to begin with;
#: Anthropic's budgets, as litellm sets them, are at most 4,096 (and 1,024 at low).
HEADROOM_TOKENS = {
    Effort.NONE: 0,
    Effort.MINIMAL: 2_048,
    Effort.LOW: 4_096,
    Effort.MEDIUM: 16_384,
    Effort.HIGH: 32_768,
    Effort.XHIGH: 65_536,
    Effort.MAX: 65_536,
}
#: What litellm sends as the budget of a Claude that thinks by budgets; the bound of the reply
#: has to be above it, or Anthropic refuses the request.
BUDGET_TOKENS = {
    Effort.MINIMAL: 1_024,
    Effort.LOW: 1_024,
    Effort.MEDIUM: 2_048,
    Effort.HIGH: 4_096,
    Effort.XHIGH: 8_192,
    Effort.MAX: 16_384,
}
_LEVELS = (Effort.LOW, Effort.MEDIUM, Effort.HIGH)


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """How one model is asked."""

    #: How it is held to the schema of a reply.
    structured: SchemaMode = SchemaMode.NONE
    #: Whether it takes any JSON Schema; else only those whose objects are closed.
    any_schema: bool = True
    #: Whether it can be asked for some JSON object, where it refuses a schema.
    json_object: bool = True
    #: The levels of `reasoning_effort` that it takes.
    effort_levels: tuple[Effort, ...] = ()
    #: How much it thinks when nothing is said.
    default_effort: Effort = Effort.NONE
    #: Whether the level goes into the body as it is: litellm refuses it for models that it
    #: does not know. Else it is litellm's argument, which its adapters translate.
    effort_in_body: bool = False
    #: Whether it thinks by a budget of tokens, which the bound of its reply has to pass.
    has_budget: bool = False
    #: Whether thinking is switched off by Anthropic's own parameter.
    off_by_thinking: bool = False
    #: Tokens for thinking whatever the effort; None: by the effort.
    headroom_tokens: int | None = None
    sampling: Sampling = Sampling.ALWAYS
    #: Whether instructions go into a system message.
    system: bool = True
    extras: Extras = Extras.BODY
    #: The name of the bound on a reply's tokens. litellm writes it as most providers want it.
    bound: str = "max_tokens"
    #: Parameters that it refuses.
    refuses: frozenset[str] = frozenset()
    #: Whether a seed goes into the body, under Mistral's name: litellm loses it otherwise.
    seed_in_body: bool = False
    #: Whether its replies may be streamed.
    streams: bool = True
    #: The longest reply, thinking included; None when not known.
    max_output_tokens: int | None = None
    #: Tokens of a prompt and its reply together.
    window_tokens: int

    def headroom(self, effort: Effort) -> int:
        """Tokens for thinking at this effort: half the window at most."""
        wanted = HEADROOM_TOKENS[effort]
        if effort is not Effort.NONE and self.headroom_tokens is not None:
            wanted = self.headroom_tokens
        return min(wanted, self.window_tokens // 2)


class Profiles:
    """The profiles of every model that one process asks."""

    def __init__(self, config: Config) -> None:
        self._overrides = config.model_profiles
        self._window_tokens = config.model_window_tokens
        self._has_schemas = config.model_structured_output
        self._own_url = bool(config.model_base_url)
        self._served = Served(config)
        #: The profile of a model, by provider/name. The first time it reads litellm's list.
        self.of: Callable[[str], Profile] = lru_cache(KNOWN_MODELS)(self._find)

    def _find(self, model: str) -> Profile:
        override: ProfileOverride | None = matching(self._overrides, model)
        served = self._served.name(model)
        like = (override.like if override else None) or served
        # The list has the models of one Ollama under its older route alone.
        entry = entry_of(like) or entry_of(like.replace("ollama_chat/", "ollama/", 1))
        if entry is None and like == served:
            # A deployment's name says less than the model's, and OpenRouter passes models on.
            entry = entry_of(model) or entry_of(served.removeprefix("openrouter/"))
        found = _profile(provider_of(served), like, entry, window_tokens=self._window_tokens)
        if self._served.is_own(model) and not (override and override.like):
            # A list knows OpenAI's models, not what an endpoint of one's own calls so.
            is_held = self._own_url and self._has_schemas
            held = SchemaMode.JSON_SCHEMA if is_held else found.structured
            if not (is_held or keeps_to_schemas(model)):
                held = SchemaMode.NONE
            found = replace(found, structured=held, effort_in_body=True)
        return found if override is None else _overridden(found, override)


def _overridden(found: Profile, over: ProfileOverride) -> Profile:
    named = over.model_dump(exclude_none=True, exclude={"like", "refuses"})
    if over.refuses is not None:
        named["refuses"] = frozenset(over.refuses)
    if over.structured is SchemaMode.JSON_OBJECT:
        named["json_object"] = True
    return replace(found, **named)


def _profile(provider: str, name: str, entry: MapEntry | None, *, window_tokens: int) -> Profile:
    """The profile of a model by what its provider is, and by its name there."""
    name = name.lower()
    base = Profile(
        structured=SchemaMode.JSON_SCHEMA if keeps_to_schemas(name) else SchemaMode.NONE,
        max_output_tokens=entry.output_tokens if entry else None,
        window_tokens=(entry.window_tokens if entry else None) or window_tokens,
    )
    found = _by_family(base, name, entry)
    return _at_provider(found, provider, name, entry)


#: gpt-5, gpt-5.1-chat-latest, gpt-6-sol; not gpt-oss.
_GPT = re.compile(r"(?:^|[/.])gpt-(\d+)(?:\.(\d+))?(o?)")
#: o1, o3-mini, o4-mini.
_O_SERIES = re.compile(r"(?:^|[/.])o\d(?:-|$)")
#: claude-sonnet-4-5-20250929, claude-sonnet-4.5, claude-opus-5, claude-3-7-sonnet.
_CLAUDE = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2}))?(?!\d)")
_GEMINI = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
#: Open models that think before they reply, wherever they are served.
_THINKERS = re.compile(
    r"deepseek[-.](?:r1|reasoner|v4|flash)|qwq|magistral|qwen-?3(?!.*(?:instruct|coder|vl))"
    r"|thinking|(?<!non-)reasoning"
)


def _by_family(base: Profile, name: str, entry: MapEntry | None) -> Profile:
    """What holds of a model wherever it is served."""
    if found := _CLAUDE.search(name):
        return _claude(base, name, (int(found[1]), int(found[2] or 0)), entry)
    if _O_SERIES.search(name):
        # litellm makes a user's message of a system's; ours is that from the beginning, in one
        # piece. Sampling parameters raise before anything is sent.
        return replace(
            base,
            structured=SchemaMode.STRICT,
            effort_levels=_LEVELS,
            default_effort=Effort.MEDIUM,
            sampling=Sampling.NEVER,
            system=False,
        )
    if found := _GPT.search(name):
        return _gpt(base, name, (int(found[1]), int(found[2] or 0)), entry)
    if found := _GEMINI.search(name):
        return _gemini(base, name, (int(found[1]), int(found[2] or 0)))
    if "gpt-oss" in name:
        return replace(base, effort_levels=_LEVELS, default_effort=Effort.MEDIUM)
    if "grok" in name:
        return _grok(base, name, entry)
    if _THINKERS.search(name):
        return replace(base, default_effort=Effort.MEDIUM)
    return base


def _gpt(base: Profile, name: str, version: tuple[int, int], entry: MapEntry | None) -> Profile:
    if version < (4, 0) or (version[0] == 4 and entry is not None and not entry.structured):
        return replace(base, structured=SchemaMode.NONE)
    base = replace(base, structured=SchemaMode.STRICT)
    # The first chat variant does not think, whatever the list says; litellm knows it, too.
    if version < (5, 0) or "gpt-5-chat" in name:
        return base
    efforts = entry.efforts if entry else {}
    has_none = efforts.get("none")
    has_minimal = efforts.get("minimal")
    levels = (
        # gpt-5 takes "minimal" and no "none", from 5.1 on it is the other way round.
        *((Effort.NONE,) if (version > (5, 0) if has_none is None else has_none) else ()),
        *((Effort.MINIMAL,) if (version == (5, 0) if has_minimal is None else has_minimal) else ()),
        *_LEVELS,
        *((Effort.XHIGH,) if efforts.get("xhigh") else ()),
    )
    # 5.1, 5.2 and 5.4 think only when asked to; then they take no temperature.
    is_silent = bool(entry) and entry.default_effort == "none"  # type: ignore[union-attr]
    return replace(
        base,
        effort_levels=levels,
        default_effort=Effort.NONE if is_silent else Effort.MEDIUM,
        sampling=Sampling.UNTHINKING if is_silent else Sampling.NEVER,
    )


def _claude(base: Profile, name: str, version: tuple[int, int], entry: MapEntry | None) -> Profile:
    base = replace(
        base,
        # Its objects are closed for it: a free dict could only be {}.
        any_schema=False,
        json_object=False,
        refuses=frozenset({"seed"}),
        extras=Extras.ARGUMENTS,
    )
    if version < (3, 7):
        return base
    if version <= (4, 5):
        return replace(
            base,
            effort_levels=(Effort.NONE, *_LEVELS),
            has_budget=True,
            sampling=Sampling.UNTHINKING,
        )
    efforts = entry.efforts if entry else {}
    more = tuple(one for one in (Effort.XHIGH, Effort.MAX) if efforts.get(one.value))
    thinks = version >= (5, 0)
    # Of those that think by default some cannot be asked not to: Opus 5.5, Sonnet 5.5, Fable.
    is_bound = entry.always_reasons if entry else thinks
    refuses_sampling = version >= (4, 7) if entry is None else entry.samples is False
    return replace(
        base,
        effort_levels=(*(() if is_bound else (Effort.NONE,)), *_LEVELS, *more),
        default_effort=Effort.HIGH if thinks else Effort.NONE,
        off_by_thinking=True,
        sampling=Sampling.NEVER if refuses_sampling else Sampling.UNTHINKING,
    )


def _gemini(base: Profile, name: str, version: tuple[int, int]) -> Profile:
    base = replace(base, structured=SchemaMode.JSON_SCHEMA)
    if version >= (3, 0):
        # It is never off: litellm makes "low" of "none".
        levels = (Effort.MINIMAL, *_LEVELS)
        return replace(base, effort_levels=levels, default_effort=Effort.HIGH)
    if version < (2, 5):
        return base
    if "lite" in name:
        return replace(base, effort_levels=(Effort.NONE, *_LEVELS))
    # Pro refuses a budget of 0.
    off = () if "pro" in name else (Effort.NONE,)
    return replace(base, effort_levels=(*off, *_LEVELS), default_effort=Effort.MEDIUM)


def _grok(base: Profile, name: str, entry: MapEntry | None) -> Profile:
    base = replace(base, structured=SchemaMode.JSON_SCHEMA)
    if "non-reasoning" in name or not re.search(r"grok-(?:[4-9]|code|3-mini)", name):
        return base
    takes = "grok-3-mini" in name or (entry is not None and entry.reasons)
    return replace(
        base,
        effort_levels=(Effort.LOW, Effort.HIGH) if takes else (),
        default_effort=Effort.MEDIUM,
    )


#: Providers that pass a level of effort on as it stands in the body.
_PASS_EFFORT = frozenset(
    {"openai", "azure", "azure_ai", "xai", "together_ai", "hosted_vllm", "openrouter", "groq"}
)


def _at_provider(found: Profile, provider: str, name: str, entry: MapEntry | None) -> Profile:
    """What the provider makes of a model."""
    is_claude = "claude" in name
    if provider in _PASS_EFFORT and not (is_claude and provider == "azure_ai"):
        found = replace(found, effort_in_body=True, extras=Extras.BODY)
    match provider:
        case "azure" if found.effort_levels:
            # litellm takes a deployment's name for the model's, and would send max_tokens.
            return replace(found, bound="max_completion_tokens")
        case "azure":
            unlisted = entry is None and found.structured is SchemaMode.NONE
            return replace(found, structured=SchemaMode.STRICT if unlisted else found.structured)
        case "anthropic" | "vertex_ai" | "azure_ai" if is_claude:
            return replace(found, structured=_of_claude(provider, entry))
        case "bedrock":
            return _at_bedrock(found, name, entry)
        case "deepseek":
            # The list says json_schema; its API answers that with a 400.
            # Thinking is on or off; where it is on unasked, it is high.
            thinks = found.default_effort is not Effort.NONE
            return replace(
                found,
                structured=SchemaMode.JSON_OBJECT,
                effort_levels=(Effort.NONE, Effort.HIGH),
                default_effort=Effort.HIGH if thinks else Effort.NONE,
            )
        case "mistral":
            return _at_mistral(found, name, entry)
        case "groq":
            return _at_groq(found, name, entry)
        case "ollama" | "ollama_chat":
            return replace(
                found,
                structured=SchemaMode.JSON_SCHEMA,
                extras=Extras.ARGUMENTS,
                effort_levels=found.effort_levels or (Effort.NONE, *_LEVELS),
            )
        case "hosted_vllm" | "openrouter" | "xai":
            # None of its names need be in the list. Routes may ignore a schema.
            held = (
                found.structured
                if found.structured is SchemaMode.STRICT
                else SchemaMode.JSON_SCHEMA
            )
            return replace(found, structured=held, json_object=True)
    return found


def _of_claude(provider: str, entry: MapEntry | None) -> SchemaMode:
    if entry is None:
        # litellm would force a tool, which the newest models refuse.
        return SchemaMode.NONE
    return (
        SchemaMode.STRICT if entry.native_schemas and provider == "anthropic" else SchemaMode.TOOL
    )


def _at_bedrock(found: Profile, name: str, entry: MapEntry | None) -> Profile:
    found = replace(
        found,
        extras=Extras.ARGUMENTS,
        refuses=frozenset({"seed"}),
        json_object=False,
        any_schema=False,
    )
    if entry is not None and entry.native_schemas:
        return replace(found, structured=SchemaMode.STRICT)
    # A tool that is not forced returns prose: Opus and Sonnet 5.5, Llama, R1 (litellm#42717).
    is_forced = "nova" in name or ("claude" in name and not re.search(r"[a-z]-5-5", name))
    if is_forced and entry is not None:
        return replace(found, structured=SchemaMode.TOOL)
    return replace(found, structured=SchemaMode.NONE)


def _at_mistral(found: Profile, name: str, entry: MapEntry | None) -> Profile:
    found = replace(found, structured=SchemaMode.STRICT, seed_in_body=True)
    if "magistral" in name:
        # For any level litellm adds a prompt of its own, which would change ours.
        return replace(found, effort_levels=())
    levels = tuple(Effort(one) for one in (entry and entry.effort_levels) or ())
    return replace(found, effort_levels=levels)


def _at_groq(found: Profile, name: str, entry: MapEntry | None) -> Profile:
    if "gpt-oss" in name:
        return replace(found, structured=SchemaMode.STRICT)
    if entry is not None and entry.structured:
        return found
    # litellm would force a tool, and stream.
    return replace(found, structured=SchemaMode.JSON_OBJECT)
