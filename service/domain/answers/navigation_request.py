"""How a question wants a memory of levels navigated."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Model calls that a navigation may cost when the question does not say.
DEFAULT_CALLS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class NavigationRequest:
    """What a question may say besides its words."""

    #: The answer is one of these, word for word; empty when it is free. At most 26.
    options: tuple[str, ...] = ()
    #: Begin with so many leaves that retrieval names; 0 to 32.
    hybrid_leaves: int = 0
    #: Nodes that are explored at once; 1 to 8.
    beam: int = 1
    #: Model calls that it may cost; 1 to 1,000.
    max_calls: int = DEFAULT_CALLS

    def to_json(self) -> dict[str, Any]:
        """Returns the request as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "NavigationRequest":
        """Returns the request from `to_json`."""
        return cls(**{**value, "options": tuple(value["options"])})
