"""The bound of a model call, as far as it is known before the call."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CallBound:
    """The most that a call may cost, as far as it is known before it."""

    #: Prompt and reply together.
    tokens: int
    #: None when the model has no price.
    micro_usd: int | None
    #: As in `Call`.
    key: bytes = b""
