"""Defines what the prefix index is asked, and what is reported to it.

A boundary is the end of a segment of a prompt; its id stands for everything before it.
A deployment is one endpoint of a model: what keeps a cache of its own.
"""

from dataclasses import dataclass

#: Bytes of a boundary's id. A collision misleads a prediction, nothing else.
ID_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundary:
    """A boundary that a deployment was sent."""

    #: Segments up to here; 1 or more.
    depth: int
    #: Tokens up to here, as they were counted when it was sent.
    tokens: int
    #: When it was sent last, in whole Unix seconds.
    touched: int
    #: Whether the tokens are what the provider said it found up to here, not an estimate.
    exact: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedPrefix:
    """What one deployment has of a prompt."""

    #: The deepest boundary within its time to live; None when there is none.
    fresh: Boundary | None = None
    #: The deepest boundary of any age: it may have outlived its time.
    deepest: Boundary | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixQuery:
    """What is warm of a prompt, and what else one lookup found."""

    #: Key of the memory, or of the session for calls that no memory makes.
    memory_key: str
    #: Key of the first segment, which memories with the same task and schema share.
    group_key: str
    #: The boundaries' ids, from the first on.
    ids: tuple[bytes, ...]
    #: Names of the deployments that can be chosen; one or more.
    deployments: tuple[str, ...]
    #: Unix seconds.
    now: float
    #: How long a prefix stays warm without being used.
    ttl_seconds: int
    #: Whether to say how much is queued at each deployment.
    with_load: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """The answer to a question."""

    #: False when the index could not be asked: the rest is then as if nothing was known.
    known: bool
    #: In the order of the question's deployments.
    cached: tuple[CachedPrefix, ...]
    #: Tokens of prompts under way at each deployment; zeros when not asked for.
    queued_tokens: tuple[int, ...]

    @classmethod
    def nothing(cls, question: PrefixQuery) -> "Seen":
        """Returns the answer of an index that cannot be asked."""
        count = len(question.deployments)
        return cls(known=False, cached=(CachedPrefix(),) * count, queued_tokens=(0,) * count)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixSurvival:
    """Whether a prefix that should have been warm was."""

    #: Its age when it was asked for: a bucket of `service.llm.prefix_cache.cache`.
    bucket: int
    survived: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A prompt that a deployment has answered."""

    memory_key: str
    group_key: str
    #: Id and tokens of each boundary that the deployment keeps, from the first on.
    boundaries: tuple[tuple[bytes, int], ...]
    #: Whether the first of them is the group's: the end of the first segment.
    with_group: bool
    #: Id of the boundary whose tokens are what the provider said; None when none's are.
    exact: bytes | None = None
    deployment: str
    #: Unix seconds.
    now: float
    ttl_seconds: int
    #: What was learned about the deployment's cache; None when nothing was.
    outcome: PrefixSurvival | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """The reusable part of a prompt."""

    #: Key of the memory, or of the session for calls that no memory makes; what its own
    #: segments are kept under.
    memory_key: str
    #: Key of the task and schema; memories with the same share the first segment.
    group_key: str
    #: Ids of the reusable segments, from the first on.
    ids: tuple[bytes, ...]
    #: Estimate of the tokens up to the end of each.
    tokens: tuple[int, ...]
