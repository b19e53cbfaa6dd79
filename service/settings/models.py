"""What is configured by model: prices and habits of caches, settings of calls, who may be named."""

import json
import re
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.domain.prompting.flows import Purpose
from service.domain.spend.prices import CacheFamily
from service.settings.profiles import MAX_TOKENS, Effort, ProfileOverride

_Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Whole = Annotated[int, Field(ge=0)]

#: Ends a name that stands for all that begin like it.
WILDCARD = "*"


class PriceOverride(BaseModel):
    """Prices and habits of one model, over what litellm's list says; None leaves it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: US dollars for a million input tokens at the full price.
    input_usd_per_million: _Ratio | None = None
    #: To the input price: tokens read from the cache, written to it, and of the reply.
    read: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    write: _Ratio | None = None
    output: _Ratio | None = None
    #: Reuse ends at a multiple of this many tokens.
    granularity_tokens: Annotated[int, Field(ge=1)] | None = None
    #: Prefixes with fewer tokens are not kept.
    min_tokens: _Whole | None = None
    #: How long a prefix stays warm without being used.
    ttl_seconds: Annotated[int, Field(ge=1)] | None = None
    #: "explicit", "keyed" or "plain".
    family: CacheFamily | None = None
    #: Marks that a prompt may carry.
    max_marks: Annotated[int, Field(ge=0, le=4)] | None = None

    @property
    def is_priced(self) -> bool:
        """Whether it says what a call costs, so that litellm's prices do not count."""
        return not (
            self.input_usd_per_million is None
            and self.read is None
            and self.write is None
            and self.output is None
        )


#: What a request's body says already, and settings may not say otherwise.
RESERVED = frozenset(
    {
        "model",
        "messages",
        "n",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "response_format",
        "prompt_cache_key",
        "prompt_cache_options",
        "api_base",
        "api_key",
        "timeout",
        "num_retries",
        "max_retries",
        "caching",
        "drop_params",
        "mock_response",
    }
)


def _unreserved(body: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(RESERVED.intersection(body)):
        raise PydanticCustomError("reserved", "{name} is not to be set", {"name": taken[0]})
    return body


_Extra = Annotated[dict[str, Any], AfterValidator(_unreserved)]


class CallSetting(BaseModel):
    """What else calls are asked with; None leaves it to the provider."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Where a provider takes one, the same prompt gets about the same reply.
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    #: How freely it writes; 0 is least.
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    #: It chooses among the likeliest tokens that together have this probability.
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    #: How much it thinks before it replies.
    reasoning_effort: Effort | None = None
    #: Tokens of the reply, thinking included, in place of the bound of the call's purpose.
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    #: Fields of the provider's own, which go where it takes them.
    extra: _Extra | None = None
    #: The same, by its older name.
    extra_body: _Extra | None = None

    @model_validator(mode="after")
    def _has_one_extra(self) -> Self:
        if self.extra is not None and self.extra_body is not None:
            said = "extra is the newer name of extra_body: give one of them"
            raise PydanticCustomError("extra", "{said}", {"said": said})
        return self


def _not_embed(purpose: Purpose) -> Purpose:
    if purpose is Purpose.EMBED:
        said = "embed is no call that is asked with a prompt"
        raise PydanticCustomError("purpose", "{said}", {"said": said})
    return purpose


class ModelSetting(CallSetting):
    """What else one model is asked with, and how it differs by purpose."""

    #: How long Anthropic's cache keeps a prefix: writing it costs twice the price for an hour.
    cache_ttl: Literal["5m", "1h"] | None = None
    #: By the purpose of a call, over what stands above.
    purposes: dict[Annotated[Purpose, AfterValidator(_not_embed)], CallSetting] = Field(
        default_factory=dict
    )


def matching(settings: dict[str, Any], model: str) -> Any:
    """Returns the settings of a model, by its name, else by the longest beginning, else None."""
    if model in settings:
        return settings[model]
    begun = [name for name in settings if _begins(model, name)]
    return settings[max(begun, key=len)] if begun else None


def _begins(model: str, name: str) -> bool:
    return name.endswith(WILDCARD) and model.startswith(name.removesuffix(WILDCARD))


def _read(value: Any, adapter: TypeAdapter[Any], name: str) -> Any:
    """Returns settings by model, from JSON or values. Raises PydanticCustomError."""
    # An empty variable is as one that is not set, as with deployments.
    if isinstance(value, str) and not value.strip():
        return {}
    try:
        said = json.loads(value, parse_constant=_refuse) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        raise wrong(name, "is no JSON object from models to settings") from None
    if not isinstance(said, dict):
        raise wrong(name, "is no JSON object from models to settings")
    try:
        return adapter.validate_python(said)
    except ValidationError as error:
        first = error.errors()[0]
        model, *fields = (str(part) for part in first["loc"] if part != "[key]")
        at = f"{model}: {'.'.join(fields)}: " if fields else f"{model}: "
        said = first["msg"]
        if first["type"] == "extra_forbidden":
            known = CallSetting if "purposes" in fields[:-1] else _FIELDS[name]
            said = f"there is no such setting; there are {', '.join(known.model_fields)}"
        raise wrong(name, at + said) from None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def wrong(name: str, said: str) -> PydanticCustomError:
    """Returns the error of a setting."""
    # As a value: what is said may hold the braces of a template.
    return PydanticCustomError(name, "{said}", {"said": said})


_SETTINGS: TypeAdapter[dict[str, ModelSetting]] = TypeAdapter(dict[str, ModelSetting])
_PRICES: TypeAdapter[dict[str, PriceOverride]] = TypeAdapter(dict[str, PriceOverride])
_PROFILES: TypeAdapter[dict[str, ProfileOverride]] = TypeAdapter(dict[str, ProfileOverride])
#: What each setting has for a model.
_FIELDS: dict[str, type[BaseModel]] = {
    "model_settings": ModelSetting,
    "model_prices": PriceOverride,
    "model_profiles": ProfileOverride,
}


#: Names and patterns of models that are configured by `PALIMPSEST_MODELS`.
MAX_PATTERNS = 256
#: The provider is written out: a `*` there would allow whatever litellm reaches by itself.
_PATTERN = re.compile(r"[A-Za-z0-9_.-]+/\S{1,200}")


def checked_model(name: str) -> str:
    """Returns the name of a model as it is. Raises PydanticCustomError for a URL or a blank."""
    # litellm takes an address out of some names, and calls it.
    if "://" in name or " " in name or not name.isprintable():
        said = "is no name of a model: give its address as a base URL or a deployment's api_base"
        raise PydanticCustomError("model", said)
    return name


_URL = re.compile(r"https?://(\[[^\s\[\]/@]+\]|[^\s\[\]:/@]+)(:\d{1,5})?(/\S*)?")


def checked_url(url: str) -> str:
    """Returns the URL of an endpoint, which is shown as it is. Raises PydanticCustomError for what
    is none, or might hold a password or a key."""
    # What was given is not said: it may be the key.
    if "?" in url or "#" in url or "@" in url.partition("://")[2].partition("/")[0]:
        said = "has a login, a query or a fragment: give the URL alone, and its key as the API key"
        raise PydanticCustomError("base_url", said)
    if not _URL.fullmatch(url):
        said = "is no URL of an endpoint: give one such as http://localhost:8080/v1"
        raise PydanticCustomError("base_url", said)
    return url


def checked_key(key: SecretStr) -> SecretStr:
    """Returns a key without the blanks around it. Raises PydanticCustomError for what is blank,
    or cannot be sent."""
    text = key.get_secret_value().strip()
    if not text:
        raise PydanticCustomError("key", "is blank: give the key, or leave the setting out")
    if not (text.isascii() and text.isprintable()):
        said = "has a line break or another character that no key has: give the key alone"
        raise PydanticCustomError("key", said)
    return SecretStr(text)


def _read_patterns(value: Any) -> tuple[str, ...]:
    """Returns patterns from a text with commas or blanks between them, or from values."""
    found = re.split(r"[\s,]+", value.strip(" \t\n,")) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(one, str) for one in found):
        raise wrong("models", "is neither a text nor a list of texts")
    # An empty variable is as one that names none.
    found = () if found == [""] else tuple(found)
    if len(found) > MAX_PATTERNS:
        raise wrong("models", f"has {len(found)} patterns; at most {MAX_PATTERNS} are taken")
    for one in found:
        if not _PATTERN.fullmatch(one):
            said = f"{one[:200]!r} is not PROVIDER/NAME, with * for any part of NAME alone"
            raise wrong("models", said)
        checked_model(one)
    return found


ModelPriceOverrides = Annotated[
    dict[str, PriceOverride],
    PlainValidator(partial(_read, adapter=_PRICES, name="model_prices")),
]
ModelSettings = Annotated[
    dict[str, ModelSetting],
    PlainValidator(partial(_read, adapter=_SETTINGS, name="model_settings")),
]
ModelProfiles = Annotated[
    dict[str, ProfileOverride],
    PlainValidator(partial(_read, adapter=_PROFILES, name="model_profiles")),
]
#: An empty variable is as one that is not set.
BaseUrl = Annotated[str, AfterValidator(lambda url: url and checked_url(url))]
OptionalKey = Annotated[
    SecretStr | None, AfterValidator(lambda key: checked_key(key) if key else None)
]
ModelName = Annotated[str, AfterValidator(checked_model)]
ModelPatterns = Annotated[tuple[str, ...], PlainValidator(_read_patterns)]
