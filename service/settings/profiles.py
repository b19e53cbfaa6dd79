"""What is configured of how models are asked (`PALIMPSEST_MODEL_PROFILES`)."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Tokens that a reply may be allowed, at most.
MAX_TOKENS = 1_000_000


class SchemaMode(StrEnum):
    """How a model is held to the schema of a reply."""

    #: Not at all: the prompt alone says what the reply looks like.
    NONE = "none"
    #: It is asked for some JSON object.
    JSON_OBJECT = "json_object"
    #: It gets the schema, and its provider does what it can.
    JSON_SCHEMA = "json_schema"
    #: It gets the schema with `strict`, and cannot write anything else.
    STRICT = "strict"
    #: It gets the schema as a tool that it has to call.
    TOOL = "tool"


class Effort(StrEnum):
    """How much a model thinks before it replies, from least to most."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"

    @property
    def rank(self) -> int:
        """Its place among all of them, from 0."""
        return list(Effort).index(self)


class Sampling(StrEnum):
    """When a model takes temperature and top_p."""

    ALWAYS = "always"
    #: Only while it does not think.
    UNTHINKING = "unthinking"
    NEVER = "never"


class Extras(StrEnum):
    """Where fields belong that only the provider knows."""

    #: In the request's body (`extra_body` of litellm).
    BODY = "body"
    #: Among litellm's own arguments, whose adapter puts them where they belong.
    ARGUMENTS = "arguments"


class ProfileOverride(BaseModel):
    """How one model is asked, over what the tables say; None leaves it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The model whose profile this one begins with, as provider/name.
    like: Annotated[str, Field(pattern=r"^[^/\s]+/\S+$", max_length=200)] | None = None
    structured: SchemaMode | None = None
    #: Whether it takes any JSON Schema; else only those whose objects are closed.
    any_schema: bool | None = None
    #: The levels of `reasoning_effort` that it takes; empty: it has no such parameter.
    effort_levels: tuple[Effort, ...] | None = None
    #: How much it thinks when nothing is said; "none": not at all.
    default_effort: Effort | None = None
    #: Tokens for thinking, besides those for the reply, whatever the effort.
    headroom_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    sampling: Sampling | None = None
    #: Whether instructions go into a system message.
    system: bool | None = None
    extras: Extras | None = None
    #: The name of the bound on a reply's tokens.
    bound: Literal["max_tokens", "max_completion_tokens"] | None = None
    #: Parameters that it refuses, and that are left out.
    refuses: tuple[Literal["seed", "temperature", "top_p"], ...] | None = None
    #: Whether its replies may be streamed.
    streams: bool | None = None
    #: The longest reply, thinking included.
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    #: Tokens of a prompt and its reply together.
    window_tokens: Annotated[int, Field(ge=1)] | None = None
