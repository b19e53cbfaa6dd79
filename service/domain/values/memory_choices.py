"""What memories of every kind let their owner choose."""

from enum import StrEnum


class ReplyFormat(StrEnum):
    """How the model writes its replies."""

    #: Structured where the model is known to offer it.
    AUTO = "auto"
    #: The method's own form.
    TEXT = "text"
    #: One JSON object, held to a JSON schema by the provider.
    STRUCTURED = "structured"


class OnFailure(StrEnum):
    """What follows when a step has failed for good."""

    STALL = "stall"
    SKIP = "skip"
