"""What a verification reports."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A stored value that does not follow from the log and the amendments."""

    #: What kind of thing differs, in two words with a dot: "chunk.digest".
    name: str
    #: Where: a position, a revision, a node …
    place: str
    #: In a sentence without a full stop.
    said: str
