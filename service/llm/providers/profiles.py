"""Describes how to call each model, and what it refuses.

Profiles come from litellm's list where that is right, else from our own rules by provider and
family of models, reviewed against litellm 1.106.2's adapters and the providers' documents of
November 2026. Unknown properties are assumed such that a call still works.
`PALIMPSEST_MODEL_PROFILES` overrides both.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from service.llm.providers.model_map import (
    KNOWN_MODELS,
    MapEntry,
    Served,
    entry_of,
    keeps_to_schemas,
    provider_of,
)
from service.settings.config import Config
from service.settings.models import matching
from service.settings.profiles import Effort, Extras, ProfileOverride, Sampling, SchemaMode

#: Tokens for thinking, in addition to the reply's. OpenAI advises 25,000 at first; Anthropic's
#: budgets, as litellm sets them, are 1,024 (low) to 4,096.
HEADROOM_TOKENS = {
    Effort.NONE: 0,
    Effort.MINIMAL: 2_048,
    Effort.LOW: 4_096,
    Effort.MEDIUM: 16_384,
    Effort.HIGH: 32_768,
    Effort.XHIGH: 65_536,
    Effort.MAX: 65_536,
}
#: The budgets that litellm sends to a Claude that thinks by budgets. Anthropic refuses a bound of
#: the reply that is not above them.
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
    """How one model is called."""

    #: How the schema of a reply is enforced.
    structured: SchemaMode = SchemaMode.NONE
    #: Whether it takes any JSON Schema; else only those with closed objects.
    any_schema: bool = True
    #: Whether it can be asked for any JSON object if it refuses a schema.
    json_object: bool = True
    #: The levels of `reasoning_effort` that it takes.
    effort_levels: tuple[Effort, ...] = ()
    #: How much it thinks by default.
    default_effort: Effort = Effort.NONE
    #: Whether the level goes into the body, as litellm refuses it for models that it does not know.
    #: Else it is litellm's argument, which its adapters translate.
    effort_in_body: bool = False
    #: Whether it thinks by a budget of tokens, which the bound of its reply has to exceed.
    has_budget: bool = False
    #: Whether thinking is switched off by Anthropic's own parameter.
    off_by_thinking: bool = False
    #: Tokens for thinking at any effort; None: by the effort.
    headroom_tokens: int | None = None
    sampling: Sampling = Sampling.ALWAYS
    #: Whether instructions go into a system message.
    system: bool = True
    extras: Extras = Extras.BODY
    #: The name of the bound on a reply's tokens. litellm translates it for most providers.
    bound: str = "max_tokens"
    #: Parameters that it refuses.
    refuses: frozenset[str] = frozenset()
    #: Whether a seed goes into the body, under Mistral's name: otherwise litellm loses it.
    seed_in_body: bool = False
    #: Whether its replies may be streamed.
    streams: bool = True
    #: The longest reply, thinking included, if known.
    max_output_tokens: int | None = None
    #: Tokens of a prompt and its reply together.
    window_tokens: int

    def headroom(self, effort: Effort) -> int:
        """Returns the tokens for thinking at this effort: at most half the window."""
        wanted = HEADROOM_TOKENS[effort]
        if effort is not Effort.NONE and self.headroom_tokens is not None:
            wanted = self.headroom_tokens
        return min(wanted, self.window_tokens // 2)


class Profiles:
    """Keeps the profiles of the models that one process calls."""

    def __init__(self, config: Config) -> None:
        self._overrides = config.model_profiles
        self._window_tokens = config.model_window_tokens
        self._has_schemas = config.model_structured_output
        self._own_url = bool(config.model_base_url)
        self._served = Served(config)
        #: Returns the profile of a model, by provider/name. Reads litellm's list the first time.
        self.of: Callable[[str], Profile] = lru_cache(KNOWN_MODELS)(self._find)

    def _find(self, model: str) -> Profile:
        override: ProfileOverride | None = matching(self._overrides, model)
        served = self._served.name(model)
        like = (override.like if override else None) or served
        # The list has Ollama's models under the older route only.
        entry = entry_of(like) or entry_of(like.replace("ollama_chat/", "ollama/", 1))
        if entry is None and like == served:
            # The model's name may be known if its deployment's or OpenRouter's is not.
            entry = entry_of(model) or entry_of(served.removeprefix("openrouter/"))
        found = _profile(provider_of(served), like, entry, window_tokens=self._window_tokens)
        if self._served.is_own(model) and not (override and override.like):
            # A model of this name at an endpoint of one's own need not be OpenAI's.
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
    """Returns the profile of a model by its provider, and its name there."""
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
    """Adds what is true of a model at every provider."""
    if found := _CLAUDE.search(name):
        return _claude(base, name, (int(found[1]), int(found[2] or 0)), entry)
    if _O_SERIES.search(name):
        # litellm would turn a system message into a second user message. Sampling parameters raise
        # before anything is sent.
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
    # The first chat variant does not think, whatever the list says.
    if version < (5, 0) or "gpt-5-chat" in name:
        return base
    efforts = entry.efforts if entry else {}
    has_none = efforts.get("none")
    has_minimal = efforts.get("minimal")
    levels = (
        # gpt-5 takes "minimal" and not "none"; later versions take "none" and not "minimal".
        *((Effort.NONE,) if (version > (5, 0) if has_none is None else has_none) else ()),
        *((Effort.MINIMAL,) if (version == (5, 0) if has_minimal is None else has_minimal) else ()),
        *_LEVELS,
        *((Effort.XHIGH,) if efforts.get("xhigh") else ()),
    )
    # 5.1, 5.2 and 5.4 do not think by default; while they think they take no temperature.
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
        # Its objects are always closed: a free dict could only be {}.
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
    # Opus 5.5, Sonnet 5.5 and Fable always think.
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
        # Thinking is never off: litellm turns "none" into "low".
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


#: Providers that take a level of effort in the body.
_PASS_EFFORT = frozenset(
    {"openai", "azure", "azure_ai", "xai", "together_ai", "hosted_vllm", "openrouter", "groq"}
)


def _at_provider(found: Profile, provider: str, name: str, entry: MapEntry | None) -> Profile:
    """Adds what is true of a model at its provider."""
    is_claude = "claude" in name
    if provider in _PASS_EFFORT and not (is_claude and provider == "azure_ai"):
        found = replace(found, effort_in_body=True, extras=Extras.BODY)
    match provider:
        case "azure" if found.effort_levels:
            # litellm mistakes a deployment's name for the model's, and would send max_tokens.
            return replace(found, bound="max_completion_tokens")
        case "azure":
            unlisted = entry is None and found.structured is SchemaMode.NONE
            return replace(found, structured=SchemaMode.STRICT if unlisted else found.structured)
        case "anthropic" | "vertex_ai" | "azure_ai" if is_claude:
            # For an unlisted one litellm would force a tool, which the newest models refuse.
            held = SchemaMode.NONE if entry is None else SchemaMode.TOOL
            if entry is not None and entry.native_schemas and provider == "anthropic":
                held = SchemaMode.STRICT
            return replace(found, structured=held)
        case "bedrock":
            return _at_bedrock(found, name, entry)
        case "deepseek":
            # The list says json_schema, which its API refuses with a 400. Thinking is either off or
            # high.
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
            # Its names may be missing in the list. Routes may ignore a schema.
            is_strict = found.structured is SchemaMode.STRICT
            held = SchemaMode.STRICT if is_strict else SchemaMode.JSON_SCHEMA
            return replace(found, structured=held, json_object=True)
    return found


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
        # For any level litellm would add a prompt of its own.
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
